"""Makes the emulation's tables from the traces of all ranks of a job."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from understudy.emulation.communicators import CommunicatorMap, resolve_communicators
from understudy.emulation.gaps import aligned_medians
from understudy.emulation.host_joins import unmatched
from understudy.emulation.iterations import Iterations, find_iterations
from understudy.emulation.lowering import (
    HOST_JOINS,
    NO_DEPENDENCY,
    NO_GRAPH,
    NO_SIGNATURE,
    LoweredRank,
    Part,
    Place,
    count_events,
    kept_threads,
    lower,
)
from understudy.emulation.memory import MemoryHistory, Peaks, check_peaks, memory_history
from understudy.errors import UnderstudyError
from understudy.kernels import Signature
from understudy.traces.interceptor import Api, RankTrace
from warehouse import schemas

#: In relative dependencies: none.
_NONE = np.iinfo(np.int32).min


@dataclass(frozen=True)
class OutOfMemory:
    """A rank's uncaught torch.OutOfMemoryError: iteration (from 0) and the request."""

    iteration: int
    requested_bytes: int


@dataclass(frozen=True)
class Collected:
    """Tables by name (columns as in warehouse/schemas) and what a reader should know."""

    tables: dict[str, pa.Table]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Columns:
    """A rank's lowered ops as arrays; `starts[i]` is the first op of iteration i."""

    lowered: LoweredRank
    kind: np.ndarray
    stream: np.ndarray
    signature: np.ndarray
    depends_on: np.ndarray
    thread: np.ndarray
    graph: np.ndarray
    gap_ns: np.ndarray
    starts: np.ndarray

    def window(self, first: int, count: int) -> tuple[int, int]:
        """Ops [start, end) of `count` iterations from `first`."""
        return int(self.starts[first]), int(self.starts[first + count])

    def depends_relative(self, start: int, end: int) -> np.ndarray:
        """`depends_on` of ops [start, end): op of the window, or -k for the k-th op before it.

        What lies before the previous repetition has long ended: none.
        """
        absolute = self.depends_on[start:end]
        relative = absolute - start
        none = (absolute == NO_DEPENDENCY) | (relative < start - end)
        return np.where(none, _NONE, relative)

    def parts(self, start: int, end: int) -> list[tuple[int, tuple[Part, ...]]]:
        """(op of the window, its parts) of the joins in ops [start, end)."""
        joins = np.flatnonzero(self.kind[start:end] == _KIND["join"]).tolist()
        return [(op, self.lowered.parts[start + op]) for op in joins]

    def host_joins(self, start: int, end: int) -> dict[int, Part]:
        """The part of each host join in ops [start, end), by op; the host waits for it in the next
        op."""
        return {
            start + op: parts[0]
            for op, parts in self.parts(start, end)
            if parts[0].kind in HOST_JOINS
        }

    def same(self, iteration: int, other: int, ignore_before: bool = False) -> bool:
        """Whether two iterations have the same ops; `ignore_before`: whatever `iteration` waits
        for in the iterations before it."""
        s, e = self.window(iteration, 1)
        s2, e2 = self.window(other, 1)
        if e - s != e2 - s2:
            return False
        depends, depends2 = self.depends_relative(s, e), self.depends_relative(s2, e2)
        inside = depends >= 0 if ignore_before else np.ones(e - s, bool)
        return (
            all(
                np.array_equal(column[s:e], column[s2:e2])
                for column in (self.kind, self.stream, self.signature, self.thread, self.graph)
            )
            and np.array_equal(depends[inside], depends2[inside])
            and self.parts(s, e) == self.parts(s2, e2)
        )


_KIND = {kind: code for code, kind in enumerate(schemas.OP_KINDS)}


