"""Texts and small numbers of events: each distinct text is kept once and rows hold its number."""

from __future__ import annotations

import json
import re

import msgspec
import pyarrow as pa
from msgspec import Raw

from understudy.traces.kineto.repair import repaired

_NUMBER = re.compile(rb'"?\s*(?:[a-z]+\s+)?(-?\d{1,19})\s*"?$', re.IGNORECASE)


class Texts:
    """Numbers the distinct texts of a trace: names, shapes, ..."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        # By the JSON text: decoding each name again would cost more than all else.
        self._raw_codes: dict[bytes, int | None] = {}
        self._numbers: dict[bytes, int | None] = {}
        #: Distinct names with bytes that are not UTF-8.
        self.damaged = 0

    def code(self, text: str | None) -> int | None:
        """Number of a text; None of None."""
        if text is None:
            return None
        return self._codes.setdefault(text, len(self._codes))

    def raw_code(self, raw: Raw) -> int | None:
        """Number of a text given as JSON; of '' where there is none."""
        encoded = bytes(raw)
        try:
            return self._raw_codes[encoded]
        except KeyError:
            text = text_of(raw)
            self.damaged += not _is_utf8(encoded)
            return self._raw_codes.setdefault(encoded, self.code(text))

    def number(self, raw: Raw) -> int | None:
        """A process, thread or stream id; few distinct ones recur in a trace."""
        encoded = bytes(raw)
        try:
            return self._numbers[encoded]
        except KeyError:
            return self._numbers.setdefault(encoded, integer(encoded))

    def json_code(self, raw: Raw) -> int | None:
        """Number of JSON kept as it stands; None where there is none."""
        return self.code(bytes(raw).decode("utf-8", "replace")) if raw else None

    def dictionary(self) -> pa.Array:
        """All texts by number; half of a surrogate pair becomes a question mark."""
        texts = [text.encode("utf-8", "replace").decode() for text in self._codes]
        return pa.array(texts, pa.string())


def text_of(raw: Raw) -> str:
    """The text of a JSON string; other JSON as it stands; '' of nothing."""
    encoded = bytes(raw)
    if not encoded:
        return ""
    try:
        value = msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        value = json.loads(repaired(encoded), strict=False)
    return value if isinstance(value, str) else encoded.decode("utf-8", "replace")


def integer(raw: Raw | bytes) -> int | None:
    """An id given as a number, as a quoted number or as 'stream 7'; None of anything else."""
    match = _NUMBER.match(bytes(raw))
    if match is None:
        return None
    number = int(match[1])
    return number if -(2**63) <= number < 2**63 else None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
