"""Reads the trace that the interceptor writes for one rank.

The format is owned by interceptor_c/include/trace_format.h; the numpy types here mirror it and a
test compares the two. Nothing is interpreted: what the records mean for a replay is the business of
understudy/emulation.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from understudy.errors import UnderstudyError

RECORDS_MAGIC = 0x3143455254535255
DEFINITIONS_MAGIC = 0x3146454454535255
FORMAT_VERSION = 1
HEADER_BYTES = 4096

STREAM_LEGACY = 0
STREAM_PER_THREAD = 1

FLAG_BLOCKING = 1
FLAG_PINNED = 2
FLAG_POOL = 4
FLAG_NOT_READY = 8
FLAG_EXTERNAL = 16


class Api(IntEnum):
    """enum us_api: what a record is."""

    NONE = 0
    LAUNCH_KERNEL = 1
    GEMM = 2
    DNN = 3
    MEMCPY = 4
    MEMSET = 5
    GRAPH_LAUNCH = 6
    LIBRARY = 7
    COLLECTIVE = 10
    SEND = 11
    RECV = 12
    GROUP_START = 13
    GROUP_END = 14
    COMMUNICATOR_INIT = 15
    COMMUNICATOR_SPLIT = 16
    COMMUNICATOR_DESTROY = 17
    COMMUNICATOR_FINALIZE = 18
    COMMUNICATOR_ABORT = 19
    EVENT_RECORD = 20
    STREAM_WAIT_EVENT = 21
    EVENT_SYNCHRONIZE = 22
    STREAM_SYNCHRONIZE = 23
    DEVICE_SYNCHRONIZE = 24
    EVENT_QUERY = 25
    STREAM_QUERY = 26
    EVENT_CREATE = 27
    EVENT_DESTROY = 28
    STREAM_CREATE = 29
    STREAM_DESTROY = 30
    EVENT_ELAPSED_TIME = 31
    HOST_FUNCTION = 32
    CAPTURE_BEGIN = 33
    CAPTURE_END = 34
    MALLOC = 40
    FREE = 41
    HOST_ALLOC = 42
    HOST_FREE = 43
    TENSOR_ALLOC = 44
    TENSOR_FREE = 45
    OUT_OF_MEMORY = 46
    LIBRARY_MEMORY = 47
    MEMORY_ROLE = 48
    MEMORY_PEAKS = 49
    ITERATION = 50
    UNSUPPORTED = 51
    ANNOTATION = 52


class CopyKind(IntEnum):
    """enum us_copy_kind."""

    H2H = 0
    H2D = 1
    D2H = 2
    D2D = 3


class MemoryRole(IntEnum):
    """enum us_memory_role."""

    PARAMETER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    GATHERED_PARAMETER = 4
    CUBLAS_WORKSPACE = 5


#: enum us_collective_kind, by number.
COLLECTIVE_KINDS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
)

#: ncclRedOp_t, by number (nccl.h); the last is what ncclRedOpCreatePreMulSum makes.
REDUCE_OPS = ("sum", "prod", "max", "min", "avg", "premul_sum")

#: ncclDataType_t, by number (nccl.h).
NCCL_DTYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3",
    "float8_e5m2",
)

HEADER = np.dtype(
    [
        ("magic", "<u8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("used_bytes", "<u8"),
        ("entries", "<u8"),
        ("entry_bytes", "<u4"),
        ("pid", "<u4"),
        ("lost_entries", "<u8"),
        ("rank", "<i4"),
        ("world_size", "<i4"),
        ("compute_capability", "<u4"),
        ("closed", "<u4"),
        ("memory_bytes", "<u8"),
        ("build_id", "S64"),
        ("device", "S64"),
        ("overhead_ns", "<u8"),
    ]
)

RECORD = np.dtype(
    [
        ("begin_ns", "<u8"),
        ("inside_ns", "<u4"),
        ("api", "<u2"),
        ("thread", "<u2"),
        ("stream", "<u4"),
        ("definition", "<u4"),
        ("a", "<u8"),
        ("b", "<u8"),
        ("c", "<u8"),
        ("d", "<u8"),
        ("device", "<u4"),
        ("flags", "<u4"),
    ]
)

THREAD, STREAM, KERNEL, LAUNCH, GEMM, DNN, COMMUNICATOR, TEXT, LIBRARY = range(1, 10)

ENTRY = struct.Struct("<IIII")
THREAD_PAYLOAD = struct.Struct("<II16s")
STREAM_PAYLOAD = struct.Struct("<IIiI")
KERNEL_PAYLOAD = struct.Struct("<IIII")
PARAMETER = struct.Struct("<II")
LAUNCH_PAYLOAD = struct.Struct("<I3I3III3I")
GEMM_PAYLOAD = struct.Struct("<12q8i32s")
DNN_PAYLOAD = struct.Struct("<II")
DNN_OPERATION = struct.Struct("<IIIIi3i3i3i")
DNN_TENSOR = struct.Struct("<IIIIq8q8q")
LIBRARY_PAYLOAD = struct.Struct("<48siI")
LIBRARY_VALUE = struct.Struct("<16sq")
COMMUNICATOR_PAYLOAD = struct.Struct("<2QiiIiiI")


@dataclass(frozen=True)
class ThreadDefinition:
    """A host thread. `name` is as the kernel truncates it: 15 characters."""

    id: int
    os_thread: int
    is_main: bool
    name: str


@dataclass(frozen=True)
class StreamDefinition:
    """A stream that the program created."""

    id: int
    device: int
    non_blocking: bool
    priority: int


@dataclass(frozen=True)
class KernelDefinition:
    """A kernel; `parameters` are (offset_bytes, size_bytes) in a launch's arguments."""

    id: int
    registers: int
    static_shared_bytes: int
    parameters: tuple[tuple[int, int], ...]
    name: str


