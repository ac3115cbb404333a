"""Batches of a file to the tables of a trace: one clock, sorted, without repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from understudy.traces.kineto.file_reader import Batch, FileReader
from understudy.traces.kineto.records import POSITIONS_KEPT, KinetoTrace
from understudy.traces.kineto.tables import TABLES, TEXT, TraceTable

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

#: Events this far from the middle of a trace have lost their time: a start of 0, a wrapped counter.
FARTHEST_NS = 86_400 * 10**9

#: What a row is, by table: rows equal in all of these are one event written twice. The first of
#: each tuple must be set, for without it two short events may look the same.
_IDENTITY: dict[str, tuple[str, ...]] = {
    "device_events": ("duration_ns", "start_ns", "device", "stream", "correlation", "name", "kind"),
    "host_calls": ("correlation", "start_ns", "duration_ns", "process", "thread", "name", "api"),
    "syncs": ("correlation", "start_ns", "duration_ns", "stream", "device", "kind"),
    "annotations": ("external_id", "start_ns", "duration_ns", "process", "thread", "name", "side"),
    "host_ops": ("external_id", "start_ns", "duration_ns", "process", "thread", "name"),
    "collective_calls": ("external_id", "start_ns", "duration_ns", "process", "thread", "name"),
}


@dataclass(frozen=True)
class Assembly:
    """The batches of a file that has been read."""

    reader: FileReader
    batches: Sequence[Batch]

    def trace(self) -> KinetoTrace:
        """The tables, counted from the first event that is kept."""
        header = self.reader.header()
        self._drop_other_ranks(header.rank)
        tables = {table.name: self._clocked(table, header.rank) for table in TABLES}
        tables = self._without_strays(tables)
        base_ns = min(
            (int(_numbers(table, "start_ns").min()) for table in tables.values() if len(table)),
            default=0,
        )
        texts = self.reader.rows.texts.dictionary()
        finished = {
            table.name: _finished(
                table,
                self._distinct(table, _sorted(table, _named(tables[table.name], table, texts))),
                base_ns,
                header.rank,
            )
            for table in TABLES
        }
        finished["device_events"] = _described_by_calls(
            finished["device_events"], finished["host_calls"]
        )
        return KinetoTrace(
            path=self.reader.path,
            header=header,
            base_ns=base_ns,
            ignored=dict(sorted(self.reader.rows.ignored.items())),
            problems=self.reader.findings.problems(),
            **finished,
        )

    def _clocked(self, table: TraceTable, rank: int | None) -> pa.Table:
        """The rows of a table with absolute times."""
        parts = [
            _shifted(batch.columns, self.reader.base_ns(batch.array))
            for batch in self.batches
            if batch.table is table and not self._of_other_rank(batch, rank)
        ]
        if parts:
            return pa.Table.from_batches(parts).combine_chunks()
        return pa.table({c.name: pa.array([], _plain(c.type)) for c in table.columns[1:]})

    def _of_other_rank(self, batch: Batch, rank: int | None) -> bool:
        own = self.reader.rank_of(batch.array)
        return own is not None and own != rank

    def _drop_other_ranks(self, rank: int | None) -> None:
        """Reports what a file holds of a second rank: two processes wrote to one name."""
        for batch in self.batches:
            if self._of_other_rank(batch, rank):
                self.reader.findings.drop_many(
                    len(batch.columns),
                    f"{batch.table.name}: of rank {self.reader.rank_of(batch.array)} in a file of"
                    f" rank {rank}",
                    [self.reader.first_offset(batch.array)],
                )

    def _without_strays(self, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """Leaves out events that lost their time."""
        starts = np.concatenate([_numbers(table, "start_ns") for table in tables.values()])
        if not len(starts):
            return tables
        middle = int(np.partition(starts, len(starts) // 2)[len(starts) // 2])
        kept = {}
        for name, table in tables.items():
            near = np.abs(_numbers(table, "start_ns") - middle) <= FARTHEST_NS
            if not near.all():
                self._drop(table, ~near, f"{name}: more than a day from the rest of the trace")
                table = table.filter(pa.array(near))
            kept[name] = table
        return kept

    def _distinct(self, description: TraceTable, table: pa.Table) -> pa.Table:
        """Leaves out repetitions of sorted rows."""
        if len(table) < 2:
            return table
        required, *_ = identity = _IDENTITY[description.name]
        same = np.ones(len(table) - 1, dtype=bool)
        for name in identity:
            column = _numbers(table, name)
            same &= column[1:] == column[:-1]
        same &= _numbers(table, required)[1:] > 0
        if not same.any():
            return table
        repeats = np.concatenate([[False], same])
        self._drop(table, repeats, f"{description.name}: repeats another event", repeats=True)
        return table.filter(pa.array(~repeats))

    def _drop(
        self, table: pa.Table, dropped: Booleans, reason: str, *, repeats: bool = False
    ) -> None:
        """Reports rows that are left out; reads the file again for their positions."""
        times = np.stack([_numbers(table, "start_ns"), _numbers(table, "duration_ns")])
        few = times[:, np.flatnonzero(dropped)[:POSITIONS_KEPT]].T.tolist()
        offsets = self.reader.offsets({(start, duration) for start, duration in few}, repeats)
        self.reader.findings.drop_many(int(dropped.sum()), reason, offsets)


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind == TEXT else kind


def _numbers(table: pa.Table, name: str) -> Integers:
    """A column of integers or of texts' numbers; -1 for null."""
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.DictionaryArray):
        column = column.indices
    values = column.fill_null(-1) if column.null_count else column
    return values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def _shifted(batch: pa.RecordBatch, base_ns: int) -> pa.RecordBatch:
    if not base_ns:
        return batch
    starts = batch.column("start_ns").to_numpy() + base_ns
    return batch.set_column(
        batch.schema.get_field_index("start_ns"), "start_ns", pa.array(starts, pa.int64())
    )


