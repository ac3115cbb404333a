"""Reads Kineto traces into tables: one file, or a folder with a file a rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from understudy.errors import UnderstudyError
from understudy.traces.kineto.assembly import Assembly
from understudy.traces.kineto.checks import oddities
from understudy.traces.kineto.file_reader import FileReader, joined
from understudy.traces.kineto.records import KinetoTrace, KinetoTraces, Note, Problem

SUFFIXES = (".json", ".json.gz")


def read_kineto(path: Path) -> KinetoTrace:
    """Reads the trace of one rank into memory, some 150 bytes an event that is kept.

    Raises UnderstudyError where the file cannot be read or holds no trace. Whatever else is wrong
    with it is in the trace's `problems`.
    """
    reader = FileReader(path)
    trace = Assembly(reader, list(joined(reader.batches()))).trace()
    return dataclasses.replace(
        trace, problems=(*trace.problems, *(Note(path, *odd) for odd in oddities(trace)))
    )


def read_kineto_folder(folder: Path) -> KinetoTraces:
    """Reads the traces in a folder, a file a rank, in whatever order their names sort.

    Of several files of one rank the one that starts last is taken: a profiler that runs repeatedly
    writes a file each time, and its first runs include warm-up. Raises UnderstudyError where no
    file of the folder holds a trace.
    """
    if not folder.is_dir():
        raise UnderstudyError(f"{folder}: no such folder")
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))
    if not paths:
        raise UnderstudyError(
            f"{folder}: holds no {' or '.join(SUFFIXES)} file (subfolders are not searched)"
        )
    problems: list[Problem] = []
    traces: dict[int, KinetoTrace] = {}
    unplaced: list[KinetoTrace] = []
    for path in paths:
        try:
            trace = read_kineto(path)
        except UnderstudyError as error:
            problems.append(Note(path, str(error).removeprefix(f"{path}: ")))
            continue
        problems += trace.problems
        if trace.rank is None:
            unplaced.append(trace)
        elif (other := traces.get(trace.rank)) is not None:
            kept, left = _later(trace, other)
            problems.append(
                Note(left.path, f"left out: {kept.path.name} is also of rank {trace.rank}")
            )
            traces[trace.rank] = kept
        else:
            traces[trace.rank] = trace
    if len(unplaced) == 1 and not traces:
        problems.append(Note(unplaced[0].path, "the only trace of the folder: taken as rank 0"))
        traces[0] = unplaced.pop().with_rank(0)
    problems += [Note(trace.path, "left out: its rank is unknown") for trace in unplaced]
    if not traces:
        reasons = "; ".join(map(str, problems[:3]))
        raise UnderstudyError(f"{folder}: no file holds a trace whose rank is known: {reasons}")
    return _joined(folder, traces, problems)


def _later(trace: KinetoTrace, other: KinetoTrace) -> tuple[KinetoTrace, KinetoTrace]:
    """The trace that starts later, and the one that starts earlier."""
    return (other, trace) if other.base_ns >= trace.base_ns else (trace, other)


def _joined(
    folder: Path, traces: dict[int, KinetoTrace], problems: Sequence[Problem]
) -> KinetoTraces:
    """Traces by rank with the earliest base of all."""
    base_ns = min(trace.base_ns for trace in traces.values())
    sizes = {trace.header.world_size for trace in traces.values()} - {None}
    world_size = max((size for size in sizes if size is not None), default=None)
    notes = []
    if len(sizes) > 1:
        notes.append(Note(folder, f"files disagree on the world size: {sorted(map(str, sizes))}"))
    missing = tuple(rank for rank in range(world_size or 0) if rank not in traces)
    if missing:
        listed = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        notes.append(Note(folder, f"{len(missing)} of {world_size} ranks have no trace: {listed}"))
    begin_ns, end_ns = _common_window_ns(list(traces.values()))
    if begin_ns > end_ns:
        notes.append(
            Note(
                folder,
                f"the ranks' device events have no moment in common (by {begin_ns - end_ns} ns):"
                " their clocks differ, or they were profiled at different steps",
            )
        )
    return KinetoTraces(
        folder=folder,
        base_ns=base_ns,
        traces={rank: traces[rank].rebased(base_ns) for rank in sorted(traces)},
        world_size=world_size,
        missing_ranks=missing,
        problems=(*problems, *notes),
    )


def _common_window_ns(traces: Sequence[KinetoTrace]) -> tuple[int, int]:
    """When the last rank begins and the first one ends to run device events."""
    begins, ends = [0], [2**63]
    for trace in traces:
        if not len(trace.device_events):
            continue
        starts = trace.device_events.column("start_ns").to_numpy() + trace.base_ns
        durations = trace.device_events.column("duration_ns").to_numpy()
        begins.append(int(starts.min()))
        ends.append(int((starts + durations).max()))
    return max(begins), min(ends)
