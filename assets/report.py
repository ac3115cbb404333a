"""The report of a prediction as metadata of `simulated_runtimes`."""

from __future__ import annotations

from typing import Any

import dagster as dg

from understudy import reporting
from understudy.catalog import Device
from understudy.home import job_dir, write_whole
from understudy.jobs import JobSpec


def report_metadata(device: Device, job: JobSpec) -> dict[str, Any]:
    """Writes `report.html` of the partition's tables and returns the entries that show it."""
    report = reporting.report(device, job)
    path = job_dir(job.job) / device.id / "report.html"
    write_whole(path, reporting.html(report))
    entries: dict[str, Any] = {
        "report": dg.MetadataValue.md(f"```\n{reporting.text(report)}\n```"),
        "report_html": dg.MetadataValue.path(path),
        "fits": report["fits"],
    }
    if report["fits"]:
        entries["iteration_time_ms"] = report["iteration_time_ns"] / 1e6
    return entries
