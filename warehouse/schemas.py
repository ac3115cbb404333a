"""Every table of the warehouse: the one place where columns, types, units and meanings are stated.

Writers cast to these schemas and fail loudly; the DuckDB views, Dagster's column metadata and the
documentation are generated from them. Units stand in column names; time is integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

SCHEMA_VERSION = "1"

Stage = Literal["profiling", "forests", "emulation", "merging", "simulation", "comparison"]
Partition = Literal["device", "device_job"]

#: Stages in the order in which data flows.
STAGES: tuple[Stage, ...] = (
    "profiling",
    "forests",
    "emulation",
    "merging",
    "simulation",
    "comparison",
)


@dataclass(frozen=True)
class Column:
    """One column: its name (with the unit), its Arrow type and its meaning."""

    name: str
    type: pa.DataType
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """One table. `stages` lists who writes it; a table of two stages exists once for each."""

    name: str
    meaning: str
    partition: Partition
    stages: tuple[Stage, ...]
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the files (the hive keys `device` and `job` are folders, not columns)."""
        return pa.schema(
            [pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns],
            metadata={"understudy.table": self.name, "understudy.schema_version": SCHEMA_VERSION},
        )


_STRING = pa.string()
_INT64 = pa.int64()
_INT32 = pa.int32()
_FLOAT = pa.float64()
_BOOL = pa.bool_()
_FEATURES = pa.map_(pa.string(), pa.float64())
_TRIPLE = pa.list_(pa.int32(), 3)

#: What an op does in replay (see understudy/simulation): `host` only takes host time; `device`
#: runs on its stream; `stream_wait` makes its stream wait for op `depends_on`; `join` is a
#: collective or a fused group of sends and receives; `host_wait` blocks the host until
#: `depends_on` has ended (with `depends_on` null: until the stream's last op has ended).
OP_KINDS = ("host", "device", "stream_wait", "join", "host_wait")

#: Where a predicted duration comes from, best first.
ESTIMATE_SOURCES = ("measured", "transferred", "law")

#: What device memory holds, by understudy/emulation/memory_categories.py: blocks that tensors lie
#: in. The rest of device memory in use: `unused` (reserved by PyTorch's allocator), `libraries`
#: (NCCL's buffers) and `context` (CUDA's own).
MEMORY_CATEGORIES = (
    "parameters",
    "gathered_parameters",
    "optimizer_state",
    "gradients",
    "activations",
    "temporaries",
    "communication",
    "cublas_workspaces",
    "cudnn_workspaces",
    "other",
)
MEMORY_REST = ("unused", "libraries", "context")

_TRACE_STAGES: tuple[Stage, ...] = ("emulation", "merging")

KERNEL_PROFILES = Table(
    "kernel_profiles",
    "Measured kernel durations of one device.",
    "device",
    ("profiling",),
    (
        Column("family", _STRING, "kernel family, as in understudy/kernels"),
        Column("features", _FEATURES, "the family's features by name"),
        Column("dtype", _STRING, "element type: bfloat16, float16, float32, ..."),
        Column("kernel_version", _STRING, "implementation that ran: library or kernel generation"),
        Column("duration_ns", _INT64, "measured duration of one call"),
        Column("launch_included", _BOOL, "whether host launch overhead is part of duration_ns"),
        Column("source", _STRING, "data set the row was read from"),
        Column("licence", _STRING, "SPDX identifier of the data set's licence"),
        Column("drop", _STRING, "drop that brought the row; empty for packaged data"),
    ),
)

COLLECTIVE_PROFILES = Table(
    "collective_profiles",
    "Measured NCCL durations of one device.",
    "device",
    ("profiling",),
    (
        Column("interconnect", _STRING, "fabric between the ranks: nvlink, pcie, ..."),
        Column("kind", _STRING, "all_reduce, all_gather, reduce_scatter, all_to_all, ..."),
        Column("dtype", _STRING, "element type"),
        Column("ranks", _INT32, "members of the communicator"),
        Column("nodes", _INT32, "nodes they are spread over"),
        Column("size_bytes", _INT64, "nccl-tests size: the larger of send and receive buffer"),
        Column("duration_ns", _INT64, "measured duration"),
        Column("source", _STRING, "data set the row was read from"),
        Column("licence", _STRING, "SPDX identifier of the data set's licence"),
        Column("drop", _STRING, "drop that brought the row; empty for packaged data"),
    ),
)

