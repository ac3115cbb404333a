"""What decides how long a device operation takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Kernel families. Each has its own features, and its own forest or law.
FAMILIES = (
    "gemm",
    "attention_forward",
    "attention_backward",
    "convolution_forward",
    "convolution_dgrad",
    "convolution_wgrad",
    "normalization",
    "softmax",
    "elementwise",
    "reduction",
    "embedding",
    "optimizer",
    "cross_entropy",
    "copy",
    "memset",
    "collective",
    "linear_algebra",
    "fft",
    "sparse",
    "random",
    "recurrent",
    "generic",
)

#: Bytes of one element. `tensorfloat32` is float32 in memory.
ELEMENT_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "tensorfloat32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
    "float4": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True)
class Signature:
    """One distinct device operation.

    `features` are numbers, sorted by name; each family has its own set. `bytes` is the traffic of
    one launch, read plus written, where the arguments tell it. `tensor_bytes` are the bytes of the
    distinct tensors that are touched. `grid` and `block` are None for library calls.
    """

    api: str
    name: str
    family: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    shared_memory_bytes: int
    registers: int
    dtype: str
    kernel_version: str
    features: tuple[tuple[str, float], ...]
    tensor_bytes: int


def sorted_features(values: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Features as a Signature holds them: sorted by name, as floats."""
    return tuple((name, float(values[name])) for name in sorted(values))


def element_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`; 4 when it is not known."""
    return ELEMENT_BYTES.get(dtype, 4)
