"""The reference engine: replays a world in plain Python, as world.py's rules read.

It is what the fast engine (engine.py) is tested against. Ranks are advanced in any order, each as
far as it can go; only joins that share a network card depend on a global order: they are granted
one by one, earliest first, when everything else waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from understudy.errors import UnderstudyError
from understudy.simulation.channels import (
    JoinKey,
    calls_of,
    cards_of,
    channel_of,
    join_keys,
    members_of,
)
from understudy.simulation.deadlock import Stuck, describe_deadlock
from understudy.simulation.world import (
    DEVICE,
    HOST_WAIT,
    NONE,
    ON_STREAM,
    STREAM_WAIT,
    Part,
    Program,
    Timeline,
    World,
    check,
    is_host_join,
    scale_of,
    scaled,
)

_PENDING = -1
#: The host of a rank among its streams, whose numbers start at 0.
HOST_QUEUE = -1


@dataclass(frozen=True, eq=False)
class _Ops:
    """A program as lists, which Python reads faster than arrays."""

    kind: list[int]
    stream: list[int]
    depends_on: list[int]
    gap_ns: list[int]
    cost_ns: list[int]
    latency_ns: list[int]
    duration_ns: list[int]
    parts: dict[int, tuple[Part, ...]]


def _ops(program: Program, host_scale: float, compute_scale: float) -> _Ops:
    """The program of a rank with these scales."""
    duration_ns = np.where(
        program.kind == DEVICE, scaled(program.duration_ns, compute_scale), program.duration_ns
    )
    return _Ops(
        program.kind.tolist(),
        program.stream.tolist(),
        program.depends_on.tolist(),
        scaled(program.gap_ns, host_scale).tolist(),
        program.cost_ns.tolist(),
        program.latency_ns.tolist(),
        duration_ns.tolist(),
        program.parts,
    )


class _RankState:
    """How far one rank has come. An op's position counts through all repetitions."""

    def __init__(self, world: World, rank: int, delays: Mapping[int, int]) -> None:
        program = _ops(
            world.programs[world.placements[rank].program],
            scale_of(world.host_scale, rank),
            scale_of(world.compute_scale, rank),
        )
        self.rank = rank
        self.queue_depth = world.queue_depth
        self.program = program
        self.delays = delays
        self.length = len(program.kind)
        self.total = self.length * world.repetitions
        self.start = [_PENDING] * self.total
        self.end = [_PENDING] * self.total
        self.position = 0
        self.time = 0
        streams = sorted({s for s in program.stream if s >= 0})
        self.pending: dict[int, deque[tuple[int, int]]] = {s: deque() for s in streams}
        self.issued: dict[int, list[int]] = {s: [] for s in streams}
        self.tail = dict.fromkeys(streams, 0)
        self.waiters: dict[int, list[int]] = {}
        self.open_parts: dict[int, int] = {}
        self.part_end: dict[int, int] = {}

    def targets(self, position: int) -> list[int]:
        """Positions that the wait at `position` waits for."""
        repetition, op = divmod(position, self.length)
        depends_on = self.program.depends_on[op]
        if depends_on >= 0:
            return [repetition * self.length + depends_on]
        if depends_on != NONE:
            # An event of the previous repetition; before the first one it was never recorded.
            return [repetition * self.length + depends_on] if repetition else []
        if self.program.kind[op] != HOST_WAIT:
            return []
        stream = self.program.stream[op]
        streams = self.issued if stream < 0 else (stream,)
        return [self.issued[s][-1] for s in streams if self.issued[s]]

    def unresolved(self, position: int) -> int | None:
        """A target of the wait at `position` whose end is not known yet."""
        return next((k for k in self.targets(position) if self.end[k] == _PENDING), None)

    @property
    def finished(self) -> bool:
        """Whether all ops of all repetitions have ended."""
        return self.position == self.total and not any(self.pending.values())


@dataclass
class _JoinState:
    """One collective, or one pair of a send and a receive."""

    members: tuple[int, ...]
    cards: tuple[int, ...]  #: network cards it occupies
    ready: int = 0
    duration: int = 0
    of_hosts: bool = False
    arrived: list[tuple[_RankState, int, int]] = field(
        default_factory=list
    )  #: rank, position, stream


def replay(world: World) -> list[Timeline]:
    """Start and end of every op of every rank, by rank.

    Raises UnderstudyError, with who waits for whom, when ranks wait for each other for ever.
    """
    check(world)
    calls = [calls_of(program) for program in world.programs]
    for rank, placement in enumerate(world.placements):
        for local in calls[placement.program].channels:
            channel_of(world, rank, local)
    return _Engine(world).run()


def _delays_of(world: World, rank: int) -> dict[int, int]:
    """The delays of a rank by position of the op."""
    length = len(world.programs[world.placements[rank].program].kind)
    delays: dict[int, int] = {}
    for delay in world.delays:
        if delay.rank == rank:
            position = delay.repetition * length + delay.op
            delays[position] = delays.get(position, 0) + delay.delay_ns
    return delays


