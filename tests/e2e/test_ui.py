"""The web page in a real browser: `understudy ui`, headless Chromium."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.predictions import DEVICE, write_prediction
from understudy import jobs
from warehouse import schemas

pytestmark = pytest.mark.browser

UNDERSTUDY = Path(sys.executable).with_name("understudy")
JOB = "measured-job"
_WAIT_S = 40


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State with one materialized partition: a prediction compared with a measurement."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_HOME", str(folder))
        jobs.save(jobs.JobSpec(JOB, Path(__file__), None, devices=(DEVICE,)))
        write_prediction(JOB, 12_000_000)
    subprocess.run(
        [str(UNDERSTUDY), "compare", JOB, "--device", DEVICE, "--measured-ms", "10"],
        env=_environment(folder),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder


@pytest.fixture(scope="module")
def page(home: Path) -> Iterator[str]:
    """Address of the running web page. Afterwards Ctrl-C must end it and all it started."""
    port = _free_port()
    process = subprocess.Popen(
        [str(UNDERSTUDY), "ui", "--port", str(port)],
        env=_environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("http://"):
        process.kill()
        pytest.fail(f"no web page: {line}{process.communicate()[1]}")
    try:
        yield line.split()[0]
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert _living(home) == []


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver: `apt-get install chromium chromium-driver`")
    options = Options()
    options.binary_location = chromium
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1600,1000",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(flag)
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def test_graph_shows_the_six_stages(browser: webdriver.Chrome, page: str) -> None:
    browser.get(f"{page}/asset-groups")
    text = _wait_for(browser, *schemas.STAGES)
    assert "Error" not in text


def test_materialized_partition_with_its_table(browser: webdriver.Chrome, page: str) -> None:
    asset = f"{page}/assets/comparison/runtime_errors"
    browser.get(f"{asset}?view=partitions")
    _wait_for(browser, DEVICE, JOB)
    browser.get(f"{asset}?view=events&partition={DEVICE}%7C{JOB}")
    _wait_for(browser, "materialized in run", f"device={DEVICE}/job={JOB}/runtime_errors.parquet")
    browser.get(f"{asset}?view=overview")
    _wait_for(browser, *(column.name for column in schemas.RUNTIME_ERRORS.columns))


def test_taken_port_is_one_message(page: str, home: Path) -> None:
    port = page.rpartition(":")[2]
    done = subprocess.run(
        [str(UNDERSTUDY), "ui", "--port", port],
        env=_environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert port in done.stderr
    assert len(done.stderr.splitlines()) == 1


def _wait_for(browser: webdriver.Chrome, *words: str) -> str:
    """The page's text once all words are on it."""

    def missing() -> list[str]:
        text = browser.find_element(By.TAG_NAME, "body").text
        return [word for word in words if word not in text]

    wait = WebDriverWait(browser, _WAIT_S)
    wait.until(lambda _: not missing(), f"not on {browser.current_url}: {', '.join(words)}")
    return browser.find_element(By.TAG_NAME, "body").text


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "UNDERSTUDY_HOME": str(home)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _living(home: Path) -> list[str]:
    """Command lines of processes that carry this state folder in their environment."""
    deadline = time.monotonic() + 10
    while True:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes()
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if f"UNDERSTUDY_HOME={home}".encode() in environment.split(b"\0") and command:
                found.append(command.replace(b"\0", b" ").decode())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