FOREST_ERRORS = Table(
    "forest_errors",
    "Held-out error of each forest.",
    "device",
    ("forests",),
    (
        Column("family", _STRING, "kernel family"),
        Column("dtype", _STRING, "element type"),
        Column("split", _STRING, "how rows were held out: random, shapes"),
        Column("rows", _INT64, "held-out rows scored"),
        Column("mape", _FLOAT, "mean of |predicted / measured - 1|"),
        Column("median", _FLOAT, "median of |predicted / measured - 1|"),
        Column("p90", _FLOAT, "90th percentile of |predicted / measured - 1|"),
        Column("bias", _FLOAT, "median of predicted / measured - 1; negative: predicted too fast"),
        Column("coverage90", _FLOAT, "fraction of held-out rows inside the 90 % interval"),
    ),
)

EVENTS = Table(
    "events",
    "Programs: what each asks of host, streams and communicators, one row per op in program order. "
    "A program is the span of iterations that repeats.",
    "device_job",
    _TRACE_STAGES,
    (
        Column("program", _INT32, "program the op belongs to"),
        Column("op", _INT32, "position in the program, from 0"),
        Column("iteration", _INT32, "iteration of the span, from 0"),
        Column("kind", _STRING, "host, device, stream_wait, join or host_wait"),
        Column("stream", _INT32, "stream number in the rank; -1 for host ops"),
        Column("signature", _INT32, "row of `signatures`; null for pure ordering", nullable=True),
        Column(
            "depends_on",
            _INT32,
            "op that is waited for; -k is the k-th last op of the previous repetition of the "
            "program; null: none",
            nullable=True,
        ),
        Column("thread", _INT32, "host thread, numbered by first appearance"),
        Column(
            "graph",
            _INT32,
            "CUDA graph (number of its capture) that a host op launches, or that another op is a "
            "node of: it makes no call of its own; null: none",
            nullable=True,
        ),
    ),
)

HOST_GAPS = Table(
    "host_gaps",
    "Measured host time before each op: from the return of the previous call to the op's call.",
    "device_job",
    _TRACE_STAGES,
    (
        Column("program", _INT32, "program the op belongs to"),
        Column("op", _INT32, "position in the program"),
        Column("gap_ns", _INT64, "median over the recorded iterations"),
        Column("spread_ns", _INT64, "interquartile range over the recorded iterations"),
    ),
)

SIGNATURES = Table(
    "signatures",
    "Distinct device operations: everything that decides how long one takes.",
    "device_job",
    _TRACE_STAGES,
    (
        Column("signature", _INT32, "row number, from 0"),
        Column("api", _STRING, "CUDA, cuBLAS, cuDNN or NCCL function"),
        Column("name", _STRING, "demangled kernel name, or the library operation"),
        Column("family", _STRING, "kernel family, as in understudy/kernels"),
        Column("grid", _TRIPLE, "blocks in x, y, z; null for library calls", nullable=True),
        Column("block", _TRIPLE, "threads in x, y, z; null for library calls", nullable=True),
        Column("shared_memory_bytes", _INT32, "static plus dynamic, per block"),
        Column("registers", _INT32, "per thread; 0: not known"),
        Column("dtype", _STRING, "element type"),
        Column("kernel_version", _STRING, "implementation: cublas, cudnn, flash2, ..."),
        Column("features", _FEATURES, "the family's features by name"),
        Column("tensor_bytes", _INT64, "bytes of the tensors that the operation touches"),
    ),
)

COLLECTIVE_PARTS = Table(
    "collective_parts",
    "What a join op does on each communicator: one collective, or the sends and receives of a "
    "group.",
    "device_job",
    _TRACE_STAGES,
    (
        Column("program", _INT32, "program the join belongs to"),
        Column("group", _INT32, "op of the join"),
        Column("part", _INT32, "position in the group, from 0"),
        Column(
            "kind",
            _STRING,
            "all_reduce, ..., send, recv; communicator_init, _split, _finalize, _destroy, for "
            "which the host waits",
        ),
        Column("communicator_local", _INT32, "communicator number in the rank"),
        Column("peer", _INT32, "rank in the communicator; -1 for collectives"),
        Column("sequence", _INT64, "calls on this communicator before this one, in the span"),
        Column("size_bytes", _INT64, "bytes of the count argument"),
        Column("dtype", _STRING, "element type"),
        Column("reduce_op", _STRING, "sum, avg, ...; empty when it has none", nullable=False),
        Column("root", _INT32, "rank in the communicator; -1: none"),
    ),
)

