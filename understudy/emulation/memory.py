"""What a rank's memory held, and when: live blocks for tensor sizes, timeline and peaks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from understudy.emulation.memory_categories import block_categories, is_block
from understudy.traces.interceptor import FLAG_POOL, Api, RankTrace
from warehouse import schemas

MEMORY_CALLS = (Api.MALLOC, Api.FREE, Api.TENSOR_ALLOC, Api.TENSOR_FREE, Api.LIBRARY_MEMORY)


class LiveBlocks:
    """The device memory blocks that are allocated at one moment of a trace.

    PyTorch's tensors lie in blocks that its allocator cuts out of a few large segments; a segment
    counts as a block of its own only while no tensor was ever placed in it.
    """

    def __init__(self) -> None:
        self._tensors: list[int] = []
        self._segments: list[int] = []
        self._bytes: dict[int, int] = {}
        self._segment_bytes: dict[int, int] = {}
        self._pools: set[int] = set()

    def replay(self, records: np.ndarray) -> None:
        """Brings the blocks to the state after `records` (dtype RECORD), all at once."""
        for allocated, freed, allocate in (
            (Api.MALLOC, Api.FREE, self.allocate_segment),
            (Api.TENSOR_ALLOC, Api.TENSOR_FREE, self.allocate_tensor),
        ):
            calls = records[np.isin(records["api"], [allocated, freed])]
            pointers, from_end = np.unique(calls["a"][::-1], return_index=True)
            last = calls[len(calls) - 1 - from_end]
            live = last[last["api"] == allocated]
            for pointer, size_bytes in zip(live["a"].tolist(), live["b"].tolist(), strict=True):
                allocate(pointer, size_bytes)
            if allocated == Api.TENSOR_ALLOC:
                segments = map(self._segment, pointers.tolist())
                self._pools.update(s for s in segments if s is not None)

    def allocate_tensor(self, pointer: int, size_bytes: int) -> None:
        """A tensor block was handed out."""
        if pointer not in self._bytes:
            insort(self._tensors, pointer)
        self._bytes[pointer] = size_bytes
        segment = self._segment(pointer)
        if segment is not None:
            self._pools.add(segment)

    def free_tensor(self, pointer: int) -> None:
        """A tensor block was given back."""
        if self._bytes.pop(pointer, None) is not None:
            del self._tensors[bisect_left(self._tensors, pointer)]

    def allocate_segment(self, pointer: int, size_bytes: int) -> None:
        """cudaMalloc."""
        if pointer not in self._segment_bytes:
            insort(self._segments, pointer)
        self._segment_bytes[pointer] = size_bytes

    def free_segment(self, pointer: int) -> None:
        """cudaFree."""
        if self._segment_bytes.pop(pointer, None) is not None:
            del self._segments[bisect_left(self._segments, pointer)]
        self._pools.discard(pointer)

    def _segment(self, pointer: int) -> int | None:
        at = bisect_right(self._segments, pointer) - 1
        if at < 0:
            return None
        start = self._segments[at]
        return start if pointer < start + self._segment_bytes[start] else None

    def find(self, pointer: int) -> int | None:
        """Bytes of the block that holds `pointer`, None when it points to no live block."""
        at = bisect_right(self._tensors, pointer) - 1
        if at >= 0:
            start = self._tensors[at]
            size = self._bytes[start]
            if pointer < start + size:
                return size
        segment = self._segment(pointer)
        if segment is None or segment in self._pools:
            return None
        return self._segment_bytes[segment]


class Peaks(NamedTuple):
    """Peaks of one rank's memory, named as the columns of table `ranks`."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_device_bytes: int


