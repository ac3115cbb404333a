"""What the interceptor writes, read back with understudy.traces: whole sequences, threads, forks,
crashes, full disks."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from understudy.errors import UnderstudyError
from understudy.traces.interceptor import Api, CopyKind, RankTrace, read_trace

Scenario = Callable[..., subprocess.CompletedProcess[str]]

PREFIX = 0x200000000000  # where device memory starts


def apis(trace: RankTrace) -> list[str]:
    return [Api(int(api)).name for api in trace.records["api"]]


def test_every_call_is_recorded_in_order_with_its_arguments(
    scenario: Scenario, tmp_path: Path
) -> None:
    done = scenario("calls", tmp_path)
    assert done.returncode == 0, done.stderr
    trace = read_trace(tmp_path / "trace")
    assert trace.closed
    assert trace.memory_bytes == 85028896768
    assert trace.device == "h100-sxm-80gb"
    assert trace.compute_capability == 90
    assert re.fullmatch(r"[0-9a-f]{40}", trace.build_id)
    assert (trace.rank, trace.world_size) == (-1, -1)
    assert apis(trace) == [
        "STREAM_CREATE", "EVENT_CREATE", "MALLOC", "HOST_ALLOC", "MEMCPY", "MEMCPY", "MEMSET",
        "LAUNCH_KERNEL", "LAUNCH_KERNEL", "LAUNCH_KERNEL", "EVENT_RECORD", "STREAM_WAIT_EVENT",
        "LAUNCH_KERNEL", "EVENT_SYNCHRONIZE", "DEVICE_SYNCHRONIZE", "STREAM_SYNCHRONIZE",
        "ANNOTATION", "ITERATION", "OUT_OF_MEMORY", "EVENT_DESTROY", "FREE", "HOST_FREE",
        "STREAM_DESTROY", "ITERATION",
    ]  # fmt: skip
    records = trace.records
    malloc, memcpy, back, memset = records[2], records[4], records[5], records[6]
    assert (malloc["a"] - PREFIX) % (2 << 20) == 0 and malloc["b"] == 4 << 20
    assert memcpy["a"] == malloc["a"] and memcpy["c"] == 4096 and memcpy["d"] == 1
    assert memcpy["flags"] == 2  # pinned: the host goes on
    assert back["d"] == 2 and back["flags"] == 1  # pageable: the host waits
    assert (memset["b"], memset["c"], memset["stream"]) == (7, 128, 2)
    first, second, third, last = (
        trace.launches[int(records[i]["definition"])] for i in (7, 8, 9, 12)
    )
    assert first is second  # interned by content
    assert first.arguments[:4] == (1).to_bytes(4, "little") and third.arguments[0] == 2
    assert first.arguments[4:8] == bytes(4)  # padding between parameters is not garbage
    assert first.grid == (10, 1, 1) and first.block == (256, 1, 1) and last.grid == (11, 1, 1)
    assert first.dynamic_shared_bytes == 64 and first.cluster == (1, 1, 1)
    kernel = trace.kernels[first.kernel]
    assert (kernel.name, kernel.registers, kernel.static_shared_bytes) == ("_Z3addiPKfPf", 40, 256)
    assert kernel.parameters == ((0, 4), (8, 8), (16, 8))
    assert (records[7]["stream"], records[12]["stream"]) == (2, 0)
    assert trace.streams[2].non_blocking
    assert records[10]["a"] == records[11]["a"] == 1  # the first event
    assert (records[18]["b"], records[17]["a"], records[23]["a"]) == (1 << 40, 0, 1)
    assert trace.texts[int(records[16]["definition"])] == "half way"
    begin = records["begin_ns"].astype(np.int64)
    assert (np.diff(begin) >= 0).all()
    ends = begin + records["inside_ns"]
    assert (ends[:-1] <= begin[1:]).all()
    assert trace.overhead_ns < 2000


def test_copies_say_whether_the_host_waits(scenario: Scenario, tmp_path: Path) -> None:
    """CUDA's "API synchronization behavior": 1 the host waits, 2 its side is page-locked."""
    done = scenario("copies", tmp_path)
    assert done.returncode == 0, done.stderr
    records = read_trace(tmp_path / "trace").records
    copies = records[records["api"] == Api.MEMCPY]
    assert list(zip(copies["d"].tolist(), copies["flags"].tolist(), strict=True)) == [
        (CopyKind.H2D, 1), (CopyKind.H2D, 0),  # pageable: an asynchronous one is only staged
        (CopyKind.H2D, 3), (CopyKind.H2D, 2),
        (CopyKind.D2H, 1), (CopyKind.D2H, 1),
        (CopyKind.D2H, 3), (CopyKind.D2H, 2),
        (CopyKind.D2D, 0), (CopyKind.D2D, 0),
        (CopyKind.H2H, 1), (CopyKind.H2H, 1),
    ]  # fmt: skip
    assert records["flags"][records["api"] == Api.MEMSET].tolist() == [0, 1, 0]


