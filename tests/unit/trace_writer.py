"""Writes synthetic traces in the interceptor's format: what the C side does, in a few lines."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from understudy.traces import interceptor as fmt
from understudy.traces.interceptor import Api


class TraceWriter:
    """Collects records and definitions of one rank, then writes both files.

    Every record begins 10 us after the one before it and stays inside 1 us, unless told otherwise.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size
        self.rows: list[tuple[Any, ...]] = []
        self.definitions: list[bytes] = []
        self.counts: dict[int, int] = {}
        self.now_ns = 1_000_000
        self.main = self.thread("python", is_main=True)

    def define(self, kind: int, payload: bytes, identifier: int | None = None) -> int:
        if identifier is None:
            self.counts[kind] = identifier = self.counts.get(kind, 0) + 1
        size = (fmt.ENTRY.size + len(payload) + 7) // 8 * 8
        entry = fmt.ENTRY.pack(size, kind, identifier, len(payload)) + payload
        self.definitions.append(entry.ljust(size, b"\0"))
        return identifier

    def thread(self, name: str, is_main: bool = False) -> int:
        number = self.counts.get(fmt.THREAD, 0) + 100
        return self.define(fmt.THREAD, fmt.THREAD_PAYLOAD.pack(number, is_main, name.encode()))

    def stream(self, number: int, non_blocking: bool = True) -> int:
        payload = fmt.STREAM_PAYLOAD.pack(0, int(non_blocking), 0, 0)
        return self.define(fmt.STREAM, payload, number)

    def kernel(self, name: str, parameters: tuple[tuple[int, int], ...] = ()) -> int:
        packed = b"".join(fmt.PARAMETER.pack(*p) for p in parameters)
        head = fmt.KERNEL_PAYLOAD.pack(32, 0, len(parameters), len(name))
        return self.define(fmt.KERNEL, head + packed + name.encode())

    def launch_definition(self, kernel: int, grid: int = 1, arguments: bytes = b"") -> int:
        head = fmt.LAUNCH_PAYLOAD.pack(kernel, grid, 1, 1, 128, 1, 1, 0, len(arguments), 1, 1, 1)
        return self.define(fmt.LAUNCH, head + arguments)

    def gemm(self, m: int, n: int, k: int) -> int:
        numbers = (m, n, k, 1, m, k, m, m, 0, 0, 0, 0, 0, 0, 14, 14, 14, 14, 68, 1)
        return self.define(fmt.GEMM, fmt.GEMM_PAYLOAD.pack(*numbers, b"cublasGemmEx"))

    def communicator(
        self,
        unique_id: int,
        rank: int,
        size: int,
        parent: int = 0,
        color: int = 0,
        key: int = 0,
        description: str = "",
    ) -> int:
        payload = fmt.COMMUNICATOR_PAYLOAD.pack(unique_id, 7, rank, size, parent, color, key, 0)
        return self.define(fmt.COMMUNICATOR, payload + description.encode())

    def record(
        self,
        api: Api,
        stream: int = 0,
        *,
        definition: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        d: int = 0,
        flags: int = 0,
        thread: int | None = None,
        after_ns: int = 10_000,
    ) -> None:
        self.now_ns += after_ns
        thread = self.main if thread is None else thread
        self.rows.append(
            (self.now_ns, 1000, int(api), thread, stream, definition, a, b, c, d, 0, flags)
        )

    def launch(self, stream: int = 0, name: str = "kernel", grid: int = 1, **more: Any) -> None:
        """A launch of a kernel without arguments; same name and grid: same definition."""
        known = self.__dict__.setdefault("_launches", {})
        if (name, grid) not in known:
            known[name, grid] = self.launch_definition(self.kernel(name), grid)
        self.record(Api.LAUNCH_KERNEL, stream, definition=known[name, grid], **more)

    def all_reduce(self, communicator: int, size_bytes: int, stream: int = 0) -> None:
        self.record(Api.COLLECTIVE, stream, definition=communicator, a=0, b=size_bytes, flags=7)

    def mark(self, number: int) -> None:
        self.record(Api.ITERATION, a=number)

    def write(self, folder: Path, lost_entries: int = 0) -> Path:
        """Writes the trace and returns its stem."""
        stem = folder / f"rank-{self.rank}"
        records = np.array(self.rows, fmt.RECORD).tobytes()
        self._file(stem, ".records", records, len(self.rows), fmt.RECORDS_MAGIC, 64, lost_entries)
        definitions = b"".join(self.definitions)
        count = len(self.definitions)
        self._file(stem, ".definitions", definitions, count, fmt.DEFINITIONS_MAGIC, 0, 0)
        return stem

    def _file(
        self, stem: Path, suffix: str, body: bytes, count: int, magic: int, entry: int, lost: int
    ) -> None:
        header = np.zeros(1, fmt.HEADER)
        header["magic"], header["version"] = magic, fmt.FORMAT_VERSION
        header["header_bytes"], header["used_bytes"] = (
            fmt.HEADER_BYTES,
            fmt.HEADER_BYTES + len(body),
        )
        header["entries"], header["entry_bytes"], header["lost_entries"] = count, entry, lost
        header["rank"], header["world_size"], header["pid"] = self.rank, self.world_size, 1
        header["compute_capability"], header["closed"] = 90, 1
        header["memory_bytes"], header["build_id"] = 80 << 30, b"abc"
        header["device"] = b"h100-sxm-80gb"
        content = header.tobytes().ljust(fmt.HEADER_BYTES, b"\0") + body
        stem.with_name(stem.name + suffix).write_bytes(content + b"\0" * 64)


def pointer(value: int) -> bytes:
    """A device pointer as a kernel argument."""
    return struct.pack("<Q", value)
