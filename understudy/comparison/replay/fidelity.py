"""Replays a measured run with its own durations: how far is the replay from what was measured?

Kernels, copies and collectives last as long as they did. What is put to the test is all else: the
order that streams, events, launch queue and collectives impose, and the host's pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from understudy.comparison.replay.dependencies import dependencies
from understudy.comparison.replay.host import (
    Marks,
    calls_of_program,
    host_times,
    learned,
    marks_of,
    with_marks,
)
from understudy.comparison.replay.joins import Joins, find_joins
from understudy.comparison.replay.lowering import Join, Lowered, device_times, lower
from understudy.comparison.replay.records import MeasuredRank, MeasuredRun, Step, Work
from understudy.errors import UnderstudyError
from understudy.simulation import engine
from understudy.simulation.world import Placement, Timeline, World


@dataclass(frozen=True)
class StepScore:
    """A step, from its begin until its last call has returned and all work that it launched has
    ended."""

    rank: int
    step: str
    measured_ns: int
    simulated_ns: int  #: host times from the earlier steps, where there are any
    own_host_ns: int  #: simulated with the host times of the step itself

    @property
    def error(self) -> float:
        return self.simulated_ns / self.measured_ns - 1

    @property
    def own_host_error(self) -> float:
        return self.own_host_ns / self.measured_ns - 1


@dataclass(frozen=True)
class CollectiveScore:
    """When a collective ended, from the begin of its step; `error` is the part of the step that
    the replay is off by."""

    rank: int
    step: str
    collective: str
    size_bytes: int | None
    measured_end_ns: int
    simulated_end_ns: int
    error: float


@dataclass(frozen=True)
class Fidelity:
    """`learned_host`: there were earlier steps to take host times from. `inferred` counts the
    waits that the traces do not explain."""

    steps: Sequence[StepScore]
    collectives: Sequence[CollectiveScore]
    learned_host: bool
    inferred: int
    warnings: Sequence[str]

    @property
    def error(self) -> float:
        """Of the sum of all steps."""
        return sum(s.simulated_ns for s in self.steps) / sum(s.measured_ns for s in self.steps) - 1

    @property
    def step_error_max(self) -> float:
        return max(abs(step.error) for step in self.steps)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """`own` has the host times of each step itself, `learned` those of earlier steps."""

    rank: MeasuredRank
    marks: Marks
    own: Lowered
    learned: Lowered
    first: int  #: of the scored steps
    queue_depth: int
    inferred: int


def replay(run: MeasuredRun) -> Fidelity:
    """Replays all ranks together.

    Raises UnderstudyError when a rank has no call that puts work on a device, and where the replay
    deadlocks.
    """
    joins = find_joins(run)
    prepared = [
        _prepare(_with_steps(rank), of_rank)
        for rank, of_rank in zip(run.ranks, joins.of_rank, strict=True)
    ]
    queue_depth = max(one.queue_depth for one in prepared)
    own = _simulate([one.own for one in prepared], joins, queue_depth)
    is_learned = any(one.first for one in prepared)
    learned = own
    if is_learned:
        learned = _simulate([one.learned for one in prepared], joins, queue_depth)
    steps: list[StepScore] = []
    collectives: list[CollectiveScore] = []
    for one, of_own, of_learned in zip(prepared, own, learned, strict=True):
        for number in range(one.first, len(one.rank.steps)):
            with_own = _Replayed(one, one.own, of_own, number)
            with_learned = _Replayed(one, one.learned, of_learned, number)
            steps.append(_step_score(with_own, with_learned))
            collectives.extend(_collective_scores(with_learned))
    warnings = [*joins.warnings, *_warnings(run)]
    inferred = sum(one.inferred for one in prepared)
    return Fidelity(steps, collectives, is_learned, inferred, warnings)


def _simulate(lowered: Sequence[Lowered], joins: Joins, queue_depth: int) -> list[Timeline]:
    communicators = {number: number for number in joins.members}
    placements = [Placement(i, communicators) for i in range(len(lowered))]
    programs = [one.program for one in lowered]
    return engine.replay(World(programs, placements, joins.members, queue_depth=queue_depth))


def _with_steps(rank: MeasuredRank) -> MeasuredRank:
    """The rank with its steps ending when their last call returns.

    The annotation of the last step ends when the profiler has stopped, much later. A rank without
    steps is one step from its first call to its last.
    """
    calls = calls_of_program(rank)
    if not calls:
        raise UnderstudyError(
            f"the trace of rank {rank.rank} has no CUDA or HIP call that put work on a device; "
            "record CPU and CUDA activities together (torch.profiler.ProfilerActivity)"
        )
    named = rank.steps or [Step("trace", calls[0].start_ns, calls[-1].end_ns + 1)]
    steps = [
        replace(step, end_ns=max(call.end_ns for call in of_step))
        for step in named
        if (of_step := [c for c in calls if step.start_ns <= c.start_ns < step.end_ns])
    ]
    return replace(rank, steps=steps)


def _prepare(rank: MeasuredRank, joins: dict[Work, Join]) -> _Prepared:
    marks = marks_of(rank.steps)
    calls = with_marks(calls_of_program(rank), marks)
    waits = dependencies(rank, calls)
    times = device_times(rank, waits)
    host = host_times(rank, calls, waits)
    own = lower(rank, marks, host, waits, times, joins)
    first = (len(rank.steps) + 1) // 2 if len(rank.steps) > 1 else 0
    with_learned = own
    if first:
        with_learned = lower(rank, marks, learned(host, rank.steps, first), waits, times, joins)
    return _Prepared(rank, marks, own, with_learned, first, host.queue_depth, waits.inferred)


class _Replayed:
    """One step of a replayed rank: `end_ns` of its work and of the step, from the step's begin."""

    def __init__(
        self, prepared: _Prepared, lowered: Lowered, timeline: Timeline, number: int
    ) -> None:
        self.rank = prepared.rank.rank
        self.step = prepared.rank.steps[number]
        self.work = [
            work
            for work in prepared.rank.work
            if work.call is not None
            and work in lowered.op_of
            and self.step.start_ns <= work.call.start_ns < self.step.end_ns
        ]
        ends = timeline.end_ns[0]
        begin_ns = int(ends[lowered.mark_of[prepared.marks.begin[number]]])
        self.end_ns = {work: int(ends[lowered.op_of[work]]) - begin_ns for work in self.work}
        last_call_ns = int(ends[lowered.mark_of[prepared.marks.end[number]]]) - begin_ns
        self.duration_ns = max([last_call_ns, *self.end_ns.values()])

    @property
    def measured_ns(self) -> int:
        ends = [self.step.end_ns, *(work.end_ns for work in self.work)]
        return max(ends) - self.step.start_ns


