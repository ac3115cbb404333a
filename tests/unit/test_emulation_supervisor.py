"""The supervisor leaves no process behind: real processes, signals and orphans."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SUPERVISOR = Path(__file__).resolve().parents[2] / "understudy" / "emulation" / "supervisor.py"

#: Starts a grandchild in a session of its own (as torchrun does) and abandons it.
SPAWN = """
import subprocess, sys, time
subprocess.Popen(["sleep", sys.argv[1]], start_new_session=True)
"""


def start(folder: Path, *programs: str, argument: str = "300.5") -> subprocess.Popen[bytes]:
    commands = [[sys.executable, "-c", textwrap.dedent(p), argument] for p in programs]
    spec = folder / "spec.json"
    spec.write_text(
        json.dumps({"commands": commands, "working_dir": str(folder), "env": dict(os.environ)})
    )
    return subprocess.Popen(
        [sys.executable, "-I", str(SUPERVISOR), str(spec), str(os.getpid())], start_new_session=True
    )


def running(argument: str) -> bool:
    """Whether a process was started with `argument`."""
    for entry in Path("/proc").iterdir():
        try:
            if argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_success_ends_what_was_abandoned(tmp_path: Path) -> None:
    assert start(tmp_path, SPAWN, argument="301.25").wait(20) == 0
    assert not running("301.25")


def test_one_failure_ends_all(tmp_path: Path) -> None:
    waiting = SPAWN + "time.sleep(300)"
    failing = SPAWN + "time.sleep(0.3); sys.exit(7)"
    assert start(tmp_path, waiting, failing, argument="302.25").wait(20) == 7
    assert not running("302.25")


def test_an_agent_that_is_killed_is_a_failure(tmp_path: Path) -> None:
    killed = "import os; os.kill(os.getpid(), 11)"
    assert start(tmp_path, killed, argument="303.25").wait(20) == 128 + signal.SIGSEGV


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all(tmp_path: Path, number: signal.Signals) -> None:
    supervisor = start(tmp_path, SPAWN + "time.sleep(300)", argument="304.25")
    assert eventually(lambda: running("304.25"))
    time.sleep(0.3)
    supervisor.send_signal(number)
    assert supervisor.wait(20) == 128 + number
    assert not running("304.25")


def test_the_death_of_the_launcher_ends_all(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", SPAWN + "time.sleep(300)", "305.25"]]
    spec = tmp_path / "spec.json"
    spec.write_text(
        json.dumps({"commands": commands, "working_dir": str(tmp_path), "env": dict(os.environ)})
    )
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys, time\n"
            f"subprocess.Popen([sys.executable, {str(SUPERVISOR)!r}, {str(spec)!r}, "
            "str(os.getpid())], start_new_session=True)\n"
            "time.sleep(300)",
        ]
    )
    assert eventually(lambda: running("305.25"))
    time.sleep(0.3)
    launcher.kill()
    launcher.wait()
    assert eventually(lambda: not running("305.25"))
