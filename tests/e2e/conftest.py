"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import pytest

from tests.e2e.command import Cli


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("home"))
