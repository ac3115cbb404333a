"""Dagster's home below `$UNDERSTUDY_HOME`, the same for the command line and the web page."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any, cast

import dagster as dg
from dagster._core.instance.ref import InstanceRef

from understudy.home import REPOSITORY, dagster_dir, write_whole

#: Tag of runs that live in a process of the command line: which process.
PROCESS_TAG = "understudy/process"

# A run of the command line keeps its terminal: no capture of its output.
_NO_CAPTURE = {
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
        "config": {},
    }
}


def prepare_home() -> Path:
    """Makes DAGSTER_HOME with the shipped dagster.yaml, puts it into the environment of this
    process and its children, and returns it."""
    folder = dagster_dir()
    folder.mkdir(parents=True, exist_ok=True)
    shipped = (REPOSITORY / "dagster.yaml").read_text()
    target = folder / "dagster.yaml"
    if not target.exists() or target.read_text() != shipped:
        write_whole(target, shipped)
    os.environ["DAGSTER_HOME"] = str(folder)
    return folder


def open_instance() -> dg.DagsterInstance:
    """The instance for runs in this process; runs whose process died are closed first."""
    folder = prepare_home()
    reference = InstanceRef.from_dir(str(folder), overrides=cast(Any, _NO_CAPTURE))
    # Processes that make the databases at the same time would trip over each other.
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        instance = dg.DagsterInstance.from_ref(reference)
    _close_orphaned_runs(instance)
    return instance


def process_tag(pid: int | None = None) -> str:
    """Identifies a process, against reuse of its number: '<pid>-<start time in ticks>'.

    '' when there is no such process.
    """
    pid = pid or os.getpid()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name in parentheses may hold spaces; the start time is the 20th field after it.
    return f"{pid}-{stat.rpartition(')')[2].split()[19]}"


def _close_orphaned_runs(instance: dg.DagsterInstance) -> None:
    """A killed command line cannot report its run's end: the run would stay 'started' for ever
    and count against the limit of concurrent runs."""
    unfinished = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
    for run in instance.get_runs(filters=unfinished):
        tag = run.tags.get(PROCESS_TAG)
        if tag is not None and process_tag(int(tag.split("-")[0])) != tag:
            instance.report_run_failed(run, "its process ended without a word")
