"""CUDA graphs: what was captured, and what a launch of it does.

Captured calls do not run. A launch runs the nodes in the order and with the dependencies that the
capture's streams and events gave them. The host pays one call (cudaGraphLaunch); the nodes have no
calls and no host time of their own. Nodes follow each other without a gap, as kernels of a stream
do that were launched early enough.

* The capture's first stream (its origin) stands for the stream that the graph is launched on; so
  the nodes of a linear graph are ops of that stream.
* Every other stream of the capture becomes a private one that branches off the launch stream and
  that the launch stream waits for at the end: a graph is complete when all of its nodes are.
* A launch also waits for the previous launch of the same executable graph, wherever that ran (CUDA
  Runtime API, cudaGraphLaunch).
* Records and waits of external events are nodes that meet streams outside of the graph.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from understudy.emulation.lowering.ops import NO_GRAPH, NO_SIGNATURE, Part
from understudy.emulation.lowering.order import Order

#: Number of the node that stands for what the launch stream did before.
_ENTRY = -1
_ORIGIN = 0


class _Node(NamedTuple):
    """`kind`: device, join, stream_wait (for node `source`), record or wait (of `event`)."""

    kind: str
    branch: int
    signature: int = NO_SIGNATURE
    parts: tuple[Part, ...] = ()
    source: int = _ENTRY
    event: int = 0


class Capture:
    """The nodes of one graph; takes device work as an Order does."""

    def __init__(self, number: int, origin: int) -> None:
        self.number = number
        self.branches = {origin: _ORIGIN}  # stream -> number of the branch
        self.nodes: list[_Node] = []
        self._last = {_ORIGIN: _ENTRY}  # branch -> its last node
        self._waited: dict[tuple[int, int], int] = {}
        self._recorded: dict[int, tuple[int, int]] = {}  # event -> (branch, node)

    def _append(self, node: _Node) -> int:
        self.nodes.append(node)
        self._last[node.branch] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def device(self, stream: int, signature: int) -> int:
        """See order.Queue."""
        return self._append(_Node("device", self.branches[stream], signature))

    def join(self, stream: int, signature: int, parts: Collection[Part]) -> int:
        """See order.Queue."""
        return self._append(_Node("join", self.branches[stream], signature, tuple(parts)))

    def meet(self, streams: Collection[int]) -> None:
        """See order.Queue."""
        branches = [self.branches[stream] for stream in streams]
        last = [(branch, self._last[branch]) for branch in branches]
        for branch in branches:
            for other, node in last:
                self._wait(branch, other, node)

    def _wait(self, branch: int, source: int, node: int) -> None:
        if source == branch or node <= self._waited.get((branch, source), _ENTRY):
            return
        self._waited[branch, source] = node
        self._append(_Node("stream_wait", branch, source=node))

    def knows(self, event: int) -> bool:
        """Whether the event was recorded in this capture."""
        return event in self._recorded

    def forget(self, event: int) -> None:
        """The event was recorded elsewhere."""
        self._recorded.pop(event, None)

    def record(self, event: int, stream: int) -> None:
        """An event that orders streams of the capture."""
        branch = self.branches[stream]
        self._recorded[event] = (branch, self._last[branch])

    def wait_for_event(self, stream: int, event: int) -> None:
        """A wait for such an event; it makes another stream part of the capture."""
        source, node = self._recorded[event]
        branch = self.branches.setdefault(stream, len(self.branches))
        if branch not in self._last:
            # A new branch starts behind what it waits for, be it only the start of the graph.
            self._append(_Node("stream_wait", branch, source=node))
            self._waited[branch, source] = node
        else:
            self._wait(branch, source, node)

    def record_external(self, event: int, stream: int) -> None:
        """A node that records the event at every launch."""
        self._append(_Node("record", self.branches[stream], event=event))

    def wait_external(self, stream: int, event: int) -> None:
        """A node that waits for the event's latest record at every launch."""
        self._append(_Node("wait", self.branches[stream], event=event))


class Graphs:
    """The captures of a rank and the launches of what they made."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._captures: dict[int, Capture] = {}
        self._open: dict[int, Capture] = {}  # stream -> the capture that it is in
        self._launched: dict[int, tuple[int, int]] = {}  # executable graph -> (stream, last op)
        #: Launches of graphs that no capture made.
        self.unknown_launches = 0

    # --- captures ---

    def begin(self, number: int, stream: int) -> None:
        """cudaStreamBeginCapture; a graph that is captured in parts gets more nodes."""
        capture = self._captures.get(number)
        if capture is None:
            capture = self._captures[number] = Capture(number, stream)
        capture.branches.setdefault(stream, _ORIGIN)
        self._open[stream] = capture

    def end(self, number: int) -> None:
        """cudaStreamEndCapture: its streams run again."""
        self._open = {s: c for s, c in self._open.items() if c.number != number}

    def of(self, stream: int) -> Capture | None:
        """The capture that the stream is in."""
        return self._open.get(stream)

    def record(self, event: int, stream: int, external: bool) -> bool:
        """cudaEventRecord; whether it was captured."""
        capture = self._open.get(stream)
        if capture is None:
            for other in self._open.values():
                other.forget(event)
            return False
        if external:
            capture.record_external(event, stream)
        else:
            capture.record(event, stream)
            self._order.forget(event)
        return True

    def wait_for_event(self, stream: int, event: int, external: bool) -> bool:
        """cudaStreamWaitEvent; whether it was captured."""
        if not self._open:
            return False
        capture = self._open.get(stream)
        if external and capture is not None:
            capture.wait_external(stream, event)
            return True
        for candidate in dict.fromkeys(self._open.values()) if capture is None else [capture]:
            if candidate.knows(event):
                candidate.wait_for_event(stream, event)
                self._open[stream] = candidate
                return True
        # CUDA refuses to wait in a capture for what was recorded outside of it.
        return capture is not None

    # --- launches ---

    def launch(self, number: int, executable: int, stream: int) -> None:
        """cudaGraphLaunch."""
        order = self._order
        order.graph = number
        order.op("host", -1)
        order.barrier(stream)
        if executable in self._launched:
            order.wait(stream, *self._launched[executable])
        capture = self._captures.get(number)
        if capture is None:
            self.unknown_launches += 1
        else:
            self._run(capture, stream)
        last = order.last(stream)
        if last is not None:
            self._launched[executable] = (stream, last)
        order.graph = NO_GRAPH

    def _run(self, capture: Capture, stream: int) -> None:
        order = self._order
        private = len(set(capture.branches.values())) - 1
        streams = [stream]
        streams += [order.private_stream(("graph", stream, branch)) for branch in range(private)]
        entry = order.last(stream)
        ops: list[tuple[int, int | None]] = []
        for node in capture.nodes:
            on = streams[node.branch]
            if node.kind in ("device", "join"):
                order.on_stream(node.kind, on, node.signature, parts=node.parts)
            elif node.kind == "stream_wait":
                source = (stream, entry) if node.source == _ENTRY else ops[node.source]
                if source[1] is not None:
                    order.wait(on, source[0], source[1])
            elif node.kind == "record":
                order.record(node.event, on)
            else:
                order.wait_for_event(on, node.event)
            ops.append((on, order.last(on)))
        for branch in streams[1:]:
            last = order.last(branch)
            if last is not None:
                order.wait(stream, branch, last)
