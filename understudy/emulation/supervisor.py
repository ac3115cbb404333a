"""Runs the torchrun agents of one job and leaves no process behind. Standard library only.

torchrun starts every rank in a session of its own, so killing a process group leaves orphans. This
process is a child subreaper: whatever its descendants start and abandon becomes its child. When an
agent fails, when it is told to end (SIGTERM, SIGINT) or when its parent dies, it kills them all.

Called by launcher.py as `python supervisor.py SPEC`, SPEC a JSON file {"commands": [[...], ...],
"working_dir": ..., "env": {...}}; exits with the first failing agent's code (128 + signal number
when a signal ended it), 0 when all succeeded.
"""

# No pathlib: this starts for every emulation.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ADDR_NO_RANDOMIZE = 0x0040000
_POLL_S = 0.02


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _fix_addresses() -> None:
    """Python sets of tensors and C++ maps of pointers are walked in the order of addresses: with
    fixed ones a script does the same in every emulation. A container may forbid it (the answer is
    then -1); most scripts do not depend on it."""
    ctypes.CDLL(None).personality(ctypes.c_ulong(_ADDR_NO_RANDOMIZE))


def _parents() -> dict[int, int]:
    """Parent of every process of the machine that can be read."""
    parents = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                # The command in parentheses may hold spaces and parentheses itself.
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return parents


def descendants(root: int) -> list[int]:
    """Processes below `root`, parents first."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def kill_descendants() -> None:
    """Kills and reaps until no child is left; a process that forks meanwhile is met again."""
    while True:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_POLL_S)


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(commands: list[list[str]], working_dir: str, env: dict[str, str]) -> int:
    """Runs the commands side by side; the first failure ends the others."""
    agents = {
        subprocess.Popen(
            command, cwd=working_dir, env=env, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent
        ).pid
        for command in commands
    }
    code = 0
    while agents and code == 0:
        # An orphan of a rank may be reaped here as well.
        pid, status = os.waitpid(-1, 0)
        if pid in agents:
            agents.discard(pid)
            code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    """See the module's text."""
    parent = int(sys.argv[2])

    def told_to_end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, told_to_end)
    signal.signal(signal.SIGINT, told_to_end)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 1  # the parent died before it could be watched
    _fix_addresses()
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    try:
        return run(spec["commands"], spec["working_dir"], spec["env"])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kill_descendants()


if __name__ == "__main__":
    sys.exit(main())
