"""Which optimizer steps (or model calls) of a rank end an iteration. Standard library only: the
ranks load this file as well.

One optimizer: each step. Several (a GAN's two, one per parameter in the backward pass, one inside
another): the shortest sequence of steps that repeats, so that an iteration holds every step of a
period once. Without such a sequence: each step of the optimizer that takes the fewest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

#: An optimizer with so many times fewer steps than another one is no part of the repetition: it
#: would make an iteration of hundreds of steps.
RARE = 32


def _period(sequence: Sequence[int]) -> tuple[int, int] | None:
    """(start, period) of the longest tail that is repeated at least twice, holds every number and
    makes up half of the sequence; None when there is none."""
    # Knuth-Morris-Pratt's failure function of the reversed sequence knows every tail's period.
    backwards = sequence[::-1]
    borders = [0] * len(backwards)
    border = 0
    for at in range(1, len(backwards)):
        while border and backwards[at] != backwards[border]:
            border = borders[border - 1]
        if backwards[at] == backwards[border]:
            border += 1
        borders[at] = border
    numbers = len(set(sequence))
    for length in range(len(sequence), max(1, (len(sequence) + 1) // 2 - 1), -1):
        period = length - borders[length - 1]
        if 2 * period <= length:
            start = len(sequence) - length
            return (start, period) if len(set(sequence[-period:])) == numbers else None
    return None


def _look(steps: Sequence[int]) -> tuple[list[int], int]:
    """Positions that end an iteration, and the period of all steps when they have one, else 0."""
    counts = Counter(steps)
    most = max(counts.values(), default=0)
    kept = [at for at, number in enumerate(steps) if counts[number] * RARE > most]
    sequence = [steps[at] for at in kept]
    if len(set(sequence)) <= 1:
        return kept, 0
    found = _period(sequence)
    if found is not None:
        start, period = found
        ends = [kept[at] for at in range(start + period - 1, len(sequence), period)]
        return ends, period if len(kept) == len(steps) else 0
    # Equally few: the one that came last, as it is the last of its iteration.
    rarest = min(set(sequence), key=lambda number: (counts[number], -number))
    return [at for at in kept if steps[at] == rarest], 0


def ends(steps: Sequence[int]) -> list[int]:
    """Positions in `steps` (the optimizer's number of each) that end an iteration."""
    return _look(steps)[0]


class StepCounter:
    """Counts iterations while the steps are taken; what it says may fall when a new optimizer
    takes its first step."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.iterations = 0
        self._numbers: set[int] = set()
        self._period = 0
        self._left = 0  # steps until the current repetition is complete
        self._again = 0  # steps before which an irregular sequence is not looked at again

    def add(self, number: int) -> int:
        """Takes note of a step; returns the number of iterations that have ended."""
        self.steps.append(number)
        known = number in self._numbers
        self._numbers.add(number)
        if len(self._numbers) == 1:
            self.iterations += 1
        elif known and self._period and self.steps[-1 - self._period] == number:
            self._left -= 1
            if self._left == 0:
                self._left = self._period
                self.iterations += 1
        elif not known or self._period or len(self.steps) >= self._again:
            self._count()
        return self.iterations

    def _count(self) -> None:
        found, self._period = _look(self.steps)
        self.iterations = len(found)
        self._again = len(self.steps) + 1 + len(self.steps) // 64
        if self._period:
            self._left = self._period - (len(self.steps) - 1 - found[-1])
