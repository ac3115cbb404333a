"""Which collective kernels of the measured ranks are one collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from understudy.comparison.replay.lowering import Join
from understudy.comparison.replay.records import MeasuredRank, MeasuredRun, Work
from understudy.simulation.world import Part

_PAIRS = ("send", "recv")


@dataclass(eq=False)
class Joins:
    """`of_rank[i]` has the joins of the i-th rank with a trace, `members` those of each
    communicator as positions among these ranks."""

    of_rank: list[dict[Work, Join]]
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Group:
    name: str
    members: tuple[int, ...]

    def __str__(self) -> str:
        return f"process group {self.name}" if self.name else "the job's collectives"


def find_joins(run: MeasuredRun) -> Joins:
    """Joins the i-th collective of each member of a process group.

    Without names of process groups in the trace, all collectives are taken for those of all ranks.
    A collective's own duration is the shortest time from the arrival of the last member to the end
    of a member's kernel: a kernel that came earlier waited. Where a member has no trace, or the
    members' calls do not agree, the kernels keep their measured durations, waiting included.
    """
    joins = Joins([{} for _ in run.ranks])
    if len(run.ranks) == 1:
        return joins
    position = {rank.rank: i for i, rank in enumerate(run.ranks)}
    groups: defaultdict[_Group, dict[int, list[Work]]] = defaultdict(dict)
    pairs = 0
    for rank in run.ranks:
        for work in rank.work:
            if not work.is_collective:
                continue
            if work.collective in _PAIRS:
                pairs += 1
                continue
            group = _Group(work.communicator, work.members or tuple(range(run.world_size)))
            groups[group].setdefault(rank.rank, []).append(work)
    if pairs:
        joins.warnings.append(f"{pairs} sends and receives keep their measured durations")
    for group in sorted(groups, key=lambda g: (g.members, g.name)):
        _join(group, groups[group], run.ranks, position, joins)
    return joins


def _join(
    group: _Group,
    calls: dict[int, list[Work]],
    ranks: Sequence[MeasuredRank],
    position: dict[int, int],
    joins: Joins,
) -> None:
    if len(group.members) == 1:
        return
    missing = sorted(set(group.members) - set(position))
    counts = {rank: len(calls.get(rank, ())) for rank in group.members if rank in position}
    problem = ""
    if missing:
        problem = f"rank {missing[0]} has no trace"
    elif len(set(counts.values())) > 1:
        most, least = max(counts, key=lambda r: counts[r]), min(counts, key=lambda r: counts[r])
        problem = f"rank {most} has {counts[most]} of them and rank {least} has {counts[least]}"
    else:
        for i, works in enumerate(zip(*(calls[rank] for rank in group.members), strict=True)):
            kinds = {work.collective or work.name for work in works}
            if len(kinds) > 1:
                problem = f"number {i} is {' on one rank and '.join(sorted(kinds))} on another"
                break
    if problem:
        joins.warnings.append(f"{group} keep their measured durations, waiting included: {problem}")
        return
    communicator = len(joins.members)
    joins.members[communicator] = tuple(position[rank] for rank in group.members)
    total = counts[group.members[0]]
    for i, works in enumerate(zip(*(calls[rank] for rank in group.members), strict=True)):
        arrived_ns = max(work.start_ns for work in works)
        duration_ns = max(0, min(work.end_ns for work in works) - arrived_ns)
        part = Part(works[0].collective or "collective", communicator, -1, i, total)
        for rank, work in zip(group.members, works, strict=True):
            joins.of_rank[position[rank]][work] = Join(part, duration_ns)
