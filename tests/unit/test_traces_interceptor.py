"""The reader of interceptor traces: what was written is read, what is damaged is refused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.unit.trace_writer import TraceWriter
from understudy.errors import UnderstudyError
from understudy.traces import interceptor as fmt
from understudy.traces.interceptor import Api, read_trace

HEADER_FILE = Path(__file__).resolve().parents[2] / "interceptor_c" / "include" / "trace_format.h"


def written(folder: Path) -> Path:
    writer = TraceWriter(rank=3, world_size=8)
    writer.stream(2)
    kernel = writer.kernel("_Z3addPfi", ((0, 8), (8, 4)))
    launch = writer.launch_definition(kernel, 7, b"\1" * 12)
    writer.record(Api.LAUNCH_KERNEL, 2, definition=launch)
    writer.record(Api.GEMM, definition=writer.gemm(64, 32, 16))
    communicator = writer.communicator(99, 3, 8, description="default_pg")
    writer.all_reduce(communicator, 4096, stream=2)
    tensor = fmt.DNN_TENSOR.pack(705, 9, 0, 2, 1, 4, 5, *[0] * 6, 5, 1, *[0] * 6)
    operation = fmt.DNN_OPERATION.pack(10, 0, 0, 1, 2, 1, 1, 0, 1, 1, 0, 0, 0, 0)
    dnn = writer.define(fmt.DNN, fmt.DNN_PAYLOAD.pack(1, 1) + operation + tensor)
    writer.record(Api.DNN, definition=dnn)
    writer.record(
        Api.UNSUPPORTED, definition=writer.define(fmt.TEXT, "cusolverDnXgetrf ü".encode())
    )
    writer.mark(0)
    return writer.write(folder)


def test_everything_written_is_read(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path))
    assert (trace.rank, trace.world_size, trace.device) == (3, 8, "h100-sxm-80gb")
    assert trace.memory_bytes == 80 << 30
    assert trace.closed
    assert [Api(a) for a in trace.records["api"]] == [
        Api.LAUNCH_KERNEL,
        Api.GEMM,
        Api.COLLECTIVE,
        Api.DNN,
        Api.UNSUPPORTED,
        Api.ITERATION,
    ]
    assert trace.threads[1].is_main
    assert trace.streams[2].non_blocking
    assert trace.kernels[1].name == "_Z3addPfi"
    assert trace.kernels[1].parameters == ((0, 8), (8, 4))
    assert trace.launches[1].grid == (7, 1, 1)
    assert trace.launches[1].arguments == b"\1" * 12
    assert (trace.gemms[1].m, trace.gemms[1].n, trace.gemms[1].k) == (64, 32, 16)
    assert trace.gemms[1].api == "cublasGemmEx"
    assert trace.communicators[1].description == "default_pg"
    assert trace.dnns[1].operations[0].spatial_dims == 2
    assert trace.dnns[1].tensors[0].dims == (4, 5)
    assert trace.dnns[1].tensors[0].strides == (5, 1)
    assert trace.texts[1] == "cusolverDnXgetrf ü"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnderstudyError, match=r"rank-0\.records"):
        read_trace(tmp_path / "rank-0")


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.launch()
    with pytest.raises(UnderstudyError, match="disk is full"):
        read_trace(writer.write(tmp_path, lost_entries=5))


def test_an_undefined_reference_is_named(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.launch()
    writer.record(Api.GEMM, definition=4)
    with pytest.raises(UnderstudyError, match=r"definition 4.*offset 4160"):
        read_trace(writer.write(tmp_path))


def test_another_format_version_says_what_to_do(tmp_path: Path) -> None:
    stem = written(tmp_path)
    path = stem.with_name(stem.name + ".records")
    raw = bytearray(path.read_bytes())
    raw[8] = 9
    path.write_bytes(raw)
    with pytest.raises(UnderstudyError, match="make setup"):
        read_trace(stem)


def test_enumerations_equal_the_header() -> None:
    text = HEADER_FILE.read_text()
    apis = {n: int(v) for n, v in re.findall(r"US_API_(\w+) = (\d+)", text)}
    assert apis == {api.name: int(api) for api in Api}
    roles = {n: int(v) for n, v in re.findall(r"US_MEMORY_(\w+) = (\d+)", text)}
    assert roles == {role.name: int(role) for role in fmt.MemoryRole}
    flags = {n: 1 << int(v) for n, v in re.findall(r"US_FLAG_(\w+) = 1u << (\d+)", text)}
    assert flags == {n: getattr(fmt, f"FLAG_{n}") for n in flags} and len(flags) == 5
    kinds = {n: int(v) for n, v in re.findall(r"US_DEFINITION_(\w+) = (\d+)", text)}
    assert kinds == {
        name: getattr(fmt, name)
        for name in (
            "THREAD",
            "STREAM",
            "KERNEL",
            "LAUNCH",
            "GEMM",
            "DNN",
            "COMMUNICATOR",
            "TEXT",
            "LIBRARY",
        )
    }
    assert f"US_FORMAT_VERSION {fmt.FORMAT_VERSION}u" in text


def test_layouts_equal_the_header(tmp_path: Path) -> None:
    structs = {
        "us_file_header": fmt.HEADER.itemsize,
        "us_record": fmt.RECORD.itemsize,
        "us_definition": fmt.ENTRY.size,
        "us_thread": fmt.THREAD_PAYLOAD.size,
        "us_stream": fmt.STREAM_PAYLOAD.size,
        "us_kernel": fmt.KERNEL_PAYLOAD.size,
        "us_parameter": fmt.PARAMETER.size,
        "us_launch": fmt.LAUNCH_PAYLOAD.size,
        "us_gemm": fmt.GEMM_PAYLOAD.size,
        "us_dnn": fmt.DNN_PAYLOAD.size,
        "us_dnn_operation": fmt.DNN_OPERATION.size,
        "us_dnn_tensor": fmt.DNN_TENSOR.size,
        "us_library": fmt.LIBRARY_PAYLOAD.size,
        "us_library_value": fmt.LIBRARY_VALUE.size,
        "us_communicator": fmt.COMMUNICATOR_PAYLOAD.size,
    }
    offsets = [
        (struct, field, dtype.fields[field][1])
        for struct, dtype in (("us_file_header", fmt.HEADER), ("us_record", fmt.RECORD))
        if dtype.fields is not None
        for field in dtype.fields
    ]
    checks = [f"sizeof(struct {name}) == {size}" for name, size in structs.items()]
    checks += [f"offsetof(struct {s}, {field}) == {at}" for s, field, at in offsets]
    source = tmp_path / "check.c"
    source.write_text(
        f'#include <stddef.h>\n#include "{HEADER_FILE}"\n'
        + "".join(f'_Static_assert({c}, "{c}");\n' for c in checks)
    )
    subprocess.run(["gcc", "-fsyntax-only", str(source)], check=True)


def test_columns_of_records_are_plain_numbers(tmp_path: Path) -> None:
    records = read_trace(written(tmp_path)).records
    assert records.dtype == fmt.RECORD
    assert np.all(np.diff(records["begin_ns"].astype(np.int64)) == 10_000)
