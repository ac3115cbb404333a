"""What a user measured of a job on a device, kept as `jobs/<job>/<device>/measured.json`."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from understudy.comparison.replay import MeasuredRank, MeasuredRun
from understudy.comparison.replay.joins import Joins, find_joins
from understudy.comparison.replay.records import Step, Work
from understudy.errors import UnderstudyError, UsageError
from understudy.home import job_dir, write_whole


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel, copy or memset of one iteration, in the order of launches.

    `duration_ns` is the median over the iterations; of a collective whose members were all
    measured it is without the time that it waited for them, else `waits` is true.
    """

    kind: str
    name: str
    grid: tuple[int, ...] | None
    size_bytes: int | None
    duration_ns: int
    waits: bool = False


@dataclass(frozen=True)
class Lateness:
    """How late a rank comes to its collectives, after the first member; mean over them."""

    rank: int
    mean_ns: int
    last: int  #: of how many it was the last to arrive


@dataclass(frozen=True)
class Measurement:
    """`kernels` by rank; empty when only the time of an iteration was stated."""

    iteration_time_ns: int
    kernels: dict[int, list[MeasuredKernel]] = field(default_factory=dict)
    stragglers: list[Lateness] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def of_run(run: MeasuredRun) -> Measurement:
    """The iteration that a measured run repeats.

    Of its steps those count whose sequence of kernels is the most frequent one. The iteration time
    is the median time from the begin of a step to the begin of the next, or of the one step.

    Raises UnderstudyError when the traces have no step (ProfilerStep).
    """
    joins = find_joins(run)
    kernels: dict[int, list[MeasuredKernel]] = {}
    warnings = list(joins.warnings)
    times: list[int] = []
    for rank, joined in zip(run.ranks, joins.of_rank, strict=True):
        if not rank.steps:
            raise UnderstudyError(
                f"the trace of rank {rank.rank} has no steps: call `prof.step()` of "
                "torch.profiler after each iteration"
            )
        durations = {work: join.duration_ns for work, join in joined.items()}
        kernels[rank.rank], steps = _typical_step(rank, durations, len(run.ranks) > 1)
        if steps < len(rank.steps):
            warnings.append(
                f"rank {rank.rank}: {steps} of {len(rank.steps)} steps have the same kernels; "
                "these are compared"
            )
        times.append(_step_time(rank.steps))
    return Measurement(max(times), kernels, _stragglers(run, joins), warnings)


def _step_time(steps: Sequence[Step]) -> int:
    begins = [step.start_ns for step in steps]
    apart = [b - a for a, b in itertools.pairwise(begins)]
    return int(median(apart)) if apart else steps[0].end_ns - steps[0].start_ns


def _typical_step(
    rank: MeasuredRank, own_ns: dict[Work, int], several: bool
) -> tuple[list[MeasuredKernel], int]:
    """The kernels of the most frequent sequence (of several the first), and how often it came."""
    sequences = [_launched_in(rank, step) for step in rank.steps]
    names = [tuple((work.kind, work.name, work.grid) for work in works) for works in sequences]
    counts = Counter(names)
    chosen = max(counts, key=lambda n: (counts[n], -names.index(n)))
    alike = [works for works, n in zip(sequences, names, strict=True) if n == chosen]
    kernels = [
        MeasuredKernel(
            {"kernel": "kernel", "copy": "memcpy", "memset": "memset"}[works[0].kind],
            works[0].collective or works[0].name if works[0].is_collective else works[0].name,
            works[0].grid,
            works[0].size_bytes,
            int(median([_duration_ns(work, own_ns) for work in works])),
            waits=works[0].is_collective and works[0] not in own_ns and several,
        )
        for works in zip(*alike, strict=True)
    ]
    return kernels, len(alike)


def _duration_ns(work: Work, own_ns: dict[Work, int]) -> int:
    return own_ns[work] if work in own_ns else work.end_ns - work.start_ns


def _launched_in(rank: MeasuredRank, step: Step) -> list[Work]:
    works = [
        work
        for work in rank.work
        if work.call is not None and step.start_ns <= work.call.start_ns < step.end_ns
    ]
    return sorted(works, key=lambda work: (work.call.start_ns if work.call else 0, work.start_ns))


def _stragglers(run: MeasuredRun, joins: Joins) -> list[Lateness]:
    """Ranks by how late they come to collectives of which every member was measured."""
    arrivals: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for rank, joined in zip(run.ranks, joins.of_rank, strict=True):
        for work, join in joined.items():
            arrivals[join.part.communicator, join.part.sequence][rank.rank] = work.start_ns
    late: defaultdict[int, list[int]] = defaultdict(list)
    last: Counter[int] = Counter()
    for of_rank in arrivals.values():
        first_ns = min(of_rank.values())
        for rank, start_ns in of_rank.items():
            late[rank].append(start_ns - first_ns)
        last[max(sorted(of_rank), key=lambda rank: of_rank[rank])] += 1
    found = [Lateness(rank, sum(ns) // len(ns), last[rank]) for rank, ns in sorted(late.items())]
    return sorted(found, key=lambda lateness: (-lateness.mean_ns, lateness.rank))


def save_measured(job: str, device: str, measurement: Measurement) -> Path:
    """Keeps what was measured, in place of an older measurement; returns the file.

    Raises UsageError unless the time is positive.
    """
    if measurement.iteration_time_ns <= 0:
        raise UsageError(f"a measured time of {measurement.iteration_time_ns} ns is not above 0")
    path = _measured_path(job, device)
    write_whole(path, json.dumps(asdict(measurement)) + "\n")
    return path


def load_measured(job: str, device: str) -> Measurement:
    """What was measured of a job on a device; raises UnderstudyError when there is nothing."""
    path = _measured_path(job, device)
    try:
        stored = json.loads(path.read_text())
        return Measurement(
            int(stored["iteration_time_ns"]),
            {
                int(rank): [
                    MeasuredKernel(**{**k, "grid": tuple(k["grid"]) if k["grid"] else None})
                    for k in of_rank
                ]
                for rank, of_rank in stored["kernels"].items()
            },
            [Lateness(**lateness) for lateness in stored["stragglers"]],
            list(stored["warnings"]),
        )
    except FileNotFoundError:
        raise UnderstudyError(
            f"nothing was measured of job {job} on {device} ({path}); record it with "
            f"`understudy compare {job} --device {device}` and --measured-ms or --kineto"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnderstudyError(f"{path}: not a measurement ({error!r}); record it again") from None


def _measured_path(job: str, device: str) -> Path:
    return job_dir(job) / device / "measured.json"
