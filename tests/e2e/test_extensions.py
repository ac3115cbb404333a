"""Kernels of libraries that are not PyTorch's: torchvision's and a script's own extension."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.plain_script import emulated
from understudy.emulation import Emulation
from understudy.traces.interceptor import RankTrace, read_trace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor", "script_home")]

EXTENSION = Path(__file__).resolve().parent / "extension"

SCRIPT = """
    import ctypes, os
    import torch
    from torchvision.ops import nms, roi_align

    library = ctypes.CDLL(os.path.abspath("extension.so"))
    x = torch.ones(1000, device="cuda")
    boxes, scores = torch.rand(10, 4, device="cuda"), torch.rand(10, device="cuda")
    images = torch.rand(1, 3, 32, 32, device="cuda")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    error = library.scale(ctypes.c_void_p(x.data_ptr()), ctypes.c_float(0.5), 1000, stream)
    assert error == 0, error
    nms(boxes, scores, 0.5)
    roi_align(images, [boxes], output_size=7)
"""


def fatbin(cubin: bytes, capability: int) -> bytes:
    """A fat binary with one cubin that is not compressed."""
    padded = cubin + bytes(-len(cubin) % 8)
    entry = struct.pack(
        "<HHIQIIHHIIIQQQ",
        *(2, 0x101, 64, len(padded)),  # kind: cubin, version, bytes of this header, of the cubin
        *(0, 0, 0, 0, capability, 0, 0),  # compressed bytes, -, minor, major, capability, no name
        *(0, 0, 0),  # flags, -, bytes of a compressed cubin
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry + padded)) + entry + padded


def build_extension(folder: Path) -> None:
    triton = importlib.util.find_spec("triton")
    assert triton is not None and triton.origin is not None
    assembler = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    cubin = folder / "scale.cubin"
    source = EXTENSION / "scale.ptx"
    subprocess.run([assembler, "-arch=sm_90", source, "-o", cubin], check=True)
    (folder / "scale.fatbin").write_bytes(fatbin(cubin.read_bytes(), 90))
    command = ["g++", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,--build-id"]
    command.append(f'-DFATBIN="{folder}/scale.fatbin"')
    target = folder / "extension.so"
    subprocess.run([*command, EXTENSION / "extension.cpp", "-o", target], check=True)


def launch_of(trace: RankTrace, part: str) -> tuple[Any, bytes]:
    """The kernel whose name has that part, and the arguments of its launch."""
    (found,) = [
        (kernel, launch.arguments)
        for launch in trace.launches.values()
        if part in (kernel := trace.kernels[launch.kernel]).name
    ]
    return found


def signature_of(result: Emulation, part: str) -> dict[str, Any]:
    (found,) = [s for s in result.tables["signatures"].to_pylist() if part in s["name"]]
    return found


def test_kernels_of_any_library_are_known_like_those_of_pytorch(tmp_path: Path) -> None:
    build_extension(tmp_path)
    result = emulated(tmp_path, SCRIPT)
    trace = read_trace(tmp_path / "traces" / "rank-0")

    kernel, arguments = launch_of(trace, "_Z5scalePffi")
    assert kernel.parameters == ((0, 8), (8, 4), (12, 4))
    assert kernel.registers > 0
    assert struct.unpack("<Qfi", arguments)[1:] == (0.5, 1000)
    scale = signature_of(result, "scale")
    assert (scale["grid"], scale["block"]) == ([8, 1, 1], [128, 1, 1])
    assert scale["tensor_bytes"] == 4000 + 96  # blocks of the allocator are multiples of 512

    # nms_kernel_impl(int n, double threshold, const float* boxes, unsigned long long* mask)
    kernel, arguments = launch_of(trace, "nms_kernel_impl")
    assert kernel.parameters == ((0, 4), (8, 8), (16, 8), (24, 8))
    assert struct.unpack_from("<i4xd", arguments) == (10, 0.5)
    kernel, arguments = launch_of(trace, "roi_align_forward_kernel_impl")
    assert struct.unpack_from("<i", arguments) == (10 * 3 * 7 * 7,)
    assert signature_of(result, "roi_align_forward")["tensor_bytes"] > 3 * 32 * 32 * 4
