"""Batches of a file to the tables of a trace: one clock, sorted, without repetitions.

A table is finished column by column, and the batches' columns are let go on the way: at no time is
there a second copy of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from understudy.traces.kineto.file_reader import Batch, FileReader, batch_type
from understudy.traces.kineto.records import POSITIONS_KEPT, KinetoTrace
from understudy.traces.kineto.tables import DEVICE_EVENTS, HOST_CALLS, TABLES, TEXT, TraceTable

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

#: Events this far from the middle of a trace have lost their time: a start of 0, a wrapped counter.
FARTHEST_NS = 86_400 * 10**9

#: What a row is, by table: rows that start together and are equal in all of these are one event
#: written twice. The first of each tuple must be set and positive, for without it two short events
#: may look the same.
_IDENTITY: dict[str, tuple[str, ...]] = {
    "device_events": ("duration_ns", "device", "stream", "correlation", "name", "kind"),
    "host_calls": ("correlation", "duration_ns", "process", "thread", "name", "api"),
    "syncs": ("correlation", "duration_ns", "stream", "device", "kind"),
    "annotations": ("external_id", "duration_ns", "process", "thread", "name", "side"),
    "host_ops": ("external_id", "duration_ns", "process", "thread", "name"),
    "collective_calls": ("external_id", "duration_ns", "process", "thread", "name"),
}

#: What ROCm's profiler may say only of the call that launched a kernel or copy.
_DESCRIBED_BY_CALLS = ("size_bytes", "shared_memory_bytes", "grid", "block")


class _Columns:
    """The columns of one table in pieces, with absolute times."""

    def __init__(self, table: TraceTable, batches: Sequence[Batch], reader: FileReader) -> None:
        self.table = table
        self._pieces = {
            column.name: [batch.columns.column(column.name) for batch in batches]
            for column in table.columns
            if column.name != "rank"
        }
        shifts = [reader.base_ns(batch.array) for batch in batches]
        starts = [
            piece.to_numpy() + shift
            for piece, shift in zip(self._pieces.pop("start_ns"), shifts, strict=True)
        ]
        self.starts: Integers = np.concatenate([np.empty(0, np.int64), *starts])

    def take(self, name: str, rows: Integers) -> pa.Array:
        """Some rows of a column."""
        kind = batch_type(next(c for c in self.table.columns if c.name == name))
        pieces = self._pieces[name]
        if all(pa.types.is_null(piece.type) for piece in pieces):
            return _nulls(kind, len(rows))
        if len(pieces) > 1:
            pieces[:] = [pa.concat_arrays([piece.cast(kind) for piece in pieces])]
        return pieces[0].take(pa.array(rows))

    def pop(self, name: str, rows: Integers) -> pa.Array:
        """Some rows of a column, which is then gone."""
        taken = self.take(name, rows)
        del self._pieces[name]
        return taken


class Assembly:
    """Makes the trace of a file that has been read."""

    def __init__(self, reader: FileReader, batches: Sequence[Batch]) -> None:
        self._reader = reader
        self._header = reader.header()
        kept = [batch for batch in batches if not self._of_other_rank(batch)]
        self._columns = {
            table.name: _Columns(table, [each for each in kept if each.table is table], reader)
            for table in TABLES
        }

    def trace(self) -> KinetoTrace:
        """The tables, counted from the first event that is kept. To be called once."""
        middle_ns = self._middle_ns()
        near = {
            name: np.abs(columns.starts - middle_ns) <= FARTHEST_NS
            for name, columns in self._columns.items()
        }
        base_ns = min(
            (int(columns.starts[near[name]].min()) for name, columns in self._columns.items()
             if near[name].any()),
            default=0,
        )  # fmt: skip
        tables = {
            name: self._finished(name, rows, base_ns) for name, rows in self._ordered_rows(near)
        }
        tables[DEVICE_EVENTS.name] = _described(tables[DEVICE_EVENTS.name], tables[HOST_CALLS.name])
        return KinetoTrace(
            path=self._reader.path,
            header=self._header,
            base_ns=base_ns,
            ignored=dict(sorted(self._reader.rows.ignored.items())),
            problems=self._reader.findings.problems(),
            **tables,
        )

    def _of_other_rank(self, batch: Batch) -> bool:
        """Whether two ranks wrote to one file and these rows are of the second."""
        rank = self._reader.rank_of(batch.array)
        if rank is None or rank == self._header.rank:
            return False
        self._reader.findings.drop_many(
            len(batch.columns),
            f"{batch.table.name}: of rank {rank} in a file of rank {self._header.rank}",
            [self._reader.first_offset(batch.array)],
        )
        return True

    def _middle_ns(self) -> int:
        starts = np.concatenate([columns.starts for columns in self._columns.values()])
        if not len(starts):
            return 0
        half = len(starts) // 2
        return int(np.partition(starts, half)[half])

    def _ordered_rows(self, near: dict[str, Booleans]) -> Iterator[tuple[str, Integers]]:
        """The rows of each table that are kept, in their order."""
        for name, columns in self._columns.items():
            far = np.flatnonzero(~near[name])
            if len(far):
                self._drop(columns, far, f"{name}: more than a day from the rest of the trace")
            rows, repeats = self._sorted(columns, np.flatnonzero(near[name]))
            if len(repeats):
                self._drop(columns, repeats, f"{name}: repeats another event", repeats=True)
            yield name, rows

    def _sorted(self, columns: _Columns, rows: Integers) -> tuple[Integers, Integers]:
        """Rows by start, and apart from them those that repeat another.

        What starts together is put in order by the other columns: the order of the file, which
        carries no meaning, must not be left over.
        """
        rows = rows[np.argsort(columns.starts[rows], kind="stable")]
        starts = columns.starts[rows]
        together = starts[1:] == starts[:-1]
        if not together.any():
            return rows, rows[:0]
        tied = np.concatenate([[False], together]) | np.concatenate([together, [False]])
        of_tied = rows[tied]
        keys = [columns.starts[of_tied]]
        keys += [self._key(columns, name, of_tied) for name in _IDENTITY[columns.table.name]]
        order = np.lexsort(keys[::-1])
        rows[tied] = of_tied[order]
        same = np.ones(len(order) - 1, dtype=bool)
        for key in keys:
            same &= key[order][1:] == key[order][:-1]
        same &= keys[1][order][1:] > 0
        repeated = np.zeros(len(rows), dtype=bool)
        repeated[np.flatnonzero(tied)[1:]] = same
        return rows[~repeated], rows[repeated]

    def _key(self, columns: _Columns, name: str, rows: Integers) -> Integers:
        values = _numbers(columns.take(name, rows))
        kind = next(column.type for column in columns.table.columns if column.name == name)
        if kind != TEXT:
            return values
        return np.append(self._alphabetical, -1)[values]

    @cached_property
    def _texts(self) -> pa.Array:
        return self._reader.rows.texts.dictionary()

    @cached_property
    def _alphabetical(self) -> Integers:
        """The rank of each text in alphabetical order."""
        order = np.argsort(self._texts.to_numpy(zero_copy_only=False), kind="stable")
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order))
        return ranks

    def _finished(self, name: str, rows: Integers, base_ns: int) -> pa.Table:
        """A table with the columns and types that it is to have."""
        columns = self._columns[name]
        rank = self._header.rank
        arrays = []
        for column in columns.table.columns:
            if column.name == "rank":
                arrays.append(pa.repeat(pa.scalar(rank, pa.int32()), len(rows)))
            elif column.name == "start_ns":
                arrays.append(pa.array(columns.starts[rows] - base_ns))
            elif column.type == TEXT:
                arrays.append(self._named(columns.pop(column.name, rows)))
            else:
                arrays.append(columns.pop(column.name, rows))
        pa.default_memory_pool().release_unused()
        return pa.table(arrays, schema=columns.table.schema)

    def _named(self, codes: pa.Array) -> pa.Array:
        """Numbers of texts as a dictionary of those in use, in alphabetical order."""
        null = codes.is_null().to_numpy(zero_copy_only=False)
        ranks = self._alphabetical[codes.drop_null().to_numpy()]
        used = np.zeros(len(self._alphabetical), dtype=bool)
        used[ranks] = True
        compact = np.zeros(len(codes), dtype=np.int32)
        compact[~null] = (np.cumsum(used) - 1)[ranks]
        texts = self._texts.take(pa.array(np.argsort(self._alphabetical)[used]))
        return pa.DictionaryArray.from_arrays(pa.array(compact, mask=null), texts)

    def _drop(
        self, columns: _Columns, rows: Integers, reason: str, *, repeats: bool = False
    ) -> None:
        """Reports rows that are left out; reads the file again for their positions."""
        few = rows[:POSITIONS_KEPT]
        durations = _numbers(columns.take("duration_ns", few))
        times = set(zip(columns.starts[few].tolist(), durations.tolist(), strict=True))
        offsets = self._reader.offsets(times, repeats)
        self._reader.findings.drop_many(len(rows), reason, offsets)


def _nulls(kind: pa.DataType, length: int) -> pa.Array:
    """A column without values. Its zeros are never written, so that the system backs them by
    nothing; those of pa.nulls take as much memory as values would."""
    validity = pa.py_buffer(bytes(length // 8 + 1))
    if pa.types.is_fixed_size_list(kind):
        values = _nulls(kind.value_type, length * kind.list_size)
        return pa.Array.from_buffers(kind, length, [validity], length, children=[values])
    values = pa.py_buffer(bytes(length * kind.bit_width // 8))
    return pa.Array.from_buffers(kind, length, [validity, values], length)


def _numbers(column: pa.Array) -> Integers:
    """A column of integers; -1 for null."""
    values = column.fill_null(-1) if column.null_count else column
    return values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def _described(events: pa.Table, calls: pa.Table) -> pa.Table:
    """Fills what ROCm's profiler says only of the call: bytes of copies, geometry of kernels."""
    described = np.zeros(len(calls), dtype=bool)
    for name in _DESCRIBED_BY_CALLS:
        described |= calls.column(name).is_valid().to_numpy()
    of_calls = _numbers(calls.column("correlation").combine_chunks())
    chosen = np.flatnonzero(described & (of_calls >= 0))
    if not len(chosen) or not len(events):
        return events
    correlations, first = np.unique(of_calls[chosen], return_index=True)
    wanted = _numbers(events.column("correlation").combine_chunks())
    at = np.minimum(np.searchsorted(correlations, wanted), len(correlations) - 1)
    launches = pa.array(chosen[first][at], mask=correlations[at] != wanted)
    for name in _DESCRIBED_BY_CALLS:
        given = calls.column(name).combine_chunks().take(launches)
        filled = pc.call_function("coalesce", [events.column(name).combine_chunks(), given])
        index = events.column_names.index(name)
        events = events.set_column(index, events.schema.field(name), filled)
    return events
