"""Forests: held-out error, physics, storage, and equality with scikit-learn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy import forests, kernels
from understudy.catalog import Device, device
from understudy.errors import UnderstudyError, UsageError
from understudy.forests import collectives, features, laws, storage, training, trees
from understudy.forests.storage import Models
from understudy.jobs import Cluster
from understudy.kernels import Signature, roofline_ns, signature_of_collective, sorted_features
from understudy.profiling import packaged_profiles
from warehouse import schemas

CLUSTER = Cluster(nic_gbps=400, nics_per_node=8)
DEVICES = ("h100-sxm-80gb", "h200-sxm-141gb")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("forests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_HOME", str(folder))
        yield folder


def small_profiles(name: str) -> dict[str, pa.Table]:
    """bfloat16 GEMMs and, but for the H200, every fourth attention: quick to train on."""
    profiles = packaged_profiles(device(name))
    table = profiles["kernel_profiles"]
    gemms = (table["family"].to_numpy() == "gemm") & (table["dtype"].to_numpy() == "bfloat16")
    attention = table["family"].to_numpy() == "attention_forward"
    attention &= (np.arange(len(attention)) % 4 == 0) & (name != DEVICES[1])
    return profiles | {"kernel_profiles": table.filter(pa.array(gemms | attention))}


@pytest.fixture(scope="module")
def trained(home: Path) -> Mapping[str, forests.TrainedForests]:
    return {name: forests.train(device(name), small_profiles(name)) for name in DEVICES}


@pytest.fixture(scope="module")
def models(trained: Mapping[str, forests.TrainedForests]) -> Mapping[str, Models]:
    return {name: forests.load(result.path) for name, result in trained.items()}


def signature(family: str, name: str = "x", dtype: str = "bfloat16", version: str = "aten", **f):
    tensor_bytes = int(f.get("bytes", 0))
    return Signature(
        "api", name, family, None, None, 0, 0, dtype, version, sorted_features(f), tensor_bytes
    )


def gemm(m: int, n: int, k: int, dtype: str = "bfloat16", layout=(1, 0), batch=1) -> Signature:
    size = 2 * batch * (m * k + n * k + m * n)
    f = {
        "m": m, "n": n, "k": k, "batch": batch, "epilogue": 1,
        "transpose_a": layout[0], "transpose_b": layout[1],
    }  # fmt: skip
    return Signature(
        "cublas", "gemm", "gemm", None, None, 0, 0, dtype, "cublas", sorted_features(f), size
    )


def attention(seq: int, family="attention_forward", version="flash3", causal=1, kv_heads=16, **f):
    values = {
        "batch": 4, "seq_q": seq, "seq_kv": seq, "heads": 16, "kv_heads": kv_heads,
        "head_dim": 64, "causal": causal, "window": 0,
    }  # fmt: skip
    return signature(family, "attention", "bfloat16", version, **(values | f))


def table(*signatures: Signature) -> pa.Table:
    rows = [
        {
            "signature": i, "api": s.api, "name": s.name, "family": s.family, "grid": s.grid,
            "block": s.block, "shared_memory_bytes": 0, "registers": 0, "dtype": s.dtype,
            "kernel_version": s.kernel_version, "features": list(s.features),
            "tensor_bytes": s.tensor_bytes,
        }
        for i, s in enumerate(signatures)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schemas.table("signatures").schema)


def predicted(
    models: Mapping[str, Models],
    *signatures: Signature,
    name: str = DEVICES[0],
    cluster: Cluster | None = CLUSTER,
) -> list[dict]:
    result = forests.predict(table(*signatures), device(name), cluster, models[name])
    assert result.schema.equals(forests.SCHEMA) and result.num_rows == len(signatures)
    return result.to_pylist()


# --- error ---


def test_held_out_error(trained: Mapping[str, forests.TrainedForests]) -> None:
    for result in trained.values():
        rows = result.tables["forest_errors"].to_pylist()
        assert result.tables["forest_errors"].schema.equals(schemas.table("forest_errors").schema)
        error = {(r["family"], r["split"]): r for r in rows}
        assert error["gemm", "shapes"]["mape"] <= 0.06
        assert error["gemm", "random"]["mape"] <= 0.06
        assert error["collective", "sizes"]["mape"] <= 0.08
        assert all(abs(r["bias"]) < 0.03 for r in rows)
        assert all(0.75 <= r["coverage90"] <= 1 for r in rows)
        if ("attention_forward", "shapes") in error:
            assert error["attention_forward", "shapes"]["mape"] <= 0.10


def test_large_gemms_reach_40_to_90_percent_of_peak(models: Mapping[str, Models]) -> None:
    shapes = [(4096, 4096, 4096), (8192, 8192, 8192), (16384, 4096, 12288), (8192, 28672, 4096)]
    for p in predicted(models, *(gemm(*s) for s in shapes)):
        assert 0.4 < p["flops"] / p["duration_ns"] * 1e9 / 989.4e12 < 0.9


def test_predictions_of_measured_rows(models: Mapping[str, Models]) -> None:
    profiles = small_profiles(DEVICES[0])["kernel_profiles"]
    chosen = profiles.filter(pa.array(profiles["family"].to_numpy() == "gemm")).slice(0, 4000)
    f = training.feature_columns(chosen["features"].combine_chunks())
    every = range(0, 4000, 40)
    shapes = [(int(f["m"][i]), int(f["n"][i]), int(f["k"][i])) for i in every]
    results = predicted(models, *(gemm(*s) for s in shapes))
    measured = chosen["duration_ns"].to_numpy()[list(every)]
    ratio = np.array([r["duration_ns"] for r in results]) / measured
    assert np.abs(ratio - 1).mean() < 0.04
    assert {r["estimate_source"] for r in results} == {"measured"}


# --- physics ---


def test_h200_against_h100(models: Mapping[str, Models]) -> None:
    """More bandwidth, the same multiprocessors."""
    large = [gemm(8192, 8192, 8192), gemm(16384, 8192, 8192), gemm(16384, 12288, 4096)]
    moving = [
        signature(
            "elementwise", "at::native::vectorized_elementwise_kernel<4>", bytes=4e8, arrays=3
        ),
        signature("normalization", "layer_norm", bytes=3e8),
        signature("optimizer", "multi_tensor_apply_kernel", bytes=3e9),
    ]
    h100 = predicted(models, *large, *moving)
    h200 = predicted(models, *large, *moving, name=DEVICES[1])
    ratios = [a["duration_ns"] / b["duration_ns"] for a, b in zip(h100, h200, strict=True)]
    assert all(0.95 < r < 1.05 for r in ratios[:3])
    assert all(r >= 1.2 for r in ratios[3:])


def test_more_work_takes_longer(models: Mapping[str, Models]) -> None:
    for axis in range(3):
        shape = (2048, 4096, 4096)
        times = []
        for scale in (1, 2, 4, 8):
            grown = [extent * (scale if i == axis else 1) for i, extent in enumerate(shape)]
            (p,) = predicted(models, gemm(grown[0], grown[1], grown[2]))
            times.append(p["duration_ns"])
        assert all(b > 1.3 * a for a, b in pairwise(times))
    times = [p["duration_ns"] for p in predicted(models, *(attention(2**i) for i in range(9, 15)))]
    assert all(b > 1.5 * a for a, b in pairwise(times))


@given(
    m=st.integers(1, 60_000), n=st.integers(1, 70_000), k=st.integers(1, 70_000),
    dtype=st.sampled_from(["bfloat16", "float16", "float32", "tensorfloat32", "float64", "?"]),
    batch=st.sampled_from([1, 7, 96]),
)  # fmt: skip
def test_any_gemm_is_at_or_above_its_roofline(
    models: Mapping[str, Models], m: int, n: int, k: int, dtype: str, batch: int
) -> None:
    s = gemm(m, n, k, dtype, batch=batch)
    (p,) = predicted(models, s)
    assert p["duration_ns"] >= max(1, p["roofline_ns"] - 1)
    assert 1 <= p["low_ns"] <= p["duration_ns"] <= p["high_ns"]
    assert p["roofline_ns"] == round(roofline_ns(s, device(DEVICES[0])))


# --- provenance ---


def test_what_counts_as_measured(models: Mapping[str, Models]) -> None:
    cases = {
        "measured": [gemm(8192, 768, 768), attention(1024, causal=0), attention(1024, kv_heads=1)],
        "transferred": [
            gemm(8192, 768, 768, layout=(0, 0)),
            gemm(768, 768, 8192, layout=(0, 1)),
            gemm(8192, 768, 768, "float16"),
            gemm(8192, 768, 768, "float32"),
            gemm(1024, 1024, 64, batch=96),
            attention(1024),
            attention(1024, version="cudnn", causal=0),
            attention(1024, "attention_backward"),
        ],
        "law": [
            signature("elementwise", bytes=1e6),
            signature("convolution_forward", m=1, window=9, batch=8, channels_in=64, groups=1,
                      channels_out=64, pixels_out=3136, bytes=1e6),
            signature("memset", bytes=4),
            attention(1024, heads=0),
        ],
    }  # fmt: skip
    for source, signatures in cases.items():
        found = [p["estimate_source"] for p in predicted(models, *signatures)]
        assert found == [source] * len(signatures)


def test_extrapolation_is_flagged(models: Mapping[str, Models]) -> None:
    inside, large, odd = predicted(
        models, gemm(8192, 4096, 4096), gemm(8192, 4096, 200_000), gemm(8192, 50257, 768)
    )
    assert not inside["extrapolated"] and large["extrapolated"] and odd["extrapolated"]


def test_transfers_widen_the_interval(models: Mapping[str, Models]) -> None:
    same, other = predicted(models, gemm(8192, 768, 768), gemm(8192, 768, 768, layout=(0, 0)))
    assert same["duration_ns"] == other["duration_ns"]
    assert other["high_ns"] > same["high_ns"] and other["low_ns"] < same["low_ns"]


def test_backward_attention_is_three_forwards(models: Mapping[str, Models]) -> None:
    forward, backward = predicted(models, attention(4096), attention(4096, "attention_backward"))
    assert 2.8 < backward["duration_ns"] / forward["duration_ns"] < 3.3


def test_causal_attention_does_not_pay_for_a_cache(models: Mapping[str, Models]) -> None:
    few, many = predicted(models, attention(2048, kv_heads=1), attention(2048, kv_heads=16))
    assert many["duration_ns"] == few["duration_ns"]


# --- collectives ---


def all_reduce(size: float, ranks: int = 8, nodes: int = 1, kind: str = "all_reduce") -> Signature:
    return signature_of_collective(kind, "float32", int(size), ranks, nodes)


def test_collectives_in_a_node(models: Mapping[str, Models]) -> None:
    sizes = [2.0**i for i in range(4, 34)]
    results = predicted(models, *(all_reduce(s) for s in sizes))
    times = [r["duration_ns"] for r in results]
    assert all(b >= 0.9 * a for a, b in pairwise(times))
    assert all(b > a for a, b in pairwise(times[14:]))
    assert {r["estimate_source"] for r in results} == {"measured"}
    assert [r["extrapolated"] for r in results] == [s > 512 * 2**20 for s in sizes]
    # Beyond the table the last bandwidth holds.
    assert times[-1] == pytest.approx(2 * times[-2], rel=1e-6)


def test_other_operations_and_rank_counts_are_transferred(models: Mapping[str, Models]) -> None:
    size = 64 * 2**20
    four, six, eight, broadcast, pair = predicted(
        models, all_reduce(size, 4), all_reduce(size, 6), all_reduce(size, 8),
        all_reduce(size, 8, 1, "broadcast"), all_reduce(size, 2, 1, "send_recv"),
    )  # fmt: skip
    low, high = sorted((four["duration_ns"], eight["duration_ns"]))
    assert low <= six["duration_ns"] <= high
    assert all(p["estimate_source"] == "transferred" for p in (six, broadcast, pair))


def test_nodes_are_joined_by_their_adapters(models: Mapping[str, Models]) -> None:
    size = 256 * 2**20
    one, two, slow = (
        predicted(models, all_reduce(size, 8))[0],
        predicted(models, all_reduce(size, 16, 2))[0],
        predicted(models, all_reduce(size, 16, 2), cluster=Cluster(nic_gbps=100, nics_per_node=1))[
            0
        ],
    )
    assert one["duration_ns"] < two["duration_ns"] < slow["duration_ns"]
    assert two["estimate_source"] == "law"
    with pytest.raises(UsageError, match="nic_gbps"):
        predicted(models, all_reduce(size, 16, 2), cluster=None)


def test_a_slower_fabric_is_a_law(models: Mapping[str, Models]) -> None:
    size = 64 * 2**20
    nvlink, pcie = (
        predicted(models, all_reduce(size), cluster=Cluster(interconnect=name))[0]
        for name in ("nvlink", "pcie5")
    )
    assert nvlink["estimate_source"] == "measured" and pcie["estimate_source"] == "law"
    assert pcie["duration_ns"] > 3 * nvlink["duration_ns"]


def test_one_rank_is_nearly_free() -> None:
    empty = collectives.CollectiveTable({}, 0.0)
    found = collectives.estimate(empty, device("h100"), None, "all_reduce", 1e6, 1, 1)
    assert found.source == "law" and found.duration_ns < 5_000


@given(st.integers(2, 8), st.floats(1, 1e10))
def test_interpolation_stays_between_its_points(ranks: int, size: float) -> None:
    sizes, times = np.array([1e3, 1e6, 1e9]), np.array([5e3, 4e4, 7e6])
    points = collectives.CollectiveTable({("all_reduce", ranks): (sizes, times)}, 0.0)
    found, beyond = points.interpolate("all_reduce", ranks, size)
    assert beyond == (size > 1e9)
    assert found >= 5e3 and (beyond or found <= 7e6)


# --- laws ---


def test_laws_are_monotone_and_cite_a_source() -> None:
    for kinds in laws._LAWS.values():
        for law in kinds.values():
            times = [law.duration_ns(10.0**i, 3e12) for i in range(2, 11)]
            assert times[0] >= 1_000 and times == sorted(times)
            assert law.source and 0 < law.fraction <= 1 and law.spread >= 0.3


@pytest.mark.parametrize("name", ["a100", "h100", "b200", "l40s"])
def test_every_family_has_a_law(name: str) -> None:
    for family in kernels.FAMILIES:
        if family != "collective":
            assert laws.law_for(family, "kernel", {}, device(name)).duration_ns(1e6, 1e12) > 0


# --- storage ---


def test_trained_models_are_kept_and_equal(
    trained: Mapping[str, forests.TrainedForests], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(training, "_fit", never)
    again = forests.train(device(DEVICES[0]), small_profiles(DEVICES[0]))
    assert again.content_hash == trained[DEVICES[0]].content_hash
    assert again.tables["forest_errors"].equals(trained[DEVICES[0]].tables["forest_errors"])


def test_training_is_a_function_of_its_rows(home: Path) -> None:
    profiles = small_profiles("a100-sxm-80gb")
    few = profiles["kernel_profiles"].slice(0, 2000)
    hashes = set()
    for _ in range(2):
        shutil.rmtree(home / "forests" / "device=a100-sxm-80gb", ignore_errors=True)
        result = forests.train(device("a100"), profiles | {"kernel_profiles": few})
        hashes.add(result.content_hash)
    other = forests.train(device("a100"), profiles | {"kernel_profiles": few.slice(1)})
    assert len(hashes) == 1 and other.content_hash not in hashes


def test_no_rows_is_an_error(home: Path) -> None:
    empty = {
        n: schemas.table(n).schema.empty_table() for n in ("kernel_profiles", "collective_profiles")
    }
    with pytest.raises(UnderstudyError, match="no GEMM or attention rows"):
        forests.train(device("b200"), empty)
    with pytest.raises(UnderstudyError, match="no trained forests"):
        forests.predict(table(), device("b200"))


@pytest.mark.parametrize("name", ["t4", "v100", "l4", "rtx4090", "h100-pcie"])
def test_a_device_without_measurements_is_predicted_by_law(name: str, home: Path) -> None:
    trained = forests.train(device(name), packaged_profiles(device(name)))
    assert trained.tables["forest_errors"].num_rows == 0
    work = table(gemm(4096, 4096, 4096, "float16"), all_reduce(1e8))
    predicted = forests.predict(work, device(name)).to_pylist()
    assert {p["estimate_source"] for p in predicted} == {"law"}
    assert all(p["low_ns"] < p["duration_ns"] < p["high_ns"] for p in predicted)
    at_peak_ns = 2 * 4096**3 / device(name).peak_flops["float16"] * 1e9
    assert at_peak_ns <= predicted[0]["duration_ns"] <= 3 * at_peak_ns


def copied(trained: Mapping[str, forests.TrainedForests], folder: Path) -> tuple[Path, dict]:
    shutil.copytree(trained[DEVICES[0]].path, folder)
    return folder, json.loads((folder / "current.json").read_text())


class Exploit:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("owned"),))


@pytest.mark.parametrize("with_digest", [False, True])
def test_pickled_arrays_are_refused(
    trained: Mapping[str, forests.TrainedForests],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_digest: bool,
) -> None:
    """A replaced file is noticed by its hash; one that brings its hash is still never unpickled."""
    monkeypatch.chdir(tmp_path)
    folder, document = copied(trained, tmp_path / "forests")
    arrays = {
        f"forest0.random_trees.{n}": np.array([Exploit()], dtype=object) for n in trees.ARRAYS
    }
    np.savez(folder / document["arrays"], **arrays)  # pyright: ignore[reportArgumentType]
    if with_digest:
        import hashlib

        content = (folder / document["arrays"]).read_bytes()
        document["arrays_sha256"] = hashlib.sha256(content).hexdigest()
        (folder / "current.json").write_text(json.dumps(document))
    with pytest.raises(UnderstudyError, match=r"damaged.*train again"):
        forests.load(folder)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d | {"format": 99}, "not format"),
        (lambda d: d | {"arrays": "../../elsewhere.npz"}, "damaged"),
        (lambda d: d | {"forests": [{"family": "gemm"}]}, "damaged"),
        (lambda d: ["no"], "not format"),
    ],
)
def test_damaged_documents_are_refused(
    trained: Mapping[str, forests.TrainedForests], tmp_path: Path, damage, message: str
) -> None:
    folder, document = copied(trained, tmp_path / "forests")
    (folder / "current.json").write_text(json.dumps(damage(document)))
    with pytest.raises(UnderstudyError, match=message):
        forests.load(folder)


def test_trees_that_never_end_are_refused() -> None:
    arrays = {
        "roots": [0], "feature": [0, 0], "threshold": [0.0, 0.0],
        "left": [1, 0], "right": [1, 0], "value": [0.0, 0.0],
    }  # fmt: skip
    with pytest.raises(ValueError, match="inconsistent"):
        trees.FlatTrees(**{n: np.array(v, dtype=trees.ARRAYS[n]) for n, v in arrays.items()})


def test_a_file_half_written_is_never_seen(tmp_path: Path) -> None:
    def fail(file: object) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        storage._write(tmp_path / "x.npz", fail)
    assert list(tmp_path.iterdir()) == []


# --- scikit-learn ---


def test_flat_trees_predict_as_scikit_learn_to_the_bit() -> None:
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

    rng = np.random.default_rng(1)
    x = rng.normal(size=(800, 7))
    x[:, 3] = np.round(x[:, 3])  # ties at thresholds
    y = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 3]
    unseen = np.concatenate([rng.normal(size=(500, 7)) * 3, x[:100]])
    forest = ExtraTreesRegressor(9, min_samples_leaf=2, random_state=0, n_jobs=1).fit(x, y)
    leaves = trees.random_trees_leaves(trees.flatten_forest(forest), unseen)
    assert np.array_equal(trees._sum(leaves) / 9, forest.predict(unseen))
    boosted = HistGradientBoostingRegressor(max_iter=40, random_state=0).fit(x, y)
    flat, baseline = trees.flatten_boosting(boosted)
    assert np.array_equal(trees.boosted_sum(flat, baseline, unseen), boosted.predict(unseen))


# --- features ---


@given(
    st.lists(st.tuples(*[st.integers(1, 10**5)] * 3), min_size=1, max_size=5),
    st.sampled_from(["h100", "a100", "l40s"]),
)
def test_gemm_features_are_finite_and_bounded(
    shapes: list[tuple[int, int, int]], name: str
) -> None:
    d: Device = device(name)
    m, n, k = (np.array(v, dtype=float) for v in zip(*shapes, strict=True))
    f = {"m": m, "n": n, "k": k, "batch": np.ones(len(m))}
    x = features.gemm_features(f, d, "bfloat16", 2)
    assert np.isfinite(x).all() and len(x) == len(shapes)
    assert (features.gemm_scale_ns(f, d, "bfloat16", 2) >= 2_000).all()
    swapped = features.gemm_work({"m": n, "n": m, "k": k, "batch": f["batch"]}, 2)
    assert np.array_equal(features.gemm_work(f, 2)[0], swapped[0])


@given(st.integers(1, 64), st.integers(1, 64), st.booleans(), st.integers(0, 70))
def test_pairs_on_columns_are_the_pairs_of_one(q: int, kv: int, causal: bool, window: int) -> None:
    one = {"seq_q": q, "seq_kv": kv, "causal": float(causal), "window": float(window)}
    columns = {name: np.array([value], dtype=float) for name, value in one.items()}
    assert features.attention_pairs(columns)[0] == kernels.attention_pairs(one)
