"""Stragglers: what a slow rank costs the others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.what_if_command import by_rank
from tests.unit import job_tables
from understudy.errors import UnderstudyError, UsageError
from understudy.jobs import JobSpec
from understudy.merging import merge
from understudy.simulation import Stragglers, what_if

JOB = JobSpec("job", Path("train.py"), None)
US = 1_000


def tables(span: int = 1) -> dict[str, pa.Table]:
    """Two ranks: a GEMM, an all-reduce that waits for it, and a host that waits for that."""
    ops = [
        job_tables.device(0, job_tables.GEMM),
        job_tables.wait(1, 0),
        job_tables.collective(),
        job_tables.host_wait(1, 2),
    ]
    return merge(job_tables.emulated([ops, ops], span_iterations=[span, span]))


def durations(merged: dict[str, pa.Table], **by_name_us: int) -> pa.Table:
    rows = merged["signatures"].sort_by("signature").to_pylist()
    return pa.table(
        {
            "signature": [row["signature"] for row in rows],
            "duration_ns": [by_name_us[row["name"]] * US for row in rows],
        }
    )


def iteration_times(stragglers: Stragglers) -> tuple[int, list[int]]:
    merged = tables()
    found = what_if(JOB, merged, durations(merged, gemm=1000, all_reduce=200), stragglers)
    assert len(set(found.predicted_ns)) == 1
    return found.predicted_ns[0], found.what_if_ns


def test_the_others_wait_for_a_slow_gpu() -> None:
    """Half of a GEMM of 1 ms more; the collective is not slower."""
    before, after = iteration_times(Stragglers(compute={1: 1.5}))
    assert after == [before + 500 * US] * 2


def test_a_host_that_is_held_up_delays_all() -> None:
    before, after = iteration_times(Stragglers(delay_ns={0: 300 * US}))
    assert after == [before + 300 * US] * 2


def test_a_slow_host_takes_its_own_gaps_longer() -> None:
    """Gaps of 10 ns before the GEMM and the all-reduce; the second is hidden behind the GEMM."""
    before, after = iteration_times(Stragglers(host={0: 101.0}))
    assert after == [before + 1 * US] * 2


def test_nothing_slow_changes_nothing() -> None:
    before, after = iteration_times(Stragglers())
    assert after == [before] * 2


def test_what_makes_no_sense_is_refused() -> None:
    merged = tables()
    predicted = durations(merged, gemm=1000, all_reduce=200)
    with pytest.raises(UsageError, match="the job has ranks 0 to 1, not 2"):
        what_if(JOB, merged, predicted, Stragglers(compute={2: 2.0}))
    with pytest.raises(UnderstudyError, match="must be above 0"):
        what_if(JOB, merged, predicted, Stragglers(host={0: 0.0}))
    with pytest.raises(UnderstudyError, match="does not fit"):
        what_if(JOB, merged, predicted.slice(0, 0), Stragglers())


def test_values_by_rank() -> None:
    assert by_rank("--slow-gpu", ["3=1.5", "0=2"], float, "a factor") == {3: 1.5, 0: 2.0}
    for wrong in ("3", "=2", "x=2", "-1=2"):
        with pytest.raises(UsageError, match="write it as RANK=VALUE"):
            by_rank("--slow-gpu", [wrong], lambda text: 1.0 if text else None, "a factor")