COMMUNICATORS = Table(
    "communicators",
    "Communicators of the job.",
    "device_job",
    _TRACE_STAGES,
    (
        Column("communicator", _INT32, "number, by lowest member and its order of creation"),
        Column("parent", _INT32, "communicator it was split from; null: none", nullable=True),
        Column("name", _STRING, "process group name, where known"),
        Column("description", _STRING, "process group description, where known"),
        Column("members", pa.list_(_INT32), "global ranks in communicator order"),
    ),
)

RANKS = Table(
    "ranks",
    "Ranks of the job, the program each runs and how its emulation ended.",
    "device_job",
    _TRACE_STAGES,
    (
        Column("rank", _INT32, "global rank"),
        Column("program", _INT32, "program it runs"),
        Column("node", _INT32, "node it runs on"),
        Column("local_rank", _INT32, "rank on the node"),
        Column(
            "communicator_map",
            pa.map_(pa.int32(), pa.int32()),
            "communicator number in the rank -> communicator of the job",
        ),
        Column("iterations", _INT32, "iterations recorded; 0: the whole run is one"),
        Column("span_iterations", _INT32, "iterations in one repetition of the program"),
        Column("iterations_seen", _INT32, "iterations that ended before the rank did"),
        Column("iteration_source", _STRING, "what ends an iteration; 'whole run': nothing does"),
        Column("trace_events", _INT64, "API calls recorded by the interceptor"),
        Column("peak_allocated_bytes", _INT64, "peak of PyTorch's allocated memory"),
        Column("peak_reserved_bytes", _INT64, "peak of the memory that PyTorch's allocator holds"),
        Column("peak_device_bytes", _INT64, "peak of device memory in use, context included"),
        Column("peak_iteration", _INT32, "iteration in which device memory was fullest", True),
        Column(
            "peak_parts_bytes",
            pa.map_(pa.string(), pa.int64()),
            "what device memory held then, by MEMORY_CATEGORIES and MEMORY_REST; sums to "
            "peak_device_bytes",
            True,
        ),
        Column("oom_iteration", _INT32, "iteration in which memory ran out", nullable=True),
        Column("oom_requested_bytes", _INT64, "request that did not fit", nullable=True),
    ),
)

MEMORY_TIMELINE = Table(
    "memory_timeline",
    "Device memory of each rank, one row per change of the allocator, over the whole trace.",
    "device_job",
    _TRACE_STAGES,
    (
        Column("rank", _INT32, "global rank"),
        Column("step", _INT32, "position in the rank's sequence of changes, from 0"),
        Column("iteration", _INT32, "iteration of the script, from 0; set-up belongs to the first"),
        Column(
            "op",
            _INT32,
            "op of the rank's program that the host calls next; null: not in the program's span",
            nullable=True,
        ),
        Column(
            "category",
            _STRING,
            "what changed: a block of one of MEMORY_CATEGORIES, a segment of the allocator, or a "
            "library's memory (NCCL's buffers)",
        ),
        Column("change_bytes", _INT64, "bytes allocated, negative when freed"),
        Column("allocated_bytes", _INT64, "allocated tensors after the change"),
        Column("reserved_bytes", _INT64, "segments held by the allocator after the change"),
        Column("device_bytes", _INT64, "device memory in use after it, context included"),
    ),
)

PREDICTED_KERNELS = Table(
    "predicted_kernels",
    "Predicted duration of every signature; launch_count is over one iteration of all ranks.",
    "device_job",
    ("simulation",),
    (
        Column("signature", _INT32, "row of `signatures`"),
        Column("name", _STRING, "kernel or operation"),
        Column("family", _STRING, "kernel family"),
        Column("dtype", _STRING, "element type"),
        Column("launch_count", _INT64, "launches in one span of all ranks"),
        Column("duration_ns", _INT64, "predicted duration of one launch"),
        Column("low_ns", _INT64, "lower end of the 90 % interval"),
        Column("high_ns", _INT64, "upper end of the 90 % interval"),
        Column("roofline_ns", _INT64, "time at the device's peak compute or memory bandwidth"),
        Column("flops", _FLOAT, "floating point operations of one launch"),
        Column("estimate_source", _STRING, "measured, transferred or law"),
        Column("extrapolated", _BOOL, "whether the shape lies outside the measured range"),
    ),
)

SIMULATED_EVENTS = Table(
    "simulated_events",
    "Start and end of every device op in the last simulated repetition of each rank's program.",
    "device_job",
    ("simulation",),
    (
        Column("rank", _INT32, "global rank"),
        Column("op", _INT32, "position in the rank's program"),
        Column("stream", _INT32, "stream number in the rank"),
        Column("start_ns", _INT64, "start, from the first op of the repetition of all ranks"),
        Column("end_ns", _INT64, "end"),
    ),
)

