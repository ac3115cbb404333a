"""Damaged files in the interceptor's own readers: no crash, no hang, no byte read behind them."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cubins import PTX, ZSTD, assembled, fatbin
from tests.damage import damaged
from understudy.traces.cubin import KernelInfo
from understudy.traces.kernel_table import table_bytes

FILES = 1000
SOURCE = """
#define QUOTE "__global__ void no("
template <typename T, int N> __global__ __launch_bounds__(128, 2)
void scale(T *out, const float *in, unsigned long long n, float factor) { }
extern "C" __global__ void fill(int *out /* all */, int n) {} // __global__
"""
Reader = Callable[..., list[str]]


@pytest.fixture
def read(programs: Path) -> Reader:
    """Runs `readers KIND ...`; a finding of the sanitizers and a crash end it with another code."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("UNDERSTUDY_")}

    def run(kind: str, *arguments: str | Path) -> list[str]:
        done = subprocess.run(
            [str(programs / "readers"), kind, *map(str, arguments)],
            # A fat binary that was registered is never freed: kernels refer to it.
            env={**kept, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]

    return run


def injuries(content: bytes, folder: Path, keep_bytes: int = 0) -> list[Path]:
    """Files with damaged copies, whose first bytes are whole."""
    rng, paths = random.Random(1), []
    for number in range(FILES):
        paths.append(folder / f"damaged{number}")
        paths[-1].write_bytes(content[:keep_bytes] + damaged(content[keep_bytes:], rng))
    return paths


def test_cubins(read: Reader, tmp_path: Path) -> None:
    content = assembled(tmp_path, 90)
    (tmp_path / "whole").write_bytes(content)
    (whole,) = read("cubin", tmp_path / "whole")
    assert sorted(k.rsplit(":", 2)[1:] for k in whole.split()[1:]) == [["1", "8"], ["3", "20"]]
    read("cubin", *injuries(content, tmp_path), *injuries(content, tmp_path, keep_bytes=64))


def test_fat_binaries(read: Reader, tmp_path: Path) -> None:
    """They lie in memory without a length: the one that their header states is believed."""
    cubin = assembled(tmp_path, 90)
    content = fatbin({80: cubin[:64], 90: cubin[:640]}, ZSTD)
    (tmp_path / "whole").write_bytes(content)
    assert read("fatbin", tmp_path / "whole") == ["fatbin 1"]
    paths = injuries(content, tmp_path, keep_bytes=16)
    for path in paths:
        raw = bytearray(path.read_bytes())
        raw[8:16] = (len(raw) - 16).to_bytes(8, "little")
        path.write_bytes(raw)
    assert {"fatbin 0", "fatbin 1"} == set(read("fatbin", *paths))


def test_ptx(read: Reader, tmp_path: Path) -> None:
    content = PTX.encode()
    (tmp_path / "whole").write_bytes(content)
    assert read("ptx", tmp_path / "whole") == ["ptx scale:0:3:20 fill:0:1:8"]
    (tmp_path / "torn").write_bytes(content[: content.index(b", 1, 1")])
    assert read("ptx", tmp_path / "torn") == ["ptx scale:0:3:20"]
    read("ptx", *injuries(content, tmp_path))


def test_cuda_sources(read: Reader, tmp_path: Path) -> None:
    (tmp_path / "whole").write_text(SOURCE)
    assert read("source", tmp_path / "whole") == ["source scale:4 fill:2"]
    lines = read("source", *injuries(SOURCE.encode(), tmp_path))
    assert lines.count("source scale:4 fill:2") < FILES


def test_kernel_tables(read: Reader, tmp_path: Path) -> None:
    names = [f"kernel{i}" for i in range(20)]
    kernels = [
        KernelInfo(name, 16 + i, 0, 256, 8 * i, tuple((8 * p, 8) for p in range(i)))
        for i, name in enumerate(names)
    ]
    content = table_bytes(kernels, "ab", 90)
    (tmp_path / "whole").write_bytes(content)
    found = read("tables", ",".join(names), tmp_path / "whole")
    assert found == [f" {k.name}:{k.registers}:{i}:{8 * i}" for i, k in enumerate(kernels)]
    paths = injuries(content, tmp_path) + injuries(content, tmp_path, keep_bytes=96)
    for first in range(0, len(paths), 100):
        read("tables", ",".join(names), *paths[first : first + 100])
