"""Jobs that cannot be replayed, each with one clear error, from both engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.replay_worlds import Op, host_wait, join, kernel, program, stream_wait
from understudy.emulation import lowering
from understudy.errors import UnderstudyError
from understudy.simulation import engine, reference
from understudy.simulation.world import (
    HOST_JOINS,
    JOIN,
    MAX_OP_NS,
    Delay,
    Placement,
    Point,
    Program,
    World,
)


def job(*ranks: Sequence[Op]) -> World:
    placements = [Placement(rank, {0: 0}) for rank in range(len(ranks))]
    return World([program(r) for r in ranks], placements, {0: list(range(len(ranks)))})


TWO = job([kernel(0, 10), kernel(0, 5)], [kernel(0, 10)])


def refused(world: World, message: str) -> None:
    for replay in (engine.replay, reference.replay):
        with pytest.raises(UnderstudyError, match=message):
            replay(world)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (kernel(-1, 1), "no stream"),
        (stream_wait(0, depends_on=0), "not before it"),
        (host_wait(depends_on=-2), "not before it"),
        (kernel(0, 1, depends_on=-1), "is no wait"),
        (Op(JOIN, 0, 1), "without collective parts"),
        (replace(join(0, 1, ("all_reduce", 0)), kind=1), "but is no join"),
        (Op(5, 0), "of a kind that the engine does not have"),
        (kernel(0, -1), "negative time"),
        (kernel(0, 1, gap=-1), "negative time"),
        (kernel(0, 1, cost=-1), "negative time"),
        (kernel(0, 1, latency=-5), "negative time"),
        (kernel(0, 1, cost=2**31), "more than two seconds"),
        (kernel(0, MAX_OP_NS + 1), "longer than eleven days"),
    ],
)
def test_op_that_cannot_be_replayed(op: Op, message: str) -> None:
    refused(job([op]), message)


def test_nothing_to_replay() -> None:
    refused(World([], [], {}), "no ranks or no ops")
    refused(job([], []), "no ranks or no ops")


def test_columns_of_different_lengths() -> None:
    short: Program = replace(TWO.programs[0], gap_ns=np.zeros(1, np.int64))
    refused(replace(TWO, programs=[short, TWO.programs[1]]), "2 kinds but 1 gap_ns")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repetitions": 0}, "0 repetitions"),
        ({"queue_depth": 0}, "queues of 0 ops"),
        ({"compute_scale": [1.0]}, "compute_scale has 1 entries for 2 ranks"),
        ({"compute_scale": [1.0, -1.0]}, "compute_scale -1.0 of rank 1"),
        ({"compute_scale": [1.0, float("nan")]}, "compute_scale nan of rank 1"),
        ({"host_scale": [0.0, 1.0]}, "host_scale 0.0 of rank 0"),
        ({"host_scale": [float("inf"), 1.0]}, "host_scale inf of rank 0"),
        ({"delays": [Delay(2, 1)]}, "the job has ranks 0 to 1"),
        ({"delays": [Delay(1, 1, op=1)]}, "the rank has ops 0 to 0"),
        ({"delays": [Delay(1, 1, repetition=1)]}, "repetitions 0 to 0"),
        ({"delays": [Delay(0, -1)]}, "delay_ns must be from 0"),
        ({"placements": [Placement(2, {})]}, "runs program 2, which is missing"),
        ({"placements": [Placement(0, {0: 5})]}, "communicator 5 but is not a member"),
        ({"placements": [Placement(0, {}, network_card=-1)]}, "network card -1"),
    ],
)
def test_worlds_that_cannot_be_replayed(changes: dict, message: str) -> None:
    refused(replace(TWO, **changes), message)


def test_times_that_would_overflow() -> None:
    long = job([kernel(0, MAX_OP_NS)] * 5)
    refused(replace(long, repetitions=1000), "more than can be counted")
    refused(replace(long, compute_scale=[2.0]), "scaled by 2, an op takes longer than eleven days")


def test_rank_that_calls_a_communicator_it_does_not_have() -> None:
    refused(job([join(0, 1, ("all_reduce", 3))]), "rank 0 calls NCCL on its communicator 3")
    refused(job([join(0, 1, ("send", 0, 4))]), "with rank 4 of it")


def test_calls_that_are_not_numbered() -> None:
    world = job([join(0, 1, ("all_reduce", 0)), join(0, 1, ("all_reduce", 0))])
    parts = {op: (replace(p[0], sequence=0),) for op, p in world.programs[0].parts.items()}
    refused(
        replace(world, programs=[replace(world.programs[0], parts=parts)]), "not numbered from 0"
    )


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (Point(np.array([1, 2])), "of 2 signatures, but signature 2 is used"),
        (Point(np.array([1, -2, 3])), "signature 1 is -2 ns"),
        (Point(np.array([1, 2, MAX_OP_NS + 1])), "signature 2 is"),
        (Point(np.array([1, 2, 3]), compute_scale=[1.0]), "1 entries for 2 ranks"),
        (Point(np.array([1, 2, 3]), delays=[Delay(7, 1)]), "ranks 0 to 1"),
    ],
)
def test_points_that_cannot_be_swept(point: Point, message: str) -> None:
    signed = [
        replace(TWO.programs[0], signature=np.array([-1, 2])),
        TWO.programs[1],
    ]
    with pytest.raises(UnderstudyError, match=message):
        engine.sweep(replace(TWO, programs=signed), [point])


def test_host_joins_are_those_of_the_lowering() -> None:
    assert frozenset(lowering.HOST_JOINS) == HOST_JOINS
