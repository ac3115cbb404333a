"""The text of a trace file in chunks: plain or gzip, by content and not by name."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

#: Decompressed bytes of one chunk, and bytes of one read. Blocks of this size decode fastest:
#: their events stay in the second-level cache.
CHUNK_BYTES = 1 << 18

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_HEADER_BYTES = 10
_LONGEST_HEADER = 4 * CHUNK_BYTES
_HEADER_CRC, _EXTRA, _NAME, _COMMENT = 2, 4, 8, 16


def chunks(path: Path, note: Callable[[str], None]) -> Iterator[bytes]:
    """Yields the text of a file in chunks of at most CHUNK_BYTES.

    A gzip stream that ends early or is damaged gives everything before the damage; `note` is told.
    """
    with path.open("rb") as file:
        first = file.read(CHUNK_BYTES)
        rest = iter(lambda: file.read(CHUNK_BYTES), b"")
        if first.startswith(_GZIP_MAGIC):
            yield from _inflate(first, rest, note)
            return
        if first:
            yield first
        yield from rest


def _inflate(data: bytes, rest: Iterator[bytes], note: Callable[[str], None]) -> Iterator[bytes]:
    """Decompresses gzip members one after another.

    The checksum is compared here and not by zlib, which would withhold the last chunk of a member
    whose checksum differs.
    """
    consumed = 0
    while data:
        header = _gzip_header_bytes(data)
        while header is None and (more := next(rest, b"")):
            data += more
            header = _gzip_header_bytes(data)
        if not header:
            note(f"what follows byte {consumed} of the compressed file is not gzip: not read")
            return
        consumed += header
        inflater = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        checksum = 0
        data = data[header:]
        while not inflater.eof:
            if not data and not (data := next(rest, b"")):
                note("the gzip stream ends early: the file was cut off")
                return
            try:
                text = inflater.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                note(f"the gzip stream is damaged after byte {consumed}: {error}")
                return
            left = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            consumed += len(data) - len(left)
            data = left
            checksum = zlib.crc32(text, checksum)
            if text:
                yield text
        while len(data) < 8 and (more := next(rest, b"")):
            data += more
        if len(data) < 8:
            note("the gzip stream ends early: its checksum is missing")
            return
        if int.from_bytes(data[:4], "little") != checksum:
            note("the gzip checksum differs: the file was damaged")
        consumed += 8
        data = data[8:].lstrip(b"\0")  # tape and object stores pad with zeros
        if not data:
            data = next(rest, b"").lstrip(b"\0")


def _gzip_header_bytes(data: bytes) -> int | None:
    """Length of the gzip header (RFC 1952); 0: not gzip; None: more data needed."""
    if data[:2] != _GZIP_MAGIC[: len(data)]:
        return 0
    if len(data) < _GZIP_HEADER_BYTES:
        return None
    flags, position = data[3], _GZIP_HEADER_BYTES
    if flags & _EXTRA:
        position += 2 + int.from_bytes(data[position : position + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            end = data.find(b"\0", position)
            if end < 0:
                return None if len(data) < _LONGEST_HEADER else 0
            position = end + 1
    if flags & _HEADER_CRC:
        position += 2
    return position if position <= len(data) else None
