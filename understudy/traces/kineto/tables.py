"""The tables that a Kineto trace is read into.

One row is one event that lasts (`"ph": "X"`). Times are integer nanoseconds counted from the
trace's `base_ns`. A null says that the trace does not hold the value. Repeated texts (names,
shapes) are dictionary-encoded. Argument names of the events: pytorch/kineto,
libkineto/include/MetadataFieldCatalog.h; older traces differ in case and spelling.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from warehouse.schemas import Column

TEXT = pa.dictionary(pa.int32(), pa.string())
_INT32 = pa.int32()
_INT64 = pa.int64()
_TRIPLE = pa.list_(pa.int32(), 3)


@dataclass(frozen=True)
class TraceTable:
    """One table: its name and its columns in order."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the table, in memory and on disk."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])


def _optional(name: str, kind: pa.DataType, meaning: str) -> Column:
    return Column(name, kind, meaning, nullable=True)


_RANK = _optional("rank", _INT32, "rank of the process that was profiled")
_START = Column("start_ns", _INT64, "start, counted from the trace's base_ns")
_DURATION = Column("duration_ns", _INT64, "duration")
_EXTERNAL_ID = _optional("external_id", _INT64, "id of the host op that the event belongs to")
_CORRELATION = _optional("correlation", _INT64, "id that a host call shares with what it launched")
_PROCESS = _optional("process", _INT64, "process id; null where the trace gives a text")
_THREAD = _optional("thread", _INT64, "thread id as the profiler names it")

#: What PyTorch records of a collective (`record_param_comms`), on kernels and on host ops.
COLLECTIVE_COLUMNS: tuple[Column, ...] = (
    _optional("collective", TEXT, "'Collective name': allreduce, _allgather_base, send, ..."),
    _optional("in_elements", _INT64, "'In msg nelems': elements that this rank puts in"),
    _optional("out_elements", _INT64, "'Out msg nelems': elements that this rank takes out"),
    _optional("dtype", TEXT, "element type as PyTorch spells it: Float, BFloat16, ..."),
    _optional("group_size", _INT32, "ranks of the process group"),
    _optional("group_name", TEXT, "'Process Group Name'"),
    _optional("group_description", TEXT, "'Process Group Description': default_pg, mesh_dp, ..."),
    _optional("group_ranks", TEXT, "'Process Group Ranks' as written; long lists are cut by '...'"),
    _optional("in_splits", TEXT, "'In split size' as written, of all-to-all"),
    _optional("out_splits", TEXT, "'Out split size' as written, of all-to-all"),
    _optional("source_rank", _INT32, "'Src Rank' of a receive"),
    _optional("destination_rank", _INT32, "'Dst Rank' of a send"),
    _optional("sequence", _INT64, "'Seq': number of the collective in its process group"),
)

DEVICE_EVENTS = TraceTable(
    "device_events",
    "Kernels, copies and memsets as the device ran them.",
    (
        _RANK,
        Column("kind", TEXT, "kernel, memcpy or memset"),
        Column("name", TEXT, "kernel name, demangled; 'Memcpy HtoD (Pinned -> Device)', ..."),
        _optional("device", _INT32, "device index as the process sees it"),
        _optional("stream", _INT64, "stream id; unique within a device of the process"),
        _START,
        _DURATION,
        _CORRELATION,
        _EXTERNAL_ID,
        _optional("grid", _TRIPLE, "blocks in x, y, z"),
        _optional("block", _TRIPLE, "threads of a block in x, y, z"),
        _optional("shared_memory_bytes", _INT64, "static and dynamic shared memory of a block"),
        _optional("registers", _INT32, "registers per thread"),
        _optional("size_bytes", _INT64, "bytes copied or set"),
        _optional("graph_node", _INT64, "node of the CUDA graph that launched it; 0: no graph"),
        *COLLECTIVE_COLUMNS,
    ),
)

HOST_CALLS = TraceTable(
    "host_calls",
    "Calls of the CUDA or HIP runtime and driver.",
    (
        _RANK,
        _PROCESS,
        _THREAD,
        Column("api", TEXT, "runtime or driver"),
        Column("name", TEXT, "cudaLaunchKernel, hipMemcpyWithStream, cuLaunchKernelEx, ..."),
        _START,
        _DURATION,
        _CORRELATION,
        _EXTERNAL_ID,
        _optional("size_bytes", _INT64, "bytes that a copy moves (HIP only)"),
        _optional("shared_memory_bytes", _INT64, "shared memory of the launched kernel (HIP only)"),
        _optional("grid", _TRIPLE, "blocks of the launched kernel (HIP only)"),
        _optional("block", _TRIPLE, "threads of a block of the launched kernel (HIP only)"),
    ),
)

SYNC_KINDS = (
    "event_record",
    "stream_wait_event",
    "event_sync",
    "stream_sync",
    "context_sync",
    "unknown",
)

SYNCS = TraceTable(
    "syncs",
    "Orderings between streams and host. Recorded only where the profiler was asked to"
    " (`enable_cuda_sync_events`).",
    (
        _RANK,
        Column("kind", TEXT, "one of SYNC_KINDS"),
        _optional("device", _INT32, "device index"),
        _optional("stream", _INT64, "stream that waits, is waited for or that records"),
        _START,
        _DURATION,
        _optional("correlation", _INT64, "id of the host call that asked for it"),
        _optional("event", _INT64, "CUDA event"),
        _optional("wait_on_stream", _INT64, "stream on which the event was recorded"),
        _optional(
            "wait_on_correlation", _INT64, "correlation of the cudaEventRecord that is waited for"
        ),
    ),
)

ANNOTATIONS = TraceTable(
    "annotations",
    "Named ranges: `record_function`, optimizer steps, `ProfilerStep#N`; on the device the span of"
    " what a host range launched there.",
    (
        _RANK,
        Column("side", TEXT, "host or device"),
        _PROCESS,
        _optional("thread", _INT64, "thread id; on the device the stream"),
        Column("name", TEXT, "name of the range"),
        _START,
        _DURATION,
        _EXTERNAL_ID,
        _optional("step", _INT64, "N of ProfilerStep#N"),
    ),
)

HOST_OPS = TraceTable(
    "host_ops",
    "PyTorch operators on the host, with shapes where the profiler recorded them.",
    (
        _RANK,
        _PROCESS,
        _THREAD,
        Column("name", TEXT, "aten::mm, autograd::engine::evaluate_function: ..., ..."),
        _START,
        _DURATION,
        _EXTERNAL_ID,
        _optional("sequence_number", _INT64, "pairs a forward op with its backward op"),
        _optional("forward_thread", _INT64, "'Fwd thread id': set on backward ops"),
        _optional("input_dims", TEXT, "'Input Dims' as JSON text: [[16, 512], [512]]"),
        _optional("input_types", TEXT, "'Input type' as JSON text"),
    ),
)

COLLECTIVE_CALLS = TraceTable(
    "collective_calls",
    "Host ops that describe a collective (`record_param_comms`): present also where the kernels"
    " carry no description.",
    (
        _RANK,
        _PROCESS,
        _THREAD,
        Column("name", TEXT, "record_param_comms, or the op that carries the description"),
        _START,
        _DURATION,
        _EXTERNAL_ID,
        *COLLECTIVE_COLUMNS,
    ),
)

TABLES: tuple[TraceTable, ...] = (
    DEVICE_EVENTS,
    HOST_CALLS,
    SYNCS,
    ANNOTATIONS,
    HOST_OPS,
    COLLECTIVE_CALLS,
)
