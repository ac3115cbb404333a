"""Says who waits for whom when a replay cannot go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.simulation.reference import JoinKey, JoinState, RankState

    Keys = Callable[[RankState, int], list[tuple[JoinKey, tuple[int, ...]]]]

_HOST = -1


def describe_deadlock(
    ranks: Sequence[RankState], joins: Mapping[JoinKey, JoinState], keys: Keys
) -> str:
    """One message: the chain of waits from the lowest stuck rank to a cycle or an ended rank.

    `keys` gives key and members of each part of the join at a position. Only ops that were issued
    are looked at.
    """
    node: tuple[int, int] | None = next(
        (r.rank, queue) for r in ranks for queue in (*r.pending, _HOST) if _stuck(r, queue)
    )
    seen: list[tuple[int, int]] = []
    sentences: list[str] = []
    while node is not None and node not in seen:
        seen.append(node)
        sentence, node = _wait(ranks, joins, keys, *node)
        sentences.append(sentence)
    if node is not None:
        sentences.append(f"and so on: a cycle through {_name(*node)}")
    stuck = [r.rank for r in ranks if not r.finished]
    return (
        f"the replay is deadlocked; ranks that cannot go on: {_some(stuck)}. "
        + "; ".join(sentences)
        + ". On real GPUs the job would hang here: make all ranks call the same collectives in "
        "the same order."
    )


def _stuck(rank: RankState, queue: int) -> bool:
    return rank.position < rank.total if queue == _HOST else bool(rank.pending[queue])


def _wait(
    ranks: Sequence[RankState],
    joins: Mapping[JoinKey, JoinState],
    keys: Keys,
    number: int,
    queue: int,
) -> tuple[str, tuple[int, int] | None]:
    """What one host or stream waits for, and the host or stream that has to come first."""
    rank = ranks[number]
    position = rank.position if queue == _HOST else rank.pending[queue][0][0]
    stream = rank.program.stream[position % rank.length]
    if queue == _HOST and stream in rank.pending and rank.full(stream):
        return f"{_at(rank, position, queue)} waits for room in stream {stream}", (number, stream)
    target = rank.unresolved(position)
    if target is not None:
        stream = rank.program.stream[target % rank.length]
        return f"{_at(rank, position, queue)} waits for op {target % rank.length}", (number, stream)
    for part, (key, members) in zip(
        rank.program.parts[position % rank.length], keys(rank, position), strict=True
    ):
        if key not in joins:
            continue
        arrived = {r.rank for r, _, _ in joins[key].arrived}
        missing = sorted(set(members) - arrived)
        if not missing:
            continue
        what = f"{part.kind} {key[3]} of communicator {key[0]}"
        text = (
            f"{_at(rank, position, queue)} is in {what}: {len(arrived)} of {len(members)} arrived, "
            f"missing ranks {_some(missing)}"
        )
        other = ranks[missing[0]]
        for stream, pending in other.pending.items():
            if any(key in _keys_at(other, p, keys) for p, _ in pending):
                return text, (other.rank, stream)
        if other.position < other.total:
            return text, (other.rank, _HOST)
        if any(other.pending.values()):
            busy = next(s for s, pending in other.pending.items() if pending)
            return f"{text}; rank {other.rank} never calls it", (other.rank, busy)
        return f"{text}; the program of rank {other.rank} has ended", None
    raise AssertionError(f"rank {number} waits for nothing at op {position}")


def _keys_at(rank: RankState, position: int, keys: Keys) -> list[JoinKey]:
    if position % rank.length not in rank.program.parts:
        return []
    return [key for key, _ in keys(rank, position)]


def _at(rank: RankState, position: int, queue: int) -> str:
    repetition, op = divmod(position, rank.length)
    return f"{_name(rank.rank, queue)} at op {op} (repetition {repetition})"


def _name(rank: int, queue: int) -> str:
    return f"rank {rank} host" if queue == _HOST else f"rank {rank} stream {queue}"


def _some(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, ... ({len(ranks)} in all)" if len(ranks) > 8 else shown
