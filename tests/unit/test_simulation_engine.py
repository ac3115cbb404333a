"""Laws of the replay, on random jobs: an oracle, monotony, streams in order, no order of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, SupportsIndex

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.unit.replay_worlds import Op, kernel, program
from understudy.errors import UnderstudyError
from understudy.simulation import engine, reference
from understudy.simulation.world import (
    DEVICE,
    HOST,
    HOST_WAIT,
    JOIN,
    NONE,
    STREAM_WAIT,
    Part,
    Placement,
    Timeline,
    World,
)


def replay(job: World) -> list[Timeline]:
    """Replays with both engines, which have to agree on every start and end, and on errors."""
    try:
        expected = reference.replay(job)
    except UnderstudyError as error:
        with pytest.raises(UnderstudyError) as caught:
            engine.replay(job)
        assert str(caught.value) == str(error)
        raise
    timelines = engine.replay(job)
    assert same(timelines, expected)
    return timelines


def relaxed(job: World) -> list[Timeline] | None:
    """The oracle: passes over all ops until nothing changes; None for a deadlock.

    It shares no mechanism with the engine: no queues, no wake-ups, no order of work. Without
    network cards only.
    """
    unknown = -1
    reps = job.repetitions
    programs = [job.programs[p.program] for p in job.placements]
    start = [[unknown] * (len(p.kind) * reps) for p in programs]
    end = [[unknown] * (len(p.kind) * reps) for p in programs]
    called = [[unknown] * (len(p.kind) * reps) for p in programs]

    def keys(rank: int, position: int) -> list[tuple[tuple[int, ...], list[int]]]:
        p = programs[rank]
        repetition, op = divmod(position, len(p.kind))
        result = []
        for part in p.parts[op]:
            c = job.placements[rank].communicators[part.communicator]
            members = list(job.members[c])
            sequence = part.sequence + repetition * part.calls
            if part.peer < 0:
                result.append(((c, sequence), members))
            else:
                both = [rank, members[part.peer]]
                both = both if part.kind == "send" else both[::-1]
                result.append(((c, *both, sequence), both))
        return result

    callers: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for rank, p in enumerate(programs):
        for position in range(len(p.kind) * reps):
            if p.kind[position % len(p.kind)] == JOIN:
                for key, _ in keys(rank, position):
                    callers.setdefault(key, []).append((rank, position))

    changed = True
    while changed:
        changed = False
        for rank, p in enumerate(programs):
            length = len(p.kind)
            last: dict[int, int] = {}
            count: dict[int, list[int]] = {}
            ready = 0  # when the host may go on; unknown stops the pass
            for position in range(length * reps):
                repetition, op = divmod(position, length)
                kind, stream = p.kind[op], p.stream[op]
                at = ready + p.gap_ns[op]
                depends_on = p.depends_on[op]
                targets: list[int] = []
                if depends_on >= 0 or (depends_on != NONE and repetition):
                    targets = [repetition * length + depends_on]
                elif depends_on == NONE and kind == HOST_WAIT:
                    targets = [q for s, q in last.items() if stream in (s, -1)]
                if kind in (HOST, HOST_WAIT):
                    if any(end[rank][t] == unknown for t in targets):
                        break
                    found = (at, max([at, *(end[rank][t] for t in targets)]))
                    at = found[1]
                else:
                    on_stream = count.setdefault(stream, [])
                    if len(on_stream) >= job.queue_depth:
                        oldest = end[rank][on_stream[-job.queue_depth]]
                        if oldest == unknown:
                            break
                        at = max(at, oldest)
                    called[rank][position] = at
                    before = end[rank][last[stream]] if stream in last else 0
                    on_stream.append(position)
                    last[stream] = position
                    found = (unknown, unknown)
                    if before != unknown:
                        begin = max(at + p.latency_ns[op], before)
                        found = (begin, begin + p.duration_ns[op])
                        if kind == STREAM_WAIT:
                            ends = [end[rank][t] for t in targets]
                            found = (begin, unknown if unknown in ends else max([begin, *ends]))
                        elif kind == JOIN:
                            found = (begin, 0)
                            for key, members in keys(rank, position):
                                partners = callers[key]
                                if len(partners) < len(members) or any(
                                    start[r][q] == unknown and (r, q) != (rank, position)
                                    for r, q in partners
                                ):
                                    found = (begin, unknown)
                                    break
                                starts = [
                                    begin if (r, q) == (rank, position) else start[r][q]
                                    for r, q in partners
                                ]
                                longest = max(
                                    programs[r].duration_ns[q % len(programs[r].kind)]
                                    for r, q in partners
                                )
                                found = (begin, max(found[1], max(starts) + longest))
                if found != (start[rank][position], end[rank][position]):
                    start[rank][position], end[rank][position] = found
                    changed = True
                ready = at + p.cost_ns[op]
    if any(unknown in e for e in end):
        return None
    return [
        Timeline(np.array(s, np.int64).reshape(reps, -1), np.array(e, np.int64).reshape(reps, -1))
        for s, e in zip(start, end, strict=True)
    ]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Random jobs: up to 3 ranks, 3 streams, two communicators, all kinds of ops.

    Most of the time the ranks make the same calls in the same order.
    """
    ranks = draw(st.integers(1, 3))
    members = {0: list(range(ranks)), 1: draw(st.permutations(range(ranks)))}
    calls: list[tuple[str, int, int]] = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["collective", "pair", "ring"]),
                st.integers(0, 1),
                st.integers(0, 2),
            ),
            max_size=5,
        )
    )
    small = st.integers(0, 20)
    programs = []
    for rank in range(ranks):
        ops: list[Op] = []
        used: dict[tuple[int, int, str], int] = {}

        def part(kind: str, communicator: int, peer: int, used: dict = used) -> Part:
            key = (communicator, peer, kind if peer >= 0 else "")
            used[key] = used.get(key, 0) + 1
            return Part(kind, communicator, peer, used[key] - 1, 0)

        def filler(ops: list[Op] = ops) -> None:
            for kind in draw(
                st.lists(st.sampled_from([HOST, DEVICE, STREAM_WAIT, HOST_WAIT]), max_size=3)
            ):
                depends_on = NONE
                if kind in (STREAM_WAIT, HOST_WAIT) and draw(st.booleans()):
                    depends_on = draw(st.integers(-1, len(ops) - 1))
                stream = draw(st.integers(0, 2))
                if kind == HOST or (kind == HOST_WAIT and draw(st.booleans())):
                    stream = -1
                op = Op(kind, stream, draw(small), draw(small), depends_on, draw(small), 5)
                ops.append(op)

        mine = calls if draw(st.integers(0, 9)) else draw(st.permutations(calls))
        for kind, communicator, stream in mine:
            filler()
            order = list(members[communicator])
            own = order.index(rank)
            parts: tuple[Part, ...] = ()
            if kind == "collective":
                parts = (part("all_reduce", communicator, -1),)
            elif kind == "ring":
                parts = (
                    part("send", communicator, (own + 1) % ranks),
                    part("recv", communicator, (own - 1) % ranks),
                )
            elif ranks > 1 and own < 2:
                parts = (part("recv" if own else "send", communicator, 1 - own),)
            if parts:
                ops.append(Op(JOIN, stream, draw(small), draw(small), parts=parts, latency=5))
        filler()
        if not ops:
            ops.append(kernel(0, 1))
        programs.append(program(ops))
    return World(
        programs,
        [Placement(r, {0: 0, 1: 1}) for r in range(ranks)],
        members,
        repetitions=draw(st.integers(1, 3)),
        queue_depth=draw(st.sampled_from([1, 2, 3, 1024])),
    )