@dataclass(frozen=True)
class LaunchDefinition:
    """A distinct launch: kernel, shape and argument values."""

    id: int
    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    cluster: tuple[int, int, int]
    arguments: bytes


@dataclass(frozen=True)
class GemmDefinition:
    """A matrix product, column-major as cuBLAS has it: C[m,n] = op(A)[m,k] op(B)[k,n].

    Strides are in elements, 0 when the call is not strided-batched; types are cudaDataType_t,
    transposes cublasOperation_t (0 N, 1 T, 2 C).
    """

    id: int
    m: int
    n: int
    k: int
    batch: int
    lda: int
    ldb: int
    ldc: int
    ldd: int
    stride_a: int
    stride_b: int
    stride_c: int
    stride_d: int
    transpose_a: int
    transpose_b: int
    type_a: int
    type_b: int
    type_c: int
    type_d: int
    compute_type: int
    epilogue: int
    api: str


@dataclass(frozen=True)
class DnnOperation:
    """One operation of a cuDNN graph. `spatial` arrays are only meaningful up to spatial_dims."""

    type: int
    mode: int
    first_tensor: int
    tensor_count: int
    spatial_dims: int
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]


@dataclass(frozen=True)
class DnnTensor:
    """A tensor of a cuDNN graph; `attribute` is the operation's attribute that holds it."""

    attribute: int
    type: int
    is_virtual: bool
    unique_id: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class DnnDefinition:
    """An executed cuDNN operation graph."""

    id: int
    operations: tuple[DnnOperation, ...]
    tensors: tuple[DnnTensor, ...]


@dataclass(frozen=True)
class LibraryDefinition:
    """A call of cuSOLVER, cuFFT, cuSPARSE, ...: `type` is a cudaDataType_t, -1 without one;
    `values` are named as in the library's documentation, in the order of its signature."""

    id: int
    api: str
    type: int
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class CommunicatorDefinition:
    """An NCCL communicator. `unique_id` is equal on every member; `size` is -1 for a split child;
    `parent` is the definition id it was split from, 0 for none; `description` may be empty."""

    id: int
    unique_id: tuple[int, int]
    rank: int
    size: int
    parent: int
    color: int
    key: int
    device: int
    description: str


@dataclass(frozen=True, eq=False)
class RankTrace:
    """The trace of one rank: `records` has dtype RECORD, definitions are keyed by id."""

    stem: Path
    rank: int
    world_size: int
    pid: int
    device: str
    compute_capability: int
    memory_bytes: int
    build_id: str
    overhead_ns: int
    closed: bool
    records: np.ndarray
    threads: dict[int, ThreadDefinition]
    streams: dict[int, StreamDefinition]
    kernels: dict[int, KernelDefinition]
    launches: dict[int, LaunchDefinition]
    gemms: dict[int, GemmDefinition]
    dnns: dict[int, DnnDefinition]
    libraries: dict[int, LibraryDefinition]
    communicators: dict[int, CommunicatorDefinition]
    texts: dict[int, str]


