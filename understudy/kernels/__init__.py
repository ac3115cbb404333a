"""Kernel names and arguments -> family, features, FLOPs, bytes and roofline."""

from understudy.kernels.costs import (
    attention_pairs,
    bytes_moved,
    collective_kind,
    features_of,
    flops,
    peak_flops,
    roofline_ns,
)
from understudy.kernels.demangle import demangle
from understudy.kernels.launches import signature_of_launch
from understudy.kernels.libraries import (
    signature_of_collective,
    signature_of_copy,
    signature_of_dnn,
    signature_of_gemm,
    signature_of_library,
    signature_of_memset,
)
from understudy.kernels.names import display_name, dtype_of, family_of, kernel_version_of
from understudy.kernels.signature import FAMILIES, Signature, element_bytes, sorted_features

__all__ = [
    "FAMILIES",
    "Signature",
    "attention_pairs",
    "bytes_moved",
    "collective_kind",
    "demangle",
    "display_name",
    "dtype_of",
    "element_bytes",
    "family_of",
    "features_of",
    "flops",
    "kernel_version_of",
    "peak_flops",
    "roofline_ns",
    "signature_of_collective",
    "signature_of_copy",
    "signature_of_dnn",
    "signature_of_gemm",
    "signature_of_launch",
    "signature_of_library",
    "signature_of_memset",
    "sorted_features",
]
