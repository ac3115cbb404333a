"""A measured rank as a program of the replay engine, with the durations that were measured.

Two constants per trace stand for what a device adds around its work: how long a launch takes to
start work on an idle stream, and the pause between two pieces of work that stand in line. Both are
taken from the trace (`device_times`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

import numpy as np

from understudy.comparison.replay.dependencies import Dependencies
from understudy.comparison.replay.host import Host, Marks
from understudy.comparison.replay.records import Call, MeasuredRank, Work, WorkKind
from understudy.simulation.world import (
    DEVICE,
    HOST,
    HOST_WAIT,
    JOIN,
    NONE,
    STREAM_WAIT,
    Part,
    Program,
)

#: A stream counts as idle when its last work ended this long before.
_IDLE_NS = 2_000
#: A launch is far ahead of its work when it came this long before the stream was free.
_AHEAD_NS = 20_000
#: Longer times between launch and start, or between two pieces of work, have other causes.
_LONGEST_LATENCY_NS = 100_000
_LONGEST_PAUSE_NS = 20_000
#: Where a trace does not show them: medians of the traces that do.
_USUAL_LATENCY_NS = 8_000
_USUAL_PAUSE_NS = 1_000


@dataclass(frozen=True)
class DeviceTimes:
    latency_ns: Mapping[WorkKind, int]  #: from the call to the start of work on an idle stream
    pause_ns: int  #: between two pieces of work of a stream


@dataclass(eq=False)
class Lowered:
    """A program, and which op each piece of work and each mark became."""

    program: Program
    op_of: dict[Work, int]
    mark_of: dict[Call, int]


@dataclass(frozen=True)
class Join:
    """A collective of which every member is measured: its part and its own duration."""

    part: Part
    duration_ns: int


def device_times(rank: MeasuredRank, waits: Dependencies) -> DeviceTimes:
    """The constants of the rank's device; work that waited for another stream says nothing."""
    latencies: defaultdict[WorkKind, list[int]] = defaultdict(list)
    pauses: list[int] = []
    free_ns: dict[int, int] = {}
    for work in rank.work:
        free = free_ns.get(work.stream)
        if work.call is not None and work not in waits.of_work:
            latency_ns = work.start_ns - work.call.start_ns
            idle = free is None or work.start_ns - free > _IDLE_NS
            if idle and 0 <= latency_ns < _LONGEST_LATENCY_NS:
                latencies[work.kind].append(latency_ns)
            if free is not None and work.call.start_ns + _AHEAD_NS < free:
                pause_ns = work.start_ns - free
                if 0 <= pause_ns < _LONGEST_PAUSE_NS:
                    pauses.append(pause_ns)
        free_ns[work.stream] = max(work.end_ns, free or 0)
    kernel_ns = int(median(latencies["kernel"])) if latencies["kernel"] else _USUAL_LATENCY_NS
    kinds: tuple[WorkKind, ...] = ("kernel", "copy", "memset")
    # The longest tenth of the pauses are waits of unknown cause.
    usual = sorted(pauses)[: max(1, len(pauses) * 9 // 10)]
    return DeviceTimes(
        {kind: int(median(latencies[kind])) if latencies[kind] else kernel_ns for kind in kinds},
        int(mean(usual)) if usual else _USUAL_PAUSE_NS,
    )


@dataclass
class _Ops:
    kind: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    depends_on: list[int] = field(default_factory=list)
    gap_ns: list[int] = field(default_factory=list)
    latency_ns: list[int] = field(default_factory=list)
    duration_ns: list[int] = field(default_factory=list)
    parts: dict[int, tuple[Part, ...]] = field(default_factory=dict)


class _Lowering:
    def __init__(
        self,
        rank: MeasuredRank,
        marks: Marks,
        waits: Dependencies,
        times: DeviceTimes,
        joins: Mapping[Work, Join],
    ) -> None:
        self._waits = waits
        self._times = times
        self._joins = joins
        self._ops = _Ops()
        self._op_of: dict[Work, int] = {}
        self._marks = {*marks.begin, *marks.end}
        self._mark_of: dict[Call, int] = {}
        self._gap_ns = 0
        self._before, self._after = _without_call(rank.work)

    def run(self, host: Host) -> Lowered:
        self._gap_ns = host.begin_ns
        self._op(HOST)
        for work in self._before:
            # Launched before the trace began: it starts when it did, the state of the device then.
            self._work(work, max(0, work.start_ns - host.begin_ns - self._times.pause_ns))
        for call, time in zip(host.calls, host.times, strict=True):
            self._gap_ns += time.gap_ns
            for work in sorted(call.work, key=lambda work: work.start_ns):
                self._work(work, self._latency_ns(work))
            for target in self._waits.of_call.get(call, ()):
                self._op(HOST_WAIT, target.stream, depends_on=self._op_of[target])
            if call in self._marks:
                self._mark_of[call] = self._op(HOST)
            # What a call costs the host comes before the next op.
            self._gap_ns += time.cost_ns
        ops = self._ops
        zero = np.zeros(len(ops.kind), np.int64)
        program = Program(
            kind=np.array(ops.kind, np.int64),
            stream=np.array(ops.stream, np.int64),
            depends_on=np.array(ops.depends_on, np.int64),
            gap_ns=np.array(ops.gap_ns, np.int64),
            cost_ns=zero,
            latency_ns=np.array(ops.latency_ns, np.int64),
            duration_ns=np.array(ops.duration_ns, np.int64),
            parts=ops.parts,
        )
        return Lowered(program, self._op_of, self._mark_of)

    def _latency_ns(self, work: Work) -> int:
        return max(0, self._times.latency_ns[work.kind] - self._times.pause_ns)

    def _op(
        self,
        kind: int,
        stream: int = -1,
        depends_on: int = NONE,
        latency_ns: int = 0,
        duration_ns: int = 0,
    ) -> int:
        ops = self._ops
        ops.kind.append(kind)
        ops.stream.append(stream)
        ops.depends_on.append(depends_on)
        ops.gap_ns.append(self._gap_ns)
        ops.latency_ns.append(latency_ns)
        ops.duration_ns.append(duration_ns)
        self._gap_ns = 0
        return len(ops.kind) - 1

    def _work(self, work: Work, latency_ns: int) -> None:
        """The pause before work is part of its op, which so begins that much earlier."""
        for target in self._waits.of_work.get(work, ()):
            self._op(STREAM_WAIT, work.stream, depends_on=self._op_of[target])
        join = self._joins.get(work)
        own_ns = work.end_ns - work.start_ns if join is None else join.duration_ns
        op = self._op(
            DEVICE if join is None else JOIN,
            work.stream,
            latency_ns=latency_ns,
            duration_ns=own_ns + self._times.pause_ns,
        )
        if join is not None:
            self._ops.parts[op] = (join.part,)
        self._op_of[work] = op
        for following in self._after.get(work, ()):
            self._work(following, self._latency_ns(following))


def lower(
    rank: MeasuredRank,
    marks: Marks,
    host: Host,
    waits: Dependencies,
    times: DeviceTimes,
    joins: Mapping[Work, Join],
) -> Lowered:
    """The program of a measured rank; `joins` has the collectives that wait for other ranks."""
    return _Lowering(rank, marks, waits, times, joins).run(host)


def _without_call(works: Sequence[Work]) -> tuple[list[Work], dict[Work, list[Work]]]:
    """Work of unknown call: before any known work of its stream, and after which it comes."""
    before: list[Work] = []
    after: defaultdict[Work, list[Work]] = defaultdict(list)
    last: dict[int, Work] = {}
    for work in works:
        known = last.get(work.stream)
        if work.call is not None:
            last[work.stream] = work
        elif known is None:
            before.append(work)
        else:
            after[known].append(work)
    return before, after
