"""Forgetting a job."""

from __future__ import annotations

import shutil

from assets.partitions import JOBS
from pipelines.instance import open_instance
from understudy import catalog, jobs
from understudy.errors import UsageError
from understudy.home import job_dir
from warehouse import store


def remove(job: str, device: str | None) -> None:
    """Removes a job's tables and files: of one device, or all of it and its partition.

    Raises UsageError for an unknown job or device.
    """
    known = set(jobs.known_jobs()) | {
        name for stage in ("emulation", "simulation") for _, name in store.list_partitions(stage)
    }
    if job not in known:
        raise UsageError(f"unknown job {job}{jobs.suggestion(job, filter(None, known))}")
    if device is not None:
        device_id = catalog.device(device).id
        store.remove_job(job, device_id)
        shutil.rmtree(job_dir(job) / device_id, ignore_errors=True)
        return
    store.remove_job(job)
    shutil.rmtree(job_dir(job), ignore_errors=True)
    with open_instance() as instance:
        instance.delete_dynamic_partition(JOBS.name or "", job)