class _Engine:
    def __init__(self, world: World) -> None:
        self.world = world
        self.ranks = [
            _RankState(world, rank, _delays_of(world, rank))
            for rank in range(len(world.placements))
        ]
        self.joins: dict[JoinKey, _JoinState] = {}
        self.card_requests: list[tuple[int, JoinKey]] = []
        self.card_free: dict[int, int] = {}
        self.work: list[tuple[_RankState, int]] = [(r, HOST_QUEUE) for r in reversed(self.ranks)]

    def run(self) -> list[Timeline]:
        while True:
            while self.work:
                rank, queue = self.work.pop()
                if queue == HOST_QUEUE:
                    self._advance_host(rank)
                else:
                    self._advance_stream(rank, queue)
            if not self.card_requests:
                break
            # Everything waits, so a request that is still to come depends on one of these and is
            # later than the earliest.
            self._grant(heapq.heappop(self.card_requests)[1])
        if not all(r.finished for r in self.ranks):
            stuck = Stuck(
                [r.position for r in self.ranks],
                [[len(r.issued[s]) - len(r.pending[s]) for s in r.issued] for r in self.ranks],
            )
            raise UnderstudyError(describe_deadlock(self.world, stuck))
        shape = (self.world.repetitions, -1)
        return [
            Timeline(
                np.array(r.start, np.int64).reshape(shape), np.array(r.end, np.int64).reshape(shape)
            )
            for r in self.ranks
        ]

    def _advance_host(self, rank: _RankState) -> None:
        """Run the host until it waits for an op whose end is not known, or to its end."""
        program, length, total = rank.program, rank.length, rank.total
        kinds, streams, gaps, costs = program.kind, program.stream, program.gap_ns, program.cost_ns
        latencies, durations = program.latency_ns, program.duration_ns
        start, end, pending, tail = rank.start, rank.end, rank.pending, rank.tail
        depth, delays = rank.queue_depth, rank.delays
        position, time = rank.position, rank.time
        op = position % length if length else 0
        while position < total:
            kind = kinds[op]
            at = time + gaps[op]
            if delays:
                at += delays.get(position, 0)
            if kind in ON_STREAM:
                stream = streams[op]
                issued = rank.issued[stream]
                if len(issued) >= depth:
                    oldest = issued[-depth]
                    if end[oldest] == _PENDING:
                        rank.waiters.setdefault(oldest, []).append(HOST_QUEUE)
                        break
                    at = max(at, end[oldest])
                issued.append(position)
                issue = at + latencies[op]
                queue = pending[stream]
                if queue:
                    queue.append((position, issue))
                elif kind == DEVICE:
                    # The common case, without the detour through the queue.
                    begin = tail[stream]
                    if issue > begin:
                        begin = issue
                    start[position] = begin
                    tail[stream] = end[position] = begin + durations[op]
                else:
                    queue.append((position, issue))
                    self._advance_stream(rank, stream)
            else:
                start[position] = at
                if kind == HOST_WAIT:
                    unresolved = rank.unresolved(position)
                    if unresolved is not None:
                        rank.waiters.setdefault(unresolved, []).append(HOST_QUEUE)
                        break
                    at = max([at, *(end[k] for k in rank.targets(position))])
                end[position] = at
            time = at + costs[op]
            position += 1
            op += 1
            if op == length:
                op = 0
        rank.position, rank.time = position, time

    def _advance_stream(self, rank: _RankState, stream: int) -> None:
        """Run the pending ops of a stream until one has to wait."""
        program, length, queue = rank.program, rank.length, rank.pending[stream]
        tail = rank.tail[stream]
        while queue:
            # Conditions are looked at afresh each time: a wake-up may come twice or too early.
            position, issue = queue[0]
            op = position % length
            kind = program.kind[op]
            begin = max(issue, tail)
            if kind == DEVICE:
                ended = begin + program.duration_ns[op]
            elif kind == STREAM_WAIT:
                unresolved = rank.unresolved(position)
                if unresolved is not None:
                    rank.waiters.setdefault(unresolved, []).append(stream)
                    break
                ended = max([begin, *(rank.end[k] for k in rank.targets(position))])
            else:
                if rank.start[position] == _PENDING:
                    rank.start[position] = begin
                    self._arrive(rank, position, stream)
                if rank.open_parts[position]:
                    break
                begin, ended = rank.start[position], rank.end[position]
            queue.popleft()
            rank.start[position] = begin
            rank.end[position] = tail = ended
            for waiter in rank.waiters.pop(position, ()):
                self.work.append((rank, waiter))
        rank.tail[stream] = tail

    def _arrive(self, rank: _RankState, position: int, stream: int) -> None:
        keys = join_keys(self.world, rank.rank, position)
        rank.open_parts[position] = len(keys)
        duration = rank.program.duration_ns[position % rank.length]
        parts = rank.program.parts[position % rank.length]
        for part, key in zip(parts, keys, strict=True):
            join = self.joins.get(key)
            if join is None:
                members = members_of(self.world, key[:3])
                join = self.joins[key] = _JoinState(members, cards_of(self.world, members))
            join.arrived.append((rank, position, stream))
            join.of_hosts |= is_host_join(part)
            join.ready = max(join.ready, rank.start[position])
            join.duration = max(join.duration, duration)
            if len(join.arrived) < len(join.members):
                continue
            if join.cards and not join.of_hosts:
                heapq.heappush(self.card_requests, (join.ready, key))
            else:
                self._complete(key, join.ready + join.duration)

    def _grant(self, key: JoinKey) -> None:
        """Let a join use its network cards, which serve one after the other."""
        join = self.joins[key]
        begin = max([join.ready, *(self.card_free.get(c, 0) for c in join.cards)])
        # At least 1 ns: a join must be later than the ones that it follows on a card.
        end = begin + max(1, join.duration)
        self.card_free.update(dict.fromkeys(join.cards, end))
        self._complete(key, end)

    def _complete(self, key: JoinKey, end: int) -> None:
        for rank, position, stream in self.joins.pop(key).arrived:
            # Until its last part has ended, an op's end is kept apart from what others see.
            rank.open_parts[position] -= 1
            rank.part_end[position] = max(rank.part_end.get(position, 0), end)
            if rank.open_parts[position] == 0:
                rank.end[position] = rank.part_end.pop(position)
                self.work.append((rank, stream))
