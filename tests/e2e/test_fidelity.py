"""Public traces of real runs, replayed with their own kernel durations (benchmarks/fidelity.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fidelity
from benchmarks.fidelity import Case

EXCEPTIONS = 2


@pytest.mark.parametrize("case", fidelity.CASES, ids=lambda case: case.title)
def test_replay(case: Case, shared_data: Path) -> None:
    found = fidelity.run(case, shared_data / "traces")
    # With the host times of the step itself, nothing but the replay's own rules is left.
    assert max(abs(step.own_host_error) for step in found.steps) < 0.01
    if case.exception:
        assert abs(found.error) > case.limit, "no exception any more: take it off the list"
        return
    assert abs(found.error) <= case.limit
    assert all(abs(collective.error) <= case.limit for collective in found.collectives)


def test_every_rank_and_collective_of_a_whole_job(shared_data: Path) -> None:
    found = fidelity.run(fidelity.CASES[0], shared_data / "traces")
    assert [step.rank for step in found.steps] == list(range(8))
    assert found.step_error_max <= 0.02
    assert len(found.collectives) == 8 * 8
    assert max(abs(collective.error) for collective in found.collectives) <= 0.02
    of_first = [(c.collective, c.size_bytes) for c in found.collectives if c.rank == 0]
    assert of_first[4:] == [
        ("all_reduce", 4 * 394_241),
        ("all_to_all", 4 * 6_144),
        ("all_reduce", 4 * 112),
        ("all_reduce", 4 * 226_960),
    ]


def test_exceptions_are_few() -> None:
    assert sum(bool(case.exception) for case in fidelity.CASES) <= EXCEPTIONS
