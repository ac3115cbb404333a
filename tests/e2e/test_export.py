"""Exports of real predictions, read by the tools that they are for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import GPT2, REPOSITORY, Cli
from tests.unit.exported_job import JOB, write_job

pytestmark = pytest.mark.slow

PACKAGES = REPOSITORY / ".venv-traceinsight"
TOLERANCE = 1e-3


def holistic_trace_analysis(folder: Path) -> dict[str, Any]:
    """By rank; with times as they are, not rounded to whole microseconds."""
    if not (PACKAGES / ".installed").exists():
        pytest.skip("no traceinsight: `make .venv-traceinsight/.installed` installs it")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("traceinsight_breakdown.py")), str(folder)],
        env={**os.environ, "PYTHONPATH": str(PACKAGES), "HTA_DISABLE_NS_ROUNDING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_against(found: dict[str, Any], exported: dict[str, Any]) -> None:
    """That Holistic Trace Analysis says of every rank what the export's own summary says."""
    assert list(found) == [str(row["rank"]) for row in exported["ranks"]]
    for row in exported["ranks"]:
        ours, theirs = row["occupancy_ns"], found[str(row["rank"])]
        for name in ("span", "compute", "idle"):
            assert theirs[f"{name}_us"] * 1000 == pytest.approx(
                ours[name], rel=TOLERANCE, abs=ours["span"] * 1e-6
            )
        percent = 100 * ours["overlap"] / ours["communication"]
        # They round to two digits.
        assert theirs["overlap_percent"] == pytest.approx(percent, rel=TOLERANCE, abs=0.005)


def test_holistic_trace_analysis_of_a_real_job(cli: Cli, tmp_path: Path) -> None:
    report = cli.predict(GPT2, "--n-layer", 4, nproc_per_node=2)
    done = cli.run("export", report["job"], "--format", "kineto", "--out", tmp_path, "--json")
    assert done.code == 0, done.err
    rows = cli.rows(
        "select count(*) as n, max(end_ns) - min(start_ns) as span from simulated_events "
        "join ranks using (device, job, rank) join events using (device, job, program, op) "
        "where signature is not null"
    )
    assert done.json["slices"] == rows[0]["n"]
    found = holistic_trace_analysis(tmp_path)
    check_against(found, done.json)
    # The device never waits in this job, so the path runs from its first operation to its last.
    for theirs in found.values():
        assert theirs["critical_path_us"] * 1000 == pytest.approx(rows[0]["span"], rel=TOLERANCE)
    memory = cli.rows(
        "select count(*) as n, count(distinct op) as ops from merging.memory_timeline "
        "where op is not null"
    )
    assert memory[0]["n"] > memory[0]["ops"] > 100


def test_holistic_trace_analysis_of_a_job_that_waits(understudy_home: Path, tmp_path: Path) -> None:
    """Copies, an exchange, and a host that holds the device up for 4 ms."""
    write_job()
    done = Cli(understudy_home).run(
        "export", JOB, "--format", "kineto", "--out", tmp_path / "traces", "--json"
    )
    assert done.code == 0, done.err
    found = holistic_trace_analysis(tmp_path / "traces")
    check_against(found, done.json)
    occupancy = done.json["ranks"][0]["occupancy_ns"]
    assert occupancy["copy"] > 0
    assert occupancy["idle"] > 4_000_000
    for row in done.json["ranks"]:
        # Their path gives time between calls of the host no weight.
        busy_ns = row["occupancy_ns"]["span"] - row["occupancy_ns"]["idle"]
        critical_ns = found[str(row["rank"])]["critical_path_us"] * 1000
        assert critical_ns == pytest.approx(busy_ns, rel=TOLERANCE)
