"""What end-to-end tests ask of the machine: its processes, and a disk that is full soon."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes, pytest's own aside, that run something in `folder` or have
    it as their state folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        state = f"UNDERSTUDY_HOME={folder}".encode() in variables
        if line and (str(folder) in line or state) and "pytest" not in line.split()[2:3]:
            found.append(line)
    return found


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether the condition comes to hold within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@contextmanager
def small_disk(folder: Path, size: str) -> Generator[Path, None, None]:
    """A file system of `size` ("2M") in the place of `folder`; skips without the right to mount."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small file system needs the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
