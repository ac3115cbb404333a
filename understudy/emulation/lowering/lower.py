"""The walk over one rank's records: each becomes ops, or changes what orders later ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from understudy.emulation.lowering.captures import Graphs
from understudy.emulation.lowering.nccl import Communication, Place
from understudy.emulation.lowering.ops import LoweredRank
from understudy.emulation.lowering.order import Order, Queue
from understudy.emulation.lowering.signing import Signatures
from understudy.emulation.lowering.threads import DEVICE_WORK, host_gaps, kept_threads
from understudy.emulation.memory import MEMORY_CALLS
from understudy.traces.interceptor import (
    FLAG_BLOCKING,
    FLAG_EXTERNAL,
    FLAG_NOT_READY,
    FLAG_PINNED,
    STREAM_PER_THREAD,
    Api,
    CopyKind,
    RankTrace,
)

_QUERIES = (Api.EVENT_QUERY, Api.STREAM_QUERY)


def lower(trace: RankTrace, places: Mapping[int, Place], first_iteration: int = 0) -> LoweredRank:
    """Lowers a rank's trace from `first_iteration` on; what came before orders nothing.

    A rank that launches graphs is lowered from its start: they were captured at some time.
    `places`: communicator number in the rank -> where its members are.
    """
    marks = np.flatnonzero(trace.records["api"] == Api.ITERATION)
    start = int(marks[first_iteration - 1]) + 1 if first_iteration else 0
    if (trace.records["api"][:start] == Api.CAPTURE_BEGIN).any():
        start = first_iteration = 0
    return _Lowering(trace, places, first_iteration).run(start)


class _Lowering:
    def __init__(self, trace: RankTrace, places: Mapping[int, Place], first_iteration: int) -> None:
        self._trace = trace
        self._order = Order(trace.rank, trace.streams)
        self._order.iteration = first_iteration
        self._graphs = Graphs(self._order)
        self._signatures = Signatures(trace)
        self._nccl = Communication(
            self._order, self._signatures, self._queue, places, trace.communicators
        )
        # Threads that were told "not ready": the queries that were, and the host time before them.
        self._polls: dict[int, tuple[set[tuple[int, int]], int]] = {}

    def run(self, start: int) -> LoweredRank:
        """Lowers the records from `start` on."""
        trace, order = self._trace, self._order
        self._signatures.blocks.replay(trace.records[:start])
        records = trace.records[start:]
        kept = np.isin(records["thread"], sorted(kept_threads(trace)))
        # Memory is one for all threads: their allocations decide what a pointer means.
        selected = kept | np.isin(records["api"], MEMORY_CALLS)
        gaps = np.zeros(len(records), np.int64)
        gaps[kept] = host_gaps(records[kept], trace.overhead_ns)
        for position, gap, is_kept, record in zip(
            (start + np.flatnonzero(selected)).tolist(),
            gaps[selected].tolist(),
            kept[selected].tolist(),
            records[selected].tolist(),
            strict=True,
        ):
            order.position = position
            if is_kept:
                order.gap_ns += gap
                order.thread = record[3]
            self._record(*record[2:])
        order.out.iterations = order.iteration
        order.out.signatures = self._signatures.found
        self._warn(records[selected])
        return order.out

    def _warn(self, records: np.ndarray) -> None:
        rank, warnings = self._trace.rank, self._order.out.warnings
        if self._graphs.unknown_launches:
            warnings.append(
                f"rank {rank} launches CUDA graphs that it did not capture from streams "
                f"({self._graphs.unknown_launches} launches): what is in them is missing in the "
                "prediction"
            )
        work = records[np.isin(records["api"], DEVICE_WORK)]
        if len(np.unique(work["device"])) > 1:
            warnings.append(
                f"rank {rank} uses several devices in one process: they are replayed as one"
            )

    def _queue(self, stream: int) -> Queue:
        return self._graphs.of(stream) or self._order

    def _record(
        self,
        api: int,
        thread: int,
        stream: int,
        definition: int,
        a: int,
        b: int,
        c: int,
        d: int,
        device: int,
        flags: int,
    ) -> None:
        order, nccl, signatures = self._order, self._nccl, self._signatures
        if stream == STREAM_PER_THREAD:
            stream = order.thread_stream()
        if api in _QUERIES:
            self._query(api, a if api == Api.EVENT_QUERY else stream, flags)
            return
        if self._polls and api not in MEMORY_CALLS:
            self._polls.pop(thread, None)
        if api == Api.LAUNCH_KERNEL:
            self._queue(stream).device(stream, signatures.launch(definition))
        elif api in (Api.GEMM, Api.DNN, Api.LIBRARY):
            self._queue(stream).device(stream, signatures.library_call(api, definition))
        elif api in MEMORY_CALLS:
            self._memory(api, a, b)
        elif api == Api.MEMCPY:
            self._copy(stream, CopyKind(d), c, flags)
        elif api == Api.MEMSET:
            op = self._queue(stream).device(stream, signatures.memset(c))
            if flags & FLAG_BLOCKING:
                order.host_wait(stream, op)
        elif api == Api.COLLECTIVE:
            nccl.collective(stream, definition, a, b, flags, in_place=c == d)
        elif api == Api.SEND:
            nccl.message("send", stream, definition, a, b, flags)
        elif api == Api.RECV:
            nccl.message("recv", stream, definition, a, b, flags)
        elif api == Api.GROUP_START:
            nccl.start_group()
        elif api == Api.GROUP_END:
            nccl.end_group()
        elif Api.COMMUNICATOR_INIT <= api <= Api.COMMUNICATOR_FINALIZE:
            nccl.host_join(api, definition, a)
        elif Api.EVENT_RECORD <= api <= Api.DEVICE_SYNCHRONIZE:
            self._synchronize(api, stream, a, bool(flags & FLAG_EXTERNAL))
        elif api in (Api.EVENT_CREATE, Api.EVENT_DESTROY):
            order.forget(a)
        elif api == Api.CAPTURE_BEGIN:
            self._graphs.begin(a, stream)
        elif api == Api.CAPTURE_END:
            self._graphs.end(a)
        elif api == Api.GRAPH_LAUNCH:
            self._graphs.launch(a, b, stream)
        elif api == Api.ITERATION:
            order.op("host", -1)
            order.iteration += 1

    def _memory(self, api: int, pointer: int, size_bytes: int) -> None:
        blocks = self._signatures.blocks
        if api == Api.TENSOR_ALLOC:
            blocks.allocate_tensor(pointer, size_bytes)
        elif api == Api.TENSOR_FREE:
            blocks.free_tensor(pointer)
        elif api == Api.MALLOC:
            blocks.allocate_segment(pointer, size_bytes)
        elif api == Api.FREE:
            blocks.free_segment(pointer)

    def _copy(self, stream: int, kind: CopyKind, size_bytes: int, flags: int) -> None:
        if kind == CopyKind.H2H:
            return
        queue, order = self._queue(stream), self._order
        pinned = bool(flags & FLAG_PINNED) and kind != CopyKind.D2D
        blocking = bool(flags & FLAG_BLOCKING) and kind != CopyKind.D2D and queue is order
        staged = blocking and kind == CopyKind.H2D and not pinned
        if staged:
            order.host_wait_for_stream(stream)
        op = queue.device(stream, self._signatures.copy(kind, size_bytes, pinned))
        if blocking and not staged:
            order.host_wait(stream, op)

    def _synchronize(self, api: int, stream: int, event: int, external: bool) -> None:
        order, graphs = self._order, self._graphs
        if api == Api.EVENT_RECORD:
            if not graphs.record(event, stream, external):
                order.record(event, stream)
        elif api == Api.STREAM_WAIT_EVENT:
            if not graphs.wait_for_event(stream, event, external):
                order.wait_for_event(stream, event)
        elif api == Api.EVENT_SYNCHRONIZE:
            order.host_wait_for_event(event)
        elif api == Api.STREAM_SYNCHRONIZE:
            order.host_wait_for_stream(stream)
        else:
            order.host_wait_for_device()

    def _query(self, api: int, what: int, flags: int) -> None:
        """A query is host time, unless its thread asked before and has only asked since: then it is
        a loop, which waits from its first query on."""
        order = self._order
        asked, gap_ns = self._polls.get(order.thread, (set(), order.gap_ns))
        if flags & FLAG_NOT_READY:
            asked.add((api, what))
            self._polls[order.thread] = (asked, gap_ns)
        elif (api, what) in asked:
            asked.discard((api, what))
            if not asked:
                del self._polls[order.thread]
            order.gap_ns = gap_ns
            if api == Api.EVENT_QUERY:
                order.host_wait_for_event(what)
            else:
                order.host_wait_for_stream(what)
