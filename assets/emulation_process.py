"""The process around an emulation that Dagster starts through Pipes; it imports no Dagster.

It leaves the tables in the warehouse; through the pipe go progress and, when the emulation
fails, the error. A reported error ends this process with 0, since Pipes keeps no messages of a
process that fails: `raise_reported` raises it again in the run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import pyarrow as pa
from dagster_pipes import PipesContext, open_dagster_pipes

from assets.provenance import save_emulation_record
from understudy import emulation, jobs
from understudy.errors import UnderstudyError, UsageError
from understudy.home import job_dir, write_whole
from warehouse import schemas, store

_INTERRUPTED = 130
_PR_SET_PDEATHSIG = 1


def raise_reported(messages: Sequence[Any]) -> None:
    """Raises the error that the process reported, if any."""
    for message in messages:
        kind = UsageError if message["exit_code"] == UsageError.exit_code else UnderstudyError
        raise kind(message["error"])


def main() -> None:
    """Emulates the partition of the run that started this process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    _end_with_parent()
    try:
        with open_dagster_pipes() as pipes:
            _forget_pipes()
            device, job = pipes.partition_key.split("|")
            try:
                emulate(device, job, pipes.get_extra("remeasure_host"), pipes)
            except UnderstudyError as error:
                _report(pipes, str(error), error.exit_code)
            except OSError as error:
                _report(pipes, f"{error.filename or job}: {error.strerror or error}")
            except Exception as error:  # noqa: BLE001 - the run must hear of it
                path = job_dir(job) / device / "failure.log"
                write_whole(path, traceback.format_exc())
                _report(pipes, f"internal error: {error!r}; details in {path}")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _report(pipes: PipesContext, error: str, exit_code: int = UnderstudyError.exit_code) -> None:
    pipes.report_custom_message({"error": error, "exit_code": exit_code})


def emulate(device_id: str, job_id: str, remeasure_host: bool, pipes: PipesContext) -> None:
    """Emulates a job on a device and puts its tables into the warehouse."""
    job = jobs.load(job_id)
    device = jobs.device_of(job, device_id)
    folder = job_dir(job_id) / device_id
    folder.mkdir(parents=True, exist_ok=True)
    with store.partition_lock("emulation", device_id, job_id):
        emulated = emulation.emulate(
            job,
            device,
            log_path=folder / "emulation.log",
            traces_dir=folder / "traces",
            progress=_Progress(pipes),
        )
        store_emulation(emulated.tables, device_id, job_id, remeasure_host)
        save_emulation_record(emulated, job, device)


class _Progress:
    """Logs progress, once a second at most: each line becomes an event of the run."""

    def __init__(self, pipes: PipesContext) -> None:
        self._pipes, self._said, self._next_s = pipes, "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == self._said and time.monotonic() < self._next_s:
            return
        self._said, self._next_s = what, time.monotonic() + 1
        self._pipes.log.info(f"{what} {done} of {total}")


def store_emulation(
    tables: Mapping[str, pa.Table], device: str, job: str, remeasure_host: bool
) -> None:
    """Writes an emulation's tables. Host gaps are measured time: as long as the job's structure
    is the same, the older ones stay, unless `remeasure_host`."""
    structure = {name: table for name, table in tables.items() if name != "host_gaps"}
    known = store.stored_hashes("emulation", device, job)
    events = store.content_hash(store.conform(tables["events"], schemas.EVENTS))
    measured = store.has_partition("emulation_host", device, job)
    if remeasure_host or not measured or known.get("events") != events:
        # Before the structure: were the two writes torn apart, the next emulation would still
        # find that the structure changed and measure anew.
        store.write_tables("emulation_host", {"host_gaps": tables["host_gaps"]}, device, job)
    store.write_tables("emulation", structure, device, job)


def _end_with_parent() -> None:
    """Asks the kernel for a SIGTERM when the run that started this process is killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def _forget_pipes() -> None:
    """The ranks inherit this environment; the pipe is not theirs."""
    for name in [name for name in os.environ if name.startswith("DAGSTER_")]:
        del os.environ[name]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # A terminal interrupts the whole group and the run forwards it once more: clean up only once.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
