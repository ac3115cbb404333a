"""Simulation of merged jobs: times, breakdown, interval, coverage, and jobs that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.job_tables import ADD, GEMM, collective, device, emulated, host_wait, wait
from understudy import catalog
from understudy.errors import UnderstudyError
from understudy.jobs import Cluster, JobSpec, Launch
from understudy.merging import merge
from understudy.simulation import simulate
from understudy.simulation.breakdown import breakdown, covered
from understudy.simulation.simulate import HOST_UNCERTAINTY, moved_durations
from warehouse import schemas, store

H100 = catalog.device("h100-sxm-80gb")
#: Durations (ns) of the signatures in these tests, far above any host time.
DURATIONS = {"gemm": 3_000_000, "add": 1_000_000, "all_reduce": 2_000_000}
SOURCES = {"gemm": "measured", "add": "law", "all_reduce": "transferred"}


def job(ranks: int, **cluster: Any) -> JobSpec:
    return JobSpec(
        "test",
        None,
        "test",
        launch=Launch(1, ranks),
        cluster=Cluster(**cluster),
        devices=(H100.id,),
    )


def estimates(tables: dict[str, pa.Table], spread: float = 0.1, scale: float = 1.0) -> pa.Table:
    """What forests would say: for each signature by its name."""
    rows = [
        {
            "duration_ns": round(DURATIONS[name] * scale),
            "low_ns": round(DURATIONS[name] * scale * (1 - spread)),
            "high_ns": round(DURATIONS[name] * scale * (1 + spread)),
            "roofline_ns": DURATIONS[name] // 2,
            "flops": 1e9 if name == "gemm" else 0.0,
            "estimate_source": SOURCES[name],
            "extrapolated": False,
        }
        for name in tables["signatures"].column("name").to_pylist()
    ]
    schema = pa.schema(
        [
            schemas.PREDICTED_KERNELS.schema.field(n)
            for n in (
                "duration_ns",
                "low_ns",
                "high_ns",
                "roofline_ns",
                "flops",
                "estimate_source",
                "extrapolated",
            )
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def simulated(
    ranks: Sequence[Sequence[dict[str, Any]]], scale: float = 1.0, **rank_columns: Any
) -> dict[str, pa.Table]:
    tables = merge(emulated(ranks, **rank_columns))
    result = simulate(job(len(ranks)), H100, tables, estimates(tables, scale=scale))
    for name, table in result.items():
        store.conform(table, schemas.table(name))
    return result


def runtime(*args: Any, **kwargs: Any) -> dict[str, Any]:
    rows = simulated(*args, **kwargs)["simulated_runtimes"].to_pylist()
    assert len(rows) == 1
    return rows[0]


def step(first: int = 0) -> list[dict[str, Any]]:
    """Backward of two layers; the reduction of the first overlaps with the second. `first`: op."""
    return [
        device(0, GEMM),
        wait(1, first),
        collective(),
        device(0, ADD),
        wait(1, first + 3),
        collective(),
        wait(0, first + 5),
        device(0, ADD),
    ]


def test_step_of_two_ranks_by_hand() -> None:
    """gemm 3 ms, then all_reduce 2 ms beside add 1 ms, all_reduce 2 ms alone, add 1 ms."""
    row = runtime([step(), step()])
    assert row["iteration_time_ns"] == 8_000_000
    assert row["breakdown_ns"] == {
        "compute": 5_000_000,
        "exposed_communication": 3_000_000,
        "host_idle": 0,
        "communication": 4_000_000,
    }
    assert (row["world_size"], row["fits"], row["iterations"]) == (2, True, 3)
    assert row["peak_memory_bytes"] == [2000, 2001]
    assert row["capacity_bytes"] == H100.memory_bytes
    assert row["trace_events"] == 200
    assert row["oom_rank"] is None


def test_predicted_kernels_count_launches_of_all_ranks() -> None:
    rows = simulated([step(), step()])["predicted_kernels"].to_pylist()
    assert {r["name"]: r["launch_count"] for r in rows} == {"gemm": 2, "all_reduce": 4, "add": 4}
    assert {r["name"]: r["duration_ns"] for r in rows} == DURATIONS


def test_coverage_weighs_device_time() -> None:
    row = runtime([step(), step()])
    # 6 ms of gemm, 8 ms of all_reduce and 4 ms of add.
    assert row["coverage_measured"] == pytest.approx(6 / 18)
    assert row["coverage_transferred"] == pytest.approx(8 / 18)
    assert row["coverage_law"] == pytest.approx(4 / 18)


def test_flops_are_of_all_ranks_and_the_peak_of_the_gemms_type() -> None:
    row = runtime([step(), step()])
    assert row["flops_per_iteration"] == 2e9
    assert row["peak_flops"] == H100.peak_flops["bfloat16"]


def test_slow_host_shows_as_idle_device() -> None:
    gap_ns = 50_000_000
    row = runtime([[device(0, GEMM, gap_ns), host_wait(0, 0)]])
    host = catalog.host("default")
    sync_ns = host.api_cost_ns["sync"]
    assert row["iteration_time_ns"] == gap_ns + host.launch_latency_ns + 3_000_000 + sync_ns
    assert row["breakdown_ns"]["compute"] == 3_000_000
    assert any("waits for the host" in w for w in row["warnings"])
    assert row["low_ns"] < row["iteration_time_ns"] - gap_ns * HOST_UNCERTAINTY * 0.99
    assert row["high_ns"] > row["iteration_time_ns"] + gap_ns * HOST_UNCERTAINTY * 0.99


def test_host_ahead_of_its_device_does_not_count() -> None:
    assert runtime([[device(0, GEMM, 1000)]])["iteration_time_ns"] == 3_000_000


def test_late_rank_makes_the_others_wait_in_the_collective() -> None:
    early = [device(0, ADD), wait(1, 0), collective(), wait(0, 2)]
    late = [device(0, GEMM), wait(1, 0), collective(), wait(0, 2)]
    row = runtime([early, late])
    assert row["iteration_time_ns"] == 5_000_000
    by_rank = [r["breakdown_ns"] for r in row["ranks"]]
    assert [b["exposed_communication"] for b in by_rank] == [4_000_000, 2_000_000]
    assert [b["compute"] for b in by_rank] == [1_000_000, 3_000_000]


def test_span_of_several_iterations_is_divided() -> None:
    once, twice = runtime([step()]), runtime([step() + step(8)], span_iterations=[2])
    assert twice["iteration_time_ns"] == once["iteration_time_ns"]
    assert twice["flops_per_iteration"] == once["flops_per_iteration"]
    assert twice["breakdown_ns"] == once["breakdown_ns"]
    assert any("iterations differ" in w for w in twice["warnings"])


def test_run_without_iterations_counts_from_its_first_op() -> None:
    host = catalog.host("default")
    row = runtime([[device(0, GEMM, 500)]], iterations=[0])
    assert row["iteration_time_ns"] == 500 + host.launch_latency_ns + 3_000_000
    assert row["iterations"] == 0


def test_simulated_events_are_the_last_repetition_from_zero() -> None:
    events = simulated([step(), step()])["simulated_events"]
    rows = events.to_pylist()
    assert [r["op"] for r in rows if r["rank"] == 0] == [0, 2, 3, 5, 7]
    assert min(r["start_ns"] for r in rows) == 0
    first = rows[0]
    assert (first["stream"], first["end_ns"] - first["start_ns"]) == (0, 3_000_000)


def test_passed_on_versions_and_warnings() -> None:
    tables = merge(emulated([step()]))
    result = simulate(
        job(1),
        H100,
        tables,
        estimates(tables),
        versions={"torch": "2"},
        warnings=["unsupported: x"],
    )
    row = result["simulated_runtimes"].to_pylist()[0]
    assert row["versions"] == [("torch", "2")]
    assert row["warnings"][0] == "unsupported: x"


def test_mostly_laws_is_a_warning() -> None:
    row = runtime([[device(0, ADD)]])
    assert row["coverage_law"] == 1
    assert any("100% of the predicted device time follows a law" in w for w in row["warnings"])


# --- jobs without a time -----------------------------------------------------------------------


def test_out_of_memory_is_a_result() -> None:
    result = simulated(
        [[], [], []],
        oom_iteration=[None, 1, 0],
        oom_requested_bytes=[None, 7, 5_000_000_000],
    )
    row = result["simulated_runtimes"].to_pylist()[0]
    assert (row["fits"], row["iteration_time_ns"], row["breakdown_ns"]) == (False, None, None)
    assert (row["oom_rank"], row["oom_iteration"]) == (2, 0)
    assert row["oom_requested_bytes"] == 5_000_000_000
    assert row["peak_memory_bytes"] == [2000, 2001, 2002]
    assert result["predicted_kernels"].num_rows == result["simulated_events"].num_rows == 0


def test_memory_of_the_job_is_the_capacity() -> None:
    small = replace(H100, memory_bytes=40 * 1024**3)
    tables = merge(emulated([step()]))
    result = simulate(job(1), small, tables, estimates(tables))
    assert result["simulated_runtimes"].column("capacity_bytes").to_pylist() == [40 * 1024**3]


def test_job_without_device_work_is_an_error() -> None:
    with pytest.raises(UnderstudyError, match="launches no work on its GPUs"):
        simulated([[{"kind": "host", "stream": -1, "gap_ns": 5}]])


def test_deadlock_is_an_error() -> None:
    one = [collective(1, communicator=1), collective(1, communicator=2)]
    tables = merge(emulated([one, one[::-1]], members=[[0, 1], [0, 1]]))
    with pytest.raises(UnderstudyError, match="deadlocked"):
        simulate(job(2), H100, tables, estimates(tables))


def test_host_without_a_cost_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    host = replace(catalog.host("default"), api_cost_ns={"launch": 1})
    monkeypatch.setattr(catalog, "host", lambda name: host)
    with pytest.raises(UnderstudyError, match="no api_cost_ns for event"):
        simulated([step()])


# --- network cards -----------------------------------------------------------------------------


@pytest.mark.parametrize(("cards", "expected_ns"), [(2, 2_000_000), (1, 4_000_000)])
def test_nodes_with_fewer_cards_than_ranks_share_them(cards: int, expected_ns: int) -> None:
    """Two reductions between the nodes, each over one rank of both."""
    ranks = [[collective()] for _ in range(4)]
    tables = merge(emulated(ranks, members=[[0, 2], [1, 3]], ranks_per_node=2))
    spec = replace(job(4, nics_per_node=cards), launch=Launch(2, 2))
    row = simulate(spec, H100, tables, estimates(tables))["simulated_runtimes"].to_pylist()[0]
    assert row["iteration_time_ns"] == expected_ns


# --- interval ----------------------------------------------------------------------------------


def test_bounds_of_one_family_move_by_its_whole_interval() -> None:
    row = runtime([[device(0, GEMM)]])
    assert (row["low_ns"], row["high_ns"]) == (2_700_000, 3_300_000)


def test_errors_of_families_are_independent() -> None:
    durations, bounds = np.array([100, 100]), np.array([110, 110])
    counts = np.array([1, 1])
    moved = moved_durations(durations, bounds, counts, ["a", "b"])
    assert moved.tolist() == [107, 107]  # 10 / sqrt(2)
    assert moved_durations(durations, bounds, counts, ["a", "a"]).tolist() == [110, 110]
    assert moved_durations(durations, durations, counts, ["a", "b"]).tolist() == [100, 100]


# --- invariants --------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 20), st.booleans()), min_size=1, max_size=12
    ),
    st.integers(0, 30),
    st.integers(1, 40),
)
def test_breakdown_counts_each_nanosecond_once(
    ops: list[tuple[int, int, bool]], begin: int, length: int
) -> None:
    start = np.array([s for s, _, _ in ops])
    end = np.array([s + d for s, d, _ in ops])
    joins = np.array([j for _, _, j in ops])
    found = breakdown(start, end, joins, begin, begin + length)
    busy = [set(), set()]
    for s, d, j in ops:
        busy[j] |= set(range(max(s, begin), min(s + d, begin + length)))
    assert found.compute == len(busy[False])
    assert found.communication == len(busy[True])
    assert found.exposed_communication == len(busy[True] - busy[False])
    assert found.compute + found.exposed_communication + found.host_idle == length


def test_nothing_covers_nothing() -> None:
    assert covered(np.zeros(0, np.int64), np.zeros(0, np.int64)) == 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(["gemm", "add", "reduce"]), min_size=1, max_size=10),
    st.lists(st.integers(0, 5_000_000), min_size=3, max_size=3),
    st.integers(1, 3),
)
def test_breakdown_of_every_rank_sums_to_its_iteration_time(
    kinds: list[str], gaps: list[int], ranks: int
) -> None:
    def ops(gap_ns: int) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        for kind in kinds:
            if kind == "reduce":
                made += [wait(1, len(made) - 1 if made else None), collective()]
            else:
                made.append(device(0, GEMM if kind == "gemm" else ADD, gap_ns))
        return made

    jobs = [ops(gap) for gap in gaps[:ranks]]
    row = runtime(jobs)
    for rank in row["ranks"]:
        parts = rank["breakdown_ns"]
        total = parts["compute"] + parts["exposed_communication"] + parts["host_idle"]
        assert total == rank["iteration_time_ns"] <= row["iteration_time_ns"]
        assert min(parts.values()) >= 0
    slowest = row["ranks"][row["slowest_rank"]]
    assert slowest["iteration_time_ns"] == row["iteration_time_ns"]
    assert slowest["breakdown_ns"] == row["breakdown_ns"]
    assert row["low_ns"] <= row["iteration_time_ns"] <= row["high_ns"]
    assert runtime(jobs) == row
    assert runtime(jobs, scale=2.0)["iteration_time_ns"] >= row["iteration_time_ns"]


def test_estimates_must_be_aligned() -> None:
    tables = merge(emulated([step()]))
    with pytest.raises(ValueError, match="2 estimates for 3 signatures"):
        simulate(job(1), H100, tables, estimates(tables).slice(1))
