"""Where everything written at run time lives: `$UNDERSTUDY_HOME`, else `var/` beside the code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def home() -> Path:
    """The absolute state folder; created on first use."""
    path = Path(os.environ.get("UNDERSTUDY_HOME") or REPOSITORY / "var").resolve()
    path.mkdir(parents=True, exist_ok=True)
    return path


def warehouse_dir() -> Path:
    """Parquet tables."""
    return home() / "warehouse"


def forests_dir(device: str) -> Path:
    """Trained forests of one device."""
    return home() / "forests" / f"device={device}"


def job_dir(job: str) -> Path:
    """What belongs to one job: its resolved specification, and per device its log and report."""
    return home() / "jobs" / job


def cache_dir() -> Path:
    """Things that can be made again: kernel tables, bytecode."""
    return home() / "cache"


def dagster_dir() -> Path:
    """`DAGSTER_HOME` of the command line and of the UI."""
    return home() / "dagster"


def write_whole(path: Path, text: str) -> None:
    """Writes a text file under another name and renames it: a reader sees all of it or the old."""
    with staged(path) as temporary:
        temporary.write_text(text)


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Another name to write the file `path` under; it takes its own once it is written whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
