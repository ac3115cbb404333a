"""Sweeps: many durations, scales and delays over one world, ends of repetitions only."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.replay_worlds import Op, host_wait, join, kernel, program
from understudy.errors import UnderstudyError
from understudy.home import REPOSITORY
from understudy.simulation import engine
from understudy.simulation.world import Delay, Placement, Point, World


def world() -> World:
    """Two ranks, one program: a kernel of signature 1, a collective of signature 0, one of 7 ns."""
    ops = [kernel(0, 0), join(0, 0, ("all_reduce", 0)), kernel(0, 7)]
    shared = replace(program(ops), signature=np.array([1, 0, -1]))
    return World([shared], [Placement(0, {0: 0})] * 2, {0: [0, 1]}, repetitions=2)


def test_points_have_their_own_durations_scales_and_delays() -> None:
    points = [
        Point(np.array([100, 10])),
        Point(np.array([100, 20])),
        Point(np.array([100, 10]), compute_scale=[1.0, 2.0]),
        Point(np.array([100, 10]), delays=[Delay(1, 1000, op=1, repetition=1)]),
    ]
    assert engine.sweep(world(), points).tolist() == [
        [[117, 234], [117, 234]],
        [[127, 254], [127, 254]],
        # The collective waits for rank 1: 20 + 100, then 7 and 14; 134 + 20 + 100.
        [[127, 261], [134, 268]],
        [[117, 1107], [117, 1107]],
    ]


def test_processes_give_the_same() -> None:
    points = [Point(np.array([100, duration])) for duration in range(20)]
    alone = engine.sweep(world(), points)
    assert np.array_equal(engine.sweep(world(), points, processes=3), alone)
    assert alone.shape == (20, 2, 2)


def test_scales_and_delays_of_the_world_are_those_of_no_point() -> None:
    slow = replace(world(), compute_scale=[3.0, 3.0], delays=[Delay(0, 5)])
    points = [Point(np.array([100, 10]))]
    assert np.array_equal(engine.sweep(slow, points), engine.sweep(world(), points))


@pytest.mark.parametrize("processes", [1, 2])
def test_deadlock_names_its_point(processes: int) -> None:
    stuck = replace(world(), programs=[*world().programs, program([kernel(0, 1)])])
    stuck = replace(stuck, placements=[Placement(0, {0: 0}), Placement(1, {0: 0})])
    with pytest.raises(UnderstudyError, match="point 0 of the sweep: the replay is deadlocked"):
        engine.sweep(stuck, [Point(np.array([1, 1]))] * 3, processes)


def test_no_points() -> None:
    assert engine.sweep(world(), []).shape == (0, 2, 2)


MANY_REPETITIONS = """
from pathlib import Path
from tests.unit import test_simulation_sweep as sweep
from understudy.simulation import engine
def peak_bytes():
    # Not ru_maxrss: that starts at the peak of the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
before = peak_bytes()
ends = engine.sweep(*sweep.long_job())
print(int(ends.max()), peak_bytes() - before)
"""


def long_job() -> tuple[World, list[Point]]:
    """20 million ops of two ranks whose host runs ahead and waits for the device now and then."""
    ops: list[Op] = [kernel(n % 3, 5 + n % 7, gap=3) for n in range(997)]
    ops += [join(3, 10, ("all_reduce", 0)), host_wait(), kernel(0, 1)]
    job = World([program(ops)], [Placement(0, {0: 0})] * 2, {0: [0, 1]}, repetitions=10_000)
    return job, [Point(np.zeros(0, np.int64))]


def test_memory_does_not_grow_with_the_ops() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_REPETITIONS],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    last, grown_bytes = map(int, done.stdout.split())
    assert last > 10_000 * 997 * 3
    assert grown_bytes < 16 << 20
