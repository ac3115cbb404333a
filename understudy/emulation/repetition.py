"""Finds the sequence that a program repeats, in the numbers of its operations.

For jobs that say by nothing else where an iteration ends. What repeats may be less than an
iteration (the layers of a model) or more (a log line every tenth one), so:

* a period is accepted when one unbroken run of it makes up most of the program: layers are
  interrupted by what comes before the first and after the last of them;
* a shorter one whose runs are interrupted now and then is accepted when each repetition moves data
  between host and device or waits for the device, as iterations do and layers do not;
* a period in which the host meets the device nowhere must be repeated often: a model of a few equal
  layers, run once, would be one otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

#: Repetitions of a period; of one in which host and device do not meet.
_MIN_REPETITIONS = 3
_MIN_REPETITIONS_UNMET = 16
#: Share of all operations, and of those after its start, that one unbroken run must have.
_RUN_OF_ALL, _RUN_OF_REST = 0.3, 0.5
#: Share of all operations that interrupted runs must have together.
_RUNS_TOGETHER = 0.6
#: Longer programs are judged by their beginning.
_MAX_OPERATIONS = 400_000
_CANDIDATES_PER_CONTEXT = 6


def _gaps(codes: np.ndarray) -> np.ndarray:
    """Distance of every element to the next equal one, as far as there is one."""
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    return (order[1:] - order[:-1])[same]


def _candidates(codes: np.ndarray) -> list[int]:
    """Likely periods, ascending: the commonest distances between equal stretches of 1, 2, 4, ...
    operations. Where a stretch is unique within an iteration, that is the period."""
    found: set[int] = set()
    width = 1
    while True:
        distances, counts = np.unique(_gaps(codes), return_counts=True)
        # Stable, so that equally common ones are taken in ascending order.
        common = np.argsort(-counts, kind="stable")[:_CANDIDATES_PER_CONTEXT]
        found.update(distances[common].tolist())
        if len(distances) == 0 or 2 * width >= len(codes):
            return sorted(found)
        pairs = codes[:-width] * (int(codes.max()) + 1) + codes[width:]
        codes = np.unique(pairs, return_inverse=True)[1].reshape(-1)
        width *= 2


def _runs(codes: np.ndarray, period: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts, lengths) of the stretches of at least three repetitions."""
    equal = np.concatenate(([False], codes[period:] == codes[:-period], [False]))
    edges = np.flatnonzero(equal[1:] != equal[:-1])
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    long_enough = lengths >= 2 * period
    return starts[long_enough], lengths[long_enough] + period


def _accepted(codes: np.ndarray, meets_host: np.ndarray, period: int) -> int | None:
    """Where the period's longest run starts; None when it is not the program's period."""
    starts, lengths = _runs(codes, period)
    if len(starts) == 0:
        return None
    longest = int(np.argmax(lengths))
    start, length = int(starts[longest]), int(lengths[longest])
    meets = bool(meets_host[start : start + period].any())
    needed = _MIN_REPETITIONS if meets else _MIN_REPETITIONS_UNMET
    unbroken = length >= _RUN_OF_ALL * len(codes) and length >= _RUN_OF_REST * (len(codes) - start)
    if unbroken and length >= needed * period:
        return start
    together = int(lengths.sum())
    if meets and together >= needed * period and together >= _RUNS_TOGETHER * len(codes):
        return start
    return None


def _phase(start: int, period: int, from_host: np.ndarray, meets_host: np.ndarray) -> int:
    """Start of an iteration in the run: at its first copy from the host, else after the last
    operation in which the host met the device, else where the run starts."""
    window = np.arange(start, start + period)
    copies = window[from_host[window]]
    for at in copies.tolist():
        before = at - 1 if at > start else start + period - 1
        if not from_host[before]:
            return at
    met = window[meets_host[window]]
    return int(met[-1]) + 1 if len(met) else start


def _occurrences(codes: np.ndarray, start: int, period: int) -> Iterator[int]:
    """Positions where the `period` operations at `start` stand, not overlapping."""
    random = np.random.default_rng(0).integers(1, 2**63, int(codes.max()) + 1, np.uint64)
    # A polynomial in an odd base modulo 2^64: all stretches are compared at once.
    powers = np.cumprod(np.full(len(codes), 0x9E3779B97F4A7C15, np.uint64))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(random[codes] * powers)))
    stretches = sums[period:] - sums[:-period]
    offsets = powers[: len(stretches)]
    equal = stretches * powers[start] == stretches[start] * offsets
    free = 0
    for at in np.flatnonzero(equal).tolist():
        if at >= free:
            yield at
            free = at + period


def iteration_ends(
    codes: np.ndarray, meets_host: np.ndarray, from_host: np.ndarray
) -> tuple[int, list[int]]:
    """(period, operations at which an iteration ends) of a program; (0, []) without repetition.

    `codes` (shape n, int64 >= 0): equal for equal operations; `meets_host`, `from_host` (shape n,
    bool): copies between host and device and waits of the host; copies from the host. An iteration
    ends before the operation that is named; the first one includes all that came before.
    """
    codes, meets_host = codes[:_MAX_OPERATIONS], meets_host[:_MAX_OPERATIONS]
    if len(codes) < _MIN_REPETITIONS:
        return 0, []
    codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    for period in _candidates(codes):
        start = _accepted(codes, meets_host, period)
        if start is not None:
            break
    else:
        return 0, []
    start = _phase(start, period, from_host, meets_host)
    ends: list[int] = []
    for at in _occurrences(codes, start, period):
        # What stands between two repetitions belongs to the next one, unless it is one itself that
        # differs somewhere.
        if ends and at - ends[-1] >= period / 2:
            ends.append(at)
        ends.append(at + period)
    return period, ends
