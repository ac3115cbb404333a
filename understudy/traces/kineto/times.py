"""Exact time stamps: decimal text of microseconds to integer nanoseconds.

A time stamp of today in microseconds with three decimals has 19 digits; a float64 holds 15 to 17,
which at this magnitude is a quarter of a microsecond. The text is therefore never read as a float.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

#: Beyond this (year 2096) a time stamp read as microseconds must have been nanoseconds.
LATEST_NS = 4 * 10**18

_WIDEST_TEXT = 64


def nanoseconds(text: bytes) -> int:
    """Integer nanoseconds of a JSON number (or quoted number) of microseconds.

    Digits below a nanosecond are rounded half to even. Raises ValueError for anything that is not
    a finite number.
    """
    whole, dot, fraction = text.partition(b".")
    if len(text) > _WIDEST_TEXT or b"_" in text:
        raise ValueError(f"not a time stamp: {text[:_WIDEST_TEXT]!r}")
    if whole.removeprefix(b"-").isdigit():
        if not dot:
            return int(whole) * 1000
        if len(fraction) == 3 and fraction.isdigit():
            return int(whole + fraction)
    try:
        value = Decimal(text.strip(b'" ').decode("ascii"))
        if not value.is_finite() or value.adjusted() > 24:
            raise ValueError(f"not a time stamp: {text!r}")
        return int((value * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, UnicodeDecodeError) as error:
        raise ValueError(f"not a time stamp: {text!r}") from error
