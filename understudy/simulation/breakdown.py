"""What a rank's device does with its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Breakdown:
    """Integer ns. `compute`: some op other than a collective runs; `exposed_communication`: only
    collectives run; `host_idle`: nothing runs, the device waits for its host (or for an event).
    These three sum to the window. `communication`: some collective runs, waiting for the other
    ranks included."""

    compute: int
    exposed_communication: int
    host_idle: int
    communication: int


def breakdown(
    start_ns: Times, end_ns: Times, is_collective: NDArray[np.bool_], begin_ns: int, stop_ns: int
) -> Breakdown:
    """Divides the window [begin_ns, stop_ns) among the device ops given by their times."""
    start = np.clip(start_ns, begin_ns, stop_ns)
    end = np.clip(end_ns, begin_ns, stop_ns)
    busy = covered(start, end)
    compute = covered(start[~is_collective], end[~is_collective])
    return Breakdown(
        compute=compute,
        exposed_communication=busy - compute,
        host_idle=stop_ns - begin_ns - busy,
        communication=covered(start[is_collective], end[is_collective]),
    )


@dataclass(frozen=True)
class Occupancy:
    """Integer ns of one device, from the start of its first operation to the end of its last.

    `compute`, `communication` and `copy`: some operation of the kind runs; `overlap`: communication
    and compute run at once; `exposed_communication`: communication runs and nothing else does;
    `idle`: nothing runs.
    """

    span: int
    compute: int
    communication: int
    copy: int
    overlap: int
    exposed_communication: int
    idle: int


def occupancy(
    start_ns: Times,
    end_ns: Times,
    is_communication: NDArray[np.bool_],
    is_copy: NDArray[np.bool_],
) -> Occupancy:
    """What the device of one rank does while the given operations run; the others compute."""

    def length(which: NDArray[np.bool_]) -> int:
        return covered(start_ns[which], end_ns[which])

    is_compute = ~is_communication & ~is_copy
    busy = covered(start_ns, end_ns)
    span = int(end_ns.max() - start_ns.min()) if len(start_ns) else 0
    compute, communication = length(is_compute), length(is_communication)
    return Occupancy(
        span=span,
        compute=compute,
        communication=communication,
        copy=length(is_copy),
        overlap=compute + communication - length(is_compute | is_communication),
        exposed_communication=busy - length(~is_communication),
        idle=span - busy,
    )


def covered(start_ns: Times, end_ns: Times) -> int:
    """Length of the union of the intervals [start_ns, end_ns)."""
    if len(start_ns) == 0:
        return 0
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
    # What each interval adds beyond all that began before it.
    reached = np.concatenate([start[:1], end[:-1]])
    return int(np.maximum(end - np.maximum(start, reached), 0).sum())
