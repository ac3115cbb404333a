"""Iterations among the steps of several optimizers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.emulation.steps import StepCounter, ends


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("", []),
        ("000", [0, 1, 2]),
        ("01", [1]),
        ("010101", [1, 3, 5]),
        ("01010", [1, 3]),
        ("000001000001", [5, 11]),
        ("0000010", [5]),
        # Two steps of each; the discriminator is trained alone at first; one step too many.
        ("001100110011", [3, 7, 11]),
        ("0000001010101010", [6, 8, 10, 12, 14]),
        ("0010101", [2, 4, 6]),
        # No rule: an iteration ends with the optimizer that steps least.
        ("0010001010000100010", [2, 6, 8, 13, 17]),
        # One optimizer inside another one.
        ("01" * 4, [1, 3, 5, 7]),
    ],
)
def test_ends_of_iterations(steps: str, expected: list[int]) -> None:
    assert ends([int(step) for step in steps]) == expected


def test_an_optimizer_that_hardly_ever_steps_is_left_out() -> None:
    steps = [0] * 50 + [1] + [0] * 50
    assert ends(steps) == [at for at in range(101) if at != 50]


@given(
    pattern=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    repetitions=st.integers(2, 12),
    lead=st.lists(st.integers(0, 1), max_size=3),
)
def test_a_repeated_pattern_is_found(pattern: list[int], repetitions: int, lead: list[int]) -> None:
    lead = [pattern[number % len(pattern)] for number in lead]
    steps = lead + pattern * repetitions
    found = ends(steps)
    # Each iteration but the first holds the same steps, and whole repetitions are not cut.
    pieces = {tuple(sorted(steps[a + 1 : b + 1])) for a, b in itertools.pairwise(found)}
    if len(set(pattern)) > 1:
        assert len(pieces) <= 1 or len(lead) * 2 > len(steps) or repetitions < 4
    assert found == sorted(set(found))


@given(
    pattern=st.lists(st.integers(0, 3), min_size=1, max_size=10),
    repetitions=st.integers(1, 30),
    cut=st.integers(0, 9),
)
def test_counting_on_the_way_agrees_with_counting_afterwards(
    pattern: list[int], repetitions: int, cut: int
) -> None:
    steps = (pattern * repetitions)[: max(len(pattern) * repetitions - cut, 0)]
    counter = StepCounter()
    for number in steps:
        counter.add(number)
    assert abs(counter.iterations - len(ends(steps))) <= 1


def test_one_optimizer_for_each_parameter_costs_little() -> None:
    counter = StepCounter()
    for _ in range(20):
        for number in range(300):
            counter.add(number)
    assert counter.iterations == 20
