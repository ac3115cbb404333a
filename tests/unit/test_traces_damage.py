"""Damaged libraries, cubins, kernel tables and traces: an error that names the file, or what is
whole in them; no other exception, no hang, nothing that silently vanished."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cubins import LZ4, ZSTD, assembled, fatbin
from tests.damage import damaged
from tests.unit.trace_writer import TraceWriter
from understudy.errors import UnderstudyError
from understudy.traces import interceptor as fmt
from understudy.traces.cubin import cubin_kernels, section_fatbins
from understudy.traces.interceptor import Api, read_trace
from understudy.traces.kernel_table import ensure_kernel_table

FILE = "libdamaged.so"
damage_of = st.integers(0, 1 << 40).map(random.Random)


def fuzz(examples: int) -> settings:
    """A second for one example is a hang: none takes longer than some milliseconds."""
    return settings(
        max_examples=examples,
        deadline=1000,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return assembled(tmp_path_factory.mktemp("cubin"), 90)


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory, cubin: bytes) -> bytes:
    """A `.nv_fatbin` section of three fat binaries, each with what the formats allow."""
    older = assembled(tmp_path_factory.mktemp("cubin"), 80)
    fatbins = [fatbin({80: older, 90: cubin}, c) for c in (ZSTD, LZ4, 0)]
    return b"".join(f.ljust((len(f) + 7) // 8 * 8, b"\0") for f in fatbins)


def test_the_inputs_are_read_whole(cubin: bytes, section: bytes) -> None:
    fill, scale = sorted(cubin_kernels(memoryview(cubin), 90, FILE), key=lambda k: k.name)
    assert (fill.name, fill.parameters) == ("fill", ((0, 8),))
    assert (scale.max_threads, scale.static_shared_bytes) == (256, 512)
    assert scale.parameters == ((0, 8), (8, 4), (16, 8))
    fatbins = list(section_fatbins(memoryview(section), 90, FILE))
    assert [sorted(k.name for k in f.kernels) for f in fatbins] == [["fill", "scale"]] * 3


@fuzz(250)
@given(rng=damage_of)
def test_cubins(cubin: bytes, rng: random.Random) -> None:
    headers = [*range(0, 64, 8), *range(len(cubin) - 64 * 20, len(cubin), 8)]
    try:
        kernels = cubin_kernels(memoryview(damaged(cubin, rng, headers)), 90, FILE)
    except UnderstudyError as error:
        assert FILE in str(error)
        return
    assert kernels
    assert all(k.registers <= 255 and k.parameter_bytes <= 32764 for k in kernels)


@fuzz(250)
@given(rng=damage_of)
def test_fat_binaries(section: bytes, rng: random.Random) -> None:
    starts = (b"P\xed", b"\2\0")  # of a fat binary and of its entries
    headers = [at for at in range(0, len(section), 8) if section[at : at + 2] in starts]
    try:
        fatbins = list(section_fatbins(memoryview(damaged(section, rng, headers)), 90, FILE))
    except UnderstudyError as error:
        assert FILE in str(error)
        assert "offset" in str(error)
        return
    assert fatbins


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, section: bytes) -> Path:
    """A shared library with device code, as an extension of PyTorch is."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "fatbin").write_bytes(section)
    assembly = folder / "library.s"
    assembly.write_text(f'.section .nv_fatbin, "a"\n.incbin "{folder / "fatbin"}"\n')
    path = folder / FILE
    subprocess.run(
        ["gcc", "-shared", "-Wl,--build-id=sha1", "-o", str(path), str(assembly)], check=True
    )
    return path


@fuzz(150)
@given(rng=damage_of)
def test_libraries(library: Path, tmp_path: Path, rng: random.Random) -> None:
    content = library.read_bytes()
    path = tmp_path / FILE
    path.write_bytes(damaged(content, rng, [*range(0, 64, 8), *range(len(content) - 1280, 8)]))
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    try:
        table = ensure_kernel_table(path, 90, tmp_path / "cache")
    except UnderstudyError as error:
        assert FILE in str(error)
        return
    assert table is None or table.stat().st_size > 96


@fuzz(100)
@given(rng=damage_of)
def test_a_damaged_kernel_table_is_made_anew(
    library: Path, tmp_path: Path, rng: random.Random
) -> None:
    table = ensure_kernel_table(library, 90, tmp_path)
    assert table is not None
    content = table.read_bytes()
    table.write_bytes(damaged(content, rng, range(0, 96, 8)))
    assert ensure_kernel_table(library, 90, tmp_path) == table
    assert table.read_bytes() == content


def trace_files(folder: Path) -> Path:
    writer = TraceWriter(rank=3, world_size=8)
    writer.stream(2)
    kernel = writer.kernel("_Z3addPfi", ((0, 8), (8, 4)))
    writer.record(Api.LAUNCH_KERNEL, 2, definition=writer.launch_definition(kernel, 7, b"\1" * 12))
    writer.record(Api.GEMM, definition=writer.gemm(64, 32, 16))
    communicator = writer.communicator(99, 3, 8, description="default_pg")
    writer.all_reduce(communicator, 4096, stream=2)
    tensor = fmt.DNN_TENSOR.pack(705, 9, 0, 2, 1, 4, 5, *[0] * 6, 5, 1, *[0] * 6)
    operation = fmt.DNN_OPERATION.pack(10, 0, 0, 1, 2, 1, 1, 0, 1, 1, 0, 0, 0, 0)
    dnn = writer.define(fmt.DNN, fmt.DNN_PAYLOAD.pack(1, 1) + operation + tensor)
    writer.record(Api.DNN, definition=dnn)
    values = fmt.LIBRARY_VALUE.pack(b"n", 64) + fmt.LIBRARY_VALUE.pack(b"batch", 2)
    call = fmt.LIBRARY_PAYLOAD.pack(b"cufftExecC2C", 4, 2) + values
    writer.record(Api.LIBRARY, definition=writer.define(fmt.LIBRARY, call))
    writer.record(Api.UNSUPPORTED, definition=writer.define(fmt.TEXT, b"cuFileRead"))
    writer.record(Api.ANNOTATION, definition=writer.define(fmt.TEXT, b"half way"))
    writer.mark(0)
    return writer.write(folder)


@pytest.mark.parametrize("suffix", [".records", ".definitions"])
@fuzz(150)
@given(rng=damage_of)
def test_traces(tmp_path: Path, suffix: str, rng: random.Random) -> None:
    stem = trace_files(tmp_path)
    whole = read_trace(stem)
    path = stem.with_name(stem.name + suffix)
    content = path.read_bytes()
    places = [*range(0, 64, 8), *range(fmt.HEADER_BYTES, len(content), 8)]
    path.write_bytes(damaged(content, rng, places))
    try:
        trace = read_trace(stem)
    except UnderstudyError as error:
        assert stem.name in str(error)
        return
    assert len(trace.records) == len(whole.records)
    for kind in ("threads", "kernels", "launches", "gemms", "dnns", "libraries", "texts"):
        assert getattr(trace, kind).keys() == getattr(whole, kind).keys()