def replayed(job: World) -> list[Timeline]:
    try:
        return replay(job)
    except UnderstudyError as error:
        assert "deadlocked" in str(error)
        assume(False)
        raise


def same(one: Sequence[Timeline], two: Sequence[Timeline]) -> bool:
    return all(
        np.array_equal(a.start_ns, b.start_ns) and np.array_equal(a.end_ns, b.end_ns)
        for a, b in zip(one, two, strict=True)
    )


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_engine_agrees_with_the_oracle_on_times_and_deadlocks(job: World) -> None:
    expected = relaxed(job)
    if expected is None:
        with pytest.raises(UnderstudyError, match="the replay is deadlocked"):
            replay(job)
    else:
        assert same(replay(job), expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.data())
def test_longer_ops_end_nothing_earlier(job: World, data: st.DataObject) -> None:
    before = replayed(job)
    longer = [
        replace(
            p,
            duration_ns=p.duration_ns + [data.draw(st.integers(0, 5)) for _ in p.kind],
            gap_ns=p.gap_ns + [data.draw(st.integers(0, 5)) for _ in p.kind],
        )
        for p in job.programs
    ]
    after = replay(replace(job, programs=longer))
    for a, b in zip(before, after, strict=True):
        assert (b.start_ns >= a.start_ns).all() and (b.end_ns >= a.end_ns).all()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_streams_never_overlap_and_joins_end_together(job: World) -> None:
    timelines = replayed(job)
    for placement, timeline in zip(job.placements, timelines, strict=True):
        p = job.programs[placement.program]
        assert (timeline.end_ns >= timeline.start_ns).all()
        for stream in set(p.stream.tolist()) - {-1}:
            ops = [
                i
                for i in range(len(p.kind))
                if p.stream[i] == stream and p.kind[i] not in (HOST, HOST_WAIT)
            ]
            start, end = timeline.start_ns[:, ops].ravel(), timeline.end_ns[:, ops].ravel()
            assert (start[1:] >= end[:-1]).all()
    ends: dict[tuple[int, int, int], set[int]] = {}
    for placement, timeline in zip(job.placements, timelines, strict=True):
        for op, parts in job.programs[placement.program].parts.items():
            if parts[0].peer < 0:
                for repetition, row in enumerate(timeline.end_ns):
                    key = (parts[0].communicator, parts[0].sequence, repetition)
                    ends.setdefault(key, set()).add(int(row[op]))
    assert all(len(e) == 1 for e in ends.values())


