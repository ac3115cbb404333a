"""Partitions of the lineage graph: devices are the catalog's, jobs come and go."""

from __future__ import annotations

import dagster as dg

from understudy import catalog, jobs
from understudy.catalog import Device
from understudy.jobs import JobSpec

DEVICES = dg.StaticPartitionsDefinition([device.id for device in catalog.devices()])
JOBS = dg.DynamicPartitionsDefinition(name="jobs")
DEVICE_JOBS = dg.MultiPartitionsDefinition({"device": DEVICES, "job": JOBS})


def partition_key(device: str, job: str) -> dg.MultiPartitionKey:
    """Key of one partition of DEVICE_JOBS."""
    return dg.MultiPartitionKey({"device": device, "job": job})


def device_of(context: dg.AssetExecutionContext) -> Device:
    """The device of a run partitioned by device."""
    return catalog.device(context.partition_key)


def device_and_job_of(context: dg.AssetExecutionContext) -> tuple[Device, JobSpec]:
    """Device and job of a run partitioned by both; the device has the memory that the job sets.

    Raises UsageError when the job was never resolved.
    """
    key = context.partition_key
    if not isinstance(key, dg.MultiPartitionKey):
        raise TypeError(f"partition {key!r} names no device and job")
    job = jobs.load(key.keys_by_dimension["job"])
    return jobs.device_of(job, key.keys_by_dimension["device"]), job
