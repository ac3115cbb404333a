"""The DuckDB views, and the worked queries of warehouse/sql."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.unit import job_tables as jt
from understudy import catalog as devices
from understudy.jobs import JobSpec, Launch
from understudy.merging import merge
from understudy.simulation import simulate
from warehouse import catalog, schemas, store

pytestmark = pytest.mark.usefixtures("understudy_home")

QUERIES = sorted((Path(catalog.__file__).parent / "sql").glob("*.sql"))
H100 = devices.device("h100-sxm-80gb")


def step(size_bytes: int) -> list[dict[str, Any]]:
    return [
        jt.device(0, jt.GEMM),
        jt.wait(1, 0),
        jt.collective(size_bytes=size_bytes),
        jt.wait(0, 2),
        jt.device(0, jt.ADD),
    ]


@pytest.fixture
def two_jobs(understudy_home: Path) -> None:
    """Jobs `007` and `gpt2`, two ranks each, through merging and simulation."""
    for job, size_bytes in (("007", 1024), ("gpt2", 4096)):
        tables = jt.emulated([step(size_bytes)] * 2)
        memory = {
            "rank": [0, 0, 1],
            "step": [0, 1, 0],
            "iteration": [0, 1, 0],
            "op": [0, 1, 0],
            "category": ["segment"] * 3,
            "change_bytes": [100, 50, 100],
            "allocated_bytes": [10, 20, 10],
            "reserved_bytes": [90, 90, 90],
            "device_bytes": [100, 150, 100],
        }
        tables["memory_timeline"] = pa.table(memory, schema=schemas.MEMORY_TIMELINE.schema)
        merged = merge(tables)
        estimate = {
            "duration_ns": 1_000_000,
            "low_ns": 900_000,
            "high_ns": 1_100_000,
            "roofline_ns": 500_000,
            "flops": 1.0,
            "estimate_source": "measured",
            "extrapolated": False,
        }
        predicted = pa.Table.from_pylist([estimate] * merged["signatures"].num_rows)
        spec = JobSpec(job, None, "test", launch=Launch(1, 2))
        store.write_tables("merging", merged, H100.id, job)
        simulated = simulate(spec, H100, merged, predicted)
        store.write_tables("simulation", simulated, H100.id, job)


def test_views_without_any_file_are_empty_and_complete() -> None:
    connection = catalog.connect()
    for stage in schemas.STAGES:
        for table in schemas.stage_tables(stage):
            found = connection.execute(f"select * from {stage}.{table.name}")
            keys = ["device"] if table.partition == "device" else ["device", "job"]
            columns = [c[0] for c in found.description or ()]
            assert columns == [*keys, *(c.name for c in table.columns)]
            assert found.fetchall() == []


def types(connection: duckdb.DuckDBPyConnection, view: str) -> dict[str, str]:
    return {r[0]: r[1] for r in connection.execute(f"describe {view}").fetchall()}


@pytest.mark.usefixtures("two_jobs")
def test_columns_have_the_same_types_with_and_without_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = catalog.connect()
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "empty"))
    empty = catalog.connect()
    for table in schemas.TABLES:
        assert types(full, table.name) == types(empty, table.name)


@pytest.mark.usefixtures("two_jobs")
def test_keys_of_the_folders_are_text() -> None:
    connection = catalog.connect()
    found = connection.execute("select distinct device, job from predicted_kernels order by job")
    assert found.fetchall() == [(H100.id, "007"), (H100.id, "gpt2")]


@pytest.mark.usefixtures("two_jobs")
def test_plain_names_of_trace_tables_are_mergings() -> None:
    connection = catalog.connect()
    assert connection.execute("select count(*) from events").fetchall() == [(10,)]
    assert connection.execute("select count(*) from merging.events").fetchall() == [(10,)]
    assert connection.execute("select count(*) from emulation.events").fetchall() == [(0,)]


@pytest.mark.usefixtures("two_jobs")
def test_query_of_the_issue() -> None:
    found = catalog.connect().execute(
        "select family, sum(duration_ns * launch_count) from predicted_kernels group by 1 "
        "order by 1"
    )
    expected = [("collective", 4_000_000), ("elementwise", 4_000_000), ("gemm", 4_000_000)]
    assert found.fetchall() == expected


def test_older_file_without_a_nullable_column_gives_null() -> None:
    tables = {t.name: t.schema.empty_table() for t in store.folder_tables("simulation")}
    row = {
        "world_size": 1,
        "fits": False,
        "iterations": 0,
        "ranks": [],
        "peak_memory_bytes": [1],
        "capacity_bytes": 1,
        "flops_per_iteration": 0.0,
        "peak_flops": 1.0,
        "trace_events": 0,
        "versions": [],
        "warnings": [],
    }
    runtimes = pa.Table.from_pylist([row], schema=schemas.SIMULATED_RUNTIMES.schema)
    store.write_tables("simulation", tables | {"simulated_runtimes": runtimes}, H100.id, "a")
    path = store.table_path("simulation", "simulated_runtimes", H100.id, "a")
    older = pa.parquet.ParquetFile(path).read().drop_columns("oom_rank")  # type: ignore[attr-defined]
    pa.parquet.write_table(older, path)  # type: ignore[attr-defined]
    found = catalog.connect().execute("select oom_rank, fits from simulated_runtimes")
    assert found.fetchall() == [(None, False)]
    read = store.read_table("simulation", "simulated_runtimes", H100.id, "a")
    assert read.column("oom_rank").to_pylist() == [None]


@pytest.mark.parametrize("folder", ["with 'quote'", "with [brackets]", "with * and ?"])
def test_state_folder_with_special_characters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / folder))
    gaps = pa.table({"program": [0], "op": [0], "gap_ns": [7], "spread_ns": [1]})
    store.write_tables("emulation_host", {"host_gaps": gaps}, H100.id, "gpt2")
    found = catalog.connect().execute("select job, gap_ns from emulation.host_gaps")
    assert found.fetchall() == [("gpt2", 7)]


def test_catalog_is_text_for_any_shell() -> None:
    connection = duckdb.connect()
    connection.execute(catalog.catalog_sql())
    assert connection.execute("select count(*) from kernel_profiles").fetchall() == [(0,)]


# --- worked queries ----------------------------------------------------------------------------


@pytest.mark.usefixtures("two_jobs")
@pytest.mark.parametrize("path", QUERIES, ids=lambda p: p.stem)
def test_worked_query_answers(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("-- "), "a query says what it answers"
    found = catalog.connect().execute(text)
    assert {c[0] for c in found.description or ()} >= {"device", "job"}
    assert {
        row[[c[0] for c in found.description or ()].index("job")] for row in found.fetchall()
    } == {
        "007",
        "gpt2",
    }


def answer(name: str) -> list[dict[str, Any]]:
    text = (Path(catalog.__file__).parent / "sql" / f"{name}.sql").read_text()
    found = catalog.connect().execute(text)
    names = [c[0] for c in found.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return [r for r in rows if r["job"] == "gpt2"]


@pytest.mark.usefixtures("two_jobs")
def test_values_of_worked_queries() -> None:
    families = {r["family"]: r for r in answer("device_time_by_family")}
    assert families["gemm"]["device_time_ns"] == 2_000_000
    assert families["gemm"]["percent"] == pytest.approx(33.3)
    assert [r["times_roofline"] for r in answer("most_expensive_kernels")] == [2.0] * 3
    assert [r["rank"] for r in answer("busiest_ranks")] == [0, 1]
    assert [r["compute_ns"] for r in answer("busiest_ranks")] == [2_000_000] * 2
    (volume,) = answer("communication_volume")
    assert (volume["members"], volume["calls"], volume["size_bytes"]) == (2, 2, 8192)
    launches = answer("kernels_by_launches")
    assert {(r["rank"], r["name"], r["launches"]) for r in launches} == {
        (rank, name, 1) for rank in (0, 1) for name in ("gemm", "add", "all_reduce")
    }
    peaks = {r["rank"]: r for r in answer("peak_memory")}
    assert (peaks[0]["step"], peaks[0]["device_bytes"]) == (1, 150)
    (compared,) = answer("devices_compared")
    assert (compared["iteration_time_ns"], compared["speed_of_fastest"]) == (3_000_000, 1.0)
    gaps = answer("idle_gaps")
    assert (gaps[0]["stream"], gaps[0]["next_op"], gaps[0]["idle_ns"]) == (0, 4, 1_000_000)
