"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# The same examples in every run; HYPOTHESIS_PROFILE=default searches further.
hypothesis.settings.register_profile("fixed", derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure() -> None:
    """A shell that runs the tests in the background has them ignore SIGINT; the processes that the
    tests start and interrupt would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _shared_data() -> Path | None:
    named = os.environ.get("UNDERSTUDY_SHARED_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Measured data sets that are not part of the repository; skips where they are absent."""
    folder = _shared_data()
    if folder is None:
        pytest.skip("no measured data: neither $UNDERSTUDY_SHARED_DATA nor ../shared/data")
    return folder


@pytest.fixture
def understudy_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder of the test's own, in force for this process and its children."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("UNDERSTUDY_HOME", str(folder))
    monkeypatch.setenv("DAGSTER_HOME", str(folder / "dagster"))
    return folder


@pytest.fixture(scope="session")
def interceptor() -> Path:
    """The built `libunderstudy.so`."""
    subprocess.run(
        ["make", "--no-print-directory", "-C", str(REPOSITORY / "interceptor_c")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    library = REPOSITORY / "interceptor_c" / "build" / "libunderstudy.so"
    assert library.is_file(), f"{library} was not built"
    return library


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test of measured data that skips although the data is there fails instead."""
    report = yield
    names = getattr(item, "fixturenames", ())
    if report.skipped and "shared_data" in names and _shared_data() is not None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skipped although {_shared_data()} exists"
    return report
