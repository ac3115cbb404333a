"""Host gaps over iterations that are equal, nearly equal and unlike."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from understudy.emulation.gaps import aligned_medians


def _ops(*codes: int) -> np.ndarray:
    return np.array(codes).reshape(-1, 1)


def test_equal_iterations_share_their_medians() -> None:
    ops = [_ops(1, 2)] * 3
    medians, ranges = aligned_medians(ops, [np.array([5, 10]), np.array([7, 90]), np.array([6, 8])])
    assert [m.tolist() for m in medians] == [[6, 10]] * 3
    assert [r.tolist() for r in ranges] == [[1, 41]] * 3


def test_an_iteration_that_also_logs_takes_part_outside_of_the_logging() -> None:
    plain, logging = _ops(1, 2, 3), _ops(1, 8, 9, 2, 3)
    gaps = [np.array([4, 5, 6]), np.array([900, 70, 80, 5, 6]), np.array([4, 5, 800])]
    medians, _ = aligned_medians([plain, logging, plain], gaps)
    assert medians[0].tolist() == medians[2].tolist() == [4, 5, 6]
    assert medians[1].tolist() == [4, 70, 80, 5, 6]


def test_what_only_one_iteration_has_keeps_its_sample() -> None:
    medians, ranges = aligned_medians([_ops(1, 2), _ops(3)], [np.array([4, 5]), np.array([9])])
    assert [m.tolist() for m in medians] == [[4, 5], [9]]
    assert [r.tolist() for r in ranges] == [[0, 0], [0]]


def test_an_iteration_without_ops() -> None:
    medians, _ = aligned_medians([_ops(1), _ops()], [np.array([4]), np.array([], np.int64)])
    assert [m.tolist() for m in medians] == [[4], []]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000)), max_size=8),
        min_size=1,
        max_size=5,
    )
)
def test_medians_lie_within_the_samples(iterations: list[list[tuple[int, int]]]) -> None:
    ops = [np.array([op for op, _ in i], np.int64).reshape(-1, 1) for i in iterations]
    gaps = [np.array([gap for _, gap in i], np.int64) for i in iterations]
    every = [gap for i in iterations for _, gap in i]
    medians, ranges = aligned_medians(ops, gaps)
    for mine, spread, original in zip(medians, ranges, gaps, strict=True):
        assert len(mine) == len(spread) == len(original)
        assert (spread >= 0).all()
        assert all(min(every) <= gap <= max(every) for gap in mine.tolist())
