"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.command import Cli


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def script_home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path, None, None]:
    """One state folder for all cases of a module, so that the kernel table is made once."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_HOME", str(folder))
        yield folder
