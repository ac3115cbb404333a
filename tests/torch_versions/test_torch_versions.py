"""The same scripts on PyTorch 2.14.1 (CUDA 13) and 2.9.1 (CUDA 12.8, which has code for V100).

What a model asks for does not depend on the version: matrix products, convolutions and the bytes
reduced are the same. Which kernels do the rest may differ. That the memory timeline's peaks are
PyTorch's own, that nothing unsupported is called and that there are no warnings holds for each.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.script_case import (
    ScriptCase,
    ScriptRun,
    checked_run,
    input_gradient,
    linear,
    times,
)
from understudy.emulation.environment import probe_python

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor", "script_home")]

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHONS = {
    "2.14.1": Path(sys.executable),
    "2.9.1": REPOSITORY / ".venv-torch-2.9.1" / "bin" / "python",
}
FLOAT32_BYTES = 4


def run_on(version: str, case: ScriptCase, folder: Path) -> ScriptRun:
    """One checked emulation by the interpreter that has this version of PyTorch."""
    folder.mkdir()
    run, _ = checked_run(case, folder)
    assert run.emulation.versions["torch"].split("+")[0] == version
    return run


def on_every_version(
    script: str,
    folder: Path,
    check: Callable[[ScriptRun], None] = lambda run: None,
    args: tuple[str, ...] = (),
    nproc_per_node: int = 1,
    warmup: int = 3,
) -> list[ScriptRun]:
    """Emulates a script on each version; the products and all-reduces of all are the same."""
    runs = [
        run_on(
            version,
            ScriptCase(script, "", check, args, nproc_per_node, warmup=warmup, python=python),
            folder / version,
        )
        for version, python in PYTHONS.items()
    ]
    for other in runs[1:]:
        for rank in other.ranks:
            assert other.gemms(rank) == runs[0].gemms(rank)
            assert other.transfers(rank) == runs[0].transfers(rank)
    return runs


def convolutions(run: ScriptRun) -> Counter[tuple[str, tuple[tuple[str, float], ...]]]:
    return Counter(
        (o.family, tuple(sorted(o.features.items())))
        for o in run.operations(0)
        if o.family.startswith("convolution")
    )


def reduced_bytes(run: ScriptRun, rank: int) -> int:
    return sum(t.size_bytes for t in run.transfers_of(rank, "all_reduce"))


@pytest.mark.parametrize("version", PYTHONS)
def test_every_symbol_that_the_wheel_imports_or_looks_up_is_exported(version: str) -> None:
    torch_lib = probe_python(PYTHONS[version]).torch_lib
    done = subprocess.run(
        [sys.executable, "symbols/check_symbols.py", "build", "--torch-lib", str(torch_lib)],
        cwd=REPOSITORY / "interceptor_c",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_gpt_with_autocast_fused_adamw_and_ddp(tmp_path: Path) -> None:
    layers, width, vocab, context = 2, 128, 1024, 64
    parameters = (vocab + context) * width + layers * (12 * width**2 + 13 * width) + 2 * width

    def check(run: ScriptRun) -> None:
        assert {o.dtype for o in run.operations(0) if o.family == "gemm"} == {"bfloat16"}
        assert reduced_bytes(run, 0) == reduced_bytes(run, 1) == parameters * FLOAT32_BYTES

    args = {
        "--n-layer": layers,
        "--n-embd": width,
        "--n-head": 4,
        "--vocab-size": vocab,
        "--seq-len": context,
        "--batch-size": 4,
    }
    words = tuple(str(word) for pair in args.items() for word in pair)
    on_every_version("examples/gpt2.py", tmp_path, check, words, nproc_per_node=2, warmup=12)


def check_amp(run: ScriptRun) -> None:
    layers, width, classes, batch = 4, 512, 64, 128
    hidden = times(layers, linear(batch, width, width)) - input_gradient(batch, width, width)
    assert run.gemms(0) == hidden + linear(batch, width, classes)
    assert {o.dtype for o in run.operations(0) if o.family == "gemm"} == {"float16"}
    assert run.kernels(0)["amp_update_scale_cuda_kernel"] == 1


def test_float16_with_grad_scaler(tmp_path: Path) -> None:
    on_every_version("amp_grad_scaler.py", tmp_path, check_amp)


def test_float16_on_v100(tmp_path: Path) -> None:
    case = ScriptCase(
        "amp_grad_scaler.py", "", check_amp, device="v100-sxm-32gb", python=PYTHONS["2.9.1"]
    )
    run_on("2.9.1", case, tmp_path / "2.9.1")


def test_convolutions(tmp_path: Path) -> None:
    new, old = on_every_version("unet_diffusion.py", tmp_path)
    assert convolutions(new) == convolutions(old)
    assert convolutions(new)


def test_data_parallel(tmp_path: Path) -> None:
    def check(run: ScriptRun) -> None:
        layers, width = 10, 1024
        for rank in run.ranks:
            assert reduced_bytes(run, rank) == layers * width**2 * FLOAT32_BYTES

    on_every_version("ddp.py", tmp_path, check, nproc_per_node=2, warmup=12)
