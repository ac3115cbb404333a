"""Predicts the duration of every signature of a job on a device.

Where an estimate comes from (`estimate_source`):
  measured     the device's own rows cover this operation: bfloat16 GEMMs in the linear layer's
               layout, full forward attention of a measured implementation, in-node collectives;
  transferred  measured rows of something close: another GEMM layout, batch or element type (same
               ratio to its own roofline), another attention implementation, causal attention (the
               rows write a cache too), backward attention (a ratio to the forward), a rank count
               or operation between measured ones;
  law          no rows: a formula with cited constants.
A predicted duration is never below the roofline, nor below 1 ns; the only exception are measured
collectives, which in-switch reduction takes below a ring's bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.catalog import Device
from understudy.forests.collectives import Cluster, estimate
from understudy.forests.features import (
    attention_features,
    attention_scale_ns,
    gemm_features,
    gemm_scale_ns,
)
from understudy.forests.laws import (
    CONVOLUTION_EFFICIENCY,
    CONVOLUTION_SPREAD,
    efficiency,
    law_for,
    serial_ns,
)
from understudy.forests.storage import Forest, Models, load
from understudy.home import forests_dir
from understudy.kernels import (
    bytes_moved,
    collective_kind,
    element_bytes,
    features_of,
    flops,
    peak_flops,
    roofline_ns,
)

#: Columns of the result, aligned with the rows of the signatures.
SCHEMA = pa.schema(
    [
        pa.field("duration_ns", pa.int64(), nullable=False),
        pa.field("low_ns", pa.int64(), nullable=False),
        pa.field("high_ns", pa.int64(), nullable=False),
        pa.field("roofline_ns", pa.int64(), nullable=False),
        pa.field("flops", pa.float64(), nullable=False),
        pa.field("estimate_source", pa.string(), nullable=False),
        pa.field("extrapolated", pa.bool_(), nullable=False),
    ]
)

#: What the measured rows may be off by as a whole, as (too slow, too fast), relative: the harness
#: ran short bursts at clocks that a training job does not hold. Found against an independent
#: harness (Vidur): A100 +-10 %, H100 -5 to +30 %; others are taken as H100.
_SYSTEMATIC = {"a100-sxm-80gb": (0.10, 0.10)}
_SYSTEMATIC_DEFAULT = (0.05, 0.30)

#: Duration of a backward attention relative to its forward: 2.9 to 3.3 for FlashAttention-like
#: kernels of H200 (cudnn-frontend's published benchmark, MIT), by head dimension up to 64 or more.
_BACKWARD_RATIO = {True: 2.95, False: 3.1}

#: Slowdown of FlashAttention 2 against the implementation that was measured, by the major compute
#: capability: 3 on Hopper (its paper states 1.5 to 2.0; the lower end, for the rows hold some
#: overhead already), the kernels of Blackwell servers on 10 (guess).
_FLASH2_FACTORS = {9: 1.5, 10: 2.5}
#: Slowdown of the memory-efficient kernels against FlashAttention 2 (guess).
_EFFICIENT_FACTOR = 1.5

#: Relative uncertainty that a transfer adds.
_LAYOUT_SPREAD = 0.10
_DTYPE_SPREAD = 0.25
_IMPLEMENTATION_SPREAD = 0.20
_BACKWARD_SPREAD = 0.12

#: cublasLtEpilogue_t values that cost nothing measurable: none, bias.
_FREE_EPILOGUES = (0, 1, 4)
_ALIGNED = 8


@dataclass(frozen=True)
class _Estimate:
    duration_ns: float
    low: float  # relative distance of the interval's lower end
    high: float
    source: str
    extrapolated: bool


def predict(
    signatures: pa.Table,
    device: Device,
    cluster: Cluster | None = None,
    models: Models | None = None,
) -> pa.Table:
    """Durations of `signatures` (columns of the `signatures` table) on `device`; see SCHEMA.

    `cluster` says what joins the GPUs of a node (None: the device's own fabric) and the nodes.
    `models` are the device's trained forests, loaded when not given. Raises UnderstudyError when
    there are none, UsageError when ranks on several nodes have no network.
    """
    models = models or load(forests_dir(device.id))
    rows = signatures.to_pylist()
    estimates: list[_Estimate | None] = [None] * len(rows)
    for family in ("gemm", "attention"):
        chosen = [
            i
            for i, row in enumerate(rows)
            if row["family"].startswith(family) and _is_complete(features_of(row), family)
        ]
        for i, found in zip(
            chosen, _modelled([rows[i] for i in chosen], family, device, models), strict=True
        ):
            estimates[i] = found
    columns: dict[str, list] = {name: [] for name in SCHEMA.names}
    for row, found in zip(rows, estimates, strict=True):
        _append(columns, row, device, found or _unmodelled(row, device, cluster, models))
    return pa.table(columns, schema=SCHEMA)


def _append(columns: dict[str, list], row: Mapping[str, Any], device: Device, e: _Estimate) -> None:
    bound = roofline_ns(row, device)
    clamped = e.duration_ns
    if not (row["family"] == "collective" and e.source == "measured"):
        clamped = max(clamped, bound)
    duration = max(round(clamped), 1)
    columns["duration_ns"].append(duration)
    columns["low_ns"].append(min(max(round(duration * (1 - e.low)), 1), duration))
    columns["high_ns"].append(max(round(duration * (1 + e.high)), duration))
    columns["roofline_ns"].append(round(bound))
    columns["flops"].append(flops(row))
    columns["estimate_source"].append(e.source)
    columns["extrapolated"].append(e.extrapolated)


def _is_complete(f: Mapping[str, float], family: str) -> bool:
    """Whether the features that a forest needs are there; a kernel with unread arguments lacks
    them."""
    wanted = ("m", "n", "k") if family == "gemm" else ("seq_q", "heads", "head_dim")
    return all(f.get(name, 0) > 0 for name in wanted)


def _systematic(device: Device) -> tuple[float, float]:
    return _SYSTEMATIC.get(device.id, _SYSTEMATIC_DEFAULT)


def _interval(device: Device, random: float, transfer: float) -> tuple[float, float]:
    """Relative distances of a 90 % interval's ends: independent parts add as squares."""
    slow, fast = _systematic(device)
    spread = float(np.hypot(random, transfer))
    return min(float(np.hypot(spread, slow)), 0.95), float(np.hypot(spread, fast))


# --- forests ---


def _modelled(
    rows: list[Mapping[str, Any]], family: str, device: Device, models: Models
) -> list[_Estimate | None]:
    """Estimates of rows of one family; None where the device has no forest."""
    name = "gemm" if family == "gemm" else "attention_forward"
    found: list[_Estimate | None] = [None] * len(rows)
    groups: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(rows):
        forest = _forest_for(name, row["dtype"], models)
        if forest is not None:
            groups.setdefault((row["dtype"], forest.dtype), []).append(i)
    make, scale = (
        (gemm_features, gemm_scale_ns)
        if family == "gemm"
        else (attention_features, attention_scale_ns)
    )
    for (dtype, trained_dtype), chosen in groups.items():
        forest = models.forests[name, trained_dtype]
        features = [features_of(rows[i]) for i in chosen]
        columns = {n: np.array([f.get(n, 0.0) for f in features]) for n in forest.ranges}
        if family == "attention":
            columns = _without_cache_write(columns, forest)
        x = make(columns, device, trained_dtype, element_bytes(trained_dtype))
        mean, random = forest.ensemble.predict(x)
        duration = np.exp(mean) * scale(columns, device, dtype, element_bytes(dtype))
        finish = _gemm if family == "gemm" else _attention
        for j, i in enumerate(chosen):
            found[i] = finish(
                rows[i], features[j], forest, device, float(duration[j]), float(random[j])
            )
    return found


def _without_cache_write(columns: dict[str, np.ndarray], forest: Forest) -> dict[str, np.ndarray]:
    """Causal rows were measured in inference servers and hold the write of keys and values into
    the cache, which training does not do; with the fewest key heads it all but vanishes, while the
    products stay the same (64 heads of H100: 443 us with 64 key heads, 256 us with one)."""
    fewest = forest.ranges["kv_heads"][0]
    kv_heads = np.where(columns["causal"] > 0, fewest, columns["kv_heads"])
    return columns | {"kv_heads": kv_heads}


def _forest_for(family: str, dtype: str, models: Models) -> Forest | None:
    """The forest of the element type itself, else of the half-precision one."""
    return models.forests.get((family, dtype)) or models.forests.get((family, "bfloat16"))


def _gemm(
    row: Mapping[str, Any],
    f: Mapping[str, float],
    forest: Forest,
    device: Device,
    duration_ns: float,
    random: float,
) -> _Estimate:
    same_dtype = row["dtype"] == forest.dtype
    halves = {row["dtype"], forest.dtype} <= {"bfloat16", "float16"}
    measured = (
        same_dtype
        and f["batch"] == 1
        and (f["transpose_a"], f["transpose_b"]) == (1, 0)
        and f["epilogue"] in _FREE_EPILOGUES
    )
    transfer = 0.0 if measured else _LAYOUT_SPREAD
    if not (same_dtype or halves):
        transfer = _DTYPE_SPREAD
    low, high = _interval(device, random, transfer)
    outside = any(
        not forest.ranges[n][0] <= value <= forest.ranges[n][1]
        for n, value in (("m", f["m"] * f["batch"]), ("n", f["n"]), ("k", f["k"]))
    )
    # Every measured n and k is a multiple of 32; others may take slower kernels.
    unaligned = f["n"] % _ALIGNED != 0 or f["k"] % _ALIGNED != 0
    return _Estimate(
        duration_ns, low, high, "measured" if measured else "transferred", outside or unaligned
    )


def _implementation_factor(version: str, device: Device) -> float:
    """Time of an attention implementation relative to the measured one, where they differ."""
    flash2 = _FLASH2_FACTORS.get(device.compute_capability_major, 1.0)
    return {"flash2": flash2, "cutlass_fmha": flash2 * _EFFICIENT_FACTOR}.get(version, 1.0)


def _attention(
    row: Mapping[str, Any],
    f: Mapping[str, float],
    forest: Forest,
    device: Device,
    duration_ns: float,
    random: float,
) -> _Estimate:
    backward = row["family"] == "attention_backward"
    version = row["kernel_version"]
    same = version in forest.kernel_versions and row["dtype"] == forest.dtype
    transfer = 0.0
    if version not in forest.kernel_versions:
        transfer = _IMPLEMENTATION_SPREAD
        duration_ns *= _implementation_factor(version, device)
    if backward:
        duration_ns *= _BACKWARD_RATIO[f["head_dim"] <= 64]
        transfer = float(np.hypot(transfer, _BACKWARD_SPREAD))
    low, high = _interval(device, random, transfer)
    outside = any(
        not span[0] <= f.get(name, 0.0) <= span[1] for name, span in forest.ranges.items()
    )
    written = f["causal"] > 0 and f["kv_heads"] > forest.ranges["kv_heads"][0]
    measured = same and not backward and not written and f["seq_q"] == f["seq_kv"]
    return _Estimate(duration_ns, low, high, "measured" if measured else "transferred", outside)


# --- everything else ---


def _unmodelled(
    row: Mapping[str, Any], device: Device, cluster: Cluster | None, models: Models
) -> _Estimate:
    f = features_of(row)
    family = row["family"]
    if family == "collective":
        e = estimate(
            models.collectives,
            device,
            cluster,
            collective_kind(row),
            f["size_bytes"],
            int(f["ranks"]),
            int(f["nodes"]),
        )
        return _Estimate(e.duration_ns, min(e.spread, 0.95), e.spread, e.source, e.extrapolated)
    if family.startswith("convolution_") and flops(row) > 0:
        return _convolution(row, device)
    law = law_for(family, row["name"], f, device)
    bandwidth = device.memory_bandwidth_bytes_per_s
    if re.match(r"memcpy (h2d|d2h)", row["name"]):
        bandwidth = device.host_bandwidth_bytes_per_s
    duration = law.duration_ns(bytes_moved(row), bandwidth)
    compute = flops(row)
    if compute:
        reached = efficiency(row["name"]) * peak_flops(device, row["dtype"])
        duration = max(duration, compute / reached * 1e9)
    duration += serial_ns(row["name"], f)
    return _Estimate(duration, min(law.spread, 0.95), law.spread, "law", False)


def _convolution(row: Mapping[str, Any], device: Device) -> _Estimate:
    """Half of the peak, or the law of unknown kernels for its traffic, whichever is longer."""
    law = law_for("generic", "", {}, device)
    compute = flops(row) / (CONVOLUTION_EFFICIENCY * peak_flops(device, row["dtype"])) * 1e9
    moved = law.duration_ns(bytes_moved(row), device.memory_bandwidth_bytes_per_s)
    return _Estimate(max(compute, moved), CONVOLUTION_SPREAD, CONVOLUTION_SPREAD, "law", False)