def _damaged(path: Path, offset: int, what: str) -> UnderstudyError:
    return UnderstudyError(
        f"{path}: {what} at offset {offset}; the trace is damaged, emulate again"
    )


def _read(path: Path, magic: int, entry_bytes: int) -> tuple[np.void, np.ndarray]:
    """Header (dtype HEADER) and the file's bytes up to `used_bytes`."""
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise UnderstudyError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) < HEADER_BYTES:
        raise _damaged(path, len(data), f"file ends inside its header of {HEADER_BYTES} bytes")
    header = data[: HEADER.itemsize].view(HEADER)[0]
    if header["magic"] != magic:
        raise _damaged(path, 0, f"wrong magic number {int(header['magic']):#x}")
    if header["version"] != FORMAT_VERSION:
        raise UnderstudyError(
            f"{path}: trace format {header['version']}, this version reads {FORMAT_VERSION}; "
            "build the interceptor again (make setup) and emulate again"
        )
    if header["header_bytes"] != HEADER_BYTES or header["entry_bytes"] != entry_bytes:
        raise _damaged(path, 12, "impossible header or entry size")
    used = int(header["used_bytes"])
    if not HEADER_BYTES <= used <= len(data):
        raise _damaged(path, 16, f"{used} bytes used, the file has {len(data)}")
    if header["lost_entries"]:
        raise UnderstudyError(
            f"{path}: {header['lost_entries']} entries could not be written, the disk is full; "
            "free space there (or set UNDERSTUDY_HOME to a larger disk) and emulate again"
        )
    return header, data[:used]


def _records(path: Path) -> tuple[np.void, np.ndarray]:
    header, data = _read(path, RECORDS_MAGIC, RECORD.itemsize)
    entries = int(header["entries"])
    if len(data) != HEADER_BYTES + entries * RECORD.itemsize:
        raise _damaged(path, 24, f"{entries} records do not fill {len(data)} bytes")
    records = data[HEADER_BYTES:].view(RECORD)
    unknown = ~np.isin(records["api"], np.array([int(a) for a in Api], np.uint16))
    if unknown.any():
        first = int(np.argmax(unknown))
        offset = HEADER_BYTES + first * RECORD.itemsize
        raise _damaged(path, offset, f"record with unknown api {records['api'][first]}")
    return header, records


def _entries(path: Path, data: bytes, count: int) -> Iterator[tuple[int, int, int, memoryview]]:
    """(offset, kind, id, payload) of each definition."""
    position, view = HEADER_BYTES, memoryview(data)
    for _ in range(count):
        if position + ENTRY.size > len(data):
            raise _damaged(path, position, "definition beyond the end")
        size, kind, identifier, payload = ENTRY.unpack_from(data, position)
        if (
            size % 8
            or size < ENTRY.size
            or payload > size - ENTRY.size
            or position + size > len(data)
        ):
            raise _damaged(path, position, "definition with impossible sizes")
        start = position + ENTRY.size
        yield position, kind, identifier, view[start : start + payload]
        position += size
    if position != len(data):
        raise _damaged(path, position, "bytes after the last definition")


def _text(raw: bytes | memoryview) -> str:
    return bytes(raw).split(b"\0", 1)[0].decode("utf-8", "replace")


def _kernel(identifier: int, payload: memoryview) -> KernelDefinition:
    registers, shared, count, name_bytes = KERNEL_PAYLOAD.unpack_from(payload)
    end = KERNEL_PAYLOAD.size + count * PARAMETER.size
    if end + name_bytes > len(payload):
        raise struct.error("kernel payload too short")
    parameters = tuple(
        PARAMETER.unpack_from(payload, KERNEL_PAYLOAD.size + i * PARAMETER.size)
        for i in range(count)
    )
    name = bytes(payload[end : end + name_bytes]).decode("utf-8", "replace")
    return KernelDefinition(identifier, registers, shared, parameters, name)


