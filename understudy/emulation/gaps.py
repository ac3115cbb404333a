"""Host gaps of recorded iterations, robust against what else ran on the emulating machine.

A gap is wall-clock time, so single samples hold preemptions. The same op of several iterations
gives several samples, of which the median is taken. Iterations need not be equal for that: one
that also logs a loss differs from the others in a few ops, and what stands before and after those
is aligned with the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def aligned_medians(
    ops: Sequence[np.ndarray], gaps_ns: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Median and interquartile range (ns) of the gap of each op, over the iterations that have it.

    `ops[i]` (n_i x columns) says what the ops of iteration i are, `gaps_ns[i]` (n_i) their gaps.
    Each iteration is aligned with the most frequent one (the latest of them) by the ops that both
    have in common at their start and at their end. An op that only one iteration has keeps its
    single sample, with range 0.
    """
    reference = _most_frequent(ops)
    length = len(gaps_ns[reference])
    positions = [_positions(of, ops[reference]) for of in ops]
    samples = np.full((len(ops), length), np.nan)
    for row, (position, gaps) in enumerate(zip(positions, gaps_ns, strict=True)):
        aligned = position >= 0
        samples[row, position[aligned]] = gaps[aligned]
    middle, spread = _quartiles(samples)
    medians, ranges = [], []
    for position, gaps in zip(positions, gaps_ns, strict=True):
        aligned = position >= 0
        median, quartile_range = gaps.astype(np.int64), np.zeros(len(gaps), np.int64)
        median[aligned] = middle[position[aligned]]
        quartile_range[aligned] = spread[position[aligned]]
        medians.append(median)
        ranges.append(quartile_range)
    return medians, ranges


def _quartiles(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median and interquartile range of each column; NaN: no sample. No column is all NaN."""
    if samples.shape[1] == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # The variant that skips NaN is slow: one call per column.
    percentile = np.nanpercentile if np.isnan(samples).any() else np.percentile
    low, middle, high = percentile(samples, [25, 50, 75], axis=0)
    return np.rint(middle).astype(np.int64), np.rint(high - low).astype(np.int64)


def _most_frequent(ops: Sequence[np.ndarray]) -> int:
    keys = [(of.shape, of.tobytes()) for of in ops]
    return max(range(len(ops)), key=lambda i: (keys.count(keys[i]), i))


def _positions(of: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Op of the reference that each op corresponds to; -1: none."""
    short = min(len(of), len(reference))
    equal = (of[:short] == reference[:short]).all(axis=1)
    head = short if equal.all() else int(np.argmin(equal))
    rest = short - head
    equal = (of[len(of) - rest :] == reference[len(reference) - rest :]).all(axis=1)[::-1]
    tail = rest if equal.all() else int(np.argmin(equal))
    positions = np.full(len(of), -1)
    positions[:head] = np.arange(head)
    positions[len(of) - tail :] = np.arange(len(reference) - tail, len(reference))
    return positions
