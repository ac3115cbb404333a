"""Measured data of aiconfigurator-core: units, choice of rows, provenance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.catalog import device
from understudy.errors import UnderstudyError
from understudy.forests.training import feature_columns
from understudy.profiling import measured_families, packaged, packaged_profiles
from warehouse import schemas


@pytest.fixture(scope="module")
def a100() -> dict[str, pa.Table]:
    return packaged_profiles(device("a100"))


def rows(table: pa.Table, family: str, dtype: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    mask = (table["family"].to_numpy() == family) & (table["dtype"].to_numpy() == dtype)
    chosen = table.filter(pa.array(mask))
    features = feature_columns(chosen["features"].combine_chunks())
    return features, chosen["duration_ns"].to_numpy().astype(float)


def test_tables_have_the_schemas_and_say_where_rows_are_from(a100: dict[str, pa.Table]) -> None:
    for name, table in a100.items():
        assert table.schema.equals(schemas.table(name).schema)
        assert set(table["licence"].to_pylist()) == {"Apache-2.0"}
        assert all(
            "aiconfigurator-core 0.12.0: a100_sxm/" in s for s in set(table["source"].to_pylist())
        )


def test_a_sparse_framework_is_passed_over(a100: dict[str, pa.Table]) -> None:
    """A100: vLLM has a quarter of SGLang's GEMM rows, and the only attention rows of its own."""
    sources = set(a100["kernel_profiles"]["source"].to_pylist())
    assert any("/gemm/sglang/" in s for s in sources)
    assert any("/attention/vllm/" in s for s in sources)


def test_gemm_durations_are_nanoseconds(a100: dict[str, pa.Table]) -> None:
    f, duration = rows(a100["kernel_profiles"], "gemm", "bfloat16")
    assert len(duration) == 35_742
    rate = 2 * f["m"] * f["n"] * f["k"] / duration * 1e9
    assert 0.5 < rate.max() / 312e12 < 1.0
    assert 1_000 < duration.min() < 10_000
    assert set(f["transpose_a"]) == {1} and set(f["transpose_b"]) == {0}


def test_attention_is_causal_and_below_the_peak(a100: dict[str, pa.Table]) -> None:
    f, duration = rows(a100["kernel_profiles"], "attention_forward", "bfloat16")
    pairs = f["seq_q"] * (f["seq_q"] + 1) / 2
    rate = 4 * f["batch"] * f["heads"] * f["head_dim"] * pairs / duration * 1e9
    assert 0.4 < rate.max() / 312e12 < 1.0
    assert set(f["causal"]) == {1}


def test_collective_sizes_are_bytes(a100: dict[str, pa.Table]) -> None:
    table = a100["collective_profiles"].to_pylist()
    assert {r["kind"] for r in table} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
    }
    assert {r["ranks"] for r in table} == {2, 4, 8}
    largest = max(r["size_bytes"] for r in table if r["dtype"] == "float16")
    assert largest == 512 * 2**20
    # Bus bandwidth of the largest all-reduce stays below the NVLink of A100.
    (best,) = [
        r for r in table
        if (r["kind"], r["ranks"], r["dtype"], r["size_bytes"])
        == ("all_reduce", 8, "float16", largest)
    ]  # fmt: skip
    assert 150 < 2 * 7 / 8 * largest / best["duration_ns"] < 300


def test_h100_has_float8_and_full_attention() -> None:
    table = packaged_profiles(device("h100"))["kernel_profiles"]
    f, _ = rows(table, "attention_forward", "bfloat16")
    assert set(f["causal"]) == {0, 1} and {64, 128} <= set(f["head_dim"])
    assert len(rows(table, "gemm", "float8")[1]) > 10_000
    assert set(table["kernel_version"].to_pylist()) == {"cublas", "flash3"}


def test_repeats_become_their_median(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "h100_sxm" / "comm" / "nccl" / "1.0"
    folder.mkdir(parents=True)
    measured = [
        {"op_name": op, "nccl_dtype": "half", "num_gpus": 2, "message_size": 8, "latency": ms}
        for op in ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
        for ms in (0.01, 0.02, 0.09, float("nan"))
    ]
    pq.write_table(pa.Table.from_pylist(measured), folder / "nccl_perf.parquet")
    table = packaged._collectives(tmp_path / "data" / "h100_sxm", device("h100"))
    assert table is not None and table.num_rows == 4
    assert set(table["duration_ns"].to_pylist()) == {20_000}
    assert set(table["size_bytes"].to_pylist()) == {16}


def test_versions_are_ordered_as_numbers() -> None:
    ordered = ["0.5.6.post2", "0.5.9", "0.5.10", "1.2.0rc5", "1.3.0rc20", "1.3.0"]
    assert sorted(set(ordered), key=packaged._version_key) == ordered


def test_missing_data_are_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged.resources, "files", lambda _: tmp_path)
    with pytest.raises(UnderstudyError, match=r"lacks h100-sxm-80gb.*requirements\.lock"):
        packaged_profiles(device("h100"))
    (tmp_path / "systems" / "data" / "h100_sxm").mkdir(parents=True)
    with pytest.raises(UnderstudyError, match="no measured GEMM or attention"):
        packaged_profiles(device("h100"))

    def absent(_: str) -> Path:
        raise ModuleNotFoundError("aiconfigurator_core")

    monkeypatch.setattr(packaged.resources, "files", absent)
    with pytest.raises(UnderstudyError, match="pip install aiconfigurator-core"):
        packaged_profiles(device("h100"))


def test_a_device_without_data_has_no_rows() -> None:
    tables = packaged_profiles(device("t4"))
    assert {name: table.num_rows for name, table in tables.items()} == {
        "kernel_profiles": 0,
        "collective_profiles": 0,
    }
    assert measured_families(device("t4")) == ()
    assert measured_families(device("h100")) == ("gemm", "attention", "collectives")


def test_rows_agree_with_the_curated_tables(shared_data: Path) -> None:
    """The same rows, read independently into microseconds for the design study."""
    curated = pq.read_table(shared_data / "normalized" / "gemm_bf16_fwd.parquet").to_pylist()
    wanted = {
        (r["m"], r["n"], r["k"]): r["duration_us"]
        for r in curated
        if "a100" in str(r["device"]).lower() and "sglang" in str(r["source"]).lower()
    }
    if not wanted:
        pytest.fail("the curated table has no A100 rows from sglang")
    f, duration = rows(packaged_profiles(device("a100"))["kernel_profiles"], "gemm", "bfloat16")
    ours = dict(zip(zip(f["m"], f["n"], f["k"], strict=True), duration, strict=True))
    shared = [k for k in wanted if k in ours]
    assert len(shared) > 30_000
    assert all(abs(ours[k] - wanted[k] * 1e3) <= 1 for k in shared)
