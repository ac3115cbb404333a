"""Which work waits for which in a measured rank.

Profilers record that a stream or the host waited, seldom for what. Where the trace says it
(Kineto's `cuda_sync` events) that holds. Otherwise it is inferred from the order of the calls and
from the times: a wait can only be for work that was launched before it and that had ended when the
waiting work, or the waiting call's return, came. Of such work on a stream the last launched counts,
since an event is most often recorded right before it is waited for; between streams those that
ended last count, as many as there were waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy.comparison.replay.records import Call, MeasuredRank, Wait, Work

#: Clocks of host and device agree to about this; older traces have whole microseconds.
TOLERANCE_NS = 3_000

_STREAM_WAIT = "StreamWaitEvent"
_WAITS_FOR_ALL = ("DeviceSynchronize", "CtxSynchronize")
_WAITS_FOR_ONE = ("StreamSynchronize", "EventSynchronize")


@dataclass(frozen=True, eq=False)
class Dependencies:
    """`of_work`: what a piece of work waits for beside its stream; `of_call`: what the host waits
    for in a call, empty where nothing that the trace has; `inferred` counts waits of `of_work`."""

    of_work: Mapping[Work, Sequence[Work]]
    of_call: Mapping[Call, Sequence[Work]]
    inferred: int


def dependencies(rank: MeasuredRank, calls: Sequence[Call]) -> Dependencies:
    """The dependencies between the work of `calls`, which are the rank's in order."""
    return _Search(rank).run(calls)


@dataclass(frozen=True)
class _StreamWait:
    """A wait of some stream: how much each stream had got before, and what is recorded of it."""

    launched: Mapping[int, int]
    recorded: Wait | None


class _Search:
    def __init__(self, rank: MeasuredRank) -> None:
        self._rank = rank
        self._launched: defaultdict[int, list[Work]] = defaultdict(list)
        self._at_call: dict[int, dict[int, int]] = {}  # correlation -> launched per stream before
        self._recorded_by = {wait.recorded_by for wait in rank.waits.values()}
        self._waits: list[_StreamWait] = []
        self._seen: defaultdict[int, int] = defaultdict(int)  # stream -> waits before its last work
        self._of_work: dict[Work, Sequence[Work]] = {}
        self._of_call: dict[Call, Sequence[Work]] = {}
        self._inferred = 0

    def run(self, calls: Sequence[Call]) -> Dependencies:
        for work in self._rank.work:
            if work.call is None:
                self._launched[work.stream].append(work)
        for works in self._launched.values():
            works.sort(key=lambda work: work.start_ns)
        for call in calls:
            if call.correlation in self._recorded_by:
                self._at_call[call.correlation] = self._counts()
            if call.name.startswith(_STREAM_WAIT):
                recorded = self._rank.waits.get(call.correlation)
                self._waits.append(_StreamWait(self._counts(), recorded))
            elif call.name.startswith(_WAITS_FOR_ALL):
                self._of_call[call] = [works[-1] for works in self._launched.values() if works]
            elif call.name.startswith(_WAITS_FOR_ONE):
                self._of_call[call] = self._host_waits_for(call)
            for work in call.work:
                self._launch(work)
            if _blocks(call):
                self._of_call[call] = call.work
        return Dependencies(self._of_work, self._of_call, self._inferred)

    def _counts(self) -> dict[int, int]:
        return {stream: len(works) for stream, works in self._launched.items()}

    def _launch(self, work: Work) -> None:
        waits = self._waits[self._seen[work.stream] :]
        self._seen[work.stream] = len(self._waits)
        found = self._stream_waits_for(work, waits) if waits else []
        if found:
            self._of_work[work] = found
        self._launched[work.stream].append(work)

    def _stream_waits_for(self, work: Work, waits: Sequence[_StreamWait]) -> list[Work]:
        candidates: dict[int, int] = {}
        for wait in waits:
            for stream, count in self._bounds(wait).items():
                position = self._last_ended(stream, count, work.start_ns)
                if stream != work.stream and position >= 0:
                    candidates[stream] = max(candidates.get(stream, -1), position)
        found = [self._launched[stream][position] for stream, position in candidates.items()]
        found.sort(key=lambda other: (-other.end_ns, other.stream))
        self._inferred += min(len(found), len(waits))
        return found[: len(waits)]

    def _bounds(self, wait: _StreamWait) -> Mapping[int, int]:
        """How much work of each stream a wait can be for."""
        recorded = wait.recorded
        if recorded is None:
            return wait.launched
        counts = wait.launched
        if recorded.recorded_by is not None:
            counts = self._at_call.get(recorded.recorded_by, counts)
        if recorded.source is None:
            return counts
        return {recorded.source: counts.get(recorded.source, 0)}

    def _last_ended(self, stream: int, count: int, when_ns: int) -> int:
        """The last of the first `count` pieces of work of a stream that had ended; -1: none."""
        works = self._launched[stream]
        position = count - 1
        while position >= 0 and works[position].end_ns > when_ns + TOLERANCE_NS:
            position -= 1
        return position

    def _host_waits_for(self, call: Call) -> list[Work]:
        """The work that a call for one stream or event waited for.

        If work ended during the call, the last such; else the last work of the stream that was
        idle last, which the call then found done.
        """
        recorded = self._rank.waits.get(call.correlation)
        streams = sorted(self._launched) if not recorded or recorded.source is None else ()
        if recorded and recorded.source is not None:
            streams = (recorded.source,)
        last = [
            (self._launched[stream][position], position == len(self._launched[stream]) - 1)
            for stream in streams
            if (position := self._last_ended(stream, len(self._launched[stream]), call.end_ns)) >= 0
        ]
        during = [work for work, _ in last if work.end_ns > call.start_ns]
        done = [work for work, is_last in last if is_last]
        found = during or done
        return [max(found, key=lambda work: (work.end_ns, -work.stream))] if found else []


def _blocks(call: Call) -> bool:
    """Whether a copy's call returned only after the copy had ended: pageable memory, or cudaMemcpy.

    (CUDA runtime API, "API synchronization behavior".)
    """
    return (
        len(call.work) == 1
        and call.work[0].kind == "copy"
        and call.start_ns < call.work[0].end_ns <= call.end_ns + TOLERANCE_NS
    )