def _columns(lowered: LoweredRank) -> _Columns:
    iteration = np.array(lowered.iteration, np.int64)
    starts = np.searchsorted(iteration, np.arange(lowered.iterations + 2))
    return _Columns(
        lowered,
        np.array([_KIND[k] for k in lowered.kind], np.int8),
        np.array(lowered.stream, np.int64),
        np.array(lowered.signature, np.int64),
        np.array(lowered.depends_on, np.int64),
        np.array(lowered.thread, np.int64),
        np.array(lowered.graph, np.int64),
        np.array(lowered.gap_ns, np.int64),
        starts,
    )


def _unsupported(traces: Sequence[RankTrace]) -> list[str]:
    """A warning that names the functions that the interceptor answers with 'not supported'."""
    called = set()
    for trace in traces:
        calls = trace.records["definition"][trace.records["api"] == Api.UNSUPPORTED]
        called |= {trace.texts[text] for text in np.unique(calls).tolist()}
    if not called:
        return []
    return [f"not emulated, so missing in the prediction: {', '.join(sorted(called))}"]


def _places(trace: RankTrace, resolved: CommunicatorMap, nproc_per_node: int) -> dict[int, Place]:
    """Communicator number in the rank -> where its members are."""
    members = {local: resolved.members(trace.rank, local) for local in trace.communicators}
    return {
        local: Place(tuple(rank // nproc_per_node for rank in ranks), ranks.index(trace.rank))
        for local, ranks in members.items()
    }


def _select(
    found: Iterations, warmup: int, iterations: int, warnings: list[str]
) -> tuple[int, int]:
    """First recorded iteration and their number, which is 0 when some rank has no iterations."""
    available = min(found.seen)
    if available < warmup + iterations and available < max(found.seen):
        warnings.append(
            f"ranks ended after different numbers of iterations: rank {found.seen.index(available)}"
            f" after {available}, rank {found.seen.index(max(found.seen))} after {max(found.seen)};"
            " what follows the last common one is left out"
        )
    if available == 0:
        warnings.append(
            "no optimizer step was seen"
            + (f" on rank {found.seen.index(0)}" if max(found.seen) else "")
            + ": the whole run from the first device operation counts as one iteration"
        )
        return 0, 0
    # A short script gives up warm-up iterations first, down to the one that sets everything up.
    first = min(warmup, max(available - iterations, min(1, available - 1)))
    count = min(iterations, available - first)
    if first < warmup or count < iterations:
        warnings.append(
            f"the script ended after {available} iterations: {first} warm-up and {count} "
            f"recorded iterations instead of {warmup} and {iterations}"
        )
    return first, count


def _span(ranks: Sequence[_Columns], first: int, count: int) -> int:
    """Iterations in one repetition: 1 when all recorded ones are alike on every rank."""
    # What the first one waits for lies in warm-up iterations, which may be unlike any other.
    last = first + count - 1
    same = all(c.same(first + i, last, i == 0) for c in ranks for i in range(count - 1))
    return 1 if same else count


@dataclass(frozen=True)
class _Program:
    """One rank's program: ops [start, end) of its columns, gaps and spreads (ns) of each.

    `unmatched`: ops of the columns that are host joins without partners, and so host time.
    """

    columns: _Columns
    start: int
    end: int
    first_iteration: int
    gap_ns: np.ndarray
    spread_ns: np.ndarray
    recorded: int
    span: int
    unmatched: frozenset[int] = frozenset()


def _program(columns: _Columns, first: int, count: int, span: int) -> _Program:
    if count == 0:
        start, end = _from_first_device_op(columns, 0, len(columns.kind))
        gaps = columns.gap_ns[start:end].copy()
        gaps[:1] = 0
        return _Program(columns, start, end, 0, gaps, np.zeros_like(gaps), 0, 1)
    windows = [slice(*columns.window(first + i, 1)) for i in range(count)]
    ops = np.column_stack((columns.kind, columns.stream, columns.signature, columns.thread))
    medians, spreads = aligned_medians(
        [ops[window] for window in windows], [columns.gap_ns[window] for window in windows]
    )
    # Of equal iterations the last one: it repeats one that was recorded as well.
    gaps, spread = np.concatenate(medians[-span:]), np.concatenate(spreads[-span:])
    whole_start, end = columns.window(first + count - span, span)
    start = whole_start
    if first == 0 and span == count:
        start, end = _from_first_device_op(columns, start, end)
        gaps, spread = gaps[start - whole_start :], spread[start - whole_start :]
        gaps[:1] = 0
    return _Program(columns, start, end, first + count - span, gaps, spread, count, span)


def _from_first_device_op(columns: _Columns, start: int, end: int) -> tuple[int, int]:
    """The first window holds what the script sets up; its time begins with device work."""
    work = (columns.stream[start:end] >= 0) | (columns.graph[start:end] != NO_GRAPH)
    for op in columns.host_joins(start, end):
        work[op - start : op - start + 2] = False
    device = np.flatnonzero(work)
    return (start + int(device[0]) if len(device) else end), end


def _depends(program: _Program) -> list[int | None]:
    """`depends_on` of a program: a dependency on the previous repetition stands only where that
    repetition has the same op at that place (it need not: warm-up may have ended differently)."""
    c, start, end = program.columns, program.start, program.end
    relative = c.depends_relative(start, end)
    result: list[int | None] = []
    for dependency in relative.tolist():
        if dependency == _NONE:
            result.append(None)
            continue
        if dependency < 0:
            actual, repeated = start + dependency, end + dependency
            if any(v[actual] != v[repeated] for v in (c.kind, c.stream, c.signature)):
                result.append(None)
                continue
        result.append(dependency)
    return result


def _match_host_joins(programs: Sequence[_Program], resolved: CommunicatorMap) -> list[_Program]:
    """The programs of all ranks, in rank order; their host joins are those of all members."""
    calls = []
    for program in programs:
        columns = program.columns
        number = resolved.of_rank[columns.lowered.rank]
        joins = columns.host_joins(program.start, program.end)
        calls.append({op: (number[part.communicator], part.kind) for op, part in joins.items()})
    members = {c.number: c.members for c in resolved.communicators}
    return [
        dataclasses.replace(program, unmatched=ops)
        for program, ops in zip(programs, unmatched(calls, members), strict=True)
    ]


class _Interner:
    """Numbers signatures job-wide, in the order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[Signature, int] = {}

    def number(self, signature: Signature) -> int:
        return self.numbers.setdefault(signature, len(self.numbers))


def _events(programs: Sequence[_Program], interner: _Interner) -> pa.Table:
    columns: dict[str, list] = {c.name: [] for c in schemas.EVENTS.columns}
    for number, program in enumerate(programs):
        c, start, end = program.columns, program.start, program.end
        lowered = c.lowered
        depends_on = _depends(program)
        kinds = lowered.kind[start:end]
        for op in program.unmatched:
            kinds[op - start : op - start + 2] = ["host", "host"]
            depends_on[op - start + 1] = None
        # Without an op to wait for, a host wait would wait for its whole stream.
        kinds = [
            "host" if kind == "host_wait" and depends is None else kind
            for kind, depends in zip(kinds, depends_on, strict=True)
        ]
        columns["program"] += [number] * (end - start)
        columns["op"] += range(end - start)
        columns["iteration"] += [i - program.first_iteration for i in lowered.iteration[start:end]]
        columns["kind"] += kinds
        columns["stream"] += [
            -1 if kind == "host" else stream
            for kind, stream in zip(kinds, lowered.stream[start:end], strict=True)
        ]
        columns["signature"] += [
            None if s == NO_SIGNATURE else interner.number(lowered.signatures[s])
            for s in lowered.signature[start:end]
        ]
        columns["depends_on"] += depends_on
        columns["thread"] += lowered.thread[start:end]
        columns["graph"] += [None if g == NO_GRAPH else g for g in lowered.graph[start:end]]
    return pa.table(columns, schema=schemas.EVENTS.schema)


def _host_gaps(programs: Sequence[_Program]) -> pa.Table:
    lengths = [p.end - p.start for p in programs]
    empty = np.zeros(0, np.int64)
    return pa.table(
        {
            "program": np.repeat(np.arange(len(programs), dtype=np.int32), lengths),
            "op": np.concatenate([empty, *(np.arange(n) for n in lengths)]).astype(np.int32),
            "gap_ns": np.concatenate([empty, *(p.gap_ns for p in programs)]),
            "spread_ns": np.concatenate([empty, *(p.spread_ns for p in programs)]),
        },
        schema=schemas.HOST_GAPS.schema,
    )


def _collective_parts(programs: Sequence[_Program]) -> pa.Table:
    """`sequence` counts collectives per communicator, sends and receives per peer and direction:
    that is what NCCL matches on both sides."""
    rows: dict[str, list] = {c.name: [] for c in schemas.COLLECTIVE_PARTS.columns}
    for number, program in enumerate(programs):
        calls: Counter[tuple] = Counter()
        for op, parts in program.columns.parts(program.start, program.end):
            if program.start + op in program.unmatched:
                continue
            for position, part in enumerate(parts):
                key = (part.communicator, part.peer, part.kind if part.peer >= 0 else "")
                values = (
                    number,
                    op,
                    position,
                    part.kind,
                    part.communicator,
                    part.peer,
                    calls[key],
                    part.size_bytes,
                    part.dtype,
                    part.reduce_op,
                    part.root,
                )
                calls[key] += 1
                for name, value in zip(rows, values, strict=True):
                    rows[name].append(value)
    return pa.table(rows, schema=schemas.COLLECTIVE_PARTS.schema)


def _signatures(interner: _Interner) -> pa.Table:
    signatures = list(interner.numbers)
    return pa.table(
        {
            "signature": range(len(signatures)),
            "api": [s.api for s in signatures],
            "name": [s.name for s in signatures],
            "family": [s.family for s in signatures],
            "grid": [s.grid for s in signatures],
            "block": [s.block for s in signatures],
            "shared_memory_bytes": [s.shared_memory_bytes for s in signatures],
            "registers": [s.registers for s in signatures],
            "dtype": [s.dtype for s in signatures],
            "kernel_version": [s.kernel_version for s in signatures],
            "features": [list(s.features) for s in signatures],
            "tensor_bytes": [s.tensor_bytes for s in signatures],
        },
        schema=schemas.SIGNATURES.schema,
    )


def _communicators(resolved: CommunicatorMap) -> pa.Table:
    known = resolved.communicators
    return pa.table(
        {
            "communicator": [c.number for c in known],
            "parent": [c.parent for c in known],
            "name": ["" for _ in known],
            "description": [c.description for c in known],
            "members": [list(c.members) for c in known],
        },
        schema=schemas.COMMUNICATORS.schema,
    )


def _memory_timeline(
    histories: Mapping[int, MemoryHistory], programs: Sequence[_Program]
) -> pa.Table:
    """`programs` by rank in the order of `histories`; empty: none has one."""
    tables = []
    for rank, history, program in zip_longest(histories, histories.values(), programs):
        steps = len(history.iteration)
        tables.append(
            pa.table(
                {
                    "rank": np.full(steps, rank, np.int32),
                    "step": np.arange(steps, dtype=np.int32),
                    "iteration": history.iteration,
                    "op": _next_ops(history, program),
                    "category": history.category.tolist(),
                    "change_bytes": history.change_bytes,
                    "allocated_bytes": history.allocated_bytes,
                    "reserved_bytes": history.reserved_bytes,
                    "device_bytes": history.device_bytes,
                },
                schema=schemas.MEMORY_TIMELINE.schema,
            )
        )
    return pa.concat_tables(tables)


def _next_ops(history: MemoryHistory, program: _Program | None) -> pa.Array:
    """The op of the program that each change of memory precedes; null outside of it."""
    if program is None:
        return pa.nulls(len(history.position), pa.int32())
    position = np.array(program.columns.lowered.position, np.int64)
    following = np.searchsorted(position, history.position)
    outside = (following < program.start) | (following >= program.end)
    return pa.array((following - program.start).astype(np.int32), mask=outside)


def collect(
    traces: Sequence[RankTrace],
    *,
    nproc_per_node: int,
    warmup: int,
    iterations: int,
    out_of_memory: Mapping[int, OutOfMemory],
    marker: str | None = None,
) -> Collected:
    """The tables of a job from the traces of all its ranks, in rank order.

    `marker`: the range or mark that ends an iteration, else iterations.py says what does.

    When a rank ran out of memory there is nothing to replay: events, host gaps, signatures and
    collective parts are empty; memory, communicators and ranks are there.

    Raises UnderstudyError when no rank used the device, communicators lack members, or the marker
    never occurred.
    """
    warnings = _unsupported(traces)
    for trace in traces:
        warnings += check_peaks(trace)
    # What a rank that ran out of memory did to the end is its result.
    found = find_iterations(traces, marker, None if out_of_memory else warmup + iterations)
    traces = found.traces
    resolved = resolve_communicators(traces, complete=not out_of_memory)
    programs: list[_Program] = []
    if not out_of_memory:
        warnings += found.warnings
        first, count = _select(found, warmup, iterations, warnings)
        ranks = [
            _columns(lower(trace, _places(trace, resolved, nproc_per_node), max(first - 1, 0)))
            for trace in traces
        ]
        for columns in ranks:
            warnings += columns.lowered.warnings
        if not any((c.stream >= 0).any() for c in ranks):
            raise UnderstudyError(
                "no rank launched a kernel: the script never used a GPU. Does it move its model to "
                '"cuda"?'
            )
        span = _span(ranks, first, count) if count else 1
        programs = [_program(columns, first, count, span) for columns in ranks]
        programs = _match_host_joins(programs, resolved)
    interner = _Interner()
    events = _events(programs, interner)
    histories = {trace.rank: memory_history(trace, kept_threads(trace)) for trace in traces}
    fullest = [history.fullest() for history in histories.values()]
    peaks = [history.peaks for history in histories.values()]
    numbers = [trace.rank for trace in traces]
    memory_errors = [out_of_memory.get(rank) for rank in numbers]
    rank_table = pa.table(
        {
            "rank": numbers,
            "program": range(len(traces)),
            "node": [rank // nproc_per_node for rank in numbers],
            "local_rank": [rank % nproc_per_node for rank in numbers],
            "communicator_map": [list(resolved.of_rank[rank].items()) for rank in numbers],
            "iterations": [p.recorded for p in programs] or found.seen,
            "span_iterations": [p.span for p in programs] or [1] * len(traces),
            "iterations_seen": found.seen,
            "iteration_source": [found.source] * len(traces),
            "trace_events": [count_events(trace) for trace in traces],
            **{name: [getattr(p, name) for p in peaks] for name in Peaks._fields},
            "peak_iteration": [iteration for iteration, _ in fullest],
            "peak_parts_bytes": [list(parts.items()) for _, parts in fullest],
            "oom_iteration": [e.iteration if e else None for e in memory_errors],
            "oom_requested_bytes": [e.requested_bytes if e else None for e in memory_errors],
        },
        schema=schemas.RANKS.schema,
    )
    return Collected(
        {
            "events": events,
            "host_gaps": _host_gaps(programs),
            "signatures": _signatures(interner),
            "collective_parts": _collective_parts(programs),
            "communicators": _communicators(resolved),
            "ranks": rank_table,
            "memory_timeline": _memory_timeline(histories, programs),
        },
        tuple(dict.fromkeys(warnings)),
    )
