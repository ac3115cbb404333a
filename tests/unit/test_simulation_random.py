"""Random jobs: the C engine equals the Python one on every start, end and deadlock, and a sweep
equals full replays on the ends.

The jobs are the same in every run. RANDOM_JOBS in the environment asks for more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.replay_worlds import random_point, random_world
from understudy.errors import UnderstudyError
from understudy.simulation import engine, reference
from understudy.simulation.world import Timeline, at_point

JOBS = int(os.environ.get("RANDOM_JOBS", "3200"))
CHUNK = 200

Result = TypeVar("Result")


def outcome(run: Callable[[], Result]) -> tuple[Result | None, str]:
    """The result, or the message of the error."""
    try:
        return run(), ""
    except UnderstudyError as error:
        return None, str(error)


def repetition_ends(timelines: Sequence[Timeline]) -> list[NDArray[np.int64]]:
    return [timeline.end_ns.max(axis=1, initial=0) for timeline in timelines]


def deadlocks(seed: int) -> bool:
    """Whether the job deadlocks; asserts what the engines must agree on."""
    world = random_world(seed)
    expected, error = outcome(lambda: reference.replay(world))
    found, found_error = outcome(lambda: engine.replay(world))
    assert found_error == error
    assert not error or "the replay is deadlocked" in error
    for a, b in zip(expected or (), found or (), strict=True):
        np.testing.assert_array_equal(a.start_ns, b.start_ns)
        np.testing.assert_array_equal(a.end_ns, b.end_ns)

    point = random_point(seed, world)
    at, error = outcome(lambda: engine.replay(at_point(world, point)))
    ends, ends_error = outcome(lambda: engine.sweep(world, [point]))
    assert ends_error == (f"point 0 of the sweep: {error}" if error else "")
    if at is not None and ends is not None:
        np.testing.assert_array_equal(ends[0], repetition_ends(at))
    return expected is None


@pytest.mark.parametrize("first", range(0, JOBS, CHUNK))
def test_engines_agree(first: int) -> None:
    stuck = 0
    for seed in range(first, first + CHUNK):
        try:
            stuck += deadlocks(seed)
        except AssertionError as error:
            raise AssertionError(f"random_world({seed}): {error}") from error
    # Otherwise the jobs would say little about times, or about deadlocks.
    assert 0.2 * CHUNK < stuck < 0.5 * CHUNK
