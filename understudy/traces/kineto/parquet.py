"""Traces on disk: one Parquet file a table, and what describes the trace in each file's metadata.

Reading JSON again costs fifty times as much. The tables are those of understudy/traces/kineto/
tables.py; rows, order and types come back as they were.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from understudy.errors import UnderstudyError
from understudy.traces.kineto.records import Dropped, KinetoTrace, Note, TraceHeader
from understudy.traces.kineto.tables import TABLES

FORMAT_VERSION = "1"

_DESCRIPTION = b"understudy.kineto"
_VERSION = b"understudy.kineto_version"
_ROW_GROUP_ROWS = 1 << 17


class _Description(msgspec.Struct):
    """Everything of a trace but its tables."""

    path: str
    header: TraceHeader
    base_ns: int
    ignored: list[tuple[str, str, int]]
    dropped: list[tuple[str, int, tuple[int, ...]]]
    notes: list[tuple[str, int]]


def write_trace(trace: KinetoTrace, folder: Path) -> None:
    """Writes `<table>.parquet` for each table. The folder is made; files in it are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    description = msgspec.json.encode(
        _Description(
            path=str(trace.path),
            header=trace.header,
            base_ns=trace.base_ns,
            ignored=[(*key, count) for key, count in trace.ignored.items()],
            dropped=[
                (problem.reason, problem.count, problem.byte_offsets)
                for problem in trace.problems
                if isinstance(problem, Dropped)
            ],
            notes=[
                (problem.message, problem.count)
                for problem in trace.problems
                if isinstance(problem, Note)
            ],
        )
    )
    metadata = {_DESCRIPTION: description, _VERSION: FORMAT_VERSION.encode()}
    for name, table in trace.tables().items():
        target = folder / f"{name}.parquet"
        staged = target.with_suffix(".parquet.part")
        pq.write_table(
            table.replace_schema_metadata(metadata),
            staged,
            compression="zstd",
            row_group_size=_ROW_GROUP_ROWS,
        )
        staged.replace(target)


def load_trace(folder: Path) -> KinetoTrace:
    """The trace that `write_trace` wrote. Raises UnderstudyError where it is not complete."""
    tables = {}
    for table in TABLES:
        path = folder / f"{table.name}.parquet"
        try:
            tables[table.name] = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise UnderstudyError(
                f"{path}: cannot be read ({error}); convert the trace again"
            ) from error
    metadata = tables[TABLES[0].name].schema.metadata or {}
    if metadata.get(_VERSION) != FORMAT_VERSION.encode():
        raise UnderstudyError(f"{folder}: written by another version; convert the trace again")
    description = msgspec.json.decode(metadata[_DESCRIPTION], type=_Description)
    path = Path(description.path)
    return KinetoTrace(
        path=path,
        header=description.header,
        base_ns=description.base_ns,
        ignored={(phase, category): count for phase, category, count in description.ignored},
        problems=(
            *(Dropped(path, *values) for values in description.dropped),
            *(Note(path, *values) for values in description.notes),
        ),
        **{name: table.cast(_SCHEMAS[name]) for name, table in tables.items()},
    )


_SCHEMAS = {table.name: table.schema for table in TABLES}
