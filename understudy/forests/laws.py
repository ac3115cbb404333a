"""Families without measured tables: t = max(floor, (B + B_half) / (f x bandwidth)).

B is the traffic in bytes, read and written once each. `B_half` is the size at which half of the
achievable bandwidth is reached. Constants were fitted per device family to published measurements
outside the product (named in `source`); they carry the label `law` wherever they are used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from understudy.catalog import Device


@dataclass(frozen=True)
class Law:
    """Constants of one kind of kernel. `spread`: half-width of the 90 % interval, relative."""

    floor_ns: float
    half_bytes: float
    fraction: float
    spread: float
    source: str

    def duration_ns(self, size_bytes: float, bandwidth_bytes_per_s: float) -> float:
        """Duration for a traffic of `size_bytes`; a small one costs at most twice its bytes."""
        moved = (
            (size_bytes + min(self.half_bytes, size_bytes))
            / (self.fraction * bandwidth_bytes_per_s)
            * 1e9
        )
        return max(self.floor_ns, moved)


def _law(floor_us: float, half_mb: float, fraction: float, source: str, spread: float = 0.3) -> Law:
    return Law(floor_us * 1e3, half_mb * 1e6, fraction, spread, source)


_TRACELENS = "H100 kernels of the TraceLens example traces (MIT)"
_LIGER = "Liger-Kernel benchmark data (BSD-2-Clause)"
_VIDUR = "Vidur profiles (MIT)"
_HTA = "A100 kernels of the HolisticTraceAnalysis test traces (MIT)"
_SAILOR = "Sailor profiles, A100-40 (MIT)"
_GUESS = "guess: no measurement at hand"

#: By the device whose kernels were measured. `""` is what applies to every device.
_LAWS: Mapping[str, Mapping[str, Law]] = {
    "hopper": {
        "unary": _law(1.7, 3.9, 0.80, _TRACELENS),
        "binary": _law(1.5, 2.3, 0.90, _TRACELENS),
        "cast": _law(1.4, 1.6, 0.92, _TRACELENS),
        "strided": _law(2.6, 0.0, 0.41, _TRACELENS),
        "concatenate": _law(2.6, 20.9, 0.41, _TRACELENS),
        "norm_forward": _law(3.6, 0.0, 0.42, _TRACELENS),
        "norm_backward": _law(
            3.6, 0.0, 0.60, _LIGER + ", the whole backward, split by traffic", 0.4
        ),
        "softmax_short": _law(2.0, 3.1, 0.49, _TRACELENS),
        "softmax_unaligned": _law(2.0, 0.0, 0.24, _TRACELENS, 0.5),
        "embedding": _law(2.0, 1.5, 0.19, _VIDUR, 0.4),
    },
    "ampere": {
        "unary": _law(1.8, 5.3, 0.87, _HTA),
        "binary": _law(1.8, 5.3, 0.87, _HTA),
        "cast": _law(1.8, 5.3, 0.87, _HTA),
        "strided": _law(1.8, 8.8, 0.65, _HTA),
        "concatenate": _law(1.8, 8.8, 0.65, _HTA + ", strided copies"),
        "norm_forward": _law(4.0, 0.0, 0.54, _LIGER),
        "norm_backward": _law(
            4.0, 0.0, 0.55, _LIGER + ", the whole backward, split by traffic", 0.4
        ),
        "softmax_short": _law(2.0, 2.0, 0.75, _SAILOR),
        "softmax_unaligned": _law(2.0, 0.0, 0.24, "taken from H100; " + _TRACELENS, 0.5),
        "embedding": _law(6.0, 0.0, 0.15, _VIDUR, 0.4),
    },
    "": {
        "softmax": _law(
            2.0, 0.0, 0.40, "A100 cross-entropy of 32k to 131k columns, " + _LIGER, 0.4
        ),
        "dropout": _law(1.8, 2.3, 0.74, _SAILOR),
        "optimizer": _law(3.0, 0.0, 0.73, "A100 fused Adam in the " + _HTA),
        "reduction": _law(3.0, 2.0, 0.60, _GUESS, 0.5),
        "loss": _law(3.0, 0.0, 0.20, _GUESS, 0.6),
        "memset": _law(1.5, 2.0, 0.85, _GUESS, 0.4),
        "device_copy": _law(1.5, 2.0, 0.85, "taken as a cast copy; " + _GUESS, 0.4),
        "host_copy_pinned": _law(2.0, 0.1, 0.80, "PCI Express payload efficiency; " + _GUESS, 0.4),
        "host_copy_pageable": _law(6.0, 0.5, 0.20, "staged through pinned memory; " + _GUESS, 0.6),
        "generic": _law(3.0, 2.0, 0.50, _GUESS, 0.6),
        # One read and one write per pass; a transform beyond shared memory takes several passes.
        "fft": _law(4.0, 2.0, 0.40, "two passes over memory; " + _GUESS, 0.6),
        # Gathers of rows by index seldom use whole sectors.
        "sparse": _law(5.0, 2.0, 0.30, "scattered access; " + _GUESS, 0.8),
        "random": _law(3.0, 2.0, 0.70, _GUESS, 0.5),
        "linear_algebra": _law(8.0, 2.0, 0.40, _GUESS, 0.8),
        "recurrent": _law(10.0, 2.0, 0.40, _GUESS, 0.8),
    },
}

#: Part of the peak that a library call's FLOPs reach at best; guesses.
_EFFICIENCIES: tuple[tuple[str, float], ...] = (
    (r"(sy|he)evj?|gesvd|geev", 0.10),  # much of it are matrix-vector products
    (r"cusparseLt", 0.50),
    (r"^cusparse", 0.05),
    (r"getrf|potrf|geqrf|gels|sytrf|orgqr|ungqr|ormqr|unmqr", 0.25),
)
#: Time of one step of what cannot be done in parallel, in nanoseconds: a column of a
#: factorization, a column of an eigenvalue reduction, a time step of a recurrent network. Guesses.
_SERIAL_STEPS_NS: tuple[tuple[str, str, float], ...] = (
    (r"(sy|he)evj?|gesvd|geev", "n", 5_000.0),
    (r"getrf|potrf|geqrf|gels|sytrf|orgqr|ungqr|ormqr|unmqr", "n", 500.0),
    (r"trs[mv]|(po|ge|sy)trs", "n", 50.0),
    (r"cudnn rnn", "steps", 5_000.0),
)

#: Part of the peak that a convolution reaches; a guess within what NeuSight's tables show.
CONVOLUTION_EFFICIENCY = 0.5
#: Relative half-width of the 90 % interval of a convolution by law.
CONVOLUTION_SPREAD = 0.5


def generation(device: Device) -> str:
    """Whose constants a device uses: A100's for compute capability 8, H100's for all newer."""
    return "ampere" if device.compute_capability_major <= 8 else "hopper"


def law_name(family: str, name: str, features: Mapping[str, float]) -> str:
    """Which law applies to a kernel: by family, kernel name and shape."""
    if family == "copy":
        if features.get("to_host") or features.get("from_host"):
            return "host_copy_pinned" if features.get("pinned") else "host_copy_pageable"
        if name.startswith("memcpy"):
            return "device_copy"
        if "CatArray" in name:
            return "concatenate"
        return "strided" if _is_strided(name) else "cast"
    if family == "elementwise":
        if "dropout" in name:
            return "dropout"
        if _is_strided(name):
            return "strided"
        return "binary" if features.get("arrays", 2) >= 3 else "unary"
    if family == "normalization":
        return "norm_backward" if re.search(r"[bB]ackward|grad|bw_", name) else "norm_forward"
    if family == "softmax":
        columns = features.get("columns", 0)
        if columns <= 1024:
            return "softmax_short"
        return "softmax_unaligned" if columns % 8 else "softmax"
    if family == "cross_entropy":
        return "loss"
    return family if family in _LAWS[""] else "generic"


def efficiency(name: str) -> float:
    """Part of the peak that the FLOPs of a kernel or library call without measurements reach."""
    return next((part for form, part in _EFFICIENCIES if re.search(form, name)), 0.5)


def serial_ns(name: str, features: Mapping[str, float]) -> float:
    """Time of the steps of a library call that wait for each other, in nanoseconds; 0 without.

    Batches run side by side and do not add to it.
    """
    for form, feature, step_ns in _SERIAL_STEPS_NS:
        if re.search(form, name):
            return features.get(feature, 0.0) * step_ns
    return 0.0


def _is_strided(name: str) -> bool:
    """`elementwise_kernel<128, 4>` walks strides; the vectorized and unrolled ones do not."""
    return re.search(r"(^|::|_)elementwise_kernel<", name) is not None and not re.search(
        r"(vectorized|unrolled)_elementwise_kernel", name
    )


def law_for(family: str, name: str, features: Mapping[str, float], device: Device) -> Law:
    """Constants for a kernel on a device."""
    kind = law_name(family, name, features)
    laws = _LAWS[generation(device)]
    return laws.get(kind) or _LAWS[""][kind]
