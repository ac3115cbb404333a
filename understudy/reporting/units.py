"""Numbers as a reader wants them: three significant digits and a unit."""

from __future__ import annotations

import math

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def significant(value: float, digits: int = 3) -> str:
    """`value` rounded to `digits` digits, without an exponent and with thousands grouped."""
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, decimals):,.{min(max(decimals, 0), 9)}f}"


def duration(time_ns: float) -> str:
    """Nanoseconds as '42.7 ms'."""
    for scale, unit in _TIMES:
        if abs(time_ns) >= scale:
            return f"{significant(time_ns / scale)} {unit}"
    return f"{time_ns:.0f} ns"


def size(size_bytes: float) -> str:
    """Bytes as '24.1 GiB'."""
    for scale, unit in _SIZES:
        if abs(size_bytes) >= scale:
            return f"{significant(size_bytes / scale)} {unit}"
    return f"{size_bytes:.0f} B"


def percent(fraction: float) -> str:
    """0.382 as '38.2 %'."""
    return f"{100 * fraction:.1f} %"


def flops_rate(flops_per_s: float) -> str:
    """FLOP/s as '989 TFLOP/s'."""
    return f"{significant(flops_per_s / 1e12)} TFLOP/s"


def plural(count: int, noun: str) -> str:
    """'1 rank', '8 ranks'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