@dataclass(frozen=True, eq=False)
class MemoryHistory:
    """The changes of one rank's memory, arrays of equal length; bytes are int64.

    `iteration` counts from 0, what the script sets up belongs to the first. `category` is one of
    MEMORY_CATEGORIES for a block that a tensor lies in, else "segment" or "library" (NCCL's
    buffers). Memory from a CUDA pool (PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync) is block and
    segment in one, as PyTorch counts it. `library_bytes` is what libraries hold. `position` is the
    record (of the trace) at which a change counts as made, in ascending order.
    """

    position: np.ndarray
    iteration: np.ndarray
    category: np.ndarray
    change_bytes: np.ndarray
    allocated_bytes: np.ndarray
    reserved_bytes: np.ndarray
    device_bytes: np.ndarray
    library_bytes: np.ndarray

    @property
    def peaks(self) -> Peaks:
        """Of PyTorch's allocated and reserved memory, and of all device memory in use."""
        return Peaks(
            int(self.allocated_bytes.max(initial=0)),
            int(self.reserved_bytes.max(initial=0)),
            int(self.device_bytes.max(initial=0)),
        )

    def fullest(self) -> tuple[int, dict[str, int]]:
        """(iteration, bytes by MEMORY_CATEGORIES and MEMORY_REST) at the peak of device memory.

        Of the moments at which device memory in use is at its peak, that at which most of it is
        blocks. Parts of 0 bytes are left out, the others sum to the peak.
        """
        if len(self.iteration) == 0:
            return 0, {}
        in_blocks = np.isin(self.category, schemas.MEMORY_CATEGORIES)
        blocks_bytes = np.cumsum(np.where(in_blocks, self.change_bytes, 0))
        at_peak = np.flatnonzero(self.device_bytes == self.device_bytes.max())
        moment = int(at_peak[np.argmax(blocks_bytes[at_peak])])
        until, changes = self.category[: moment + 1], self.change_bytes[: moment + 1]
        parts = {c: int(changes[until == c].sum()) for c in schemas.MEMORY_CATEGORIES}
        reserved, libraries = int(self.reserved_bytes[moment]), int(self.library_bytes[moment])
        parts["unused"] = reserved - int(blocks_bytes[moment])
        parts["libraries"] = libraries
        parts["context"] = int(self.device_bytes[moment]) - reserved - libraries
        return int(self.iteration[moment]), {name: size for name, size in parts.items() if size}


