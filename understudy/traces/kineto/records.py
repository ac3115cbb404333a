"""What reading Kineto traces gives back: tables, what describes them, and what was wrong."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from understudy.traces.kineto.tables import TABLES

#: Positions that a finding keeps; more would only repeat the pattern.
POSITIONS_KEPT = 5


@dataclass(frozen=True)
class Dropped:
    """Events of a file that could not be kept. Nothing is left out without one of these."""

    path: Path
    reason: str
    count: int
    #: The first positions: bytes from the start of the (uncompressed) text.
    byte_offsets: tuple[int, ...]

    def __str__(self) -> str:
        where = ", ".join(map(str, self.byte_offsets))
        where += ", ..." if self.count > len(self.byte_offsets) else ""
        return f"{self.path}: {self.count} dropped: {self.reason} (at byte {where})"


@dataclass(frozen=True)
class Note:
    """Something odd about a file or a set of files of which nothing was dropped."""

    path: Path
    message: str
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.path}: {self.message}{times}"


Problem = Dropped | Note


@dataclass(frozen=True)
class Device:
    """An entry of `deviceProperties`."""

    index: int
    name: str
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None
    multiprocessors: int | None


@dataclass(frozen=True)
class TraceHeader:
    """What a trace says about itself outside its events."""

    rank: int | None = None
    #: Where the rank was found: distributedInfo, events, file name, nowhere.
    rank_source: str = "nowhere"
    world_size: int | None = None
    backend: str | None = None
    devices: tuple[Device, ...] = ()
    #: Global ranks of each process group by its name, where the trace lists them in full.
    process_groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    trace_name: str | None = None


@dataclass(frozen=True)
class KinetoTrace:
    """The events of one rank. The tables' columns are in understudy/traces/kineto/tables.py.

    Rows are sorted by start, then by the other columns: the order of events in the file, which
    carries no meaning, leaves no trace in the tables.
    """

    path: Path
    header: TraceHeader
    #: What start_ns counts from: nanoseconds since 1970 where the profiler used that clock.
    base_ns: int
    device_events: pa.Table
    host_calls: pa.Table
    syncs: pa.Table
    annotations: pa.Table
    host_ops: pa.Table
    collective_calls: pa.Table
    #: Events that are no rows of any table, by phase and category: flows, Python frames, ...
    ignored: dict[tuple[str, str], int]
    problems: tuple[Problem, ...]

    @property
    def rank(self) -> int | None:
        """Rank of the profiled process; None where nothing names it."""
        return self.header.rank

    def tables(self) -> dict[str, pa.Table]:
        """All tables by name."""
        return {table.name: getattr(self, table.name) for table in TABLES}

    def rebased(self, base_ns: int) -> KinetoTrace:
        """The same trace with times that count from `base_ns`."""
        shift = self.base_ns - base_ns
        if not shift:
            return self
        moved = {
            name: table.set_column(
                table.column_names.index("start_ns"),
                table.schema.field("start_ns"),
                pa.array(table.column("start_ns").to_numpy() + shift, pa.int64()),
            )
            for name, table in self.tables().items()
        }
        return dataclasses.replace(self, base_ns=base_ns, **moved)

    def with_rank(self, rank: int) -> KinetoTrace:
        """The same trace as that of `rank`."""
        ranked = {
            name: table.set_column(
                0, table.schema.field(0), pa.repeat(pa.scalar(rank, pa.int32()), len(table))
            )
            for name, table in self.tables().items()
        }
        return dataclasses.replace(
            self, header=dataclasses.replace(self.header, rank=rank), **ranked
        )


@dataclass(frozen=True)
class KinetoTraces:
    """The traces of one job, by rank, with one time base."""

    folder: Path
    base_ns: int
    #: In order of rank.
    traces: dict[int, KinetoTrace]
    world_size: int | None
    missing_ranks: tuple[int, ...]
    #: Of all files, also of those that gave no trace.
    problems: tuple[Problem, ...]