_BREAKDOWN = pa.struct(
    [
        pa.field("compute", _INT64, nullable=False),
        pa.field("exposed_communication", _INT64, nullable=False),
        pa.field("host_idle", _INT64, nullable=False),
        pa.field("communication", _INT64, nullable=False),
    ]
)

SIMULATED_RUNTIMES = Table(
    "simulated_runtimes",
    "The prediction: one row per job and device.",
    "device_job",
    ("simulation",),
    (
        Column("world_size", _INT32, "ranks of the job"),
        Column("fits", _BOOL, "whether every rank's memory fits"),
        Column("iteration_time_ns", _INT64, "time of one iteration; null: out of memory", True),
        Column("low_ns", _INT64, "lower end of the 90 % interval", True),
        Column("high_ns", _INT64, "upper end of the 90 % interval", True),
        Column("iterations", _INT32, "iterations that the prediction rests on"),
        Column("slowest_rank", _INT32, "rank that the breakdown describes", True),
        Column(
            "breakdown_ns",
            _BREAKDOWN,
            "per iteration of the slowest rank; compute, exposed_communication and host_idle sum "
            "to the iteration time",
            True,
        ),
        Column(
            "ranks",
            pa.list_(
                pa.struct(
                    [
                        pa.field("rank", _INT32, nullable=False),
                        pa.field("iteration_time_ns", _INT64, nullable=False),
                        pa.field("breakdown_ns", _BREAKDOWN, nullable=False),
                        pa.field("peak_memory_bytes", _INT64, nullable=False),
                    ]
                )
            ),
            "the same of every rank",
        ),
        Column("peak_memory_bytes", pa.list_(_INT64), "peak device memory in use, by rank"),
        Column("capacity_bytes", _INT64, "memory of the device"),
        Column("oom_rank", _INT32, "first rank that ran out of memory", True),
        Column("oom_iteration", _INT32, "its iteration", True),
        Column("oom_requested_bytes", _INT64, "its request", True),
        Column("flops_per_iteration", _FLOAT, "of all ranks, as launched (recomputation included)"),
        Column("peak_flops", _FLOAT, "dense peak of one device for the dominant GEMM type"),
        Column("coverage_measured", _FLOAT, "fraction of predicted device time", True),
        Column("coverage_transferred", _FLOAT, "fraction of predicted device time", True),
        Column("coverage_law", _FLOAT, "fraction of predicted device time", True),
        Column("trace_events", _INT64, "API calls recorded, all ranks"),
        Column("versions", pa.map_(_STRING, _STRING), "what made the number"),
        Column("warnings", pa.list_(_STRING), "what a reader should know"),
    ),
)

RUNTIME_ERRORS = Table(
    "runtime_errors",
    "Predicted against measured time: of the iteration, and of each operation where a trace was "
    "measured.",
    "device_job",
    ("comparison",),
    (
        Column("scope", _STRING, "step, kernel or collective"),
        Column("key", _STRING, "what was compared: iteration, or the name of the operation"),
        Column("rank", _INT32, "global rank; null: all", nullable=True),
        Column("op", _INT32, "op of the rank's program; null: none is it", nullable=True),
        Column("family", _STRING, "kernel family; empty for a step", nullable=False),
        Column("measured_ns", _INT64, "measured duration; null: not in the trace", nullable=True),
        Column("simulated_ns", _INT64, "predicted duration; null: not predicted", nullable=True),
        Column("error", _FLOAT, "simulated / measured - 1; null: not both", nullable=True),
    ),
)

TABLES: tuple[Table, ...] = (
    KERNEL_PROFILES,
    COLLECTIVE_PROFILES,
    FOREST_ERRORS,
    EVENTS,
    HOST_GAPS,
    SIGNATURES,
    COLLECTIVE_PARTS,
    COMMUNICATORS,
    RANKS,
    MEMORY_TIMELINE,
    PREDICTED_KERNELS,
    SIMULATED_EVENTS,
    SIMULATED_RUNTIMES,
    RUNTIME_ERRORS,
)


def table(name: str) -> Table:
    """The table called `name`; raises KeyError."""
    return {t.name: t for t in TABLES}[name]


def stage_tables(stage: Stage) -> tuple[Table, ...]:
    """The tables that `stage` writes, in the order of TABLES."""
    return tuple(t for t in TABLES if stage in t.stages)