def _hold(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """`values` where `known`, else the last known value before; 0 before the first."""
    positions = np.where(known, np.arange(len(values)), -1)
    last = np.maximum.accumulate(positions) if len(values) else positions
    return np.where(last >= 0, values[np.maximum(last, 0)], 0)


def _moments(
    changes: np.ndarray, position: np.ndarray, polling: np.ndarray, marks: np.ndarray
) -> np.ndarray:
    """Where each change counts as made, so that frees do not depend on when a thread polled.

    NCCL's watchdog holds the tensors of a collective that nobody waited for until it next looks,
    up to 100 ms later. Such a tensor counts as freed at the end of the iteration that allocated it.
    """
    key = position.astype(np.float64)
    allocated_at: dict[int, int] = {}
    tensors = np.isin(changes["api"], [Api.TENSOR_ALLOC, Api.TENSOR_FREE])
    if polling.any():
        for i in np.flatnonzero(tensors).tolist():
            pointer = int(changes["a"][i])
            if changes["api"][i] == Api.TENSOR_ALLOC:
                allocated_at[pointer] = int(position[i])
            elif polling[i] and pointer in allocated_at:
                after = marks[np.searchsorted(marks, allocated_at[pointer]) :]
                # Behind the last mark the process is ending: nothing is recorded any more.
                key[i] = after[0] - 0.5 if len(after) else key[i]
    return key


def _order(
    changes: np.ndarray, key: np.ndarray, category: np.ndarray, marks: np.ndarray
) -> np.ndarray:
    """Order of the changes by `key`. Frees between two allocations: in which order a graph of
    tensors is torn down may depend on addresses. The larger tensor comes first."""
    order = np.argsort(key, kind="stable")
    ordered = changes[order]
    is_free = ordered["api"] == Api.TENSOR_FREE
    iteration = np.searchsorted(marks, key[order])
    starts = ~(is_free & np.r_[False, is_free[:-1]]) | (np.diff(iteration, prepend=-1) != 0)
    run = np.cumsum(starts)
    return order[np.lexsort((category[order], -ordered["b"].astype(np.int64), run))]


def memory_history(trace: RankTrace, kept_threads: Collection[int]) -> MemoryHistory:
    """The memory history of a rank over its whole trace; other threads than `kept_threads` poll."""
    api = trace.records["api"]
    marks = np.flatnonzero(api == Api.ITERATION)
    position = np.flatnonzero(np.isin(api, MEMORY_CALLS))
    polling = ~np.isin(trace.records["thread"][position], sorted(kept_threads))
    key = _moments(trace.records[position], position, polling, marks)
    codes = block_categories(trace, position, key)
    order = _order(trace.records[position], key, codes, marks)
    changes = trace.records[position[order]]
    is_library = changes["api"] == Api.LIBRARY_MEMORY
    size = changes["b"].astype(np.int64)  # of libraries: negative when given back
    allocated, reserved = _pytorch_changes(changes)
    names = np.array(schemas.MEMORY_CATEGORIES)[codes[order]]
    in_device = ~np.isin(changes["api"], [Api.TENSOR_ALLOC, Api.TENSOR_FREE])
    return MemoryHistory(
        # Changes that trade places lie beside each other.
        position=np.sort(key),
        iteration=np.searchsorted(marks, key[order]).astype(np.int32),
        category=np.select([is_block(changes), is_library], [names, "library"], "segment"),
        change_bytes=np.select([is_library, in_device], [size, reserved], allocated),
        allocated_bytes=np.cumsum(allocated),
        reserved_bytes=np.cumsum(reserved),
        device_bytes=_hold(changes["c"].astype(np.int64), in_device),
        library_bytes=np.cumsum(np.where(is_library, size, 0)),
    )


def check_peaks(trace: RankTrace) -> list[str]:
    """Warnings that name what PyTorch's own peaks (MEMORY_PEAKS) and the trace's do not agree on.

    The trace has to be whole: PyTorch's peaks are of everything up to the record.
    """
    records = trace.records
    warnings = []
    for device in np.unique(records["device"][records["api"] == Api.MEMORY_PEAKS]).tolist():
        of_device = records[records["device"] == device]
        allocated, reserved = (np.cumsum(change) for change in _pytorch_changes(of_device))
        begin = 0
        for end in np.flatnonzero(of_device["api"] == Api.MEMORY_PEAKS).tolist():
            for what, own, bytes_in_use in (
                ("allocated", int(of_device["a"][end]), allocated),
                ("reserved", int(of_device["b"][end]), reserved),
            ):
                seen = int(bytes_in_use[begin : end + 1].max())
                if seen != own:
                    warnings.append(
                        f"rank {trace.rank}: PyTorch's own peak of {what} memory on device "
                        f"{device} is {own:,} bytes, that of the memory timeline {seen:,} "
                        f"({seen - own:+,} bytes): the memory figures of this rank are wrong"
                    )
            begin = end
    return warnings


def _pytorch_changes(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Change (bytes) of what PyTorch calls allocated and reserved memory by each record."""
    api = records["api"]
    size = records["b"].astype(np.int64)
    change = np.where(np.isin(api, [Api.FREE, Api.TENSOR_FREE]), -size, size)
    is_tensor = np.isin(api, [Api.TENSOR_ALLOC, Api.TENSOR_FREE])
    is_segment = np.isin(api, [Api.MALLOC, Api.FREE])
    from_pool = is_segment & ((records["flags"] & FLAG_POOL) != 0)
    return np.where(is_tensor | from_pool, change, 0), np.where(is_segment, change, 0)
