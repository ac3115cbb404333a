"""What orders work, from a real script to the replay: graphs, groups of messages, polling."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy import catalog, jobs
from understudy.emulation import Emulation, emulate
from understudy.jobs import JobSpec, Launch
from understudy.merging import merge
from understudy.simulation import engine, reference
from understudy.simulation.programs import Programs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor")]

_SCRIPTS = Path(__file__).with_name("ordering")


def job_of(script: str, ranks: int, warmup: int) -> JobSpec:
    spec = jobs.ad_hoc_job(str(_SCRIPTS / script), (), launch=Launch(nproc_per_node=ranks))
    return dataclasses.replace(spec, warmup=warmup, iterations=2)


def emulated(job: JobSpec, folder: Path) -> Emulation:
    return emulate(job, "h100-sxm-80gb", log_path=folder / "log", traces_dir=folder / "traces")


@pytest.fixture(scope="module")
def job() -> JobSpec:
    return job_of("graphs_and_groups.py", ranks=2, warmup=2)


@pytest.fixture(scope="module")
def emulation(
    job: JobSpec, script_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Emulation:
    return emulated(job, tmp_path_factory.mktemp("ordering"))


def rows(emulation: Emulation, table: str, program: int) -> list[dict[str, Any]]:
    return [r for r in emulation.tables[table].to_pylist() if r["program"] == program]


def test_a_captured_step_is_in_every_iteration(emulation: Emulation) -> None:
    assert emulation.warnings == ()
    signatures = emulation.tables["signatures"].to_pylist()
    for rank in range(2):
        events = rows(emulation, "events", rank)
        nodes = [e for e in events if e["graph"] is not None]
        assert nodes == events[: len(nodes)]
        assert [e["kind"] for e in nodes[:2]] == ["host", "device"]
        assert nodes[-1]["kind"] == "join"
        work = [signatures[e["signature"]] for e in nodes[1:]]
        assert [s["family"] for s in work].count("gemm") == 2  # no gradient of the input
        gaps = rows(emulation, "host_gaps", rank)
        assert all(gap["gap_ns"] == 0 for gap in gaps[1 : len(nodes)])


def test_a_replay_of_a_captured_optimizer_step_ends_an_iteration(
    script_home: Path, tmp_path: Path
) -> None:
    """Three eager steps before the capture, one in it: the others are replays."""
    emulation = emulated(job_of("captured_training.py", ranks=1, warmup=6), tmp_path)
    assert emulation.warnings == ()
    (rank,) = emulation.tables["ranks"].to_pylist()
    assert (rank["iterations_seen"], rank["span_iterations"]) == (8, 1)
    signatures = emulation.tables["signatures"].to_pylist()
    events = rows(emulation, "events", 0)
    families = [signatures[e["signature"]]["family"] for e in events if e["kind"] == "device"]
    assert families.count("gemm") == 5  # no gradient of the input
    assert [e["kind"] for e in events[:2]] == ["device", "host"]  # the batch, then the graph
    assert all(e["graph"] is not None for e in events[1:-1])


def test_an_uneven_all_to_all_is_one_group_of_messages(emulation: Emulation) -> None:
    """PyTorch sends and receives the empty parts, too."""
    for rank, expected in enumerate(
        (
            [("send", 0, 0), ("recv", 0, 0), ("send", 1, 96), ("recv", 1, 64)],
            [("send", 0, 64), ("recv", 0, 96), ("send", 1, 32), ("recv", 1, 32)],
        )
    ):
        parts = rows(emulation, "collective_parts", rank)
        first = parts[1]["group"]
        group = [(p["kind"], p["peer"], p["size_bytes"]) for p in parts if p["group"] == first]
        assert group == expected


def test_other_exchanges_are_as_the_script_has_them(emulation: Emulation) -> None:
    for rank in range(2):
        parts = rows(emulation, "collective_parts", rank)
        assert [(p["kind"], p["size_bytes"]) for p in parts[5:]] == [
            ("send", 64),
            ("recv", 64),
            ("all_reduce", 64),
            ("all_reduce", 64),
            ("all_reduce", 64),
        ]
        assert [p["sequence"] for p in parts if p["peer"] < 0] == [0, 1, 2, 3]


def test_a_loop_of_queries_is_one_wait(emulation: Emulation) -> None:
    """Of an event and of a collective; the milliseconds of sleep are waiting, not host time."""
    for rank in range(2):
        events = rows(emulation, "events", rank)
        waits = [e for e in events if e["kind"] == "host_wait"]
        assert [events[e["depends_on"]]["kind"] for e in waits] == ["join", "join"]
        gaps = rows(emulation, "host_gaps", rank)
        assert all(gaps[e["op"]]["gap_ns"] < 500_000 for e in waits)


def test_the_merged_job_replays_equally_on_both_engines(job: JobSpec, emulation: Emulation) -> None:
    tables = merge(emulation.tables)
    durations = np.full(tables["signatures"].num_rows, 10_000, np.int64)
    world = Programs(job, catalog.host("default"), tables).world(durations, 1.0, 2)
    timelines = engine.replay(world)
    for timeline, expected in zip(timelines, reference.replay(world), strict=True):
        assert np.array_equal(timeline.start_ns, expected.start_ns)
        assert np.array_equal(timeline.end_ns, expected.end_ns)
    # The nodes of the graph follow each other without gaps.
    nodes = [e["op"] for e in rows(emulation, "events", 0) if e["graph"] is not None][1:-1]
    start, end = timelines[0].start_ns[0, nodes], timelines[0].end_ns[0, nodes]
    assert np.array_equal(start[1:], end[:-1])
