"""What this machine has and lacks, and how to get it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from understudy.emulation.environment import INTERCEPTOR, SHADOWS
from understudy.home import home

State = Literal["ok", "missing", "optional"]

_NEEDED_FREE_BYTES = 2 * 10**9


@dataclass(frozen=True)
class Finding:
    """One thing looked for. `missing` is needed; `optional` lacks too, yet predictions work."""

    what: str
    state: State
    found: str
    remedy: str = ""

    def line(self) -> str:
        """One line of text."""
        mark = {"ok": "ok      ", "missing": "MISSING ", "optional": "optional"}[self.state]
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{mark}  {self.what}: {self.found}{remedy}"


def findings() -> list[Finding]:
    """Everything that Understudy needs or can use."""
    return [
        _python(),
        _headers(),
        *map(_tool, ("gcc", "g++", "make")),
        _interceptor(),
        _torch(),
        _disk(),
        *_browser(),
    ]


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] == (3, 11):
        return Finding("Python 3.11", "ok", f"{found} ({sys.executable})")
    return Finding(
        "Python 3.11", "missing", found, "install it and run `make setup BOOTSTRAP_PYTHON=...`"
    )


def _headers() -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.is_file():
        return Finding("Python headers", "ok", str(header))
    return Finding("Python headers", "missing", f"no {header}", "`apt-get install python3.11-dev`")


def _tool(name: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        package = "make" if name == "make" else "build-essential"
        return Finding(name, "missing", "not found", f"`apt-get install {package}`")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Finding(name, "ok", (done.stdout.splitlines() or [path])[0])


def _interceptor() -> Finding:
    if INTERCEPTOR.is_file() and any(SHADOWS.glob("*.so*")):
        return Finding("interceptor", "ok", str(INTERCEPTOR))
    return Finding("interceptor", "missing", f"{INTERCEPTOR} is not built", "`make setup`")


def _torch() -> Finding:
    try:
        found = version("torch")
    except PackageNotFoundError:
        return Finding(
            "PyTorch",
            "missing",
            "not found",
            "`make setup`, or name your own environment with --python",
        )
    # Looked up without importing it, which takes seconds.
    with_nvidia = importlib.util.find_spec("nvidia") is not None
    mode = "with NVIDIA's wheels" if with_nvidia else "without NVIDIA's wheels"
    return Finding("PyTorch", "ok", f"{found}, {mode}")


def _disk() -> Finding:
    folder = home()
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free in {folder}"
    if free >= _NEEDED_FREE_BYTES:
        return Finding("disk", "ok", text)
    return Finding(
        "disk",
        "missing",
        text,
        f"free {_NEEDED_FREE_BYTES / 1e9:.0f} GB, or set UNDERSTUDY_HOME to a larger disk",
    )


def _browser() -> Iterator[Finding]:
    for name, package in (("chromium", "chromium"), ("chromedriver", "chromium-driver")):
        path = shutil.which(name)
        if path is None:
            remedy = f"`apt-get install {package}`; only the browser test uses it"
            yield Finding(name, "optional", "not found", remedy)
        else:
            yield Finding(name, "ok", path)
