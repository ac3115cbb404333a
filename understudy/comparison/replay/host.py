"""Host time of a measured rank: what lies between its calls, and what they cost.

Both are wall-clock times, so a step is not its own proof: where a trace has several steps, the
earlier half says how long the host takes and the later half is scored with that (`learned`).
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from understudy.comparison.replay.dependencies import Dependencies
from understudy.comparison.replay.records import Call, MeasuredRank, Step
from understudy.simulation.world import QUEUE_DEPTH

#: Of the queue's depth: a launch that finds that much pending waits for room.
_FULL = 0.97


@dataclass(frozen=True)
class HostTime:
    gap_ns: int  #: since the previous call returned
    cost_ns: int  #: until the call returned, or another thread's call began; less what it waited


@dataclass(frozen=True, eq=False)
class Host:
    """The calls that belong to the program, in order, and the time of each.

    `begin_ns` is when the trace begins: its first call or work.
    """

    begin_ns: int
    calls: Sequence[Call]
    times: Sequence[HostTime]
    queue_depth: int


@dataclass(frozen=True, eq=False)
class Marks:
    """Where steps begin and end, as calls that do nothing and take no time."""

    begin: Sequence[Call]
    end: Sequence[Call]


def marks_of(steps: Sequence[Step]) -> Marks:
    return Marks(
        [Call("", "step begin", step.start_ns, step.start_ns) for step in steps],
        [Call("", "step end", step.end_ns, step.end_ns) for step in steps],
    )


def calls_of_program(rank: MeasuredRank) -> list[Call]:
    """The calls of the threads that put work on the device: others only poll or load data."""
    working = {call.thread for call in rank.calls if call.work}
    return [call for call in rank.calls if call.thread in working]


def with_marks(calls: Sequence[Call], marks: Marks) -> list[Call]:
    """The calls and the marks in order."""
    # The sort is stable: a step ends before the next begins, and begins before its calls.
    return sorted([*marks.end, *marks.begin, *calls], key=lambda call: call.start_ns)


def host_times(rank: MeasuredRank, calls: Sequence[Call], waits: Dependencies) -> Host:
    """The measured time of each call.

    The depth of the launch queue is CUDA's, or more where a stream had more pending (HIP).
    """
    pending = _pending(calls)
    queue_depth = max([QUEUE_DEPTH, *(count + 1 for count in pending)])
    full = [count >= _FULL * queue_depth for count in pending]
    typical_ns = _typical_cost(calls, full)
    times: list[HostTime] = []
    begin_ns = min(timed.start_ns for timed in (*calls[:1], *rank.work[:1]))
    free_ns = begin_ns
    for i, call in enumerate(calls):
        next_ns = calls[i + 1].start_ns if i + 1 < len(calls) else call.end_ns
        end_ns = max(call.start_ns, min(call.end_ns, next_ns))
        woken_ns = max([call.start_ns, *(work.end_ns for work in waits.of_call.get(call, ()))])
        cost_ns = max(0, end_ns - woken_ns)
        # A launch into a full queue lasts until there is room, which is the engine's to find out.
        cost_ns = min(cost_ns, typical_ns) if full[i] else cost_ns
        times.append(HostTime(max(0, call.start_ns - free_ns), cost_ns))
        free_ns = max(free_ns, end_ns)
    return Host(begin_ns, calls, times, queue_depth)


def learned(host: Host, steps: Sequence[Step], first: int) -> Host:
    """The host with the times of `steps[first:]` taken from the steps before `first`.

    A call is looked for in the earlier steps by what it launches and how many of its like came
    before it in the step; its time is the median over them.
    """
    of_call: defaultdict[Hashable, list[HostTime]] = defaultdict(list)
    for step in steps[:first]:
        for i, like, number in _calls_of(host.calls, step):
            of_call[like, number].append(host.times[i])
            of_call[like].append(host.times[i])
    times = list(host.times)
    for step in steps[first:]:
        for i, like, number in _calls_of(host.calls, step):
            known = of_call.get((like, number)) or of_call.get(like)
            if known:
                times[i] = HostTime(
                    int(median(time.gap_ns for time in known)),
                    int(median(time.cost_ns for time in known)),
                )
    return replace(host, times=times)


def _calls_of(calls: Sequence[Call], step: Step) -> list[tuple[int, Hashable, int]]:
    """The calls of a step: index, what each is, how many of its like came before in the step."""
    seen: Counter[Hashable] = Counter()
    found: list[tuple[int, Hashable, int]] = []
    for i, call in enumerate(calls):
        # Of the calls at the very end, its mark is the first.
        if step.start_ns <= call.start_ns < step.end_ns or (
            call.name == "step end" and call.start_ns == step.end_ns
        ):
            like = (call.name, call.work[0].name if call.work else "")
            found.append((i, like, seen[like]))
            seen[like] += 1
    return found


def _pending(calls: Sequence[Call]) -> list[int]:
    """How much work the stream of each call had pending when the call was made."""
    ends: defaultdict[int, list[int]] = defaultdict(list)
    pending = [0] * len(calls)
    for i, call in enumerate(calls):
        for work in call.work:
            queue = ends[work.stream]
            while queue and queue[0] <= call.start_ns:
                heapq.heappop(queue)
            pending[i] = max(pending[i], len(queue))
            heapq.heappush(queue, work.end_ns)
    return pending


def _typical_cost(calls: Sequence[Call], full: Sequence[bool]) -> int:
    costs = [
        call.end_ns - call.start_ns
        for call, is_full in zip(calls, full, strict=True)
        if call.work and not is_full
    ]
    return int(median(costs)) if costs else 0
