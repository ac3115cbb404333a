"""Writes Perfetto traces: protobuf, many slices a second, readable at ui.perfetto.dev.

Message and field numbers are those of perfetto/trace/perfetto_trace.proto
(perfetto.dev/docs/reference/trace-packet-proto). All packets are one sequence: names, categories
and arguments are interned once, when a slice first needs them. Packets of many slices are laid out
with numpy: each is a few pieces of one pool of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

Value = bool | int | float | str
Times = NDArray[np.int64]

#: Slices laid out at once; bounds the memory.
_CHUNK = 1 << 17

_SEQUENCE = 1
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4
_ORDER_EXPLICIT = 3
_UNIT_SIZE_BYTES = 3
_LONGEST_VARINT = 10


@dataclass(frozen=True)
class Slice:
    """What slices of one kind have in common. `args` are shown in their order."""

    name: str
    category: str
    args: Mapping[str, Value] = field(default_factory=dict, hash=False)


class PerfettoWriter:
    """Writes one trace to `file`. Times are ns from 0; each call takes any number of slices."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._tracks = 0
        self._interned: dict[tuple[int, Hashable], int] = {}
        #: Interned data that no packet has carried yet.
        self._fresh: list[bytes] = []
        self._pid_of: dict[int, int] = {}
        self._children: dict[int, int] = {}
        self._packet(_field(10, _SEQUENCE) + _field(13, _STATE_CLEARED))

    def process(self, pid: int, name: str) -> int:
        """A new process; returns its track, under which its other tracks appear in the order in
        which they are made."""
        described = _field(1, pid) + _field(6, name)
        track = self._describe(_field(3, described) + _field(11, _ORDER_EXPLICIT), None)
        self._pid_of[track] = pid
        return track

    def thread(self, process: int, tid: int, name: str) -> int:
        """A new track of slices: a thread of the process."""
        described = _field(1, self._pid_of[process]) + _field(2, tid) + _field(5, name)
        return self._describe(_field(4, described), process)

    def track(self, process: int, name: str) -> int:
        """A new track of slices that is no thread."""
        return self._describe(_field(2, name), process)

    def counter(self, process: int, name: str) -> int:
        """A new track of a number of bytes over time."""
        return self._describe(_field(2, name) + _field(8, _field(3, _UNIT_SIZE_BYTES)), process)

    def slices(
        self,
        track: int,
        begin_ns: Times,
        end_ns: Times,
        kind: NDArray[np.int64],
        kinds: Sequence[Slice],
        *,
        starts_flow: NDArray[np.int64] | None = None,
        ends_flow: NDArray[np.int64] | None = None,
    ) -> None:
        """Slices that follow each other or touch, in order of time.

        `kind` are indices into `kinds`. An arrow leads from the slice that starts a flow to the one
        that ends it; flows are numbered from 1 throughout the trace, 0 is none.
        """
        used = np.unique(kind)
        bodies = [self._slice_body(track, kinds[k]) for k in used.tolist()]
        bodies.append(_field(9, _SLICE_END) + _field(11, track))
        number = np.searchsorted(used, kind)
        self._write_interned()
        for first in range(0, len(kind), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            times = np.column_stack((begin_ns[chunk], end_ns[chunk])).ravel()
            body = np.full(len(times), len(used), np.int64)
            body[::2] = number[chunk]
            flows = np.zeros((len(times), 2), np.int64)
            for column, flow in enumerate((starts_flow, ends_flow)):
                if flow is not None:
                    flows[::2, column] = flow[chunk]
            self._file.write(_event_packets(times, body, bodies, flows))

    def values(self, track: int, time_ns: Times, value: NDArray[np.int64]) -> None:
        """What a counter shows from each of these moments on."""
        body = _field(9, _COUNTER) + _field(11, track)
        for first in range(0, len(value), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            numbers, inverse = np.unique(value[chunk], return_inverse=True)
            bodies = [body + _tag(30, 0) + _varint(n) for n in numbers.tolist()]
            none = np.zeros((len(inverse), 2), np.int64)
            self._file.write(_event_packets(time_ns[chunk], inverse, bodies, none))

    def _describe(self, described: bytes, parent: int | None) -> int:
        self._tracks += 1
        identity = _field(1, self._tracks)
        if parent is not None:
            place = self._children[parent] = self._children.get(parent, 0) + 1
            identity += _field(5, parent) + _field(12, place)
        self._packet(_field(60, identity + described))
        return self._tracks

    def _packet(self, content: bytes) -> None:
        self._file.write(_field(1, content))

    def _slice_body(self, track: int, kind: Slice) -> bytes:
        args = [
            _field(4, _field(1, self._intern(3, name)) + self._value(value))
            for name, value in kind.args.items()
        ]
        return (
            _field(9, _SLICE_BEGIN)
            + _field(11, track)
            + _field(3, self._intern(1, kind.category))
            + _field(10, self._intern(2, kind.name))
            + b"".join(args)
        )

    def _value(self, value: Value) -> bytes:
        if isinstance(value, bool):
            return _field(2, int(value))
        if isinstance(value, int):
            return _tag(4, 0) + _varint(value)
        if isinstance(value, float):
            return _tag(5, 1) + struct.pack("<d", value)
        return _field(17, self._intern(29, value))

    def _intern(self, table: int, text: str) -> int:
        """The number of `text` in one of InternedData's tables: 1 categories, 2 event names,
        3 names of arguments, 29 values of arguments."""
        key = (table, text)
        if key not in self._interned:
            number = self._interned[key] = 1 + sum(t == table for t, _ in self._interned)
            self._fresh.append(_field(table, _field(1, number) + _field(2, text)))
        return self._interned[key]

    def _write_interned(self) -> None:
        if self._fresh:
            data = _field(12, b"".join(self._fresh))
            self._packet(_field(10, _SEQUENCE) + _field(13, _NEEDS_STATE) + data)
            self._fresh.clear()


# --- encoding --------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    """A number in base 128, low digits first; a negative one as its 64 bits."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _tag(number, 0) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _tag(number, 2) + _varint(len(content)) + content


def _varints(values: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Varints of numbers from 0: bytes [count, _LONGEST_VARINT], of which `lengths` count."""
    limits = np.array([1 << 7 * k for k in range(1, 9)], np.int64)
    lengths = 1 + np.searchsorted(limits, values, side="right")
    digits = (values[:, None] >> np.arange(0, 63, 7)) & 127
    digits = np.pad(digits, ((0, 0), (0, _LONGEST_VARINT - digits.shape[1])))
    more = np.arange(_LONGEST_VARINT) < lengths[:, None] - 1
    return (digits | more * 128).astype(np.uint8), lengths


def _event_packets(
    time_ns: Times, body: NDArray[np.int64], bodies: Sequence[bytes], flows: NDArray[np.int64]
) -> bytes:
    """Trace packets of track events: `body` are indices into `bodies`, `flows` has the numbers
    that each event starts and ends (0: none)."""
    head = _field(10, _SEQUENCE) + _field(13, _NEEDS_STATE) + _tag(11, 2)
    has_flow = flows != 0
    flow_tags = (_tag(47, 1), _tag(48, 1))
    flow_lengths = has_flow.sum(axis=1) * (len(flow_tags[0]) + 8)
    body_lengths = np.array([len(b) for b in bodies], np.int64)[body]
    times, time_lengths = _varints(time_ns)
    event, event_lengths = _varints(body_lengths + flow_lengths)
    rest = 1 + time_lengths + len(head) + event_lengths + body_lengths + flow_lengths
    packet, packet_lengths = _varints(rest)
    pool = _Pool()
    pieces = [
        pool.constant(_tag(1, 2), len(time_ns)),
        pool.rows(packet, packet_lengths),
        pool.constant(_tag(8, 0), len(time_ns)),
        pool.rows(times, time_lengths),
        pool.constant(head, len(time_ns)),
        pool.rows(event, event_lengths),
        pool.choice(bodies, body),
    ]
    for column, tag in enumerate(flow_tags):
        if has_flow[:, column].any():
            present = has_flow[:, column]
            numbers = np.ascontiguousarray(flows[:, column]).astype("<u8")
            starts, lengths = pool.constant(tag, len(time_ns))
            pieces.append((starts, lengths * present))
            starts, lengths = pool.rows(numbers.view(np.uint8).reshape(-1, 8), 8 * present)
            pieces.append((starts, lengths))
    return pool.joined(pieces)


_Pieces = tuple[NDArray[np.int64], NDArray[np.int64]]


class _Pool:
    """Bytes from which messages are put together. Pieces are starts and lengths in it, one for
    each message."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint8]] = []
        self._size = 0

    def _add(self, part: NDArray[np.uint8]) -> int:
        self._parts.append(part)
        self._size += len(part)
        return self._size - len(part)

    def constant(self, content: bytes, count: int) -> _Pieces:
        start = self._add(np.frombuffer(content, np.uint8))
        return np.full(count, start), np.full(count, len(content))

    def rows(self, matrix: NDArray[np.uint8], lengths: NDArray[np.int64]) -> _Pieces:
        """The first bytes of each row."""
        start = self._add(matrix.ravel())
        return start + np.arange(len(matrix)) * matrix.shape[1], lengths

    def choice(self, contents: Sequence[bytes], index: NDArray[np.int64]) -> _Pieces:
        lengths = np.array([len(content) for content in contents], np.int64)
        start = self._add(np.frombuffer(b"".join(contents), np.uint8))
        return (start + np.cumsum(lengths) - lengths)[index], lengths[index]

    def joined(self, pieces: Sequence[_Pieces]) -> bytes:
        """The pieces of the first message, of the second, and so on, as bytes."""
        starts = np.column_stack([start for start, _ in pieces]).ravel()
        lengths = np.column_stack([length for _, length in pieces]).ravel()
        before = np.cumsum(lengths) - lengths
        index = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
        return np.concatenate(self._parts)[index].tobytes()
