"""The measured time of one iteration against the predicted one."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from understudy.errors import UnderstudyError, UsageError
from understudy.home import job_dir, write_whole
from warehouse import schemas

CODE_VERSION = "1"


def save_measured(job: str, device: str, iteration_time_ns: int) -> Path:
    """Keeps the measured time of one iteration, in place of an older one; returns the file.

    Raises UsageError unless the time is positive.
    """
    if iteration_time_ns <= 0:
        raise UsageError(f"a measured time of {iteration_time_ns} ns is not above 0")
    path = _measured_path(job, device)
    write_whole(path, json.dumps({"iteration_time_ns": iteration_time_ns}) + "\n")
    return path


def load_measured(job: str, device: str) -> int:
    """The measured time of one iteration in ns; raises UnderstudyError when there is none."""
    path = _measured_path(job, device)
    try:
        return int(json.loads(path.read_text())["iteration_time_ns"])
    except FileNotFoundError:
        raise UnderstudyError(
            f"no measured time of job {job} on {device} ({path}); record one with "
            f"`understudy compare {job} --device {device} --measured-ms X`"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UnderstudyError(f"{path}: not a measured time ({error!r}); record it again") from None


def compare(measured_ns: int, runtimes: pa.Table) -> dict[str, pa.Table]:
    """`runtime_errors` of one job and device: its one row of `simulated_runtimes` against
    `measured_ns`, the measured time of one iteration.

    Raises UnderstudyError when the prediction is that the job does not fit.
    """
    simulated_ns = runtimes["iteration_time_ns"][0].as_py()
    if simulated_ns is None:
        raise UnderstudyError(
            "the job was measured, yet predicted not to fit into the device's memory: "
            "there is no predicted time to compare"
        )
    row = {
        "scope": "step",
        "key": "iteration",
        "measured_ns": measured_ns,
        "simulated_ns": simulated_ns,
        "error": simulated_ns / measured_ns - 1,
    }
    return {"runtime_errors": pa.Table.from_pylist([row], schema=schemas.RUNTIME_ERRORS.schema)}


def _measured_path(job: str, device: str) -> Path:
    return job_dir(job) / device / "measured.json"
