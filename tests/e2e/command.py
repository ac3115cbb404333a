"""The `understudy` command in a process of its own, for end-to-end tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
GPT2 = REPOSITORY / "examples" / "gpt2.py"
UNDERSTUDY = Path(sys.executable).with_name("understudy")


@dataclass(frozen=True)
class Outcome:
    """What one run of the command left: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    """The `understudy` command with a state folder of its own."""

    home: Path

    def environment(self) -> dict[str, str]:
        return {**os.environ, "UNDERSTUDY_HOME": str(self.home)}

    def run(self, *arguments: object, cwd: Path | None = None) -> Outcome:
        done = subprocess.run(
            [str(UNDERSTUDY), *map(str, arguments)],
            env=self.environment(),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def predict(
        self, script: Path, *arguments: object, switches: Sequence[str] = (), **options: object
    ) -> dict[str, Any]:
        """Predicts on one device and returns the report; options are flags of the command."""
        flags: list[object] = list(switches)
        for name, value in {"device": "h100-sxm-80gb", **options}.items():
            flags += [f"--{name.replace('_', '-')}", value]
        done = self.run("predict", *flags, "--json", "--", script, *arguments)
        assert done.code == 0, done.err + done.out
        return done.json

    def rows(self, query: str) -> list[dict[str, Any]]:
        done = self.run("sql", "--json", query)
        assert done.code == 0, done.err
        return json.loads(done.out)
