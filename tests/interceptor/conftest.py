"""Builds the C programs once and runs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "interceptor_c"

Scenario = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session", params=["plain", "sanitized"])
def programs(request: pytest.FixtureRequest) -> Path:
    """Folder of the C test programs; sanitized: built with AddressSanitizer and UBSan."""
    sanitized = request.param == "sanitized"
    subprocess.run(
        ["make", "--no-print-directory", "-C", str(SOURCES), "asan" if sanitized else "tests"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return SOURCES / "build" / ("asan/tests" if sanitized else "tests")


@pytest.fixture
def scenario(programs: Path) -> Scenario:
    """Runs `scenario NAME FOLDER ...` and returns the finished process."""

    def run(
        name: str, folder: Path, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("UNDERSTUDY_")}
        return subprocess.run(
            [str(programs / "scenario"), name, str(folder), *arguments],
            env={**kept, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
