"""The Dagster web page with its daemon, in the foreground."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from pipelines.instance import open_instance
from understudy.errors import UnderstudyError, UsageError
from understudy.home import REPOSITORY, dagster_dir

_HOST = "127.0.0.1"
_START_SECONDS = 120
_END_SECONDS = 8


def serve(port: int) -> None:
    """Serves the page until Ctrl-C or SIGTERM, then ends all it started.

    Raises UsageError when the port is taken, UnderstudyError when a server ends by itself.
    """
    _check_port(port)
    # Opened once, so that the servers find the databases made and need not both make them.
    with open_instance():
        home = dagster_dir()
    workspace = ["-w", str(REPOSITORY / "workspace.yaml")]
    commands = {
        "dagster-webserver": ["dagster_webserver", *workspace, "-h", _HOST, "-p", str(port)],
        "dagster-daemon": ["dagster._daemon", "run", *workspace],
    }
    logs = {name: home / f"{name}.log" for name in commands}
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(server(["-m", *command], logs[name]))
            for name, command in commands.items()
        }
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port):
            _check_alive(servers, logs)
            if time.monotonic() > deadline:
                log = logs["dagster-webserver"]
                raise UnderstudyError(
                    f"the web page did not start in {_START_SECONDS} s; see {log}"
                )
            time.sleep(0.2)
        click.echo(f"http://{_HOST}:{port}  (Ctrl-C ends it; logs in {home})")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                _check_alive(servers, logs)
                time.sleep(0.5)


@contextlib.contextmanager
def server(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Python server in a session of its own, which is ended as a whole on exit.

    A session of its own keeps a terminal's Ctrl-C from reaching it twice.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
    try:
        yield process
    finally:
        # A second Ctrl-C must not leave the servers behind.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            signal.signal(signal.SIGINT, previous)


def _heed_interrupts() -> None:
    # A shell's background jobs ignore SIGINT; Dagster would copy that to SIGTERM and never end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise UsageError(f"port {port}: {error.strerror}; choose another with --port") from None


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{_HOST}:{port}/server_info", timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _check_alive(servers: dict[str, subprocess.Popen[bytes]], logs: dict[str, Path]) -> None:
    for name, process in servers.items():
        if process.poll() is not None:
            raise UnderstudyError(f"{name} ended with code {process.returncode}; see {logs[name]}")
