"""The simulated timeline of a job, rank by rank, as its exports show it: which ops, when, where."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from understudy.errors import UsageError
from understudy.jobs import JobSpec
from understudy.reporting import units
from understudy.reporting.operations import Operation, Operations
from understudy.simulation import RankTimeline, last_repetition
from warehouse import schemas

Times = NDArray[np.int64]
Ops = NDArray[np.int64]

HOST, DEVICE, STREAM_WAIT, JOIN, HOST_WAIT = range(len(schemas.OP_KINDS))
_CODES = {kind: code for code, kind in enumerate(schemas.OP_KINDS)}


@dataclass(frozen=True, eq=False)
class Program:
    """Columns of `events` of one program, by op; -1 stands for null in `signature`.

    `call` is the op whose call of the host issues the op: the op itself, of the nodes of a CUDA
    graph its launch.
    """

    kind: Ops
    stream: Ops
    signature: Ops
    depends_on: Ops
    thread: Ops
    iteration: Ops
    call: Ops


@dataclass(frozen=True, eq=False)
class RankView:
    """What is shown of one rank.

    `operation` are indices into the operations by op (-1: it only orders others). `on_stream` are
    the ops that are shown on their streams and `calls` those whose calls are shown, in order.
    """

    row: Mapping[str, Any]
    program: Program
    times: RankTimeline
    operation: Ops
    on_stream: Ops
    calls: Ops

    @property
    def rank(self) -> int:
        return self.row["rank"]

    @property
    def first_ns(self) -> int:
        """When the first thing that is shown begins."""
        return min(
            int(self.times.called_ns[self.calls].min(initial=2**62)),
            int(self.times.start_ns[self.on_stream].min(initial=2**62)),
        )


@dataclass(frozen=True, eq=False)
class JobView:
    """The ranks that are shown, in order, and what their operations are."""

    ranks: list[RankView]
    operations: list[Operation]

    @property
    def base_ns(self) -> int:
        """Time of the first thing that is shown, rounded down to whole milliseconds: what an export
        counts from, for there are no times before 0."""
        return min(view.first_ns for view in self.ranks) // 1_000_000 * 1_000_000


def view(
    job: JobSpec,
    tables: Mapping[str, pa.Table],
    ranks: Collection[int] | None,
    window_ns: tuple[int, int] | None,
) -> JobView:
    """What runs on `ranks` (None: all) in the window, with the calls that asked for it.

    `window_ns` counts from the first operation of all ranks; None is the whole repetition. Raises
    UsageError for ranks that the job lacks and where nothing runs in the window.
    """
    rows = {row["rank"]: row for row in tables["ranks"].to_pylist()}
    wanted = set(rows if ranks is None else ranks)
    if unknown := sorted(wanted - set(rows)):
        raise UsageError(f"job {job.job} has no rank {unknown[0]}; its ranks are 0 to {max(rows)}")
    programs = _programs(tables["events"])
    operations = Operations(tables)
    views = []
    end_ns = 0
    for times in last_repetition(job, tables, wanted):
        row, program = rows[times.rank], programs[times.program]
        operation = operations.of_rank(row, program.signature)
        end_ns = max(end_ns, int(times.end_ns.max(initial=0)))
        views.append(RankView(row, program, times, operation, *_shown(program, times, window_ns)))
    if not any(len(of_rank.on_stream) for of_rank in views):
        begin, end = window_ns or (0, 0)
        raise UsageError(
            f"nothing runs from {units.duration(begin)} to {units.duration(end)} on the chosen "
            f"ranks; what is simulated lasts from 0 to {units.duration(end_ns)}"
        )
    return JobView([of_rank for of_rank in views if len(of_rank.on_stream)], operations.all)


def _programs(events: pa.Table) -> list[Program]:
    events = events.sort_by([("program", "ascending"), ("op", "ascending")])
    columns = {
        "kind": np.array([_CODES[kind] for kind in events["kind"].to_pylist()], np.int64),
        "signature": _integers(events["signature"], -1),
        "depends_on": _integers(events["depends_on"], np.iinfo(np.int32).min),
        "graph": _integers(events["graph"], -1),
        **{name: _integers(events[name]) for name in ("stream", "thread", "iteration")},
    }
    number = _integers(events["program"])
    programs = []
    for first, after in zip(*_runs(number), strict=True):
        own = {name: values[first:after] for name, values in columns.items()}
        graph = own.pop("graph")
        ops = np.arange(after - first)
        launches = np.where((own["kind"] == HOST) & (graph >= 0), ops, 0)
        is_node = (own["kind"] != HOST) & (graph >= 0)
        call = np.where(is_node, np.maximum.accumulate(launches), ops)
        programs.append(Program(**own, call=call))
    return programs


def _runs(number: Ops) -> tuple[list[int], list[int]]:
    """Where each program begins and ends; a program without ops has none."""
    count = int(number.max(initial=-1)) + 1
    return (
        np.searchsorted(number, np.arange(count)).tolist(),
        np.searchsorted(number, np.arange(count), side="right").tolist(),
    )


def _integers(column: pa.ChunkedArray, null: int | None = None) -> NDArray[np.int64]:
    filled = column if null is None else pc.fill_null(column, null)
    return filled.to_numpy().astype(np.int64)


def _shown(
    program: Program, times: RankTimeline, window_ns: tuple[int, int] | None
) -> tuple[Ops, Ops]:
    """Ops that are shown on their streams, and ops whose calls are shown."""
    start_ns, end_ns = times.start_ns, times.end_ns
    on_stream = np.isin(program.kind, (DEVICE, JOIN))
    on_stream |= (program.kind == STREAM_WAIT) & (end_ns > start_ns)
    calls = (program.kind != HOST) & (program.call == np.arange(len(program.kind)))
    calls[program.call[program.kind != HOST]] = True
    if window_ns is not None:
        begin, end = window_ns
        on_stream &= (start_ns < end) & (end_ns > begin)
        asked = np.zeros(len(on_stream), bool)
        asked[program.call[on_stream]] = True
        in_window = (times.called_ns < end) & (times.returned_ns > begin)
        calls &= asked | (in_window & (program.kind == HOST_WAIT))
    return np.flatnonzero(on_stream), np.flatnonzero(calls)


def streams(of_rank: RankView) -> Iterator[tuple[int, Ops]]:
    """Each stream on which an operation is shown, with the ops that are shown there, in order."""
    of_op = of_rank.program.stream[of_rank.on_stream]
    for stream in np.unique(of_op).tolist():
        ops = of_rank.on_stream[of_op == stream]
        if (of_rank.operation[ops] >= 0).any():
            yield stream, ops


def threads(of_rank: RankView) -> Iterator[tuple[int, Ops]]:
    """Each host thread with its calls that are shown, in order."""
    of_call = of_rank.program.thread[of_rank.calls]
    for thread in np.unique(of_call).tolist():
        yield thread, of_rank.calls[of_call == thread]


def call_names(of_rank: RankView, operations: list[Operation]) -> list[str]:
    """API functions of `calls`. What of a wait is not known to the program is named by the function
    that is common: a wait of the host may be one for an event, a stream or the device."""
    by_kind = {
        HOST: "cudaGraphLaunch",
        DEVICE: "cudaEventRecord",
        STREAM_WAIT: "cudaStreamWaitEvent",
        JOIN: "ncclCommInitRank",
        HOST_WAIT: "cudaStreamSynchronize",
    }
    kinds, chosen = of_rank.program.kind[of_rank.calls], of_rank.operation[of_rank.calls]
    return [
        operations[operation].call if operation >= 0 else by_kind[kind]
        for kind, operation in zip(kinds.tolist(), chosen.tolist(), strict=True)
    ]


def iterations(of_rank: RankView) -> list[tuple[int, int, int]]:
    """(iteration of the program, begin, end) in ns, by the host, of those with calls that are
    shown."""
    of_call = of_rank.program.iteration[of_rank.calls]
    found = []
    for iteration in np.unique(of_call).tolist():
        calls = of_rank.calls[of_call == iteration]
        begin_ns = int(of_rank.times.called_ns[calls].min())
        found.append((iteration, begin_ns, int(of_rank.times.returned_ns[calls].max())))
    return found
