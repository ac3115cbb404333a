"""Writes kernel tables (.ktab): what the interceptor has to know of a shared library's kernels.

The format is owned by interceptor_c/include/kernel_table.h. A table is made once per library build
and compute capability, in 2 to 3 seconds for PyTorch's 773 MB of device code.

The interceptor has the tables of libraries that are not PyTorch's made when it meets them:
`python -m understudy.traces.kernel_table LIBRARY CAPABILITY CACHE` prints the path of the table.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from understudy.errors import UnderstudyError
from understudy.traces.cubin import KernelInfo, Library, open_library, section_fatbins

MAGIC = b"USKTAB01"
VERSION = 2

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("compute_capability", "<u4"),
        ("entry_count", "<u4"),
        ("parameter_count", "<u4"),
        ("string_bytes", "<u8"),
        ("build_id", "S60"),
        ("checksum", "<u4"),
    ]
)

ENTRY = np.dtype(
    [
        ("name_hash", "<u8"),
        ("name_offset", "<u4"),
        ("name_bytes", "<u4"),
        ("static_shared_bytes", "<u4"),
        ("local_bytes", "<u4"),
        ("first_parameter", "<u4"),
        ("parameter_count", "<u2"),
        ("parameter_bytes", "<u2"),
        ("registers", "<u2"),
        ("max_threads", "<u2"),
        ("reserved", "<u4"),
    ]
)

PARAMETER = np.dtype([("offset_bytes", "<u4"), ("size_bytes", "<u4")])

#: CUDA's limit for a kernel that states none.
_MAX_THREADS = 1024
_FNV_BASIS = 14695981039346656037
_FNV_PRIME = 1099511628211

#: (library name, bytes read, bytes in all)
Progress = Callable[[str, int, int], None]


def fnv1a_64(names: Sequence[bytes]) -> np.ndarray:
    """FNV-1a hash (uint64) of each name, all names at once: character by character."""
    order = sorted(range(len(names)), key=lambda i: -len(names[i]))
    lengths = np.array([len(names[i]) for i in order], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    characters = np.frombuffer(b"".join(names[i] for i in order), np.uint8).astype(np.uint64)
    hashes = np.full(len(names), _FNV_BASIS, np.uint64)
    prime = np.uint64(_FNV_PRIME)
    active = len(names)
    for position in range(int(lengths[0]) if len(names) else 0):
        while lengths[active - 1] <= position:
            active -= 1
        part = hashes[:active]
        part ^= characters[starts[:active] + position]
        part *= prime
    result = np.empty_like(hashes)
    result[order] = hashes
    return result


def table_bytes(kernels: Iterable[KernelInfo], build_id: str, compute_capability: int) -> bytes:
    """The contents of a .ktab file. Of kernels with the same name the first is kept."""
    by_name: dict[bytes, KernelInfo] = {}
    for kernel in kernels:
        by_name.setdefault(kernel.name.encode(), kernel)
    names = list(by_name)
    hashes = fnv1a_64(names)
    order = sorted(range(len(names)), key=lambda i: (int(hashes[i]), names[i]))
    entries = np.zeros(len(names), ENTRY)
    parameters: list[tuple[int, int]] = []
    name_offset = 0
    for row, i in enumerate(order):
        kernel = by_name[names[i]]
        entries[row] = (
            hashes[i],
            name_offset,
            len(names[i]),
            kernel.static_shared_bytes,
            0,
            len(parameters),
            len(kernel.parameters),
            min(kernel.parameter_bytes, 0xFFFF),
            kernel.registers,
            min(kernel.max_threads, _MAX_THREADS) or _MAX_THREADS,
            0,
        )
        parameters.extend(kernel.parameters)
        name_offset += len(names[i])
    blob = b"".join(names[i] for i in order)
    body = b"".join((entries.tobytes(), np.array(parameters, PARAMETER).tobytes(), blob))
    header = np.array(
        [
            (
                MAGIC,
                VERSION,
                compute_capability,
                len(names),
                len(parameters),
                name_offset,
                build_id.encode()[:59],
                zlib.crc32(body),
            )
        ],
        HEADER,
    )
    return header.tobytes() + body


def _is_whole(path: Path, build_id: str, compute_capability: int) -> bool:
    """Whether a table is there, of this format, library and device, with all its bytes intact."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return False
    if len(raw) < HEADER.itemsize:
        return False
    header = np.frombuffer(raw, HEADER, 1)[0]
    body = memoryview(raw)[HEADER.itemsize :]
    wanted = (MAGIC, VERSION, compute_capability, build_id.encode()[:59], zlib.crc32(body))
    found = (header[n] for n in ("magic", "version", "compute_capability", "build_id", "checksum"))
    body_bytes = (
        int(header["entry_count"]) * ENTRY.itemsize
        + int(header["parameter_count"]) * PARAMETER.itemsize
        + int(header["string_bytes"])
    )
    return tuple(found) == wanted and len(body) == body_bytes


def _identity(library: Library) -> str:
    if library.build_id:
        return library.build_id
    digest = hashlib.sha256()
    with library.path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()[:40]


def ensure_kernel_table(
    library_path: Path, compute_capability: int, cache: Path, progress: Progress | None = None
) -> Path | None:
    """The .ktab of a library in folder `cache`, made when it is not there yet or damaged.

    Returns None when the library has no device code that `compute_capability` (90 = 9.0) runs: its
    kernels cannot be launched there. Raises UnderstudyError when the library is damaged.
    """
    library = open_library(library_path)
    if library.fatbins is None:
        return None
    identity = _identity(library)
    path = cache / f"{identity}-sm_{compute_capability}.ktab"
    if _is_whole(path, identity, compute_capability):
        return path

    def report(done: int, total: int) -> None:
        if progress:
            progress(library_path.name, done, total)

    where = str(library_path)
    kernels = [
        kernel
        for fatbin in section_fatbins(library.fatbins, compute_capability, where, report)
        for kernel in fatbin.kernels
    ]
    if not kernels:
        return None
    cache.mkdir(parents=True, exist_ok=True)
    temporary = cache / f".{path.name}.{os.getpid()}.tmp"
    temporary.write_bytes(table_bytes(kernels, identity, compute_capability))
    temporary.replace(path)
    return path


def kernel_tables(
    torch_lib: Path, compute_capability: int, cache: Path, progress: Progress | None = None
) -> list[Path]:
    """The kernel tables of all libraries in PyTorch's `torch/lib`, made where missing."""
    tables = [
        ensure_kernel_table(library, compute_capability, cache, progress)
        for library in sorted(torch_lib.glob("*.so"))
    ]
    return [table for table in tables if table is not None]


def main() -> None:
    """See the module's text; prints nothing for a library without kernels for the device."""
    library, compute_capability, cache = sys.argv[1:]
    try:
        table = ensure_kernel_table(Path(library), int(compute_capability), Path(cache))
    except (UnderstudyError, OSError) as error:
        raise SystemExit(
            f"understudy: {error}; sizes of the arguments of its kernels are not known"
        ) from error
    if table is not None:
        sys.stdout.write(f"{table}\n")


if __name__ == "__main__":
    main()
