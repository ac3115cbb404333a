"""One file to batches of rows, in bounded memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.errors import UnderstudyError
from understudy.traces.kineto import metadata
from understudy.traces.kineto.events import Clock, Row, Rows
from understudy.traces.kineto.findings import Findings
from understudy.traces.kineto.records import POSITIONS_KEPT, TraceHeader
from understudy.traces.kineto.scanner import Scanner
from understudy.traces.kineto.source import chunks
from understudy.traces.kineto.tables import TABLES, TEXT, TraceTable
from warehouse.schemas import Column

#: Rows of one batch: its Python objects take some tens of megabytes.
BATCH_ROWS = 1 << 15
JOINED_ROWS = 1 << 17


@dataclass(frozen=True)
class Batch:
    """Rows of one table in the order of the file.

    Against the table's schema: no rank, texts are their numbers, times count from the clock of the
    file, and a column without any value is of Arrow's null type, which takes no memory. Rank, texts
    and clock are complete only when the file has been read.
    """

    table: TraceTable
    #: Which traceEvents array they come from.
    array: int
    columns: pa.RecordBatch


def batch_type(column: Column) -> pa.DataType:
    """Type of a column of batches that has values."""
    return pa.int32() if column.type == TEXT else column.type


_TYPES = {
    table.name: [batch_type(column) for column in table.columns if column.name != "rank"]
    for table in TABLES
}


def joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Joins small batches to large ones, whose columns can be let go one by one.

    Memory of small ones is given back only when their neighbours, the other columns, are gone too.
    """
    waiting: dict[tuple[str, int], list[Batch]] = {}
    for batch in batches:
        parts = waiting.setdefault((batch.table.name, batch.array), [])
        parts.append(batch)
        if sum(len(part.columns) for part in parts) >= JOINED_ROWS:
            yield _join(parts)
            parts.clear()
            pa.default_memory_pool().release_unused()
    yield from (_join(parts) for parts in waiting.values() if parts)


def _join(parts: list[Batch]) -> Batch:
    table = pa.concat_tables(
        [pa.Table.from_batches([part.columns]) for part in parts], promote_options="default"
    )
    (columns,) = table.combine_chunks().to_batches()
    return dataclasses.replace(parts[0], columns=columns)


class FileReader:
    """Reads one file once; everything but the batches is known when `batches()` is exhausted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings = Findings(path)
        self.rows = Rows(self.findings)
        self._scanner = Scanner(chunks(path, self.findings.note), self.findings)
        self._array = 0
        self._documents: metadata.Documents | None = None

    def batches(self) -> Iterator[Batch]:
        """Yields all rows. Raises UnderstudyError where the file cannot be read at all."""
        try:
            for block in self._scanner.blocks():
                if block.array != self._array:
                    yield from self._take(at_least=1)
                    self._array = block.array
                self.rows.add(block)
                yield from self._take(at_least=BATCH_ROWS)
        except OSError as error:
            raise UnderstudyError(f"{self.path}: cannot be read: {error.strerror}") from error
        yield from self._take(at_least=1)
        if not self._scanner.arrays:
            raise UnderstudyError(
                f"{self.path}: holds no traceEvents: not a trace of the PyTorch profiler"
            )
        self._documents = metadata.documents(
            self._scanner.outside,
            len(self._scanner.arrays),
            self.findings,
            cut_off=self._scanner.cut_off,
        )
        if self.rows.clock.in_nanoseconds:
            self.findings.note("times are in nanoseconds", self.rows.clock.in_nanoseconds)
        if self.rows.texts.damaged:
            self.findings.note("names hold bytes that are not text", self.rows.texts.damaged)

    def _take(self, at_least: int) -> Iterator[Batch]:
        for table in TABLES:
            rows: list[Row] = getattr(self.rows, table.name)
            if len(rows) < at_least:
                continue
            columns = [
                pa.nulls(len(values))
                if values.count(None) == len(values)
                else pa.array(values, kind)
                for values, kind in zip(zip(*rows, strict=True), _TYPES[table.name], strict=True)
            ]
            names = [column.name for column in table.columns if column.name != "rank"]
            rows.clear()
            yield Batch(table, self._array, pa.record_batch(columns, names=names))

    def base_ns(self, array: int) -> int:
        """What the times of an array's rows count from."""
        return metadata.base_time_ns(self._document(array))

    def rank_of(self, array: int) -> int | None:
        """The rank that the document of an array names."""
        return metadata.header(self._document(array), {}).rank

    def first_offset(self, array: int) -> int:
        """Where in the file the events of an array begin."""
        return self._scanner.arrays[array]

    def _document(self, array: int) -> dict[str, Any]:
        assert self._documents is not None
        return self._documents.values[self._documents.of_array[array]]

    def offsets(self, times: set[tuple[int, int]], repeats: bool) -> list[int]:
        """Positions in the file of events by absolute start and duration, the first few of them.

        With `repeats` the first event of each time is passed over. Reads the file again.
        """
        found: list[int] = []
        passed: set[tuple[int, int]] = set()
        silent = Findings(self.path)
        clock = Clock()
        for block in Scanner(chunks(self.path, silent.note), silent).blocks():
            base_ns = self.base_ns(block.array)
            for index, event in enumerate(block.events):
                try:
                    start_ns, duration_ns = clock.times_ns(event)
                except ValueError:
                    continue
                time = (start_ns + base_ns, duration_ns)
                if time not in times:
                    continue
                if not repeats or time in passed:
                    found.append(block.offset_of(index))
                    if len(found) == POSITIONS_KEPT:
                        return found
                passed.add(time)
        return found

    def header(self) -> TraceHeader:
        """What the file says about itself; of several documents the first counts, then the next."""
        assert self._documents is not None
        document = {k: v for each in reversed(self._documents.values) for k, v in each.items()}
        header = metadata.header(document, self.rows.group_ranks)
        if header.rank is not None:
            return header
        if self.rows.ranks:
            rank = self.rows.ranks.most_common(1)[0][0]
            return dataclasses.replace(header, rank=rank, rank_source="events")
        rank = metadata.rank_in_name(self.path)
        if rank is None:
            self.findings.note("nothing names the rank: no distributedInfo, no rank in the name")
            return header
        self.findings.note(f"no distributedInfo: rank {rank} was taken from the file's name")
        return dataclasses.replace(header, rank=rank, rank_source="file name")
