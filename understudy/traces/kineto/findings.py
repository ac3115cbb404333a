"""Collects what is wrong with one file, counted and with the first positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from understudy.traces.kineto.records import POSITIONS_KEPT, Dropped, Note, Problem


@dataclass
class Findings:
    """The problems of one file, each kind once, in order of appearance."""

    path: Path
    _dropped: dict[str, list[int]] = field(default_factory=dict)
    _dropped_counts: dict[str, int] = field(default_factory=dict)
    _notes: dict[str, int] = field(default_factory=dict)

    def drop(self, byte_offset: int, reason: str) -> None:
        """Counts one event that is not kept."""
        positions = self._dropped.setdefault(reason, [])
        if len(positions) < POSITIONS_KEPT:
            positions.append(byte_offset)
        self._dropped_counts[reason] = self._dropped_counts.get(reason, 0) + 1

    def drop_many(self, count: int, reason: str, byte_offsets: Sequence[int] = ()) -> None:
        """Counts events that are not kept after all were read."""
        positions = self._dropped.setdefault(reason, [])
        positions += byte_offsets[: POSITIONS_KEPT - len(positions)]
        self._dropped_counts[reason] = self._dropped_counts.get(reason, 0) + count

    def wants_position(self, reason: str) -> bool:
        """Whether the position of one more event would still be kept."""
        return len(self._dropped.get(reason, ())) < POSITIONS_KEPT

    def note(self, message: str, count: int = 1) -> None:
        """Counts something odd that costs no event."""
        self._notes[message] = self._notes.get(message, 0) + count

    def problems(self) -> tuple[Problem, ...]:
        """Everything found: first what was dropped."""
        dropped = [
            Dropped(self.path, reason, self._dropped_counts[reason], tuple(positions))
            for reason, positions in self._dropped.items()
        ]
        return (*dropped, *(Note(self.path, text, count) for text, count in self._notes.items()))
