"""Cuts the `traceEvents` arrays of a trace into blocks of decoded events, whatever the damage.

A block is the text between two event boundaries, some hundred kilobytes. The boundary is guessed
(the last `}, {` of what was read) and proven by decoding: text that starts at a boundary and
decodes as a list ends at one. Where decoding fails, the block is repaired without moving a byte;
where that fails too, its events are taken one at a time and the bad ones are reported and skipped.

Memory is bounded by the largest event (at most MAX_EVENT_BYTES) and the largest text outside the
arrays, not by the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from understudy.traces.kineto.findings import Findings
from understudy.traces.kineto.repair import repaired

#: An event larger than this is skipped; it also bounds the search for the end of a broken one.
MAX_EVENT_BYTES = 1 << 24
#: Text outside the arrays: device properties, logs, process groups of large jobs.
MAX_METADATA_BYTES = 1 << 26
#: Of what follows the last readable event.
MAX_TAIL_BYTES = 1 << 20

#: Where events begin: the array's opening, or an event by its phase where damage took the opening
#: or put a `]` between two events.
_ARRAY = re.compile(
    rb'"traceEvents"\s*:\s*\['
    rb'|(?=\{\s*(?:"(?:cat|name|ts|pid|tid)"\s*:\s*[^,{}\[\]]{1,999},\s*){0,3}"ph"\s*:\s*"[A-Za-z]")'
)
#: A file may be the array alone, and begin with a byte order mark.
_BARE_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_ARRAY_TAIL_BYTES = 4096  # longest text that may still become a match of _ARRAY
_SEPARATORS = re.compile(rb"[\s,]*")
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_BOUNDARY_TRIES = 2
_EVENT_START = re.compile(rb'[,\[}]\s*(?=\{\s*"(?:ph|cat|name|ts|pid|tid|id|s|dur|args)"\s*:)')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_NO_RAW = Raw()

REPAIRED = "text that is not JSON was repaired"


class Event(msgspec.Struct, gc=False):
    """The fields of an event that are read. Numbers stay text: see times.py."""

    ph: str = ""
    cat: str | None = None
    name: Raw = _NO_RAW
    pid: Raw = _NO_RAW
    tid: Raw = _NO_RAW
    ts: Raw = _NO_RAW
    dur: Raw = _NO_RAW
    args: Raw = _NO_RAW


_decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_event = msgspec.json.Decoder(Event).decode
# Numbers stay text; the constants NaN and Infinity are missing values.
_tolerant = json.JSONDecoder(
    strict=False, parse_float=lambda text: text, parse_constant=lambda _: None
)


@dataclass(frozen=True)
class Block:
    """Events in the order of the file, and the text they come from."""

    events: list[Event]
    #: Which traceEvents array of the file, counted from 0.
    array: int
    #: Position in the file of the text's first byte.
    offset: int
    text: bytes
    #: Where in the text each event starts, where that is known.
    starts: tuple[int, ...] | None = None

    def offset_of(self, index: int) -> int:
        """Position in the file of the event `index`. Slow: for findings only."""
        if self.starts is not None:
            return self.offset + self.starts[index]
        text = self.text.decode("latin-1")
        start = _after_separators(self.text, 0)
        for _ in range(index):
            try:
                start = _after_separators(self.text, _tolerant.raw_decode(text, start)[1])
            except ValueError:
                break
        return self.offset + start


class Scanner:
    """Reads one file. After `blocks()` is exhausted, `outside` holds the text around the arrays."""

    def __init__(self, chunks: Iterable[bytes], findings: Findings) -> None:
        self._chunks = chunks
        self._findings = findings
        #: Text before, between and after the arrays, with their opening brackets.
        self.outside: list[bytes] = []
        self._text = b""
        self._offset = 0
        self._inside = False
        #: Whether the file ended within an array.
        self.cut_off = False
        #: Where in the file the events of each traceEvents array begin.
        self.arrays: list[int] = []
        #: Bytes that must have arrived before the same text is tried again.
        self._wanted = 0

    def blocks(self) -> Iterator[Block]:
        """Yields the events of all arrays."""
        arrived = [self._text]
        length = 0
        for chunk in self._chunks:
            arrived.append(chunk)
            length += len(chunk)
            if length >= self._wanted:
                self._text = b"".join(arrived)
                yield from self._advance(at_end=False)
                arrived, length = [self._text], len(self._text)
        self._text = b"".join(arrived)
        yield from self._advance(at_end=True)
        self.cut_off = self._inside
        if self.cut_off:
            self._findings.note("the file ends within traceEvents: it was cut off")
        self._keep_outside(len(self._text))

    def _advance(self, *, at_end: bool) -> Iterator[Block]:
        """Consumes as much of the text as is complete."""
        self._wanted = 0
        while True:
            if not self._inside:
                if not self._enter_array():
                    return
                continue
            self._skip(_after_separators(self._text, 0))
            if self._text.startswith(b"]"):
                self._inside = False
                continue
            if not self._text:
                return
            before = self._offset
            block = self._decode_block() or self._decode_singly(at_end=at_end)
            if block.events:
                yield block
            if self._offset == before:
                # An event is incomplete. Waiting until the text has doubled keeps the work linear.
                self._wanted = 2 * len(self._text)
                return

    def _enter_array(self) -> bool:
        """Moves to the first event of the next array."""
        first = not self._offset and not self.outside
        if first and (bare := _BARE_ARRAY.match(self._text)):
            self._keep_outside(bare.end())
        elif found := _ARRAY.search(self._text):
            if not found[0]:
                self._findings.note("events were found without the opening of their array")
            self._keep_outside(found.end())
        else:
            if len(self._text) > MAX_METADATA_BYTES:
                self._findings.drop(self._offset, "too much text outside traceEvents")
                self._skip(len(self._text) - _ARRAY_TAIL_BYTES)
            # Searching all of it again for each chunk would be quadratic.
            self._wanted = 2 * len(self._text)
            return False
        self._inside = True
        self.arrays.append(self._offset)
        return True

    def _keep_outside(self, end: int) -> None:
        if sum(map(len, self.outside)) + end <= MAX_METADATA_BYTES:
            self.outside.append(self._text[:end])
        else:
            self._findings.drop(self._offset, "too much text outside traceEvents")
        self._skip(end)

    def _skip(self, count: int) -> None:
        self._text = self._text[count:]
        self._offset += count

    def _block(self, events: list[Event], end: int, starts: tuple[int, ...] | None = None) -> Block:
        block = Block(events, len(self.arrays) - 1, self._offset, self._text[:end], starts)
        self._skip(end)
        return block

    def _decode_block(self) -> Block | None:
        """All complete events of the text at once; None where that is not possible."""
        tried = len(self._text)
        for _ in range(_BOUNDARY_TRIES):
            end = _last_boundary(self._text, tried)
            if end is None:
                return None
            if block := self._decode_until(end):
                return block
            tried = end - 1
        end = _last_boundary(self._text, len(self._text))
        assert end is not None
        better = repaired(self._text[:end])
        if better == self._text[:end]:
            return None
        self._text = better + self._text[end:]
        block = self._decode_until(end)
        if block:
            self._findings.note(REPAIRED)
        return block

    def _decode_until(self, end: int) -> Block | None:
        try:
            return self._block(_decode_events(b"[%b]" % self._text[:end]), end)
        except msgspec.DecodeError as error:
            closed = _TRAILING.search(str(error))
        except RecursionError:
            return None
        if not closed:
            return None
        # The array ended before the boundary: byte n of the decoder's input is byte n-1 of ours.
        end = int(closed[1]) - 1
        try:
            events = _decode_events(b"[%b" % self._text[:end])
        except msgspec.DecodeError:
            return None
        return self._block(events, end - 1)

    def _decode_singly(self, *, at_end: bool) -> Block:
        """Complete events one at a time, skipping what cannot be read."""
        events: list[Event] = []
        starts: list[int] = []
        text = self._text.decode("latin-1")  # one character a byte
        position = 0
        while True:
            start = _after_separators(self._text, position)
            if start >= len(text) or text[start] == "]":
                position = start
                break
            try:
                value, end = _tolerant.raw_decode(text, start)
                source = self._text[start:end]
            except (ValueError, RecursionError) as error:
                complete = at_end or len(text) - start > MAX_EVENT_BYTES
                following = _EVENT_START.search(self._text, start + 1)
                if not complete and (following is None or _may_continue(error, len(text))):
                    break
                limit = following.start() if following else len(text)
                source = repaired(self._text[start:limit])
                try:
                    value, length = _tolerant.raw_decode(source.decode("latin-1"))
                except (ValueError, RecursionError):
                    if following is None:
                        self._drop_end(start, at_end=at_end)
                        position = len(text)
                        break
                    self._findings.drop(self._offset + start, "unreadable event")
                    position = following.end()
                    continue
                self._findings.note(REPAIRED)
                source, end = source[:length], start + length
            event = _tolerant_event(source, value)
            if event is None:
                self._findings.drop(self._offset + start, "not an event but another JSON value")
            else:
                events.append(event)
                starts.append(start)
            position = end
        return self._block(events, position, tuple(starts))

    def _drop_end(self, start: int, *, at_end: bool) -> None:
        """Gives up what follows the last readable event.

        The end of the document may be in it, which names the clock and the rank.
        """
        self._findings.drop(self._offset + start, "unreadable text at the end of the events")
        if at_end:
            self.outside.append(self._text[max(start, len(self._text) - MAX_TAIL_BYTES) :])


def _after_separators(text: bytes, position: int) -> int:
    match = _SEPARATORS.match(text, position)
    assert match is not None
    return match.end()


def _last_boundary(text: bytes, limit: int) -> int | None:
    """Position after the last `}` before `limit` that is followed by `, {`."""
    for _ in range(64):
        limit = text.rfind(b"}", 0, limit)
        if limit < 0:
            return None
        if _BOUNDARY.match(text, limit):
            return limit + 1
    return None


def _may_continue(error: Exception, length: int) -> bool:
    """Whether more text could make the value complete."""
    return isinstance(error, json.JSONDecodeError) and (
        error.pos >= length - 8 or error.msg.startswith("Unterminated string")
    )


def _tolerant_event(text: bytes, value: object) -> Event | None:
    """The event of a text that some decoder could read; None where it is not an object."""
    if not isinstance(value, dict):
        return None
    for candidate in (text, repaired(text)):
        try:
            return _decode_event(candidate)
        except (msgspec.DecodeError, RecursionError):
            continue
    fields = {key: Raw(json.dumps(value[key]).encode()) for key in _RAW_FIELDS if key in value}
    category = value.get("cat")
    return Event(
        ph=str(value.get("ph", "")),
        cat=None if category is None else str(category),
        **fields,
    )


_RAW_FIELDS = ("name", "pid", "tid", "ts", "dur", "args")
