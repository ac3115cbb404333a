"""Kineto traces as a measured run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.comparison.replay.records import (
    Call,
    MeasuredRank,
    MeasuredRun,
    Step,
    Wait,
    Work,
    WorkKind,
)
from understudy.traces.kineto import (
    KinetoTrace,
    KinetoTraces,
    read_kineto,
    read_kineto_folder,
)

_KINDS: Mapping[str, WorkKind] = {"kernel": "kernel", "memcpy": "copy", "memset": "memset"}
_PREFIXES = ("cuda", "hip", "cu")
#: Spellings of PyTorch's `record_param_comms` (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
}
_ELEMENT_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
}

_Stream = tuple[int, int]  # device, stream


def read_traces(path: Path) -> KinetoTraces:
    """The traces of a folder, or the one of a file: without a rank in it, rank 0.

    Raises UnderstudyError where there is no trace.
    """
    if not path.is_file():
        return read_kineto_folder(path)
    trace = read_kineto(path)
    if trace.rank is None:
        trace = trace.with_rank(0)
    rank = trace.rank or 0
    world_size = trace.header.world_size
    missing = tuple(other for other in range(world_size or 0) if other != rank)
    return KinetoTraces(
        path.parent, trace.base_ns, {rank: trace}, world_size, missing, trace.problems
    )


def measured_run(traces: KinetoTraces) -> MeasuredRun:
    """The ranks of `traces`; without a world size in them, the ranks that there are."""
    ranks = [
        _measured_rank(rank, trace, trace.base_ns - traces.base_ns)
        for rank, trace in traces.traces.items()
    ]
    return MeasuredRun(ranks, traces.world_size or max(traces.traces, default=0) + 1)


def _measured_rank(rank: int, trace: KinetoTrace, offset_ns: int) -> MeasuredRank:
    devices = _rows(
        trace.device_events,
        ("kind", "name", "device", "stream", "start_ns", "duration_ns", "correlation"),
        ("external_id", "size_bytes", "collective", "in_elements", "out_elements", "dtype"),
        ("group_name", "group_ranks", "grid"),
    )
    keys = {(row["device"] or 0, row["stream"] or 0) for row in devices}
    streams = {key: number for number, key in enumerate(sorted(keys))}
    calls, by_correlation = _calls(trace.host_calls, offset_ns)
    described = _collective_calls(trace.collective_calls)
    works: list[Work] = []
    for row in devices:
        start_ns = row["start_ns"] + offset_ns
        work = Work(
            streams[row["device"] or 0, row["stream"] or 0],
            _KINDS[row["kind"]],
            row["name"],
            start_ns,
            start_ns + row["duration_ns"],
            by_correlation.get(row["correlation"]),
            size_bytes=row["size_bytes"],
            grid=tuple(row["grid"]) if row["grid"] else None,
        )
        if work.call is not None:
            work.call.work.append(work)
        if work.is_collective:
            source = row if row["collective"] else described.get(row["external_id"], row)
            _describe(work, source, trace.header.process_groups)
        works.append(work)
    return MeasuredRank(
        rank, calls, works, _steps(trace.annotations, offset_ns), _waits(trace.syncs, streams)
    )


def _rows(table: pa.Table, *columns: Sequence[str]) -> list[dict[str, Any]]:
    return table.select([name for names in columns for name in names]).to_pylist()


def _calls(table: pa.Table, offset_ns: int) -> tuple[list[Call], dict[int, Call]]:
    """The calls, and those with a correlation by it: of several with the same, the first."""
    calls: list[Call] = []
    by_correlation: dict[int, Call] = {}
    columns = ("process", "thread", "name", "start_ns", "duration_ns", "correlation")
    for row in _rows(table, columns):
        name: str = row["name"]
        prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
        start_ns = row["start_ns"] + offset_ns
        correlation = row["correlation"]
        call = Call(
            f"{row['process']}:{row['thread']}",
            name.removeprefix(prefix),
            start_ns,
            start_ns + row["duration_ns"],
            -1 if correlation is None else correlation,
        )
        calls.append(call)
        if correlation is not None:
            by_correlation.setdefault(correlation, call)
    return calls, by_correlation


def _collective_calls(table: pa.Table) -> dict[int, dict[str, Any]]:
    """What PyTorch recorded of each collective, by the external id that its kernel carries."""
    columns = ("external_id", "collective", "in_elements", "out_elements", "dtype")
    rows = _rows(table, columns, ("group_name", "group_ranks"))
    return {row["external_id"]: row for row in rows if row["external_id"] is not None}


def _describe(
    work: Work, row: Mapping[str, Any], process_groups: Mapping[str, tuple[int, ...]]
) -> None:
    name: str = row["collective"] or ""
    work.collective = COLLECTIVES.get(name, name)
    work.communicator = row["group_name"] or ""
    work.members = process_groups.get(work.communicator, ()) or _ranks(row["group_ranks"])
    elements = max(row["in_elements"] or 0, row["out_elements"] or 0)
    size = _ELEMENT_BYTES.get(row["dtype"] or "")
    if name and size is not None:
        work.size_bytes = elements * size


def _ranks(text: str | None) -> tuple[int, ...]:
    """Ranks of a process group as written, `[0, 1, 2]`; none of a list that was cut."""
    if not text or "..." in text:
        return ()
    return tuple(int(rank) for rank in text.strip("[] ").split(",") if rank.strip().isdigit())


def _steps(table: pa.Table, offset_ns: int) -> list[Step]:
    rows = _rows(table, ("side", "step", "name", "start_ns", "duration_ns"))
    return [
        Step(
            row["name"],
            row["start_ns"] + offset_ns,
            row["start_ns"] + offset_ns + row["duration_ns"],
        )
        for row in rows
        if row["side"] == "host" and row["step"] is not None
    ]


def _waits(table: pa.Table, streams: Mapping[_Stream, int]) -> dict[int, Wait]:
    columns = ("kind", "device", "stream", "correlation", "wait_on_stream", "wait_on_correlation")
    waits: dict[int, Wait] = {}
    for row in _rows(table, columns):
        source = row["stream"] if row["kind"] == "stream_sync" else row["wait_on_stream"]
        known = streams.get((row["device"] or 0, source)) if source is not None else None
        if row["correlation"] is not None and known is not None:
            waits[row["correlation"]] = Wait(known, row["wait_on_correlation"])
    return waits
