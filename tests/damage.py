"""Damage as it happens to files: bits, lengths, whole blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence

#: What disks and copies lose or repeat.
_BLOCKS_BYTES = (1, 4, 8, 16, 24, 40, 64, 512)


def damaged(content: bytes, rng: random.Random, places: Sequence[int] = ()) -> bytes:
    """A copy with one to four injuries: flipped bits, overwritten bytes, a cut, a block that is
    repeated, left out, zeroed or exchanged with another. Half of them are at `places` (offsets of
    headers, say) when there are such."""
    raw = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        if not raw:
            break
        start = rng.randrange(len(raw))
        if places and rng.random() < 0.5:
            start = min(rng.choice(places) + rng.randrange(8), len(raw) - 1)
        end = min(start + rng.choice(_BLOCKS_BYTES), len(raw))
        kind = rng.randrange(8)
        if kind <= 1:
            raw[start] ^= 1 << rng.randrange(8)
        elif kind == 2:
            raw[start] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 3:
            del raw[start:]
        elif kind == 4:
            raw[end:end] = raw[start:end]
        elif kind == 5:
            del raw[start:end]
        elif kind == 6:
            raw[start:end] = bytes(end - start)
        else:
            size = end - start
            other = rng.randrange(len(raw) - size + 1)
            raw[start:end], raw[other : other + size] = raw[other : other + size], raw[start:end]
    return bytes(raw)
