"""CUDA's ordering rules applied to a sequence of calls directly, with handles and clocks.

Independent of the lowering: events are looked up when they are waited for, and every time is known
as soon as its call is made. Launches have no latency and calls no cost, so all times are sums of
kernel durations and host gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LEGACY, BLOCKING, STREAMS = 0, 2, (0, 2, 3, 4)
GAP_NS = 9_000


class Call(NamedTuple):
    """`what`: kernel, record, wait, event_sync, stream_sync, device_sync, query, copy (to pageable
    memory), upload (from it), graph. `number`: duration of a kernel, event, or graph."""

    what: str
    stream: int = 0
    number: int = 0


@dataclass
class Oracle:
    """Times (ns) after the calls so far. `kernels`: start and end of each, in the order of calls.

    `graphs`: by number the captured calls (kernel, record, wait), whose first stream is the origin.
    """

    graphs: dict[int, Sequence[Call]] = field(default_factory=dict)
    copy_ns: int = 0
    host: int = -GAP_NS  # nothing comes before the first call
    tails: dict[int, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    events: dict[int, int] = field(default_factory=dict)
    kernels: list[tuple[int, int]] = field(default_factory=list)
    _launched: dict[int, int] = field(default_factory=dict)

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self.host += GAP_NS
            getattr(self, f"_{call.what}")(call.stream, call.number)

    def _ready(self, stream: int) -> int:
        """When an op that is issued to the stream now could start, but for the host."""
        ready = self.tails[stream]
        if stream == LEGACY:
            ready = max(ready, self.tails[BLOCKING])
        elif stream == BLOCKING:
            ready = max(ready, self.tails[LEGACY])
        return ready

    def _kernel(self, stream: int, duration_ns: int) -> None:
        start = max(self.host, self._ready(stream))
        self.tails[stream] = start + duration_ns
        self.kernels.append((start, start + duration_ns))

    def _record(self, stream: int, event: int) -> None:
        self.tails[stream] = self.events[event] = self._ready(stream)

    def _wait(self, stream: int, event: int) -> None:
        self.tails[stream] = max(self.tails[stream], self.events.get(event, 0))

    def _event_sync(self, _stream: int, event: int) -> None:
        self.host = max(self.host, self.events.get(event, 0))

    def _stream_sync(self, stream: int, _number: int) -> None:
        self.tails[stream] = self._ready(stream)
        self.host = max(self.host, self.tails[stream])

    def _device_sync(self, _stream: int, _number: int) -> None:
        self.host = max(self.host, *self.tails.values())

    def _query(self, _stream: int, _event: int) -> None:
        pass

    def _copy(self, stream: int, _number: int) -> None:
        self._kernel(stream, self.copy_ns)
        self.host = max(self.host, self.tails[stream])

    def _upload(self, stream: int, _number: int) -> None:
        self._stream_sync(stream, 0)
        self._kernel(stream, self.copy_ns)

    def _graph(self, stream: int, number: int) -> None:
        entry = max(self.host, self._ready(stream), self._launched.get(number, 0))
        captured = self.graphs[number]
        tails = {captured[0].stream: entry} if captured else {}
        events: dict[int, int] = {}
        for call in captured:
            if call.what == "kernel":
                start = tails[call.stream]
                tails[call.stream] = start + call.number
                self.kernels.append((start, start + call.number))
            elif call.what == "record":
                events[call.number] = tails[call.stream]
            else:
                tails[call.stream] = max(tails.get(call.stream, entry), events[call.number])
        self.tails[stream] = self._launched[number] = max([entry, *tails.values()])