def test_threads_share_one_order_and_lose_nothing(scenario: Scenario, tmp_path: Path) -> None:
    assert scenario("threads", tmp_path, "5000").returncode == 0
    trace = read_trace(tmp_path / "trace")
    assert len(trace.records) == 20000
    assert Counter(trace.records["thread"].tolist()).most_common()[0][1] == 5000
    workers = {t.id: t.os_thread for t in trace.threads.values() if not t.is_main}
    assert len(set(workers.values())) == len(workers) == 4
    assert len(trace.launches) == 35 and len(trace.kernels) == 1
    for thread in workers:
        own = trace.records[trace.records["thread"] == thread]
        sequence = [trace.launches[int(d)] for d in own["definition"]]
        assert all(
            (launch.arguments[0], launch.grid[0]) == (i % 5, 1 + i % 7)
            for i, launch in enumerate(sequence)
        )
        assert set(own["stream"].tolist()) == {1}  # cudaStreamPerThread


def test_forked_child_writes_nothing(scenario: Scenario, tmp_path: Path) -> None:
    done = scenario("fork", tmp_path)
    assert done.returncode == 0, done.stderr
    trace = read_trace(tmp_path / "trace")
    assert [trace.launches[int(d)].grid[0] for d in trace.records["definition"]] == [1, 3]


@pytest.mark.parametrize(
    ("how", "code"),
    [("kill", -signal.SIGKILL), ("abort", -signal.SIGABRT), ("segv", None), ("exit", 0)],
)
def test_a_crash_loses_no_record(
    scenario: Scenario, tmp_path: Path, how: str, code: int | None
) -> None:
    done = scenario("die", tmp_path, "40000", how)
    assert done.returncode == code or (code is None and done.returncode != 0)
    trace = read_trace(tmp_path / "trace")
    assert not trace.closed
    assert len(trace.records) == 40000 and len(trace.launches) == 100
    assert trace.launches[int(trace.records[-1]["definition"])].arguments[0] == 39999 % 100


def test_trace_from_the_environment(scenario: Scenario, tmp_path: Path) -> None:
    stem = tmp_path / "by-environment"
    done = scenario("environment", tmp_path, UNDERSTUDY_TRACE=str(stem), RANK="3", WORLD_SIZE="8")
    assert done.returncode == 0, done.stderr
    trace = read_trace(stem)
    assert apis(trace) == ["LAUNCH_KERNEL"]
    assert (trace.rank, trace.world_size) == (3, 8)


def test_untraced_program_writes_no_file(scenario: Scenario, tmp_path: Path) -> None:
    assert scenario("untraced", tmp_path).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"k.ktab"}


def test_streams_from_before_the_trace_are_defined(scenario: Scenario, tmp_path: Path) -> None:
    assert scenario("late", tmp_path).returncode == 0
    trace = read_trace(tmp_path / "trace")
    assert apis(trace) == ["LAUNCH_KERNEL", "EVENT_RECORD"]
    assert trace.streams[int(trace.records[0]["stream"])].non_blocking


