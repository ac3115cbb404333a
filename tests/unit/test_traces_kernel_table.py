"""Fatbins, cubins and kernel tables, read from the PyTorch that is installed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import UnderstudyError
from understudy.traces import kernel_table as fmt
from understudy.traces.cubin import KernelInfo, open_library, section_fatbins
from understudy.traces.kernel_table import ensure_kernel_table, fnv1a_64, table_bytes

HEADER_FILE = Path(__file__).resolve().parents[2] / "interceptor_c" / "include" / "kernel_table.h"


def torch_library(name: str) -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "lib" / name


@pytest.fixture(scope="module")
def small_library() -> Path:
    """A real library with one fatbin for all architectures, 4 MB."""
    return torch_library("libtorch_nvshmem.so")


@pytest.fixture(scope="module")
def small_section(small_library: Path) -> bytes:
    section = open_library(small_library).fatbins
    assert section is not None
    return bytes(section)


def table(path: Path) -> tuple[np.void, np.ndarray, np.ndarray, bytes]:
    raw = path.read_bytes()
    header = np.frombuffer(raw, fmt.HEADER, 1)[0]
    entries = np.frombuffer(raw, fmt.ENTRY, header["entry_count"], fmt.HEADER.itemsize)
    at = fmt.HEADER.itemsize + entries.nbytes
    parameters = np.frombuffer(raw, fmt.PARAMETER, header["parameter_count"], at)
    strings = raw[at + parameters.nbytes :]
    assert len(strings) == header["string_bytes"]
    return header, entries, parameters, strings


def names(entries: np.ndarray, strings: bytes) -> list[str]:
    return [
        strings[e["name_offset"] : e["name_offset"] + e["name_bytes"]].decode() for e in entries
    ]


def test_the_table_of_pytorch(tmp_path: Path) -> None:
    progress: list[tuple[str, int, int]] = []
    path = ensure_kernel_table(
        torch_library("libtorch_cuda.so"), 90, tmp_path, lambda *p: progress.append(p)
    )
    assert path is not None
    assert re.fullmatch(r"[0-9a-f]{40}-sm_90\.ktab", path.name)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert progress[-1][1] == progress[-1][2] > 1 << 28
    header, entries, parameters, strings = table(path)
    assert header["compute_capability"] == 90
    assert header["entry_count"] > 20_000
    assert np.all(np.diff(entries["name_hash"].astype(object)) >= 0)
    assert np.all(entries["registers"] > 0)
    by_name = dict(zip(names(entries, strings), entries, strict=True))
    assert int(fnv1a_64([next(iter(by_name)).encode()])[0]) == entries[0]["name_hash"]
    # out = a + alpha * b: int N, the functor with its alpha, an array of three pointers.
    add = by_name[
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EE"
        "Lb0EEEviT0_T1_"
    ]
    first = int(add["first_parameter"])
    assert [tuple(map(int, p)) for p in parameters[first : first + 3]] == [(0, 4), (4, 4), (8, 24)]
    assert (add["parameter_count"], add["parameter_bytes"], add["max_threads"]) == (3, 32, 128)
    # Kernels with more than 4 KiB of parameters keep them in another attribute.
    assert entries["parameter_bytes"].max() > 20_000
    assert ensure_kernel_table(torch_library("libtorch_cuda.so"), 90, tmp_path) == path


def test_a_library_without_device_code_has_no_table(tmp_path: Path) -> None:
    assert ensure_kernel_table(torch_library("libc10_cuda.so"), 90, tmp_path) is None


def test_the_best_architecture_is_chosen(small_section: bytes) -> None:
    chosen = {
        capability: next(section_fatbins(memoryview(small_section), capability, "x"))
        for capability in (80, 86, 89, 90, 103, 120)
    }
    assert {c: f.compute_capability for c, f in chosen.items()} == {
        80: 80,
        86: 86,
        89: 86,
        90: 90,
        103: 100,
        120: 120,
    }
    # What the system reserves from 9.0 on is not the kernel's own static shared memory.
    static = [
        {k.name: k.static_shared_bytes for k in chosen[c].kernels if "exchangeSplit" in k.name}
        for c in (80, 90)
    ]
    assert static[0] == static[1]
    assert max(static[0].values()) > 4000


def test_a_device_that_pytorch_has_no_code_for(small_library: Path, tmp_path: Path) -> None:
    assert ensure_kernel_table(small_library, 35, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 10, 63, 1000, 200_000])
def test_a_truncated_library_is_an_error(small_library: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "libtorn.so"
    path.write_bytes(small_library.read_bytes()[:size])
    with pytest.raises(UnderstudyError, match=r"libtorn\.so"):
        ensure_kernel_table(path, 90, tmp_path)


def test_a_library_without_build_id_is_known_by_its_contents(
    small_library: Path, tmp_path: Path
) -> None:
    path = tmp_path / "libplain.so"
    shutil.copy(small_library, path)
    subprocess.run(["strip", "-R", ".note.gnu.build-id", str(path)], check=True)
    made = ensure_kernel_table(path, 90, tmp_path)
    assert made is not None
    assert re.fullmatch(r"[0-9a-f]{40}-sm_90\.ktab", made.name)


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_hashes_are_fnv1a(words: list[bytes]) -> None:
    def hash_of(word: bytes) -> int:
        value = 14695981039346656037
        for character in word:
            value = (value ^ character) * 1099511628211 % (1 << 64)
        return value

    assert [int(h) for h in fnv1a_64(words)] == [hash_of(w) for w in words]


def test_of_kernels_with_one_name_the_first_is_kept(tmp_path: Path) -> None:
    kernels = [KernelInfo("a", 10, 0, 0, 8, ((0, 8),)), KernelInfo("a", 20, 4, 512, 4, ((0, 4),))]
    path = tmp_path / "x.ktab"
    path.write_bytes(table_bytes(kernels, "ab", 80))
    _, entries, _, strings = table(path)
    assert names(entries, strings) == ["a"]
    assert (entries[0]["registers"], entries[0]["max_threads"]) == (10, 1024)


def test_layouts_equal_the_header(tmp_path: Path) -> None:
    dtypes = {
        "us_ktab_header": fmt.HEADER,
        "us_ktab_entry": fmt.ENTRY,
        "us_ktab_parameter": fmt.PARAMETER,
    }
    checks = [f"sizeof(struct {name}) == {dtype.itemsize}" for name, dtype in dtypes.items()]
    checks += [
        f"offsetof(struct {name}, {field}) == {dtype.fields[field][1]}"
        for name, dtype in dtypes.items()
        if dtype.fields is not None
        for field in dtype.fields
    ]
    source = tmp_path / "check.c"
    source.write_text(
        f'#include <stddef.h>\n#include "{HEADER_FILE}"\n'
        + "".join(f'_Static_assert({c}, "{c}");\n' for c in checks)
    )
    subprocess.run(["gcc", "-fsyntax-only", str(source)], check=True)
