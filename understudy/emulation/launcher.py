"""Emulates a job: runs its ranks under the interceptor and turns their traces into tables."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import importlib.metadata
import json
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa

from understudy import catalog, home
from understudy.catalog import Device
from understudy.emulation.collection import OutOfMemory, collect
from understudy.emulation.environment import (
    TargetPython,
    check_interceptor,
    job_environment,
    probe_python,
)
from understudy.errors import UnderstudyError, UsageError
from understudy.jobs import JobSpec
from understudy.traces.interceptor import Api, RankTrace, read_trace
from understudy.traces.kernel_table import kernel_tables
from warehouse.store import content_hash

#: Called with (what is going on, done, total).
Progress = Callable[[str, int, int], None]

#: US_MAX_DEVICES of the interceptor.
MAX_DEVICES_PER_NODE = 16

_POLL_S = 0.05
#: After so long without an iteration of any rank the log says which ranks are where.
_QUIET_S = 60.0
#: A rank that failed may wait for children that wait for it; the job is ended after so long.
_FAILED_S = 10.0
_SUPERVISOR = Path(__file__).resolve().parent / "supervisor.py"
_EXIT_CODE = re.compile(r"exitcode\s*:\s*(-?\d+)")
_FAILED_RANK = re.compile(r"rank\s*:\s*(\d+) \(local_rank")
_MIN_FREE_BYTES = 1 << 20
#: What CUDA says of a kernel that was not compiled for the device.
_NO_CODE = "no kernel image is available for execution on the device"
_NO_CODE_ADVICE = (
    "\nThis PyTorch has no code for the device: give --python an environment whose PyTorch has "
    "(PyTorch's warning in the log names a build), or choose another device."
)


@dataclass(frozen=True)
class Emulation:
    """What emulating a job gave: the tables of the stage by name, the versions of what made them
    and what a reader should know."""

    tables: dict[str, pa.Table]
    versions: dict[str, str]
    warnings: tuple[str, ...]


def emulate(
    job: JobSpec,
    device: Device | str,
    *,
    log_path: Path,
    traces_dir: Path,
    progress: Progress | None = None,
) -> Emulation:
    """Runs all ranks of `job` on emulated `device`s and collects their traces.

    The output of the ranks goes to `log_path`, their traces to `traces_dir`; both are kept and
    replaced by the next emulation. An uncaught torch.OutOfMemoryError is a result (see table
    `ranks`), not an error.

    Raises UsageError when the script is missing; UnderstudyError when the script fails (with its
    traceback), launches no kernel, has no PyTorch, or a trace cannot be written; KeyboardInterrupt
    after every process has been ended.
    """
    device = catalog.device(device) if isinstance(device, str) else device
    try:
        return _emulate(job, device, log_path, traces_dir, progress or _no_progress)
    except OSError as error:
        where = error.filename or traces_dir
        hint = "; free space there, or set UNDERSTUDY_HOME to a larger disk"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise UnderstudyError(
            f"{where}: {error.strerror or error}{hint if full else ''}"
        ) from error


def _no_progress(what: str, done: int, total: int) -> None:
    """For callers that do not ask."""


def _emulate(
    job: JobSpec, device: Device, log_path: Path, traces_dir: Path, report: Progress
) -> Emulation:
    if job.script is not None and not job.script.is_file():
        raise UsageError(f"{job.script}: there is no such script")
    if job.launch.nproc_per_node > MAX_DEVICES_PER_NODE:
        raise UsageError(
            f"{job.launch.nproc_per_node} processes per node: a node has at most "
            f"{MAX_DEVICES_PER_NODE} devices; use more nodes (--nnodes)"
        )
    if not job.working_dir.is_dir():
        raise UsageError(f"{job.working_dir}: there is no such working folder")
    check_interceptor()
    python = probe_python(job.python)
    tables = kernel_tables(
        python.torch_lib,
        10 * device.compute_capability_major + device.compute_capability_minor,
        home.cache_dir() / "kernel_tables",
        lambda library, done, total: report(f"reading the kernels of {library}", done, total),
    )
    _clear_traces(traces_dir)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    control_dir = Path(tempfile.mkdtemp(prefix="understudy-"))
    try:
        device_file = control_dir / "device"
        capacity = job.memory_bytes or device.memory_bytes
        device_file.write_text(dataclasses.replace(device, memory_bytes=capacity).attributes_file())
        env = job_environment(
            job,
            python,
            device_file=device_file,
            kernel_tables=tables,
            traces_dir=traces_dir,
            control_dir=control_dir,
        )
        with log_path.open("w") as log:
            code = _run(job, _commands(job, python), env, control_dir, log, report)
        out_of_memory = _outcome(job, code, control_dir, log_path, traces_dir)
    finally:
        shutil.rmtree(control_dir, ignore_errors=True)
    report("reading the traces", 0, job.world_size)
    traces = [read_trace(_stem(traces_dir, rank)) for rank in range(job.world_size)]
    try:
        collected = collect(
            traces,
            nproc_per_node=job.launch.nproc_per_node,
            warmup=job.warmup,
            iterations=job.iterations,
            out_of_memory={
                rank: _from_trace(trace, out_of_memory[rank])
                for rank, trace in enumerate(traces)
                if rank in out_of_memory
            },
            marker=job.marker,
        )
    except UnderstudyError as error:
        lines = [f"{job.program_name}: {error}", *_other_processes(traces_dir)]
        raise UnderstudyError("\n".join(lines)) from error
    report("reading the traces", job.world_size, job.world_size)
    return Emulation(
        collected.tables,
        _versions(traces[0], python, collected.tables),
        (*collected.warnings, *_other_processes(traces_dir)),
    )


def _stem(traces_dir: Path, rank: int) -> Path:
    return traces_dir / f"rank-{rank}"


def _other_processes(traces_dir: Path) -> list[str]:
    """A warning per rank whose own children used a GPU: they have traces of their own."""
    children: dict[int, int] = {}
    for path in traces_dir.glob("rank-*-*.records"):
        rank = int(path.name.split("-")[1])
        children[rank] = children.get(rank, 0) + 1
    return [
        f"rank {rank} started {count} other process{'es' * (count > 1)} that used a GPU: they are "
        "not in the prediction, which is of the processes that torchrun starts (--nproc-per-node)"
        for rank, count in sorted(children.items())
    ]


def _clear_traces(traces_dir: Path) -> None:
    traces_dir.mkdir(parents=True, exist_ok=True)
    for pattern in ("rank-*.records", "rank-*.definitions"):
        for old in traces_dir.glob(pattern):
            old.unlink()


# --- running -----------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _commands(job: JobSpec, python: TargetPython) -> list[list[str]]:
    """One torchrun agent per node."""
    port = str(_free_port())
    program = ["--module", job.module] if job.module else [str(job.script)]
    nnodes = job.launch.nnodes
    return [
        [
            *(_node(node, nnodes) if nnodes > 1 else ()),
            str(python.executable),
            "-m",
            "torch.distributed.run",
            "--nnodes",
            str(nnodes),
            "--node-rank",
            str(node),
            "--nproc-per-node",
            str(job.launch.nproc_per_node),
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port,
            *program,
            *job.args,
        ]
        for node in range(nnodes)
    ]


def _node(node: int, nnodes: int) -> tuple[str, ...]:
    """What makes the interceptor give a node its own host name, UUIDs and PCI ids."""
    return ("/usr/bin/env", f"UNDERSTUDY_NODE={node}", f"UNDERSTUDY_NODES={nnodes}")


def _run(
    job: JobSpec,
    commands: list[list[str]],
    env: dict[str, str],
    control_dir: Path,
    log: TextIO,
    report: Progress,
) -> int:
    """Runs the agents under the supervisor; its exit code. Whatever interrupts, all are ended."""
    spec = control_dir / "agents.json"
    spec.write_text(
        json.dumps({"commands": commands, "working_dir": str(job.working_dir), "env": env})
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-I", str(_SUPERVISOR), str(spec), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return _watch(supervisor, job, control_dir, log, report)
    finally:
        if supervisor.poll() is None:
            supervisor.send_signal(signal.SIGTERM)
            supervisor.wait()


def _marks(control_dir: Path, world_size: int) -> list[int]:
    """Iterations that each rank has ended."""
    marks = []
    for rank in range(world_size):
        path = control_dir / f"progress-{rank}"
        raw = path.read_bytes() if path.exists() else b""
        marks.append(struct.unpack("<q", raw)[0] if len(raw) == 8 else 0)
    return marks


def _watch(
    supervisor: subprocess.Popen[bytes],
    job: JobSpec,
    control_dir: Path,
    log: TextIO,
    report: Progress,
) -> int:
    total = (job.warmup + job.iterations) * job.world_size
    seen: list[int] = []
    since = time.monotonic()
    failed_since = math.inf
    while True:
        try:
            return supervisor.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            marks = _marks(control_dir, job.world_size)
        if any(control_dir.glob("error-*.json")):
            failed_since = min(failed_since, time.monotonic())
        if time.monotonic() - failed_since > _FAILED_S:
            log.write(f"understudy: a rank failed and did not end within {_FAILED_S:.0f} s\n")
            return 1
        if marks != seen:
            seen, since = marks, time.monotonic()
            report("running the ranks: iterations", sum(marks), total)
        elif time.monotonic() - since > _QUIET_S:
            since = time.monotonic()
            where = ", ".join(f"rank {rank}: {mark}" for rank, mark in enumerate(marks))
            log.write(f"understudy: no iteration ended for {_QUIET_S:.0f} s; ended are {where}\n")
            log.flush()


# --- how it ended --------------------------------------------------------------------------------


def _outcome(
    job: JobSpec, code: int, control_dir: Path, log_path: Path, traces_dir: Path
) -> dict[int, OutOfMemory]:
    """The ranks that ran out of memory; raises UnderstudyError when the job failed."""
    errors, ooms = (
        [json.loads(path.read_text()) for path in control_dir.glob(pattern)]
        for pattern in ("error-*.json", "oom-*.json")
    )
    first_oom_ns = min((oom["time_ns"] for oom in ooms), default=math.inf)
    # A rank that waits for one that ran out of memory fails after it: that is no error of its own.
    errors = [error for error in errors if error["time_ns"] < first_oom_ns]
    if errors or (code != 0 and not ooms):
        _check_disk(traces_dir)
        raise UnderstudyError(_failure(job, code, errors, log_path))
    return {oom["rank"]: OutOfMemory(oom["iteration"], oom["requested_bytes"] or 0) for oom in ooms}


def _check_disk(traces_dir: Path) -> None:
    """A full disk is the reason for whatever else went wrong."""
    free = shutil.disk_usage(traces_dir).free
    if free < _MIN_FREE_BYTES:
        raise UnderstudyError(
            f"{traces_dir}: the disk is full ({free} bytes free), traces cannot be written; "
            "free space there, or set UNDERSTUDY_HOME to a larger disk"
        )


def _failure(job: JobSpec, code: int, errors: list[dict], log_path: Path) -> str:
    if errors:
        # The earliest error is the cause of the others; ranks that failed alike: the lowest.
        cause = min(errors, key=lambda e: (e["time_ns"], e["rank"]))
        if "reason" in cause:
            return f"rank {cause['rank']} {cause['reason']}"
        alike = [
            e
            for e in errors
            if (e.get("type"), e.get("message")) == (cause["type"], cause["message"])
        ]
        cause = min(alike, key=lambda e: e["rank"])
        ranks = ", ".join(str(e["rank"]) for e in sorted(alike, key=lambda e: e["rank"]))
        advice = _NO_CODE_ADVICE if _NO_CODE in cause["message"] else ""
        return (
            f"{job.program_name} failed on rank {ranks}; the log is {log_path}\n"
            f"{cause['traceback'].rstrip()}{advice}"
        )
    text = log_path.read_text(errors="replace")
    codes, ranks = _EXIT_CODE.findall(text), _FAILED_RANK.findall(text)
    # torchrun's summary ends with the root cause.
    rank = f"rank {ranks[-1]} of " if ranks else ""
    ended = int(codes[-1]) if codes else code
    how = f"was ended by {_signal_name(-ended)}" if ended < 0 else f"exited with code {ended}"
    tail = "\n".join(text.splitlines()[-15:] if not codes else _own_output(text)[-15:])
    return f"{rank}{job.program_name} {how}; the log is {log_path}, its end:\n{tail}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _own_output(log: str) -> list[str]:
    """The log up to torchrun's own report."""
    lines = log.splitlines()
    ends = [i for i, line in enumerate(lines) if "torch/distributed/elastic" in line]
    return lines[: ends[0]] if ends else lines


def _from_trace(trace: RankTrace, error: OutOfMemory) -> OutOfMemory:
    """PyTorch prints the request rounded; the trace has it to the byte."""
    failed = np.flatnonzero(trace.records["api"] == Api.OUT_OF_MEMORY)
    if len(failed) == 0:
        return error
    return OutOfMemory(error.iteration, int(trace.records["b"][failed[-1]]))


#: Tables that are equal in every emulation of a job.
_STRUCTURE = ("events", "signatures", "collective_parts", "communicators", "memory_timeline")


def _versions(
    trace: RankTrace, python: TargetPython, tables: dict[str, pa.Table]
) -> dict[str, str]:
    hashes = "".join(content_hash(tables[name]) for name in _STRUCTURE)
    return {
        "understudy": importlib.metadata.version("understudy"),
        "interceptor": trace.build_id,
        "torch": python.torch_version,
        "python": python.version,
        "events": hashlib.sha256(hashes.encode()).hexdigest(),
        "host_gaps": content_hash(tables["host_gaps"]),
    }
