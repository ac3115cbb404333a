"""The replay engine: one case per rule, computed by hand, then random jobs against an oracle.

Rules are cited from NVIDIA's documentation: "CUDA" is the CUDA C++ programming guide and runtime
API reference, "NCCL" the NCCL user guide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, SupportsIndex

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

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
    Program,
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


@dataclass
class Op:
    """One op of a test program; latency 0 and cost 0 unless given."""

    kind: int
    stream: int = -1
    duration: int = 0
    gap: int = 0
    depends_on: int = NONE
    cost: int = 0
    latency: int = 0
    parts: tuple[Part, ...] = field(default=())


def kernel(
    stream: int,
    duration: int,
    gap: int = 0,
    depends_on: int = NONE,
    cost: int = 0,
    latency: int = 0,
) -> Op:
    return Op(DEVICE, stream, duration, gap, depends_on, cost, latency)


def all_reduce(
    stream: int, sequence: int, duration: int, communicator: int = 0, gap: int = 0
) -> Op:
    part = Part("all_reduce", communicator, -1, sequence, 0)
    return Op(JOIN, stream, duration, gap, parts=(part,))


def pair(stream: int, duration: int, *calls: tuple[str, int], sequence: int = 0) -> Op:
    parts = tuple(Part(kind, 0, peer, sequence, 0) for kind, peer in calls)
    return Op(JOIN, stream, duration, parts=parts)


def program(ops: Sequence[Op]) -> Program:
    likes = [(p.communicator, p.peer, p.kind if p.peer >= 0 else "") for o in ops for p in o.parts]
    return Program(
        kind=np.array([o.kind for o in ops], np.int64),
        stream=np.array([o.stream for o in ops], np.int64),
        depends_on=np.array([o.depends_on for o in ops], np.int64),
        gap_ns=np.array([o.gap for o in ops], np.int64),
        cost_ns=np.array([o.cost for o in ops], np.int64),
        latency_ns=np.array([o.latency for o in ops], np.int64),
        duration_ns=np.array([o.duration for o in ops], np.int64),
        parts={
            i: tuple(
                replace(
                    p,
                    calls=likes.count((p.communicator, p.peer, p.kind if p.peer >= 0 else "")),
                )
                for p in o.parts
            )
            for i, o in enumerate(ops)
            if o.parts
        },
    )


def world(*ranks: Sequence[Op], **other: int) -> World:
    """Ranks on one node, all in communicator 0."""
    placements = [Placement(i, {0: 0}) for i in range(len(ranks))]
    return World([program(r) for r in ranks], placements, {0: list(range(len(ranks)))}, **other)


def times(*ranks: Sequence[Op], **other: int) -> list[list[tuple[int, int]]]:
    """(start, end) of every op of every rank, through all repetitions."""
    return [
        list(zip(t.start_ns.ravel().tolist(), t.end_ns.ravel().tolist(), strict=True))
        for t in replay(world(*ranks, **other))
    ]


# --- one rank ----------------------------------------------------------------------------------


def test_stream_runs_its_ops_in_order_one_at_a_time() -> None:
    """CUDA, "Streams": a stream is a sequence of commands that execute in order."""
    assert times([kernel(0, 10), kernel(0, 5), kernel(1, 7)]) == [[(0, 10), (10, 15), (0, 7)]]


def test_kernel_starts_after_gap_driver_and_launch_latency() -> None:
    """CUDA, "Asynchronous Concurrent Execution": a launch returns before its kernel runs."""
    ops = [kernel(0, 10, gap=3, cost=4, latency=20), kernel(1, 10, gap=3, cost=4, latency=20)]
    # Called at 3, driver until 7; called at 10.
    assert times(ops) == [[(23, 33), (30, 40)]]


def test_host_op_takes_only_host_time() -> None:
    assert times([Op(HOST, gap=100), kernel(0, 1)]) == [[(100, 100), (100, 101)]]


def test_stream_wait_holds_the_stream_and_not_the_host() -> None:
    """CUDA, cudaStreamWaitEvent: later work of the stream waits; the call returns at once."""
    ops = [kernel(0, 50), Op(STREAM_WAIT, 1, depends_on=0), kernel(1, 5), kernel(2, 5, gap=1)]
    assert times(ops) == [[(0, 50), (0, 50), (50, 55), (1, 6)]]


def test_wait_refers_to_the_record_before_it() -> None:
    """CUDA, cudaEventRecord: a later record does not change what an earlier wait waits for."""
    ops = [
        kernel(0, 10),
        Op(STREAM_WAIT, 1, depends_on=0),  # the event, recorded after op 0
        kernel(0, 100),  # recorded again after this one
        kernel(1, 1),
        Op(STREAM_WAIT, 1, depends_on=2),
        kernel(1, 1),
    ]
    assert times(ops)[0][3:] == [(10, 11), (11, 110), (110, 111)]


def test_event_never_recorded_is_no_wait() -> None:
    """CUDA, cudaStreamWaitEvent: no effect when cudaEventRecord was not called before."""
    assert times([Op(STREAM_WAIT, 1), kernel(1, 3)]) == [[(0, 0), (0, 3)]]


def test_host_wait_blocks_the_host_until_the_op_has_ended() -> None:
    """CUDA, cudaEventSynchronize."""
    ops = [kernel(0, 50), kernel(0, 50), Op(HOST_WAIT, depends_on=0, gap=5), kernel(1, 1, gap=2)]
    assert times(ops)[0][2:] == [(5, 50), (52, 53)]


def test_host_wait_without_dependency_waits_for_its_stream_or_for_all() -> None:
    """CUDA, cudaStreamSynchronize and cudaDeviceSynchronize."""
    ops = [kernel(0, 50), kernel(1, 80), Op(HOST_WAIT, 0), kernel(2, 1), Op(HOST_WAIT)]
    assert times(ops)[0][2:] == [(0, 50), (50, 51), (50, 80)]


def test_host_waits_for_room_in_a_full_stream() -> None:
    """About 1000 launches can be pending on a stream (forums.developer.nvidia.com topic 68937)."""
    ops = [kernel(0, 10) for _ in range(4)] + [kernel(1, 1)]
    # With two places the third launch waits for the first kernel, the fourth for the second.
    assert times(ops, queue_depth=2)[0][4] == (20, 21)
    assert times(ops, queue_depth=4)[0][4] == (0, 1)


def test_repetitions_follow_each_other_and_reach_back() -> None:
    """-1 is the last op of the repetition before; before the first one there is none."""
    ops = [Op(STREAM_WAIT, 0, depends_on=-1), kernel(0, 1, gap=2), kernel(1, 10)]
    assert times(ops, repetitions=2) == [[(0, 0), (2, 3), (2, 12), (3, 12), (12, 13), (12, 22)]]


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (kernel(-1, 1), "no stream"),
        (Op(STREAM_WAIT, 0, depends_on=0), "not before it"),
        (Op(HOST_WAIT, depends_on=-2), "not before it"),
        (kernel(0, 1, depends_on=-1), "is no wait"),
        (Op(JOIN, 0, 1), "without collective parts"),
    ],
)
def test_program_that_cannot_be_replayed_is_an_error(op: Op, message: str) -> None:
    with pytest.raises(UnderstudyError, match=message):
        times([op])


# --- several ranks -----------------------------------------------------------------------------


def test_collective_starts_on_arrival_and_ends_together() -> None:
    """NCCL, "Collective Operations": all ranks must call; the kernel of an early one waits."""
    one, two = [all_reduce(0, 0, 10)], [kernel(0, 30), all_reduce(0, 0, 10)]
    assert times(one, two) == [[(0, 40)], [(0, 30), (30, 40)]]


def test_collective_holds_its_stream_and_no_other() -> None:
    one = [all_reduce(0, 0, 10), kernel(0, 1), kernel(1, 1)]
    two = [all_reduce(0, 0, 10, gap=30)]
    assert times(one, two)[0] == [(0, 40), (40, 41), (0, 1)]


def test_collective_lasts_as_long_as_its_longest_member_says() -> None:
    assert times([all_reduce(0, 0, 10)], [all_reduce(0, 0, 12)]) == [[(0, 12)], [(0, 12)]]


def test_collectives_match_by_order_on_the_communicator_over_repetitions() -> None:
    one, two = [all_reduce(0, 0, 10, gap=5)], [all_reduce(0, 0, 10, gap=20)]
    assert times(one, two, repetitions=2) == [
        [(5, 30), (30, 50)],
        [(20, 30), (40, 50)],
    ]


def test_send_and_receive_wait_for_each_other() -> None:
    """NCCL, "Point-to-point": a send completes with the matching receive."""
    one = [pair(0, 10, ("send", 1)), kernel(0, 1)]
    two = [kernel(0, 25), pair(0, 10, ("recv", 0))]
    assert times(one, two) == [[(0, 35), (35, 36)], [(0, 25), (25, 35)]]


def test_grouped_sends_and_receives_start_once_and_end_with_the_last() -> None:
    """NCCL, "Group calls": calls of a group progress together; a ring does not deadlock."""
    ring = [
        [kernel(0, 10 * r), pair(0, 5, ("send", (r + 1) % 3), ("recv", (r - 1) % 3))]
        for r in range(3)
    ]
    assert [t[1] for t in times(*ring)] == [(0, 25), (10, 25), (20, 25)]


def test_send_to_oneself_ends_by_itself() -> None:
    """NCCL, all-to-all by sends and receives: a rank also sends to itself."""
    assert times([pair(0, 7, ("send", 0), ("recv", 0))]) == [[(0, 7)]]


def four_ranks_on_two_nodes(cards: Sequence[int]) -> World:
    """Ranks 0, 1 on node 0 and 2, 3 on node 1; 0 sends to 2 at time 3 and 1 to 3 at time 0."""
    ops = [
        [pair(0, 10, ("send", 2))],
        [pair(0, 10, ("send", 3))],
        [kernel(0, 3), pair(0, 10, ("recv", 0))],
        [pair(0, 10, ("recv", 1))],
    ]
    placements = [Placement(r, {0: 0}, node=r // 2, network_card=cards[r]) for r in range(4)]
    return World([program(o) for o in ops], placements, {0: [0, 1, 2, 3]})


def test_network_card_serves_one_join_after_the_other() -> None:
    ends = [int(t.end_ns.max()) for t in replay(four_ranks_on_two_nodes([0, 0, 1, 1]))]
    assert ends == [20, 10, 20, 10]


def test_own_network_cards_do_not_interfere() -> None:
    ends = [int(t.end_ns.max()) for t in replay(four_ranks_on_two_nodes([0, 1, 2, 3]))]
    assert ends == [13, 10, 13, 10]


# --- deadlocks ---------------------------------------------------------------------------------


def two_communicators(one: Sequence[Op], two: Sequence[Op]) -> World:
    placements = [Placement(r, {0: 0, 1: 1}) for r in range(2)]
    return World([program(one), program(two)], placements, {0: [0, 1], 1: [0, 1]})


def test_swapped_collectives_are_a_cycle() -> None:
    """NCCL, "Using multiple NCCL communicators concurrently": different orders deadlock."""
    one = [all_reduce(0, 0, 1), all_reduce(0, 0, 1, communicator=1)]
    two = [all_reduce(0, 0, 1, communicator=1), all_reduce(0, 0, 1)]
    with pytest.raises(UnderstudyError) as caught:
        replay(two_communicators(one, two))
    message = str(caught.value)
    assert "rank 0 stream 0 at op 0 (repetition 0) is in all_reduce 0 of communicator 0" in message
    assert "1 of 2 arrived, missing ranks 1" in message
    assert "a cycle through rank 0 stream 0" in message


def test_collective_after_the_end_of_a_rank_names_that_rank() -> None:
    with pytest.raises(UnderstudyError, match="the program of rank 1 has ended"):
        times([all_reduce(0, 0, 1)], [kernel(0, 1)])


def test_host_that_waits_for_a_collective_its_peer_never_reaches() -> None:
    one = [all_reduce(0, 0, 1), Op(HOST_WAIT, depends_on=0), all_reduce(1, 0, 1, communicator=1)]
    two = [all_reduce(0, 0, 1, communicator=1), Op(HOST_WAIT, depends_on=0), all_reduce(1, 0, 1)]
    with pytest.raises(UnderstudyError, match=r"rank 0 host at op 1 .* waits for op 0"):
        replay(two_communicators(one, two))


def test_full_stream_behind_a_collective_is_reported() -> None:
    one = [all_reduce(0, 0, 1), kernel(0, 1), all_reduce(1, 0, 1, communicator=1)]
    two = [all_reduce(1, 0, 1, communicator=1), Op(HOST_WAIT, depends_on=0), all_reduce(0, 0, 1)]
    with pytest.raises(UnderstudyError, match=r"rank 0 host at op 1 .* room in stream 0"):
        replay(replace(two_communicators(one, two), queue_depth=1))


# --- random jobs -------------------------------------------------------------------------------


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


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_engine_agrees_with_the_oracle_on_times_and_deadlocks(job: World) -> None:
    expected = relaxed(job)
    if expected is None:
        with pytest.raises(UnderstudyError, match="the replay is deadlocked"):
            replay(job)
    else:
        assert same(replay(job), expected)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
