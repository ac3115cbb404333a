"""The sequence that a program repeats: synthetic programs with warm-up, logging and layers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from understudy.emulation.repetition import iteration_ends

#: Of the synthetic operations: a copy from the host, one to the host; others are kernels.
COPY_IN, COPY_OUT = 0, 1


def found(program: list[int]) -> tuple[int, list[int]]:
    codes = np.array(program, np.int64)
    return iteration_ends(codes, codes <= COPY_OUT, codes == COPY_IN)


def test_nothing_is_found_in_a_program_without_a_loop() -> None:
    assert found([]) == (0, [])
    assert found([5]) == (0, [])
    assert found(list(range(2, 500))) == (0, [])
    assert found([COPY_IN, *range(2, 50), COPY_OUT]) == (0, [])


def test_layers_of_a_model_that_runs_once_are_no_iterations() -> None:
    layer = [2, 3, 4, 5, 6]
    assert found([COPY_IN, 7, *layer * 12, 8, COPY_OUT]) == (0, [])


def test_layers_inside_an_iteration_are_no_iterations() -> None:
    step = [COPY_IN, 7, *[2, 3, 4, 5, 6] * 96, 8, COPY_OUT]
    period, ends = found(step * 10)
    assert period == len(step)
    assert ends == [len(step) * (i + 1) for i in range(10)]


def test_a_loop_that_never_meets_the_host() -> None:
    step = [7, *[2, 3, 4, 5, 6] * 12, 8]
    period, ends = found([9, 10, 11, *step * 100, COPY_OUT])
    assert period == len(step)
    assert len(ends) == 100
    assert found([9, 10, 11, *step * 3, COPY_OUT]) == (0, [])


def test_no_operation_is_unique_in_the_period() -> None:
    period, ends = found([COPY_IN, COPY_IN, 2, 2] * 20)
    assert period == 4
    assert len(ends) == 20


def test_logging_every_tenth_iteration_does_not_make_ten_into_one() -> None:
    step = [COPY_IN, 2, 3, 4, 5, 6, 7, COPY_OUT]
    program = (step * 9 + [*step, 8, COPY_OUT]) * 4
    period, ends = found(program)
    assert period == len(step)
    assert len(ends) == 40
    # In the middle of the iteration.
    program = (step * 9 + [*step[:4], 8, COPY_OUT, *step[4:]]) * 4
    period, ends = found(program)
    assert period == len(step)
    assert len(ends) == 39  # the last one differs, and nothing follows it


@given(
    body=st.lists(st.integers(2, 12), min_size=4, max_size=60),
    repetitions=st.integers(15, 40),
    warm_up=st.lists(st.integers(2, 30), max_size=40),
    every=st.integers(5, 20),
    log_at=st.floats(0, 1),
    tail=st.lists(st.integers(2, 30), max_size=10),
)
def test_iterations_are_found_through_noise(
    body: list[int],
    repetitions: int,
    warm_up: list[int],
    every: int,
    log_at: float,
    tail: list[int],
) -> None:
    step = [COPY_IN, *body, COPY_OUT]
    at = 1 + round(log_at * len(body))
    logging = [*step[:at], 50, 51, *step[at:]]
    program = list(warm_up)
    starts = []
    for number in range(repetitions):
        starts.append(len(program))
        program += logging if number % every == every - 1 else step
    program += tail
    period, ends = found(program)
    if len(warm_up) + len(tail) > len(step) * repetitions / 2:
        return
    assert period == len(step)
    # Each iteration ends where the next begins; short scripts may lose the odd one.
    inner = set(ends) & set(starts)
    assert len(inner) >= (repetitions - 1) * 0.7
    assert abs(len(ends) - repetitions) <= 1 + repetitions * 0.2
    assert ends == sorted(set(ends))


@given(st.lists(st.integers(0, 3), max_size=200))
def test_any_program_is_answered(program: list[int]) -> None:
    period, ends = found(program)
    assert ends == sorted(set(ends))
    assert all(0 < end <= len(program) for end in ends)
    assert bool(period) == bool(ends)
