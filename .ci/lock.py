"""Writes requirements.lock: what pip resolves for this project, less what is never imported.

Run by `make lock`. The NVIDIA wheels are left out because the interceptor stands in for their
libraries; pandas because only the data files of aiconfigurator-core are read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LEFT_OUT = ("nvidia-", "cuda-", "pandas", "understudy")

HEADER = """\
# Written by `make lock` from pyproject.toml; install with `pip install --no-deps -r`.
# torch is the stock CUDA build without its nvidia-* wheels.
"""


def main() -> None:
    """Resolves `.[dev]` without installing anything and writes the pins, sorted by name."""
    resolved = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed",
         "--report", "-", f"{REPOSITORY}[dev]"],
        check=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    metadata = [item["metadata"] for item in json.loads(resolved.stdout)["install"]]
    pins = [
        f"{package['name']}=={package['version']}"
        for package in metadata
        if not package["name"].lower().startswith(LEFT_OUT)
    ]
    lock = REPOSITORY / "requirements.lock"
    staged = lock.with_suffix(".lock.new")
    staged.write_text(HEADER + "\n".join(sorted(pins, key=str.lower)) + "\n")
    staged.replace(lock)


main()
