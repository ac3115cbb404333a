"""A timeline as traces of torch.profiler (Kineto), one per rank.

All calls of a rank are on one thread, for the simulation has one queue of calls per rank; readers
that follow threads would lose what orders one thread behind another. What a profiler cannot see is
left out: operations that only order others. What the program does not say is filled in: a wait of
a stream names the record of its event, which is put right behind the call of the operation that the
event stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.kernels import element_bytes
from understudy.reporting.operations import Operation, kernel_name
from understudy.reporting.timeline import (
    HOST_WAIT,
    STREAM_WAIT,
    JobView,
    Program,
    RankView,
    call_names,
    iterations,
)
from understudy.traces.kineto_writer import Category, Template, write_kineto

#: Process id of rank 0's host, the others follow: the devices' are 0, 1, ...
_FIRST_PID = 10_000
#: Stream 0 is 7, as in PyTorch's processes; Holistic Trace Analysis takes no stream up to 0.
_FIRST_STREAM = 7
#: Correlation ids of an op's call; those of a record of its event follow all of them.
_FIRST_CORRELATION = 1

#: PyTorch's words in `record_param_comms`, where they are not its own function names.
_COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
}
_DTYPES = {
    "float64": "Double",
    "float32": "Float",
    "bfloat16": "BFloat16",
    "float16": "Half",
    "float8": "Float8_e4m3fn",
    "int64": "Long",
    "int32": "Int",
    "int8": "Char",
    "uint8": "Byte",
}
#: Calls that a profiler sees itself; libraries launch their kernels by the first.
_LAUNCH = "cudaLaunchKernel"
#: How much before its end a call ends in the trace.
_APART_NS = 2
_CUDA = "cuda"


def write(
    folder: Path,
    stem: str,
    view: JobView,
    tables: Mapping[str, pa.Table],
    device_name: str,
    advance: Callable[[], None],
) -> tuple[list[Path], int]:
    """Writes a file for each rank of `view`; returns them and the number of device operations in
    them. `advance` is called after each rank."""
    communicators = tables["communicators"].sort_by("communicator").to_pylist()
    world_size = tables["ranks"].num_rows
    paths, operations = [], 0
    for of_rank in view.ranks:
        row = of_rank.row
        groups = [c for c in communicators if row["rank"] in c["members"]]
        header = {
            "distributedInfo": {
                "backend": "nccl",
                "rank": row["rank"],
                "world_size": world_size,
                "pg_count": len(groups),
                "pg_config": [_process_group(group) for group in groups],
            },
            "schemaVersion": 1,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 0,
            "deviceProperties": [{"id": row["local_rank"], "name": device_name}],
        }
        path = folder / f"{stem}_rank{row['rank']}.json.gz"
        write_kineto(path, header, _events(of_rank, view))
        paths.append(path)
        operations += int((of_rank.operation[of_rank.on_stream] >= 0).sum())
        advance()
    return paths, operations


def _process_group(communicator: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "pg_name": str(communicator["communicator"]),
        "pg_desc": communicator["description"] or communicator["name"],
        "backend_config": "cuda:nccl",
        "pg_size": len(communicator["members"]),
        "ranks": communicator["members"],
    }


def _events(of_rank: RankView, view: JobView) -> Iterator[str]:
    pid, device = _FIRST_PID + of_rank.rank, of_rank.row["local_rank"]
    base_ns = view.base_ns
    for number, begin_ns, end_ns in iterations(of_rank):
        step = Template("user_annotation", f"ProfilerStep#{number}")
        yield step.event(pid, pid, begin_ns - base_ns, end_ns - base_ns)
    yield from _calls(of_rank, view, pid)
    yield from _work(of_rank, view, device)
    yield from _waits(of_rank, base_ns, device)


def _calls(of_rank: RankView, view: JobView, pid: int) -> Iterator[str]:
    template = cache(lambda name: Template("cuda_runtime", name, ["correlation"]))
    times, program, base_ns = of_rank.times, of_rank.program, view.base_ns
    recorded = {int(program.depends_on[op]) for op in _stream_waits(of_rank)}
    called, returned = times.called_ns.tolist(), times.returned_ns.tolist()
    for op, name in zip(of_rank.calls.tolist(), call_names(of_rank, view.operations), strict=True):
        seen = name if name.startswith(_CUDA) else _LAUNCH
        begin_ns, end_ns = called[op] - base_ns, returned[op] - base_ns
        # Readers that nest calls take one that begins where another ends for a part of it.
        end_ns = max(begin_ns, end_ns - _APART_NS)
        yield template(seen).event(pid, pid, begin_ns, end_ns, _FIRST_CORRELATION + op)
        if op in recorded:
            record = template("cudaEventRecord")
            at_ns = end_ns + _APART_NS // 2
            yield record.event(pid, pid, at_ns, at_ns, _record(program, op))


def _record(program: Program, op: int) -> int:
    """Correlation id of the record of the event that stands for an op."""
    return _FIRST_CORRELATION + len(program.kind) + op


def _stream_waits(of_rank: RankView) -> list[int]:
    """Shown waits of streams for ops of the same repetition whose calls are shown."""
    program, calls = of_rank.program, of_rank.calls
    waits = calls[program.kind[calls] == STREAM_WAIT]
    return waits[np.isin(program.depends_on[waits], calls)].tolist()


def _work(of_rank: RankView, view: JobView, device: int) -> Iterator[str]:
    template = cache(lambda number: _template(view.operations[number], device))
    times, program, base_ns = of_rank.times, of_rank.program, view.base_ns
    start, end, stream = times.start_ns.tolist(), times.end_ns.tolist(), program.stream.tolist()
    operation, call = of_rank.operation.tolist(), program.call.tolist()
    for op in of_rank.on_stream.tolist():
        if operation[op] >= 0:
            number = _FIRST_STREAM + stream[op]
            yield template(operation[op]).event(
                device,
                number,
                start[op] - base_ns,
                end[op] - base_ns,
                number,
                _FIRST_CORRELATION + call[op],
            )


def _waits(of_rank: RankView, base_ns: int, device: int) -> Iterator[str]:
    """What the host's and the streams' waits wait for.

    Each is put just before the end of the operation that is waited for. Holistic Trace Analysis
    counts these events as work of the device, and an edge of its graph into a kernel is lost where
    the wait does not come before that kernel.
    """
    program, times = of_rank.program, of_rank.times

    def at_ns(target: int) -> int:
        return int(max(times.start_ns[target], times.end_ns[target] - 1)) - base_ns

    fixed = {"device": device, "context": 1}
    kind = "Stream Wait Event"
    varying = ("stream", "correlation", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
    waiting = Template("cuda_sync", kind, varying, {"cuda_sync_kind": kind, **fixed})
    for op in _stream_waits(of_rank):
        target = int(program.depends_on[op])
        yield waiting.event(
            device,
            stream := _FIRST_STREAM + int(program.stream[op]),
            at_ns(target),
            at_ns(target),
            stream,
            _FIRST_CORRELATION + op,
            _FIRST_STREAM + int(program.stream[target]),
            _record(program, target),
        )
    kind = "Stream Sync"
    varying = ("stream", "correlation")
    synchronized = Template("cuda_sync", kind, varying, {"cuda_sync_kind": kind, **fixed})
    for op in of_rank.calls[program.kind[of_rank.calls] == HOST_WAIT].tolist():
        target = int(program.depends_on[op])
        if target >= 0:
            yield synchronized.event(
                device,
                stream := _FIRST_STREAM + int(program.stream[target]),
                at_ns(target),
                at_ns(target),
                stream,
                _FIRST_CORRELATION + op,
            )


def _template(operation: Operation, device: int) -> Template:
    row = operation.signature
    args: dict[str, object] = {"device": device, "context": 1}
    if row["grid"] is not None:
        args |= {
            "grid": row["grid"],
            "block": row["block"],
            "registers per thread": row["registers"],
            "shared memory": row["shared_memory_bytes"],
        }
    category: Category = "kernel"
    if operation.activity == "copy":
        category = "gpu_memset" if row["family"] == "memset" else "gpu_memcpy"
        args["bytes"] = operation.size_bytes
    if operation.parts:
        args |= _collective_args(operation)
    args["estimate_source"] = operation.prediction["estimate_source"]
    return Template(category, kernel_name(operation), ("stream", "correlation"), args)


def _collective_args(operation: Operation) -> dict[str, object]:
    """What PyTorch says of a collective; of a group of sends and receives that of its first."""
    part = operation.parts[0]
    count = part.size_bytes // element_bytes(part.dtype)
    ranks = len(part.members)
    gathers, scatters = part.kind == "all_gather", part.kind == "reduce_scatter"
    of_each = part.kind == "all_to_all"
    args: dict[str, object] = {
        "Collective name": _COLLECTIVES.get(part.kind, part.kind),
        "In msg nelems": count * (ranks if scatters or of_each else 1),
        "Out msg nelems": count * (ranks if gathers or of_each else 1),
        "Group size": ranks,
        "dtype": _DTYPES.get(part.dtype, part.dtype),
        "Process Group Name": str(part.communicator),
        "Process Group Description": part.description,
        "Process Group Ranks": str(list(part.members)),
        "Seq": part.sequence,
    }
    if part.kind == "recv":
        args["Src Rank"] = part.peer
    if part.kind == "send":
        args["Dst Rank"] = part.peer
    return args
