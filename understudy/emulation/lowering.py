"""Lowers the API calls of one rank to ops that a simulator replays.

The rules are those of CUDA and NCCL, as far as they order work:

* Events become dependencies: a wait or synchronization refers to the op that was last on the
  event's stream when it was last recorded (cudaEventRecord captures at call time; a later record
  does not move an earlier wait; an event never recorded is a no-op).
* The legacy default stream and blocking streams wait for each other (CUDA, "Stream synchronization
  behavior"); that becomes `stream_wait` ops, only where something new was issued.
* Blocking copies: host to device from pageable memory waits for the stream before the copy is
  queued; the other host copies wait until the copy has ended; device to device does not wait
  (CUDA, "API synchronization behavior").
* Calls between ncclGroupStart and ncclGroupEnd are issued at the end; the sends and receives of one
  communicator become one op; a group over several streams waits for and blocks all of them.

Host time is the time between the calls of the kept threads, in capture order. Threads that only
poll (NCCL's watchdog and heartbeat) or only allocate host memory run beside the program: they are
dropped. Calls that become no op give their host time to the next op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from understudy import kernels
from understudy.emulation.memory import MEMORY_CALLS, LiveBlocks
from understudy.kernels import Signature
from understudy.traces.interceptor import (
    COLLECTIVE_KINDS,
    FLAG_BLOCKING,
    FLAG_PINNED,
    NCCL_DTYPES,
    REDUCE_OPS,
    STREAM_LEGACY,
    Api,
    CopyKind,
    RankTrace,
)

NO_SIGNATURE = -1
NO_DEPENDENCY = -1

_POLLING_THREADS = ("pt_nccl_",)
#: Calls that make a thread part of the program.
_WORK = (
    Api.LAUNCH_KERNEL,
    Api.GEMM,
    Api.DNN,
    Api.LIBRARY,
    Api.MEMCPY,
    Api.MEMSET,
    Api.GRAPH_LAUNCH,
    Api.COLLECTIVE,
    Api.SEND,
    Api.RECV,
    Api.STREAM_WAIT_EVENT,
    Api.EVENT_RECORD,
    Api.EVENT_SYNCHRONIZE,
    Api.STREAM_SYNCHRONIZE,
    Api.DEVICE_SYNCHRONIZE,
    Api.ITERATION,
)
_NO_ROOT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_REDUCES = ("all_reduce", "reduce", "reduce_scatter")
#: Collectives whose nccl-tests size is the count argument times the number of ranks.
_SIZE_PER_RANK = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


class Part(NamedTuple):
    """What a join does on one communicator; `communicator` is its number in the rank."""

    kind: str
    communicator: int
    peer: int
    size_bytes: int
    dtype: str
    reduce_op: str
    root: int


@dataclass
class LoweredRank:
    """The ops of one rank; lists of equal length, indexed by op.

    `signature` indexes `signatures` (NO_SIGNATURE: none), `depends_on` is an op (NO_DEPENDENCY:
    none), `iteration` counts the marks before the op. `iterations` is the number of marks.
    """

    rank: int
    kind: list[str] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    signature: list[int] = field(default_factory=list)
    depends_on: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    gap_ns: list[int] = field(default_factory=list)
    iteration: list[int] = field(default_factory=list)
    parts: dict[int, tuple[Part, ...]] = field(default_factory=dict)
    signatures: list[Signature] = field(default_factory=list)
    iterations: int = 0
    warnings: list[str] = field(default_factory=list)


def kept_threads(trace: RankTrace) -> set[int]:
    """Ids of the threads that belong to the program."""
    records = trace.records
    working = set(np.unique(records["thread"][np.isin(records["api"], _WORK)]).tolist())
    return {
        thread.id
        for thread in trace.threads.values()
        if thread.is_main or (thread.id in working and not thread.name.startswith(_POLLING_THREADS))
    }


def count_events(trace: RankTrace) -> int:
    """CUDA and NCCL calls of the program, as far as they are its own decision: NCCL creates an
    event when its cache of them is empty, and which thread frees a tensor last depends on the
    watchdog, so creation of events and tensors is not counted; nor is what only traces say."""
    uncounted = [
        Api.EVENT_CREATE,
        Api.EVENT_DESTROY,
        Api.TENSOR_ALLOC,
        Api.TENSOR_FREE,
        Api.MEMORY_ROLE,
        Api.MEMORY_PEAKS,
    ]
    counted = ~np.isin(trace.records["api"], uncounted)
    return int((counted & np.isin(trace.records["thread"], sorted(kept_threads(trace)))).sum())


def host_gaps(records: np.ndarray, overhead_ns: int) -> np.ndarray:
    """Host time (ns) before each record: since the previous call returned, less the recording."""
    begin = records["begin_ns"].astype(np.int64)
    end = np.maximum.accumulate(begin + records["inside_ns"].astype(np.int64))
    gaps = np.zeros(len(records), np.int64)
    gaps[1:] = np.maximum(begin[1:] - end[:-1] - overhead_ns, 0)
    return gaps


def _name(names: tuple[str, ...], number: int, other: str) -> str:
    return names[number] if number < len(names) else other


class _Lowering:
    def __init__(
        self, trace: RankTrace, spans: Mapping[int, tuple[int, int]], first_iteration: int
    ) -> None:
        self._trace = trace
        self._spans = spans
        self._out = LoweredRank(trace.rank)
        self._blocks = LiveBlocks()
        self._numbers: dict[Signature, int] = {}
        self._launches: dict[int, list[tuple[tuple[tuple[int, int | None], ...], int]]] = {}
        self._memo: dict[tuple, int] = {}
        self._last: dict[int, int] = {}  # stream -> its last op
        self._waited: dict[tuple[int, int], int] = {}  # (waiting stream, stream) -> op waited for
        self._host_waited: dict[int, int] = {}  # stream -> op that the host has waited for
        self._recorded: dict[int, tuple[int, int]] = {}  # event -> (stream, op)
        self._groups: dict[int, list[tuple[Part, int]]] = {}  # thread -> calls of its open group
        self._threads: dict[int, int] = {}
        self._gap = 0
        self._thread = 0
        self._iteration = first_iteration
        self._capturing = False

    # --- ops ---

    def _op(self, kind: str, stream: int, signature: int, depends_on: int) -> int:
        out = self._out
        out.kind.append(kind)
        out.stream.append(stream)
        out.signature.append(signature)
        out.depends_on.append(depends_on)
        out.thread.append(self._threads.setdefault(self._thread, len(self._threads)))
        out.gap_ns.append(self._gap)
        out.iteration.append(self._iteration)
        self._gap = 0
        return len(out.kind) - 1

    def _on_stream(self, kind: str, stream: int, signature: int, depends_on: int) -> int:
        op = self._op(kind, stream, signature, depends_on)
        self._last[stream] = op
        return op

    def _wait(self, stream: int, source: int, op: int) -> None:
        """`stream` waits for `op` of stream `source`, unless its order already implies that."""
        if source == stream or self._waited.get((stream, source), -1) >= op:
            return
        self._waited[stream, source] = op
        self._on_stream("stream_wait", stream, NO_SIGNATURE, op)

    def _host_wait(self, stream: int, op: int | None) -> None:
        if op is None or self._host_waited.get(stream, -1) >= op:
            return
        self._host_waited[stream] = op
        self._op("host_wait", stream, NO_SIGNATURE, op)

    def _blocking(self, stream: int) -> bool:
        definition = self._trace.streams.get(stream)
        return definition is None or not definition.non_blocking

    def _barrier(self, stream: int) -> None:
        """The implicit waits between the legacy default stream and the blocking streams."""
        if stream == STREAM_LEGACY:
            for other in sorted(self._last):
                if other != STREAM_LEGACY and self._blocking(other):
                    self._wait(STREAM_LEGACY, other, self._last[other])
        elif STREAM_LEGACY in self._last and self._blocking(stream):
            self._wait(stream, STREAM_LEGACY, self._last[STREAM_LEGACY])

    def _device(self, stream: int, signature: int) -> int:
        self._barrier(stream)
        return self._on_stream("device", stream, signature, NO_DEPENDENCY)

    # --- signatures ---

    def _number(self, signature: Signature) -> int:
        number = self._numbers.get(signature)
        if number is None:
            number = self._numbers[signature] = len(self._out.signatures)
            self._out.signatures.append(signature)
        return number

    def _memoized(self, key: tuple, make: Callable[[], Signature]) -> int:
        number = self._memo.get(key)
        if number is None:
            number = self._memo[key] = self._number(make())
        return number

    def _launch_signature(self, definition_id: int) -> int:
        """A launch's signature depends on its definition and on the blocks its pointers meet."""
        find = self._blocks.find
        for known, number in self._launches.get(definition_id, ()):
            if all(find(pointer) == size for pointer, size in known):
                return number
        launch = self._trace.launches[definition_id]
        kernel = self._trace.kernels[launch.kernel]
        looked_up: dict[int, int | None] = {}

        def find_block(pointer: int) -> int | None:
            looked_up[pointer] = size = find(pointer)
            return size

        number = self._number(
            kernels.signature_of_launch(
                "cudaLaunchKernel",
                kernel.name,
                launch.grid,
                launch.block,
                kernel.static_shared_bytes + launch.dynamic_shared_bytes,
                kernel.registers,
                launch.arguments,
                kernel.parameters,
                find_block,
            )
        )
        self._launches.setdefault(definition_id, []).append((tuple(looked_up.items()), number))
        return number

    def _join_signature(self, parts: list[Part]) -> int:
        size_ranks, nodes = self._spans[parts[0].communicator]
        if parts[0].kind in COLLECTIVE_KINDS:
            part = parts[0]
            scale = size_ranks if part.kind in _SIZE_PER_RANK else 1
            key = (part.kind, part.dtype, part.size_bytes * scale, size_ranks, nodes)
        else:
            sent = sum(p.size_bytes for p in parts if p.kind == "send")
            received = sum(p.size_bytes for p in parts if p.kind == "recv")
            ranks = 1 + len({p.peer for p in parts})
            key = ("send_recv", parts[0].dtype, max(sent, received), ranks, nodes)
        return self._memoized(key, lambda: kernels.signature_of_collective(*key))

    # --- NCCL ---

    def _join(self, stream: int, parts: list[Part]) -> int:
        self._barrier(stream)
        op = self._on_stream("join", stream, self._join_signature(parts), NO_DEPENDENCY)
        self._out.parts[op] = tuple(parts)
        return op

    def _communicate(self, stream: int, part: Part) -> None:
        group = self._groups.get(self._thread)
        if group is None:
            self._join(stream, [part])
        else:
            group.append((part, stream))

    def _end_group(self) -> None:
        calls = self._groups.pop(self._thread, [])
        streams = list(dict.fromkeys(stream for _, stream in calls))
        if not streams:
            return
        for stream in streams:
            self._barrier(stream)
        main = streams[0]
        for stream in streams[1:]:
            if stream in self._last:
                self._wait(main, stream, self._last[stream])
        fused: dict[int, list[Part]] = {}
        joins: list[list[Part]] = []
        for part, _ in calls:
            if part.peer < 0:
                joins.append([part])
            elif part.communicator in fused:
                fused[part.communicator].append(part)
            else:
                fused[part.communicator] = [part]
                joins.append(fused[part.communicator])
        op = NO_DEPENDENCY
        for parts in joins:
            op = self._join(main, parts)
        for stream in streams[1:]:
            self._wait(stream, main, op)

    # --- records ---

    def run(self) -> LoweredRank:
        trace, out = self._trace, self._out
        start = 0
        if self._iteration:
            marks = np.flatnonzero(trace.records["api"] == Api.ITERATION)
            start = int(marks[self._iteration - 1]) + 1
            self._blocks.replay(trace.records[:start])
        records = trace.records[start:]
        kept = np.isin(records["thread"], sorted(kept_threads(trace)))
        # Memory is one for all threads: their allocations decide what a pointer means.
        selected = kept | np.isin(records["api"], MEMORY_CALLS)
        gaps = np.zeros(len(records), np.int64)
        gaps[kept] = host_gaps(records[kept], trace.overhead_ns)
        self._warn(records[selected])
        for gap, is_kept, record in zip(
            gaps[selected].tolist(),
            kept[selected].tolist(),
            records[selected].tolist(),
            strict=True,
        ):
            if is_kept:
                self._gap += gap
                self._thread = record[3]
            self._record(*record[2:])
        out.iterations = self._iteration
        return out

    def _warn(self, records: np.ndarray) -> None:
        rank = self._trace.rank
        if (records["api"] == Api.GRAPH_LAUNCH).any():
            self._out.warnings.append(
                f"rank {rank} launches CUDA graphs: the kernels inside a graph are not counted"
            )
        work = records[np.isin(records["api"], _WORK[:7])]
        if len(np.unique(work["device"])) > 1:
            self._out.warnings.append(
                f"rank {rank} uses several devices in one process: they are replayed as one"
            )

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
        if api == Api.TENSOR_ALLOC:
            self._blocks.allocate_tensor(a, b)
        elif api == Api.TENSOR_FREE:
            self._blocks.free_tensor(a)
        elif api == Api.MALLOC:
            self._blocks.allocate_segment(a, b)
        elif api == Api.FREE:
            self._blocks.free_segment(a)
        elif api == Api.CAPTURE_BEGIN:
            self._capturing = True
        elif api == Api.CAPTURE_END:
            self._capturing = False
        elif self._capturing:
            return
        elif api == Api.LAUNCH_KERNEL:
            self._device(stream, self._launch_signature(definition))
        elif api == Api.GEMM:
            gemm = self._trace.gemms[definition]
            key = (api, definition)
            self._device(stream, self._memoized(key, lambda: kernels.signature_of_gemm(gemm)))
        elif api == Api.DNN:
            dnn = self._trace.dnns[definition]
            key = (api, definition)
            self._device(stream, self._memoized(key, lambda: kernels.signature_of_dnn(dnn)))
        elif api == Api.LIBRARY:
            call = self._trace.libraries[definition]
            key = (api, definition)
            self._device(stream, self._memoized(key, lambda: kernels.signature_of_library(call)))
        elif api == Api.MEMCPY:
            self._copy(stream, CopyKind(d), c, flags)
        elif api == Api.MEMSET:
            number = self._memoized((api, c), lambda: kernels.signature_of_memset(c))
            op = self._device(stream, number)
            if flags & FLAG_BLOCKING:
                self._host_wait(stream, op)
        elif api == Api.COLLECTIVE:
            kind = COLLECTIVE_KINDS[a & 0xFF]
            self._communicate(
                stream,
                Part(
                    kind,
                    definition,
                    -1,
                    b,
                    _name(NCCL_DTYPES, flags, "uint8"),
                    _name(REDUCE_OPS, a >> 40, "user") if kind in _REDUCES else "",
                    -1 if kind in _NO_ROOT else (a >> 8) & 0xFFFFFFFF,
                ),
            )
        elif api in (Api.SEND, Api.RECV):
            kind = "send" if api == Api.SEND else "recv"
            dtype = _name(NCCL_DTYPES, flags, "uint8")
            self._communicate(stream, Part(kind, definition, a, b, dtype, "", -1))
        elif api == Api.GROUP_START:
            self._groups.setdefault(self._thread, [])
        elif api == Api.GROUP_END:
            self._end_group()
        elif api == Api.EVENT_RECORD:
            self._barrier(stream)
            if stream in self._last:
                self._recorded[a] = (stream, self._last[stream])
            else:
                self._recorded.pop(a, None)
        elif api in (Api.EVENT_CREATE, Api.EVENT_DESTROY):
            self._recorded.pop(a, None)
        elif api == Api.STREAM_WAIT_EVENT:
            if a in self._recorded:
                self._wait(stream, *self._recorded[a])
        elif api == Api.EVENT_SYNCHRONIZE:
            if a in self._recorded:
                self._host_wait(*self._recorded[a])
        elif api == Api.STREAM_SYNCHRONIZE:
            self._barrier(stream)
            self._host_wait(stream, self._last.get(stream))
        elif api == Api.DEVICE_SYNCHRONIZE:
            for other in sorted(self._last):
                self._host_wait(other, self._last[other])
        elif api == Api.ITERATION:
            self._op("host", -1, NO_SIGNATURE, NO_DEPENDENCY)
            self._iteration += 1

    def _copy(self, stream: int, kind: CopyKind, size_bytes: int, flags: int) -> None:
        if kind == CopyKind.H2H:
            return
        pinned = bool(flags & FLAG_PINNED) and kind != CopyKind.D2D
        blocking = bool(flags & FLAG_BLOCKING) and kind != CopyKind.D2D
        key = ("copy", kind, size_bytes, pinned)
        number = self._memoized(
            key, lambda: kernels.signature_of_copy(kind.name.lower(), size_bytes, pinned)
        )
        staged = blocking and kind == CopyKind.H2D and not pinned
        if staged:
            self._barrier(stream)
            self._host_wait(stream, self._last.get(stream))
        op = self._device(stream, number)
        if blocking and not staged:
            self._host_wait(stream, op)


def lower(
    trace: RankTrace, spans: Mapping[int, tuple[int, int]], first_iteration: int = 0
) -> LoweredRank:
    """Lowers a rank's trace from `first_iteration` on; what came before orders nothing.

    `spans`: communicator number in the rank -> (ranks, nodes).
    """
    return _Lowering(trace, spans, first_iteration).run()