class AnyOrder(list[Any]):
    """A work list that hands out its entries in a random order."""

    def __init__(self, entries: Sequence[Any], random: Random) -> None:
        super().__init__(entries)
        self.random = random

    def pop(self, index: SupportsIndex = -1) -> Any:
        return super().pop(self.random.randrange(len(self)))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.lists(st.integers(0, 1), min_size=3, max_size=3), st.data())
def test_network_cards_do_not_depend_on_the_order_of_work(
    job: World, nodes: list[int], data: st.DataObject
) -> None:
    """A card granted before every host and stream truly waits would show here."""
    placements = [
        replace(p, node=node, network_card=node)
        for p, node in zip(job.placements, nodes, strict=False)
    ]
    job = replace(job, placements=placements)
    expected = replayed(job)
    other = reference._Engine(job)
    other.work = AnyOrder(other.work, data.draw(st.randoms(use_true_random=False)))
    assert same(other.run(), expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_ranks_does_not_matter(job: World, random: Random) -> None:
    timelines = replayed(job)
    order = list(range(len(job.placements)))
    random.shuffle(order)
    new = {old: i for i, old in enumerate(order)}
    members: Mapping[int, list[int]] = {
        c: [new[r] for r in ranks] for c, ranks in job.members.items()
    }
    shuffled = replay(replace(job, placements=[job.placements[r] for r in order], members=members))
    assert same([shuffled[new[r]] for r in range(len(order))], timelines)
