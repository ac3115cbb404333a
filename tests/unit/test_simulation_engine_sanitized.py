"""The replay engine's tests once more, with its C code under AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from understudy.home import REPOSITORY

SOURCE = REPOSITORY / "understudy" / "simulation" / "native" / "replay.c"
TESTS = [
    str(Path(__file__).with_name(f"test_simulation_{name}.py"))
    for name in ("rules", "errors", "random")
]
RUN = """
import sys
from pathlib import Path
import pytest
from understudy.simulation import engine
engine.LIBRARY = Path(sys.argv[1])
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[2:]]))
"""


def test_replay_under_sanitizers(tmp_path: Path) -> None:
    library = tmp_path / "libreplay.so"
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g"]
    compiler = ["gcc", "-std=c11", *flags, "-fPIC", "-shared", "-o", str(library), str(SOURCE)]
    subprocess.run(compiler, check=True)
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    # Python leaks by design what it keeps until its end.
    env = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(library), *TESTS],
        cwd=REPOSITORY,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
