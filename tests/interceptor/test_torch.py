"""The installed PyTorch, unmodified, on the emulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from understudy.emulation.environment import probe_python
from understudy.traces.interceptor import Api, RankTrace, read_trace
from understudy.traces.kernel_table import kernel_tables

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "interceptor_c"
SCRIPT = Path(__file__).with_name("torch_calls.py")


def test_tables_library_and_shadows_agree_with_what_the_wheels_import(interceptor: Path) -> None:
    torch_lib = probe_python(None).torch_lib
    wheels = ("--torch-lib", str(torch_lib), "--site-packages", str(torch_lib.parents[1]))
    done = subprocess.run(
        [sys.executable, "symbols/check_symbols.py", "build", *wheels],
        cwd=SOURCES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("kernel_tables")
    return ":".join(str(path) for path in kernel_tables(probe_python(None).torch_lib, 90, folder))


def run_script(interceptor: Path, stem: Path, tables: str, **environment: str) -> dict:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UNDERSTUDY_", "PYTORCH_"))}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={
            **kept,
            "LD_PRELOAD": str(interceptor),
            "LD_LIBRARY_PATH": str(interceptor.parent / "shadow"),
            "UNDERSTUDY_TRACE": str(stem),
            "UNDERSTUDY_KERNEL_TABLES": tables,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def plain(
    interceptor: Path, tables: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict, RankTrace]:
    stem = tmp_path_factory.mktemp("torch") / "rank"
    return run_script(interceptor, stem, tables), read_trace(stem)


def test_torch_sees_the_device(plain: tuple[dict, RankTrace]) -> None:
    seen, _ = plain
    assert seen["device"] == [True, 1, "NVIDIA H100 80GB HBM3", [9, 0], 85028896768, 132]
    assert "libcudart.so.13" in seen["libraries"] and "libcudnn.so.9" in seen["libraries"]


def test_values_that_the_host_can_know(plain: tuple[dict, RankTrace]) -> None:
    seen, _ = plain
    assert seen["full"] == [[7.5] * 3] * 2
    assert seen["ones"] == [[1.0] * 3, [1] * 3, [True] * 3, [1.0] * 3, [1.0] * 3, [1] * 3]
    assert seen["round_trip"] == [0, 1, 2, 3, 4]
    assert seen["randn"] == [0.0] * 4
    assert seen["any_nan"] is False
    assert seen["scale"] == 65536.0
    assert seen["elapsed_is_positive"] is True


def test_memory_is_the_devices(plain: tuple[dict, RankTrace]) -> None:
    seen, trace = plain
    assert seen["ten_gib"] == 10 << 30
    assert "Tried to allocate 75.00 GiB" in seen["oom"]
    assert "total capacity of 79.19 GiB" in seen["oom"]
    assert seen["after_oom"] == 75
    failed = trace.records[trace.records["api"] == Api.OUT_OF_MEMORY]
    assert set(failed["b"].tolist()) == {75 << 30}


def test_what_the_trace_holds(plain: tuple[dict, RankTrace]) -> None:
    _, trace = plain
    records = trace.records
    count = Counter(Api(int(api)).name for api in records["api"])
    assert trace.closed and count["LAUNCH_KERNEL"] > 50 and count["GEMM"] == 11
    assert count["CAPTURE_BEGIN"] == count["CAPTURE_END"] == count["GRAPH_LAUNCH"] == 1
    assert not [trace.texts[int(r["definition"])] for r in records if r["api"] == Api.UNSUPPORTED]
    launches = [trace.launches[int(d)] for d in records["definition"][records["api"] == 1]]
    assert all(trace.kernels[launch.kernel].registers for launch in launches)
    names = " ".join(kernel.name for kernel in trace.kernels.values())
    for part in ("FillFunctor", "layer_norm", "fused_adamw", "multi_tensor_apply"):
        assert part in names
    # Tensor blocks: each is given back at most once, sizes agree, the running sum is torch's own.
    live: dict[int, int] = {}
    for record in records[np.isin(records["api"], (Api.TENSOR_ALLOC, Api.TENSOR_FREE))]:
        pointer, size = int(record["a"]), int(record["b"])
        if record["api"] == Api.TENSOR_ALLOC:
            assert live.setdefault(pointer, size) is size
        else:
            assert live.pop(pointer) == size
        assert sum(live.values()) == int(record["c"])
        assert record["c"] <= record["d"]
    batches = records[(records["api"] == Api.MEMCPY) & (records["flags"] == 2)]
    assert [(int(r["c"]), int(r["d"])) for r in batches if r["d"] == 1] == [(32 * 64 * 4, 1)] * 2
    main = [thread.id for thread in trace.threads.values() if thread.is_main]
    assert len(main) == 1 and set(records["thread"].tolist()) > set(main)  # autograd's own


@pytest.mark.parametrize("allocator", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_allocators_of_torch(
    interceptor: Path, tables: str, tmp_path: Path, allocator: str
) -> None:
    seen = run_script(interceptor, tmp_path / "rank", tables, PYTORCH_CUDA_ALLOC_CONF=allocator)
    assert seen["ten_gib"] >= 10 << 30
    assert "75.00 GiB" in seen["oom"] and seen["after_oom"] == 75
    assert seen["full"] == [[7.5] * 3] * 2
    trace = read_trace(tmp_path / "rank")
    used = trace.records[trace.records["api"] == Api.MALLOC]["c"]
    assert 10 << 30 < int(used.max()) <= trace.memory_bytes


def test_preloading_displaces_a_library_that_is_found_by_rpath(
    interceptor: Path, tmp_path: Path
) -> None:
    """NVIDIA's wheels: torch finds them by DT_RPATH, which LD_LIBRARY_PATH cannot override."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "real.c").write_text("int cudaGetDeviceCount(int *n) { *n = 99; return 0; }\n")
    (tmp_path / "map").write_text("libcudart.so.13 { global: *; };\n")
    (tmp_path / "main.c").write_text(
        "#include <stdio.h>\nint cudaGetDeviceCount(int *);\n"
        'int main(void) { int n = 0; cudaGetDeviceCount(&n); printf("%d\\n", n); return 0; }\n'
    )
    library, program = real / "libcudart.so.13", tmp_path / "main"
    for command in (
        f"gcc -shared -fPIC -Wl,-soname,libcudart.so.13 -Wl,--version-script={tmp_path}/map "
        f"-o {library} {tmp_path}/real.c",
        f"gcc -o {program} {tmp_path}/main.c {library} -Wl,--disable-new-dtags,-rpath,{real}",
    ):
        subprocess.run(command.split(), check=True)
    shadows = sorted((interceptor.parent / "shadow").glob("*.so.*"))
    preload = ":".join(str(path) for path in (interceptor, *shadows))

    def devices(**environment: str) -> str:
        return subprocess.run(
            [str(program)],
            env={**os.environ, **environment}, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip

    assert devices() == "99"
    assert devices(LD_LIBRARY_PATH=str(interceptor.parent / "shadow")) == "99"
    assert devices(LD_PRELOAD=preload) == "1"
