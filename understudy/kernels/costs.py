"""FLOPs, bytes and roofline time of a signature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from understudy.catalog import Device, interconnect
from understudy.kernels.signature import Signature

#: Bytes that each rank sends per byte of the nccl-tests size, as a function of the ranks (ring).
_WIRE_FACTORS = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "gather": lambda p: (p - 1) / p,
    "scatter": lambda p: (p - 1) / p,
}

#: A backward attention does five products where a forward does two.
_BACKWARD_PRODUCTS = 5 / 2

_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

Row = Signature | Mapping[str, Any]


def features_of(signature: Row) -> dict[str, float]:
    """Features of a Signature or of a row of the `signatures` table (a map comes as pairs)."""
    if isinstance(signature, Signature):
        return dict(signature.features)
    return dict(signature["features"])


def _text(signature: Row, name: str) -> str:
    return getattr(signature, name) if isinstance(signature, Signature) else signature[name]


def collective_kind(signature: Row) -> str:
    """all_reduce, ... of a collective's signature."""
    return _text(signature, "name").split()[1]


def attention_pairs(features: Mapping[str, float]) -> float:
    """Query-key pairs of one head: all, or those under a causal mask from the top left, at most
    `window` keys per query when it is not 0."""
    queries, keys = features["seq_q"], features["seq_kv"]
    reach = min(features.get("window") or keys, keys)
    if not features.get("causal"):
        return queries * reach
    full = min(queries, reach)  # queries whose triangle is not cut
    return full * (full + 1) / 2 + (queries - full) * reach


def flops(signature: Row) -> float:
    """Floating point operations of one launch; 0 where they do not decide the time."""
    family, f = _text(signature, "family"), features_of(signature)
    if family == "gemm":
        return 2.0 * f["m"] * f["n"] * f["k"] * f["batch"]
    if family.startswith("attention_") and "head_dim" in f:
        forward = 4.0 * f["batch"] * f["heads"] * f["head_dim"] * attention_pairs(f)
        return forward * (_BACKWARD_PRODUCTS if family == "attention_backward" else 1.0)
    if family.startswith("convolution_") and "window" in f:
        channels = f["channels_in"] / f["groups"] * f["channels_out"]
        return 2.0 * f["batch"] * f["pixels_out"] * channels * f["window"]
    return f.get("flops", 0.0)


def bytes_moved(signature: Row) -> float:
    """Bytes read plus written by one launch; of a collective, bytes that each rank sends."""
    f = features_of(signature)
    if _text(signature, "family") == "collective":
        factor = _WIRE_FACTORS.get(collective_kind(signature), lambda _: 1.0)
        return f["size_bytes"] * factor(max(f["ranks"], 1.0))
    tensor_bytes = (
        signature.tensor_bytes if isinstance(signature, Signature) else signature["tensor_bytes"]
    )
    return float(f.get("bytes", tensor_bytes))


def peak_flops(device: Device, dtype: str) -> float:
    """Dense peak of `dtype`, of a complex one that of its parts; of float32 where the device
    states none."""
    dtype = _PARTS.get(dtype, dtype)
    return device.peak_flops.get(dtype, device.peak_flops["float32"])


def roofline_ns(signature: Row, device: Device) -> float:
    """Time at the device's peak compute or bandwidth, whichever is longer, in nanoseconds.

    Copies to or from the host are bound by the host link, collectives by the device's link to its
    neighbours (between nodes by whatever is slower, which this does not know).
    """
    f = features_of(signature)
    bandwidth = device.memory_bandwidth_bytes_per_s
    if _text(signature, "family") == "collective":
        bandwidth = interconnect(device.interconnect).bandwidth_bytes_per_s
    elif f.get("to_host") or f.get("from_host"):
        bandwidth = device.host_bandwidth_bytes_per_s
    compute = flops(signature) / peak_flops(device, _text(signature, "dtype"))
    seconds = max(compute, bytes_moved(signature) / bandwidth)
    return seconds * 1e9 if math.isfinite(seconds) else 0.0
