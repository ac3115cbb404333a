"""What made a number: the versions and warnings that a prediction carries."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from understudy import forests
from understudy.catalog import Device
from understudy.emulation import Emulation
from understudy.home import forests_dir, job_dir, write_whole
from understudy.jobs import JobSpec
from warehouse import store


def save_emulation_record(emulated: Emulation, job: JobSpec, device: Device) -> None:
    """Keeps the versions and warnings of an emulation beside its log."""
    record = {"versions": emulated.versions, "warnings": list(emulated.warnings)}
    text = json.dumps(record, indent=2, sort_keys=True) + "\n"
    write_whole(_record_path(job, device), text)


def gather(device: Device, job: JobSpec) -> tuple[dict[str, str], list[str]]:
    """Versions (see `simulated_runtimes`) and warnings of all stages before the simulation."""
    record = json.loads(_record_path(job, device).read_text())
    gaps = store.stored_hashes("emulation_host", device.id, job.job)
    profiles = sorted(store.stored_hashes("profiling", device.id).items())
    versions = {
        **record["versions"],
        # An emulation may have kept the host gaps of an earlier one.
        "host_gaps": gaps["host_gaps"],
        "profiles": hashlib.sha256(repr(profiles).encode()).hexdigest(),
        "forests": forests.load(forests_dir(device.id)).content_hash,
        "host": job.cluster.host,
    }
    return versions, record["warnings"]


def _record_path(job: JobSpec, device: Device) -> Path:
    return job_dir(job.job) / device.id / "emulation.json"