def _launch(identifier: int, payload: memoryview) -> LaunchDefinition:
    kernel, *numbers = LAUNCH_PAYLOAD.unpack_from(payload)
    argument_bytes = numbers[7]
    start = LAUNCH_PAYLOAD.size
    if start + argument_bytes > len(payload):
        raise struct.error("launch payload too short")
    return LaunchDefinition(
        identifier,
        kernel,
        (numbers[0], numbers[1], numbers[2]),
        (numbers[3], numbers[4], numbers[5]),
        numbers[6],
        (numbers[8], numbers[9], numbers[10]),
        bytes(payload[start : start + argument_bytes]),
    )


def _dnn(identifier: int, payload: memoryview) -> DnnDefinition:
    operation_count, tensor_count = DNN_PAYLOAD.unpack_from(payload)
    tensors_at = DNN_PAYLOAD.size + operation_count * DNN_OPERATION.size
    if tensors_at + tensor_count * DNN_TENSOR.size > len(payload):
        raise struct.error("cuDNN payload too short")
    operations = []
    for i in range(operation_count):
        kind, mode, first, count, spatial_dims, *windows = DNN_OPERATION.unpack_from(
            payload, DNN_PAYLOAD.size + i * DNN_OPERATION.size
        )
        if first + count > tensor_count:
            raise struct.error("cuDNN operation with tensors beyond the last")
        stride, dilation, padding = (tuple(windows[at : at + 3]) for at in (0, 3, 6))
        operations.append(
            DnnOperation(kind, mode, first, count, spatial_dims, stride, dilation, padding)
        )
    tensors = []
    for i in range(tensor_count):
        f = DNN_TENSOR.unpack_from(payload, tensors_at + i * DNN_TENSOR.size)
        dims = min(f[3], 8)
        tensors.append(DnnTensor(f[0], f[1], bool(f[2]), f[4], f[5 : 5 + dims], f[13 : 13 + dims]))
    return DnnDefinition(identifier, tuple(operations), tuple(tensors))


def _library(identifier: int, payload: memoryview) -> LibraryDefinition:
    api, element_type, count = LIBRARY_PAYLOAD.unpack_from(payload)
    start = LIBRARY_PAYLOAD.size
    if start + count * LIBRARY_VALUE.size > len(payload):
        raise struct.error("library call payload too short")
    values = LIBRARY_VALUE.iter_unpack(payload[start : start + count * LIBRARY_VALUE.size])
    return LibraryDefinition(
        identifier, _text(api), element_type, tuple((_text(name), value) for name, value in values)
    )


def _communicator(identifier: int, payload: memoryview) -> CommunicatorDefinition:
    first, second, rank, size, parent, color, key, device = COMMUNICATOR_PAYLOAD.unpack_from(
        payload
    )
    description = _text(payload[COMMUNICATOR_PAYLOAD.size :])
    return CommunicatorDefinition(
        identifier, (first, second), rank, size, parent, color, key, device, description
    )


#: Fields of GemmDefinition between `id` and `api`, in the order of struct us_gemm.
_GEMM_FIELDS = tuple(field.name for field in dataclasses.fields(GemmDefinition))[1:-1]


def _gemm(identifier: int, payload: memoryview) -> GemmDefinition:
    *numbers, api = GEMM_PAYLOAD.unpack_from(payload)
    return GemmDefinition(
        id=identifier, api=_text(api), **dict(zip(_GEMM_FIELDS, numbers, strict=True))
    )


def _thread(identifier: int, payload: memoryview) -> ThreadDefinition:
    os_thread, is_main, name = THREAD_PAYLOAD.unpack_from(payload)
    return ThreadDefinition(identifier, os_thread, bool(is_main), _text(name))


def _stream(identifier: int, payload: memoryview) -> StreamDefinition:
    device, flags, priority, _ = STREAM_PAYLOAD.unpack_from(payload)
    return StreamDefinition(identifier, device, bool(flags & 1), priority)


_PARSERS = {
    THREAD: _thread,
    STREAM: _stream,
    KERNEL: _kernel,
    LAUNCH: _launch,
    GEMM: _gemm,
    DNN: _dnn,
    LIBRARY: _library,
    COMMUNICATOR: _communicator,
    TEXT: lambda identifier, payload: bytes(payload).decode("utf-8", "replace"),
}

