"""Columns as numpy integers, so that ranks can be compared without loops."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

#: Stands for null in integer columns; no table holds it.
NULL = -(2**31)

Codes = NDArray[np.int64]


def integers(table: pa.Table, column: str) -> Codes:
    """An integer column, null as NULL."""
    return table.column(column).fill_null(NULL).to_numpy().astype(np.int64)


def text_codes(table: pa.Table, column: str) -> tuple[Codes, list[str]]:
    """A text column as indices into the sorted list of its values."""
    values = sorted(table.column(column).unique().to_pylist())
    codes = pc.call_function(
        "index_in",
        [table.column(column)],
        pc.SetLookupOptions(value_set=pa.array(values, pa.string())),
    )
    return codes.to_numpy().astype(np.int64), values


def positions_in_group(*keys: Codes) -> Codes:
    """For each row, how many earlier rows have the same keys."""
    rows = len(keys[0])
    if rows == 0:
        return np.zeros(0, np.int64)
    order = np.lexsort(keys[::-1])
    changed = np.zeros(rows, bool)
    changed[0] = True
    for key in keys:
        ordered = key[order]
        changed[1:] |= ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(changed)
    position = np.arange(rows) - np.repeat(starts, np.diff(np.append(starts, rows)))
    result = np.empty(rows, np.int64)
    result[order] = position
    return result
