"""Small cubins and fat binaries, assembled by the ptxas that Triton brings."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from understudy.traces.cubin import FATBIN_MAGIC

PTX = """
.version 8.0
.target sm_80
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
.visible .entry fill(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
LZ4, ZSTD = 0x2000, 0x8000


def assembled(folder: Path, architecture: int) -> bytes:
    """The cubin of PTX with its two kernels. Skips the test where Triton is not installed."""
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        pytest.skip("Triton, which brings the assembler of this test, is not installed")
    assembler = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    source, cubin = folder / "kernels.ptx", folder / f"kernels{architecture}.cubin"
    source.write_text(PTX)
    subprocess.run(
        [str(assembler), f"-arch=sm_{architecture}", str(source), "-o", str(cubin)], check=True
    )
    return cubin.read_bytes()


def fatbin(cubins: dict[int, bytes], compression: int = 0) -> bytes:
    """A fat binary with a cubin per architecture, as nvcc lays it out."""
    entries = b""
    for architecture, cubin in cubins.items():
        codec = {ZSTD: "zstd", LZ4: "lz4_raw"}.get(compression)
        stored = pa.Codec(codec).compress(cubin, asbytes=True) if codec else cubin
        padded = stored.ljust((len(stored) + 7) // 8 * 8, b"\0")
        compressed_bytes = len(stored) if codec else 0
        entries += struct.pack(
            "<HHIQIIIIQQQQ",
            *(2, 0x101, 64, len(padded), compressed_bytes, 0, 0x10007, architecture, 0),
            *(compression, 0, len(cubin) if codec else 0),
        )
        entries += padded
    return struct.pack("<IHHQ", FATBIN_MAGIC, 1, 16, len(entries)) + entries