#: Definition kind that each api refers to.
DEFINITION_OF_API = {
    Api.LAUNCH_KERNEL: LAUNCH,
    Api.GEMM: GEMM,
    Api.DNN: DNN,
    Api.LIBRARY: LIBRARY,
    Api.COLLECTIVE: COMMUNICATOR,
    Api.SEND: COMMUNICATOR,
    Api.RECV: COMMUNICATOR,
    Api.COMMUNICATOR_INIT: COMMUNICATOR,
    Api.COMMUNICATOR_SPLIT: COMMUNICATOR,
    Api.COMMUNICATOR_DESTROY: COMMUNICATOR,
    Api.COMMUNICATOR_FINALIZE: COMMUNICATOR,
    Api.COMMUNICATOR_ABORT: COMMUNICATOR,
    Api.UNSUPPORTED: TEXT,
    Api.ANNOTATION: TEXT,
}


def _definitions(path: Path) -> dict[int, dict]:
    header, data = _read(path, DEFINITIONS_MAGIC, 0)
    found: dict[int, dict] = {kind: {} for kind in _PARSERS}
    for offset, kind, identifier, payload in _entries(path, data.tobytes(), int(header["entries"])):
        if kind not in _PARSERS:
            raise _damaged(path, offset, f"definition of unknown kind {kind}")
        # Streams carry CUDA's numbers; all else is counted from 1 in the order of the file.
        if kind != STREAM and identifier != len(found[kind]) + 1:
            raise _damaged(path, offset, f"definition {identifier} after {len(found[kind])} others")
        try:
            found[kind][identifier] = _PARSERS[kind](identifier, payload)
        except struct.error as error:
            raise _damaged(path, offset, f"incomplete definition ({error})") from error
    for launch in found[LAUNCH].values():
        if launch.kernel not in found[KERNEL]:
            raise UnderstudyError(
                f"{path}: launch {launch.id} names kernel {launch.kernel}, which is not defined; "
                "the trace is damaged, emulate again"
            )
    return found


def _check_references(path: Path, records: np.ndarray, found: dict[int, dict]) -> None:
    """Every record's definition and thread exist."""
    checks = []
    for api, kind in DEFINITION_OF_API.items():
        mask = records["api"] == api
        if api == Api.COMMUNICATOR_SPLIT:  # a rank that it leaves without a communicator has none
            mask &= records["definition"] != 0
        checks.append((mask, "definition", kind))
    checks.append((np.ones(len(records), bool), "thread", THREAD))
    for mask, column, kind in checks:
        known = np.fromiter(found[kind], np.int64, len(found[kind]))
        bad = mask & ~np.isin(records[column], known)
        if bad.any():
            first = int(np.argmax(bad))
            raise _damaged(
                path,
                HEADER_BYTES + first * RECORD.itemsize,
                f"record that refers to {column} {records[column][first]}, which is not defined,",
            )


def read_trace(stem: Path) -> RankTrace:
    """The trace of `<stem>.records` and `<stem>.definitions`.

    A trace whose process crashed is read up to its last complete entry (`closed` is then False).
    Raises UnderstudyError, naming file and offset, when a file is missing, damaged or incomplete
    because the disk was full.
    """
    records_path = stem.with_name(stem.name + ".records")
    definitions_path = stem.with_name(stem.name + ".definitions")
    # Definitions last: while the process lives, every definition a record needs is written first.
    header, records = _records(records_path)
    found = _definitions(definitions_path)
    _check_references(records_path, records, found)
    return RankTrace(
        stem=stem,
        rank=int(header["rank"]),
        world_size=int(header["world_size"]),
        pid=int(header["pid"]),
        device=_text(header["device"]),
        compute_capability=int(header["compute_capability"]),
        memory_bytes=int(header["memory_bytes"]),
        build_id=_text(header["build_id"]),
        overhead_ns=int(header["overhead_ns"]),
        closed=bool(header["closed"]),
        records=records,
        threads=found[THREAD],
        streams=found[STREAM],
        kernels=found[KERNEL],
        launches=found[LAUNCH],
        gemms=found[GEMM],
        dnns=found[DNN],
        libraries=found[LIBRARY],
        communicators=found[COMMUNICATOR],
        texts=found[TEXT],
    )
