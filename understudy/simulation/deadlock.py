"""Says who waits for whom when a replay cannot go on.

Where a replay stops does not depend on the order of work, so both engines hand over the same: how
many ops each host has called and how many have ended on each stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from understudy.simulation.channels import JoinKey, join_keys, members_of
from understudy.simulation.world import HOST_WAIT, JOIN, NONE, ON_STREAM, Part, Program, World

_HOST = -1

#: A rank, and its host or one of its streams.
_Node = tuple[int, int]


@dataclass(frozen=True)
class Stuck:
    """Where a replay stopped, by rank; streams in the order of their numbers."""

    called: Sequence[int]  #: ops of the host, over all repetitions
    ended: Sequence[Sequence[int]]  #: ops of each stream, over all repetitions


def describe_deadlock(world: World, stuck: Stuck) -> str:
    """One message: the chain of waits from the lowest stuck rank to a cycle or an ended rank.

    Only ops that were called are looked at.
    """
    stream_ops = [_stream_ops(program) for program in world.programs]
    ranks = [
        _Rank(world, rank, stuck, stream_ops[placement.program])
        for rank, placement in enumerate(world.placements)
    ]
    node: _Node | None = next((r.rank, queue) for r in ranks for queue in r.stuck_queues())
    seen: list[_Node] = []
    sentences: list[str] = []
    while node is not None and node not in seen:
        seen.append(node)
        sentence, node = _wait(ranks, *node)
        sentences.append(sentence)
    if node is not None:
        sentences.append(f"and so on: a cycle through {_name(*node)}")
    waiting = [r.rank for r in ranks if not r.finished]
    return (
        f"the replay is deadlocked; ranks that cannot go on: {_some(waiting)}. "
        + "; ".join(sentences)
        + ". On real GPUs the job would hang here: make all ranks call the same collectives in "
        "the same order."
    )


def _stream_ops(program: Program) -> dict[int, NDArray[np.int64]]:
    """The ops of each stream, by its number."""
    on_stream = np.isin(program.kind, sorted(ON_STREAM))
    numbers = np.unique(program.stream[program.stream >= 0]).tolist()
    return {n: np.flatnonzero(on_stream & (program.stream == n)) for n in numbers}


class _Rank:
    """One rank where the replay stopped. Positions of ops count through all repetitions."""

    def __init__(
        self, world: World, rank: int, stuck: Stuck, stream_ops: Mapping[int, NDArray[np.int64]]
    ) -> None:
        self.world = world
        self.rank = rank
        self.program = world.programs[world.placements[rank].program]
        self.length = len(self.program.kind)
        self.total = self.length * world.repetitions
        self.position = stuck.called[rank]
        self._ended = stuck.ended[rank]
        self._stream_ops = stream_ops

    @cached_property
    def streams(self) -> dict[int, tuple[list[int], int]]:
        """Positions of the pending ops of each stream, and the position of its last called op
        (-1: none); by stream number."""
        repetition, op = divmod(self.position, max(self.length, 1))
        result = {}
        for (number, ops), ended in zip(self._stream_ops.items(), self._ended, strict=True):
            called = repetition * len(ops) + int(np.searchsorted(ops, op))
            pending = [self._at_ordinal(ops, ordinal) for ordinal in range(ended, called)]
            result[number] = (pending, self._at_ordinal(ops, called - 1) if called else -1)
        return result

    def _at_ordinal(self, ops: NDArray[np.int64], ordinal: int) -> int:
        return ordinal // len(ops) * self.length + int(ops[ordinal % len(ops)])

    @cached_property
    def pending(self) -> frozenset[int]:
        """Positions of ops that were called and have not ended."""
        return frozenset(p for pending, _ in self.streams.values() for p in pending)

    @property
    def finished(self) -> bool:
        return self.position == self.total and not self.pending

    def stuck_queues(self) -> list[int]:
        queues = [s for s, (pending, _) in self.streams.items() if pending]
        return queues if self.position == self.total else [*queues, _HOST]

    def stream_of(self, position: int) -> int:
        return int(self.program.stream[position % self.length])

    def unresolved(self, position: int) -> int | None:
        """An op that the wait at `position` waits for and that has not ended."""
        repetition, op = divmod(position, self.length)
        depends_on = int(self.program.depends_on[op])
        if depends_on != NONE:
            targets = [repetition * self.length + depends_on]
        elif self.program.kind[op] == HOST_WAIT:
            only = self.stream_of(position)
            targets = [last for s, (_, last) in self.streams.items() if only in (s, -1)]
        else:
            targets = []
        return next((target for target in targets if target in self.pending), None)

    def has_arrived(self, position: int) -> bool:
        """Whether the join at `position` has started."""
        if position >= self.position:
            return False
        pending, _ = self.streams[self.stream_of(position)]
        return position not in self.pending or position == pending[0]

    def call_of(self, key: JoinKey) -> int | None:
        """Position of the join that takes part in `key`; None: the program never calls it."""
        communicator, _, _, sequence = key
        placement = self.world.placements[self.rank]
        for op, parts in self.program.parts.items():
            for part in parts:
                if placement.communicators[part.communicator] != communicator:
                    continue
                position = sequence // part.calls * self.length + op
                if sequence % part.calls != part.sequence or position >= self.total:
                    continue
                if key in join_keys(self.world, self.rank, position):
                    return position
        return None


def _wait(ranks: Sequence[_Rank], number: int, queue: int) -> tuple[str, _Node | None]:
    """What one host or stream waits for, and the host or stream that has to come first."""
    rank = ranks[number]
    position = rank.position if queue == _HOST else rank.streams[queue][0][0]
    where = f"{_name(number, queue)} at op {position % rank.length} (repetition "
    where += f"{position // rank.length})"
    stream = rank.stream_of(position)
    kind = int(rank.program.kind[position % rank.length])
    if queue == _HOST and kind in ON_STREAM:
        return f"{where} waits for room in stream {stream}", (number, stream)
    target = rank.unresolved(position)
    if target is not None:
        text = f"{where} waits for op {target % rank.length}"
        return text, (number, rank.stream_of(target))
    if kind != JOIN:
        raise AssertionError(f"rank {number} waits for nothing at op {position}")
    parts: Sequence[Part] = rank.program.parts[position % rank.length]
    for part, key in zip(parts, join_keys(rank.world, number, position), strict=True):
        members = sorted(set(members_of(rank.world, key[:3])))
        calls = {member: ranks[member].call_of(key) for member in members}
        missing = [m for m, at in calls.items() if at is None or not ranks[m].has_arrived(at)]
        if not missing:
            continue
        text = (
            f"{where} is in {part.kind} {key[3]} of communicator {key[0]}: "
            f"{len(calls) - len(missing)} of {len(calls)} arrived, missing ranks {_some(missing)}"
        )
        return _first_missing(text, ranks[missing[0]], calls[missing[0]])
    raise AssertionError(f"rank {number} waits for nobody in the join at op {position}")


def _first_missing(text: str, other: _Rank, call: int | None) -> tuple[str, _Node | None]:
    """What keeps a rank from a join that it calls at position `call`."""
    if call is not None and call < other.position:
        return text, (other.rank, other.stream_of(call))
    if call is None:
        text += f"; rank {other.rank} never calls it"
    if other.position < other.total:
        return text, (other.rank, _HOST)
    text += f"; the program of rank {other.rank} has ended"
    busy = [s for s, (pending, _) in other.streams.items() if pending]
    return text, (other.rank, busy[0]) if busy else None


def _name(rank: int, queue: int) -> str:
    return f"rank {rank} host" if queue == _HOST else f"rank {rank} stream {queue}"


def _some(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, ... ({len(ranks)} in all)" if len(ranks) > 8 else shown