def _step_score(own: _Replayed, learned: _Replayed) -> StepScore:
    return StepScore(own.rank, own.step.name, own.measured_ns, learned.duration_ns, own.duration_ns)


def _collective_scores(replayed: _Replayed) -> list[CollectiveScore]:
    scores = []
    for work in replayed.work:
        if work.is_collective:
            measured_ns = work.end_ns - replayed.step.start_ns
            simulated_ns = replayed.end_ns[work]
            scores.append(
                CollectiveScore(
                    replayed.rank,
                    replayed.step.name,
                    work.collective or work.name,
                    work.size_bytes,
                    measured_ns,
                    simulated_ns,
                    (simulated_ns - measured_ns) / replayed.measured_ns,
                )
            )
    return scores


def _warnings(run: MeasuredRun) -> list[str]:
    warnings = []
    missing = sorted(set(range(run.world_size)) - {rank.rank for rank in run.ranks})
    if missing:
        warnings.append(
            f"{len(missing)} of {run.world_size} ranks have no trace (first: rank {missing[0]}): "
            "collectives with them keep their measured durations, waiting included"
        )
    for rank in run.ranks:
        unknown = sum(work.call is None for work in rank.work)
        if unknown:
            warnings.append(
                f"rank {rank.rank}: {unknown} of {len(rank.work)} kernels and copies have no "
                "launch in the trace; they follow what ran before them on their stream"
            )
        if not rank.steps:
            warnings.append(f"rank {rank.rank}: no ProfilerStep in the trace: it is one step")
    return warnings
