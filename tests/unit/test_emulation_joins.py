"""Programs of several ranks: iterations that all have, communicators made and ended together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.unit.job_tables import ADD, collective, device, emulated, host_wait
from tests.unit.test_emulation_collection import collected, rows, steady
from tests.unit.trace_writer import TraceWriter
from understudy import catalog, jobs
from understudy.emulation.host_joins import unmatched
from understudy.emulation.lowering import FIRST_PRIVATE_STREAM
from understudy.jobs import Launch
from understudy.merging import merge
from understudy.simulation import engine, reference
from understudy.simulation.programs import Programs
from understudy.traces.interceptor import Api


def test_ranks_are_cut_to_their_common_iterations(tmp_path: Path) -> None:
    result = collected([steady(4, rank=0), steady(3, rank=1)], tmp_path, warmup=1, iterations=4)
    assert rows(result.tables["ranks"], "iterations", "iterations_seen") == [(2, 4), (2, 3)]
    assert result.warnings[0] == (
        "ranks ended after different numbers of iterations: rank 1 after 3, rank 0 after 4; what "
        "follows the last common one is left out"
    )


def test_ranks_that_all_have_enough_iterations_are_not_worth_a_word(tmp_path: Path) -> None:
    assert collected([steady(4, rank=0), steady(6, rank=1)], tmp_path).warnings == ()


def whole_run(rank: int, work_first: bool, destroys: bool) -> TraceWriter:
    """A rank without iterations that makes a communicator, uses it, and may end it."""
    writer = TraceWriter(rank)
    writer.stream(2)
    writer.communicator(5, rank, 2)
    if work_first:
        writer.launch(2)
    writer.record(Api.COMMUNICATOR_INIT, definition=1)
    writer.launch(2)
    writer.all_reduce(1, 400, stream=2)
    if destroys:
        writer.record(Api.COMMUNICATOR_DESTROY, definition=1)
    return writer


def kinds(rank: int, writers: list[TraceWriter], folder: Path) -> tuple[list[str], list[str]]:
    """Kinds of the rank's ops and of its parts."""
    tables = collected(writers, folder).tables
    events = [k for p, k in rows(tables["events"], "program", "kind") if p == rank]
    return events, [k for p, k in rows(tables["collective_parts"], "program", "kind") if p == rank]


def test_ranks_end_a_communicator_together(tmp_path: Path) -> None:
    writers = [whole_run(rank, work_first=False, destroys=True) for rank in range(2)]
    events, parts = kinds(1, writers, tmp_path)
    assert events == ["device", "join", "host_wait", "join", "host_wait"]
    assert parts == ["all_reduce", "communicator_destroy"]


def test_what_only_some_ranks_do_with_a_communicator_is_host_time(tmp_path: Path) -> None:
    """Rank 0 launches before it makes the communicator, so that is part of its run; rank 1 does
    not end it."""
    writers = [
        whole_run(0, work_first=True, destroys=True),
        whole_run(1, work_first=False, destroys=False),
    ]
    events, parts = kinds(0, writers, tmp_path)
    assert events == ["device", "host", "host", "device", "join", "host_wait", "host", "host"]
    assert parts == ["all_reduce"]


def test_of_repeated_calls_the_last_ones_match_and_of_ends_the_first() -> None:
    split, destroy = (0, "communicator_split"), (0, "communicator_destroy")
    calls = [{1: split, 2: split, 5: destroy, 6: destroy}, {1: split, 4: destroy}]
    assert unmatched(calls, {0: (0, 1)}) == [{1, 6}, frozenset()]


def test_host_joins_of_two_nodes_replay_equally_on_both_engines() -> None:
    """They take no time of their own, also where they would meet on network cards."""
    init = collective(
        stream=FIRST_PRIVATE_STREAM, kind="communicator_init", size_bytes=0, dtype="", reduce_op=""
    )
    ops = [device(0, ADD), init | {"what": None}, host_wait(FIRST_PRIVATE_STREAM, 1), collective()]
    late = [device(0, ADD), *[device(0, ADD, gap_ns=50_000)], *ops[1:2]]
    late += [host_wait(FIRST_PRIVATE_STREAM, 2), collective()]
    tables = merge(emulated([ops, *[late] * 15]))
    spec = replace(jobs.ad_hoc_job(__file__, ()), launch=Launch(nnodes=2, nproc_per_node=8))
    durations = np.full(tables["signatures"].num_rows, 10_000, np.int64)
    world = Programs(spec, catalog.host("default"), tables).world(durations, 1.0, 2)
    first, *_ = timelines = engine.replay(world)
    for timeline, expected in zip(timelines, reference.replay(world), strict=True):
        assert np.array_equal(timeline.end_ns, expected.end_ns)
    assert first.end_ns[0, 2] > 50_000  # the host of rank 0 waits for the late ranks


def test_graphs_are_a_column_of_events(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.stream(2)
    writer.record(Api.CAPTURE_BEGIN, 2, a=1)
    writer.launch(2)
    writer.record(Api.CAPTURE_END, 2, a=1)
    for number in range(4):
        writer.launch(2, name="before")
        writer.record(Api.GRAPH_LAUNCH, 2, a=1, b=1)
        writer.mark(number)
    events = collected([writer], tmp_path).tables["events"]
    assert rows(events, "kind", "stream", "graph") == [
        ("device", 2, None),
        ("host", -1, 1),
        ("device", 2, 1),
        ("host", -1, None),
    ]


def test_a_run_without_iterations_begins_with_a_graph_that_it_launches(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.stream(2)
    writer.record(Api.CAPTURE_BEGIN, 2, a=1)
    writer.launch(2)
    writer.record(Api.CAPTURE_END, 2, a=1)
    writer.record(Api.GRAPH_LAUNCH, 2, a=1, b=1)
    tables = collected([writer], tmp_path).tables
    assert tables["events"]["kind"].to_pylist() == ["host", "device"]
