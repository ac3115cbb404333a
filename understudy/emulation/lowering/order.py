"""Appends the ops of one rank and keeps what orders them: streams, events, the host's waits."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Protocol

from understudy.emulation.lowering.ops import (
    FIRST_PRIVATE_STREAM,
    NO_DEPENDENCY,
    NO_GRAPH,
    NO_SIGNATURE,
    LoweredRank,
    Part,
)
from understudy.traces.interceptor import STREAM_LEGACY, STREAM_PER_THREAD, StreamDefinition


class Queue(Protocol):
    """What takes device work: a rank's streams, or a graph that is being captured."""

    def device(self, stream: int, signature: int) -> int:
        """Appends an operation and returns its number."""
        ...

    def join(self, stream: int, signature: int, parts: Collection[Part]) -> int:
        """Appends what NCCL does in one kernel and returns its number."""
        ...

    def meet(self, streams: Collection[int]) -> None:
        """Each of the streams waits for what the others were given so far."""
        ...


class Order:
    """The ops of a rank so far. The caller keeps `thread`, `iteration`, `position` and `gap_ns` up
    to date: `position` is the record being lowered, `gap_ns` the host time since the last op, which
    goes to the next one; `graph` is the capture whose graph is being launched."""

    def __init__(self, rank: int, streams: Mapping[int, StreamDefinition]) -> None:
        self.out = LoweredRank(rank)
        self.gap_ns = 0
        self.iteration = 0
        self.thread = 0
        self.position = 0
        self.graph = NO_GRAPH
        self._streams = streams
        self._threads: dict[int, int] = {}
        self._last: dict[int, int] = {}  # stream -> its last op
        self._waited: dict[tuple[int, int], int] = {}  # (waiting stream, stream) -> op waited for
        self._host_waited: dict[int, int] = {}  # stream -> op that the host has waited for
        self._recorded: dict[int, tuple[int, int]] = {}  # event -> (stream, op)
        self._private: dict[Hashable, int] = {}
        self._per_thread: dict[int, int] = {}  # thread -> its default stream

    # --- ops ---

    def op(
        self,
        kind: str,
        stream: int,
        signature: int = NO_SIGNATURE,
        depends_on: int = NO_DEPENDENCY,
    ) -> int:
        """Appends an op and returns its number."""
        out = self.out
        out.kind.append(kind)
        out.stream.append(stream)
        out.signature.append(signature)
        out.depends_on.append(depends_on)
        out.thread.append(self._threads.setdefault(self.thread, len(self._threads)))
        out.gap_ns.append(self.gap_ns)
        out.iteration.append(self.iteration)
        out.graph.append(self.graph)
        out.position.append(self.position)
        self.gap_ns = 0
        return len(out.kind) - 1

    def on_stream(
        self,
        kind: str,
        stream: int,
        signature: int = NO_SIGNATURE,
        depends_on: int = NO_DEPENDENCY,
        parts: Collection[Part] = (),
    ) -> int:
        """Appends an op to a stream, whatever the legacy stream may be about."""
        op = self.op(kind, stream, signature, depends_on)
        self._last[stream] = op
        if parts:
            self.out.parts[op] = tuple(parts)
        return op

    def device(self, stream: int, signature: int) -> int:
        """See Queue."""
        self.barrier(stream)
        return self.on_stream("device", stream, signature)

    def join(self, stream: int, signature: int, parts: Collection[Part]) -> int:
        """See Queue."""
        self.barrier(stream)
        return self.on_stream("join", stream, signature, parts=parts)

    # --- streams ---

    def last(self, stream: int) -> int | None:
        """The last op of a stream."""
        return self._last.get(stream)

    def thread_stream(self) -> int:
        """The default stream of the current thread (cudaStreamPerThread): each thread has one."""
        number = self._per_thread.get(self.thread)
        if number is None:
            number = (
                self.private_stream(("thread", self.thread))
                if self._per_thread
                else STREAM_PER_THREAD
            )
            self._per_thread[self.thread] = number
        return number

    def private_stream(self, key: Hashable) -> int:
        """A stream that no program made, the same for the same key."""
        return self._private.setdefault(key, FIRST_PRIVATE_STREAM + len(self._private))

    def _is_programs(self, stream: int) -> bool:
        return stream < FIRST_PRIVATE_STREAM or stream in self._per_thread.values()

    def _blocking(self, stream: int) -> bool:
        definition = self._streams.get(stream)
        if definition is not None:
            return not definition.non_blocking
        return self._is_programs(stream)

    def barrier(self, stream: int) -> None:
        """The implicit waits between the legacy default stream and the blocking streams."""
        if stream == STREAM_LEGACY:
            for other in sorted(self._last):
                if other != STREAM_LEGACY and self._blocking(other):
                    self.wait(STREAM_LEGACY, other, self._last[other])
        elif STREAM_LEGACY in self._last and self._blocking(stream):
            self.wait(stream, STREAM_LEGACY, self._last[STREAM_LEGACY])

    def wait(self, stream: int, source: int, op: int) -> None:
        """`stream` waits for `op` of stream `source`, unless its order already implies that."""
        if source == stream or self._waited.get((stream, source), -1) >= op:
            return
        self._waited[stream, source] = op
        self.on_stream("stream_wait", stream, depends_on=op)

    def meet(self, streams: Collection[int]) -> None:
        """See Queue."""
        for stream in streams:
            self.barrier(stream)
        last = [(stream, self._last[stream]) for stream in streams if stream in self._last]
        for stream in streams:
            for other, op in last:
                self.wait(stream, other, op)

    # --- events ---

    def record(self, event: int, stream: int) -> None:
        """cudaEventRecord: the event stands for what the stream was given so far."""
        self.barrier(stream)
        if stream in self._last:
            self._recorded[event] = (stream, self._last[stream])
        else:
            self._recorded.pop(event, None)

    def forget(self, event: int) -> None:
        """The event stands for nothing: it is new, destroyed, or was recorded in a capture."""
        self._recorded.pop(event, None)

    def wait_for_event(self, stream: int, event: int) -> None:
        """cudaStreamWaitEvent."""
        if event in self._recorded:
            self.wait(stream, *self._recorded[event])

    # --- the host ---

    def host_wait(self, stream: int, op: int | None) -> None:
        """The host waits for an op of a stream (None: for nothing), unless it already has."""
        if op is None or self._host_waited.get(stream, -1) >= op:
            return
        self._host_waited[stream] = op
        self.op("host_wait", stream, depends_on=op)

    def host_wait_for_event(self, event: int) -> None:
        """cudaEventSynchronize."""
        if event in self._recorded:
            self.host_wait(*self._recorded[event])

    def host_wait_for_stream(self, stream: int) -> None:
        """cudaStreamSynchronize."""
        self.barrier(stream)
        self.host_wait(stream, self._last.get(stream))

    def host_wait_for_device(self) -> None:
        """cudaDeviceSynchronize. Private streams have ended when the program's have."""
        for stream in sorted(self._last):
            if self._is_programs(stream):
                self.host_wait(stream, self._last[stream])
