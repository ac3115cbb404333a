"""What the forests see of a GEMM or an attention, and the time they are measured against.

A forest predicts log(t / scale), the scale being the roofline plus a floor, so that beyond the
measured sizes a prediction follows physics.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from understudy.catalog import Device
from understudy.kernels import peak_flops

Columns = Mapping[str, np.ndarray]

#: Shortest duration of a kernel of the family, in nanoseconds: part of the scale.
FLOOR_NS = {"gemm": 2_000.0, "attention_forward": 4_000.0}

#: Output tiles of common GEMM kernels. Waves of them over the multiprocessors explain most of
#: what the roofline does not.
_GEMM_TILES = ((128, 128), (256, 128), (64, 64))
_ATTENTION_TILE = 128
_MAX_ALIGNMENT = 7


def gemm_work(f: Columns, dtype_bytes: float) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs and bytes of GEMMs with columns m, n, k, batch; operands read and the result written
    once."""
    flops = 2.0 * f["m"] * f["n"] * f["k"] * f["batch"]
    size = dtype_bytes * f["batch"] * (f["m"] * f["k"] + f["n"] * f["k"] + f["m"] * f["n"])
    return flops, size


def gemm_scale_ns(f: Columns, device: Device, dtype: str, dtype_bytes: float) -> np.ndarray:
    """Roofline plus floor of GEMMs, in nanoseconds."""
    flops, size = gemm_work(f, dtype_bytes)
    return _roofline_ns(flops, size, device, dtype) + FLOOR_NS["gemm"]


def gemm_features(f: Columns, device: Device, dtype: str, dtype_bytes: float) -> np.ndarray:
    """Feature matrix of GEMMs, one row each; a batch counts as that many times the rows m."""
    m, n, k = f["m"] * f["batch"], f["n"], f["k"]
    flops, size = gemm_work(f, dtype_bytes)
    compute = flops / peak_flops(device, dtype) * 1e9
    memory = size / device.memory_bandwidth_bytes_per_s * 1e9
    scale = np.maximum(compute, memory) + FLOOR_NS["gemm"]
    logs = [m, n, k, m * n, m * k, n * k, flops, size, flops / size, compute, memory, scale]
    columns = [np.log2(np.maximum(values, 1e-9)) for values in logs]
    for rows, width in _GEMM_TILES:
        tiles = f["batch"] * np.ceil(f["m"] / rows) * np.ceil(n / width)
        waves = tiles / device.multiprocessors
        columns += [np.log2(waves), waves / np.ceil(waves)]
    columns += [_filled(f["m"], 128), _filled(n, 128), _alignment(m)]
    return np.column_stack(columns)


def attention_pairs(f: Columns) -> np.ndarray:
    """Query-key pairs of one head; as understudy.kernels.attention_pairs, on columns."""
    window = np.where(f["window"] > 0, f["window"], f["seq_kv"])
    reach = np.minimum(window, f["seq_kv"])
    full = np.minimum(f["seq_q"], reach)
    causal = full * (full + 1) / 2 + (f["seq_q"] - full) * reach
    return np.where(f["causal"] > 0, causal, f["seq_q"] * reach)


def attention_work(f: Columns, dtype_bytes: float) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs and bytes of a forward attention: two products; q, k, v and the result once."""
    flops = 4.0 * f["batch"] * f["heads"] * f["head_dim"] * attention_pairs(f)
    rows = 2 * f["seq_q"] * f["heads"] + 2 * f["seq_kv"] * f["kv_heads"]
    return flops, dtype_bytes * f["batch"] * f["head_dim"] * rows


def attention_scale_ns(f: Columns, device: Device, dtype: str, dtype_bytes: float) -> np.ndarray:
    """Roofline plus floor of forward attention, in nanoseconds."""
    flops, size = attention_work(f, dtype_bytes)
    return _roofline_ns(flops, size, device, dtype) + FLOOR_NS["attention_forward"]


def attention_features(f: Columns, device: Device, dtype: str, dtype_bytes: float) -> np.ndarray:
    """Feature matrix of forward attention, one row each."""
    flops, size = attention_work(f, dtype_bytes)
    scale = attention_scale_ns(f, device, dtype, dtype_bytes)
    logs = [
        f["batch"],
        f["seq_q"],
        f["seq_kv"],
        f["heads"],
        f["kv_heads"],
        f["head_dim"],
        f["heads"] / f["kv_heads"],
        attention_pairs(f),
        flops,
        size,
        flops / size,
        f["batch"] * f["heads"],
        scale,
    ]
    columns = [np.log2(np.maximum(values, 1e-9)) for values in logs]
    tiles = np.ceil(f["seq_q"] / _ATTENTION_TILE) * f["batch"] * f["heads"]
    waves = tiles / device.multiprocessors
    columns += [
        np.log2(f["window"] + 1),
        f["causal"],
        np.log2(waves),
        waves / np.ceil(waves),
        _filled(f["seq_q"], _ATTENTION_TILE),
        _alignment(f["seq_q"]),
    ]
    return np.column_stack(columns)


def _roofline_ns(flops: np.ndarray, size: np.ndarray, device: Device, dtype: str) -> np.ndarray:
    compute = flops / peak_flops(device, dtype)
    return np.maximum(compute, size / device.memory_bandwidth_bytes_per_s) * 1e9


def _filled(extent: np.ndarray, tile: int) -> np.ndarray:
    """Fraction of the tiles' extent that holds work."""
    return extent / (tile * np.ceil(extent / tile))


def _alignment(extent: np.ndarray) -> np.ndarray:
    """Trailing zero bits, at most 7."""
    whole = np.maximum(extent.astype(np.int64), 1)
    return np.minimum(np.log2((whole & -whole).astype(np.float64)), _MAX_ALIGNMENT)
