"""Lowers hand-written traces and shows the ops that come out."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.unit.trace_writer import TraceWriter
from understudy.emulation.lowering import NO_DEPENDENCY, LoweredRank, Place, lower
from understudy.traces.interceptor import read_trace

#: Two ranks of one node; four of two nodes; this rank alone.
PLACES = {1: Place((0, 0), 0), 2: Place((0, 0, 1, 1), 0), 3: Place((0,), 0)}


class Op(NamedTuple):
    kind: str
    stream: int
    depends_on: int = NO_DEPENDENCY


def lowered(writer: TraceWriter, folder: Path, first_iteration: int = 0) -> LoweredRank:
    return lower(read_trace(writer.write(folder)), PLACES, first_iteration)


def ops(writer: TraceWriter, folder: Path) -> list[Op]:
    result = lowered(writer, folder)
    return [Op(*row) for row in zip(result.kind, result.stream, result.depends_on, strict=True)]
