"""From the words of a command line to a job and its devices."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from understudy import catalog, jobs
from understudy.errors import UsageError
from understudy.jobs import JobSpec, Launch

_SETTINGS = ("memory",)


def job(words: Sequence[str], *, nnodes: int | None, nproc_per_node: int | None) -> JobSpec:
    """The job of `FILE.yaml` or of `SCRIPT ARGS...`. Raises UsageError."""
    first, *rest = words
    if Path(first).suffix not in (".yaml", ".yml"):
        return jobs.ad_hoc_job(first, rest, launch=Launch(nnodes or 1, nproc_per_node or 1))
    if rest:
        raise UsageError(
            f"{first}: a job file takes no arguments, and there is {' '.join(rest)}; "
            "write them into the file's `args`"
        )
    if nnodes is not None or nproc_per_node is not None:
        raise UsageError(
            f"{first}: --nnodes and --nproc-per-node are for scripts; "
            "the file's `launch` says how the job is launched"
        )
    return jobs.load_job(Path(first))


def override(
    spec: JobSpec,
    *,
    devices: Sequence[str],
    python: Path | None,
    warmup: int | None,
    iterations: int | None,
    marker: str | None,
    settings: Sequence[str],
    host: str | None,
) -> JobSpec:
    """`spec` with what the command line says otherwise. Raises UsageError."""
    if python is not None:
        # Not resolved: a virtual environment's interpreter is a link that must be kept.
        python = python.absolute()
        if not os.access(python, os.X_OK) or python.is_dir():
            raise UsageError(f"--python {python}: there is no such program")
    if marker is not None and not marker.strip():
        raise UsageError("--marker: name an NVTX range or mark of the script")
    spec = dataclasses.replace(
        spec,
        devices=tuple(devices) or spec.devices,
        python=python,
        warmup=spec.warmup if warmup is None else warmup,
        iterations=spec.iterations if iterations is None else iterations,
        marker=spec.marker if marker is None else marker,
    )
    if host is not None:
        spec = jobs.with_host(spec, catalog.host(host).name)
    for setting in settings:
        key, separator, value = setting.partition("=")
        if key not in _SETTINGS:
            raise UsageError(f"--set {key}: unknown setting{jobs.suggestion(key, _SETTINGS)}")
        if not separator:
            raise UsageError(f"--set {key}: write --set {key}=VALUE")
        spec = jobs.with_memory(spec, value)
    return spec


def device_ids(spec: JobSpec) -> list[str]:
    """Ids of the job's devices, each once. Raises UsageError for names the catalog lacks."""
    catalog.host(spec.cluster.host)
    if spec.cluster.interconnect is not None:
        catalog.interconnect(spec.cluster.interconnect)
    if not spec.devices:
        raise UsageError("for which device? give --device; `understudy devices` lists them")
    return list(dict.fromkeys(catalog.device(name).id for name in spec.devices))