def _named(table: pa.Table, description: TraceTable, texts: pa.Array) -> pa.Table:
    """Replaces the numbers of texts by dictionaries in alphabetical order."""
    order = np.argsort(np.argsort(texts.to_numpy(zero_copy_only=False), kind="stable"))
    alphabetical = texts.take(pa.array(np.argsort(order)))
    for column in description.columns:
        if column.type != TEXT:
            continue
        codes = table.column(column.name).combine_chunks()
        null = codes.is_null().to_numpy(zero_copy_only=False)
        known = order[codes.filter(codes.is_valid()).to_numpy()]
        used, ranked = np.unique(known, return_inverse=True)
        compact = np.zeros(len(codes), dtype=np.int32)
        compact[~null] = ranked
        array = pa.DictionaryArray.from_arrays(
            pa.array(compact, mask=null), alphabetical.take(pa.array(used))
        )
        table = table.set_column(table.column_names.index(column.name), column.name, array)
    return table


def _sorted(description: TraceTable, table: pa.Table) -> pa.Table:
    """Sorts by start; what starts together by the other columns, so that no order is left over."""
    if len(table) < 2:
        return table
    keys = [name for name in reversed(_IDENTITY[description.name]) if name != "start_ns"]
    columns = [_numbers(table, name) for name in keys] + [_numbers(table, "start_ns")]
    return table.take(pa.array(np.lexsort(columns)))


def _described_by_calls(events: pa.Table, calls: pa.Table) -> pa.Table:
    """Fills what ROCm's profiler may say only of the call: bytes of copies, geometry of kernels."""
    columns = ("size_bytes", "shared_memory_bytes", "grid", "block")
    of_calls = _numbers(calls, "correlation")
    described = np.zeros(len(calls), dtype=bool)
    for name in columns:
        described |= calls.column(name).is_valid().to_numpy()
    chosen = np.flatnonzero(described & (of_calls >= 0))
    if not len(chosen) or not len(events):
        return events
    correlations, first = np.unique(of_calls[chosen], return_index=True)
    wanted = _numbers(events, "correlation")
    at = np.minimum(np.searchsorted(correlations, wanted), len(correlations) - 1)
    launches = pa.array(chosen[first][at], mask=correlations[at] != wanted)
    for name in columns:
        own, given = (t.column(name).combine_chunks() for t in (events, calls.take(launches)))
        filled = pc.call_function("coalesce", [own, given])
        index = events.column_names.index(name)
        events = events.set_column(index, events.schema.field(name), filled)
    return events


def _finished(description: TraceTable, table: pa.Table, base_ns: int, rank: int | None) -> pa.Table:
    starts = _numbers(table, "start_ns") - base_ns
    table = table.set_column(
        table.column_names.index("start_ns"), "start_ns", pa.array(starts, pa.int64())
    )
    ranks = pa.array(np.full(len(table), rank or 0, dtype=np.int32))
    ranks = ranks if rank is not None else pa.nulls(len(table), pa.int32())
    return table.add_column(0, "rank", ranks).cast(description.schema)