@pytest.mark.parametrize(
    ("visible", "shown"),
    [(None, 4), ("0,1", 2), ("3", 1), ("", 0), ("-1", 0), ("1,9,2", 1), ("GPU-unknown,1", 0)],
)
def test_devices_that_the_environment_shows(
    scenario: Scenario, tmp_path: Path, visible: str | None, shown: int
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = scenario("devices", tmp_path, UNDERSTUDY_DEVICE_COUNT="4", **environment)
    assert done.stdout == f"{shown} {0 if shown else 100}\n"


def test_the_device_file_is_the_device(scenario: Scenario, tmp_path: Path) -> None:
    text = "id=tiny\nname=Tiny GPU\ncompute_capability_major=8\ncompute_capability_minor=6\n"
    (tmp_path / "device").write_text(text + "memory_bytes=8000000000\nunheard_of=1\n")
    done = scenario("calls", tmp_path, UNDERSTUDY_DEVICE_FILE=str(tmp_path / "device"))
    assert done.returncode == 0, done.stderr
    trace = read_trace(tmp_path / "trace")
    assert (trace.device, trace.memory_bytes) == ("tiny", 8000000000)
    assert trace.compute_capability == 86
    done = scenario("devices", tmp_path, UNDERSTUDY_DEVICE_FILE=str(tmp_path / "absent"))
    assert done.stdout == "0 100\n" and "cannot read UNDERSTUDY_DEVICE_FILE" in done.stderr


def test_an_unwritable_stem_is_an_error(scenario: Scenario, tmp_path: Path) -> None:
    (tmp_path / "trace.records").mkdir()
    done = scenario("calls", tmp_path)
    assert (done.returncode, done.stdout) == (3, "Is a directory\n")


def test_a_full_disk_ends_the_trace_and_not_the_program(scenario: Scenario, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        done = scenario("full_disk", small, "30000")
        assert done.returncode == 0, done.stderr
        with pytest.raises(UnderstudyError, match="could not be written, the disk is full"):
            read_trace(small / "trace")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_damaged_kernel_table_is_named_and_launches_are_recorded(
    scenario: Scenario, tmp_path: Path
) -> None:
    done = scenario("bad_table", tmp_path)
    assert done.returncode == 0
    assert f"{tmp_path}/k.ktab is not a kernel table of version 2" in done.stderr
    trace = read_trace(tmp_path / "trace")
    launch = trace.launches[int(trace.records[0]["definition"])]
    assert launch.arguments == b"" and launch.grid == (9, 1, 1)
    assert trace.kernels[launch.kernel].registers == 0


PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry scale(.param .u64 out, .param .u32 n, .param .f64 factor)
.maxntid 256, 1, 1
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 tile[512];
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [n];
    st.shared.u32 [tile], %r1;
    ld.shared.u32 %r2, [tile];
    st.global.u32 [%rd1], %r2;
    ret;
}
"""


def test_cubins_that_the_driver_loads(scenario: Scenario, tmp_path: Path) -> None:
    """As Triton's launcher does: parameters, registers and shared memory come from the file itself.
    A damaged file is an error or an unknown kernel, never a crash."""
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        pytest.skip("Triton, which brings the assembler of this test, is not installed")
    assembler = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    (tmp_path / "scale.ptx").write_text(PTX)
    whole = tmp_path / "scale.cubin"
    subprocess.run(
        [str(assembler), "-arch=sm_90", str(tmp_path / "scale.ptx"), "-o", str(whole)], check=True
    )
    data = whole.read_bytes()
    rng = np.random.default_rng(7)
    damaged = []
    for index in range(120):
        broken = np.frombuffer(data, np.uint8).copy()
        if index < 40:
            broken = broken[: int(rng.integers(1, len(data)))]
        else:
            places = rng.integers(0, len(data), 20)
            broken[places] = rng.integers(0, 256, 20)
        damaged.append(tmp_path / f"damaged{index}.cubin")
        damaged[-1].write_bytes(broken.tobytes())
    paths = [str(path) for path in (whole, *damaged, tmp_path / "absent.cubin")]
    # Handles live outside the heap, where the leak checker does not look.
    done = scenario("modules", tmp_path, "scale", *paths, ASAN_OPTIONS="detect_leaks=0")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths)
    found = re.fullmatch(
        r"registers (\d+) shared (\d+) threads 256 parameters 0\+8 8\+4 16\+8", lines[0]
    )
    assert found and int(found[1]) >= 4 and int(found[2]) >= 512
    assert lines[-1] == "error 301"


def test_a_parent_that_dies_takes_its_rank_along(programs: Path, tmp_path: Path) -> None:
    """An opened trace asks the kernel for a signal at the parent's death."""
    waiting = (
        "import ctypes, os, time\n"
        f"library = ctypes.CDLL({str(programs.parent / 'libunderstudy.so')!r})\n"
        f"assert library.understudy_trace_open({str(tmp_path / 'rank')!r}.encode()) == 0\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    if "asan" in str(programs):
        pytest.skip("Python itself is not built with the sanitizer")
    launcher = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {waiting!r}], start_new_session=True,\n"
        "                         stdout=subprocess.PIPE, text=True)\n"
        "print(child.stdout.readline().strip(), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", launcher], capture_output=True, text=True, timeout=30, check=True
    )
    rank = int(done.stdout)
    for _ in range(200):
        try:
            state = Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        signal.sigtimedwait([], 0.05)
    pytest.fail(f"process {rank} outlived its launcher")
