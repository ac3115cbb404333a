"""Signatures of library calls, copies and collectives, whose arguments are exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from understudy.kernels.library_work import work_of
from understudy.kernels.signature import Signature, element_bytes, sorted_features

#: cudaDataType_t.
_CUDA_TYPES = {
    0: "float32",
    1: "float64",
    2: "float16",
    3: "int8",
    4: "complex64",
    5: "complex128",
    6: "complex32",
    8: "uint8",
    10: "int32",
    14: "bfloat16",
    24: "int64",
    28: "float8",
    29: "float8",
    33: "float4",
}
#: cublasComputeType_t values that compute a float32 GEMM in a shorter type.
_COMPUTE_TYPES = {74: "float16", 75: "bfloat16", 77: "tensorfloat32"}

#: cudnnDataType_t.
_DNN_TYPES = {
    0: "float32",
    1: "float64",
    2: "float16",
    3: "int8",
    4: "int32",
    6: "uint8",
    9: "bfloat16",
    10: "int64",
    11: "bool",
    12: "float8",
    13: "float8",
}
#: cudnnBackendDescriptorType_t of operations, and attribute names of their tensors.
_CONVOLUTIONS = {
    10: ("convolution_forward", 704, 703, 705),
    11: ("convolution_wgrad", 716, 715, 717),
    12: ("convolution_dgrad", 710, 709, 711),
}
_POINTWISE, _MATMUL, _REDUCTION, _RNG, _NORM_FORWARD, _NORM_BACKWARD = 13, 19, 22, 33, 29, 30
_BATCH_NORMS = (14, 20, 23)
#: Operations of the older functions (us_dnn_operation_type in trace_format.h).
_RECURRENT = {1001: "forward", 1002: "dgrad", 1003: "wgrad"}
_LAYERS = {
    1004: ("cross_entropy", "ctc loss"),
    1005: ("elementwise", "grid generator"),
    1006: ("elementwise", "grid generator backward"),
    1007: ("elementwise", "sampler"),
    1008: ("elementwise", "sampler backward"),
    1009: ("reduction", "pooling"),
}
_MATMUL_A, _MATMUL_B = 1520, 1521
#: Attention as one operation: where it holds the queries and the keys, both [.., sequence, dim].
_UNIFIED_ATTENTION = {41: ("attention_forward", 2800, 2801), 43: ("attention_backward", 2851, 2852)}
#: A causal mask is a diagonal band mask or, in older graphs, GEN_INDEX twice (a pointwise mode).
_DIAGONAL_BAND_MASK = 44
_GEN_INDEX = 501

#: Prefixes of function names, the longest first.
_LIBRARIES = ("cusparselt", "cusparse", "cusolver", "cublas", "cufft", "curand")
#: Values that make up the shape in a signature's name, in this order.
_SIZES = ("n0", "n1", "n2", "m", "n", "k", "nrhs", "nnz")


class Gemm(Protocol):
    """What a recorded matrix product says; column-major, as in trace_format.h."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def stride_a(self) -> int: ...
    @property
    def stride_b(self) -> int: ...
    @property
    def transpose_a(self) -> int: ...
    @property
    def transpose_b(self) -> int: ...
    @property
    def type_a(self) -> int: ...
    @property
    def type_b(self) -> int: ...
    @property
    def type_d(self) -> int: ...
    @property
    def compute_type(self) -> int: ...
    @property
    def epilogue(self) -> int: ...
    @property
    def api(self) -> str: ...


class DnnOperation(Protocol):
    """One operation of a cuDNN graph."""

    @property
    def type(self) -> int: ...
    @property
    def mode(self) -> int: ...
    @property
    def first_tensor(self) -> int: ...
    @property
    def tensor_count(self) -> int: ...
    @property
    def spatial_dims(self) -> int: ...
    @property
    def stride(self) -> tuple[int, ...]: ...


class DnnTensor(Protocol):
    """One tensor of a cuDNN graph."""

    @property
    def attribute(self) -> int: ...
    @property
    def type(self) -> int: ...
    @property
    def is_virtual(self) -> bool: ...
    @property
    def unique_id(self) -> int: ...
    @property
    def dims(self) -> tuple[int, ...]: ...


class Dnn(Protocol):
    """An executed cuDNN operation graph."""

    @property
    def operations(self) -> Sequence[DnnOperation]: ...
    @property
    def tensors(self) -> Sequence[DnnTensor]: ...


class Library(Protocol):
    """A call of a library without a definition kind of its own; `type` is a cudaDataType_t."""

    @property
    def api(self) -> str: ...
    @property
    def type(self) -> int: ...
    @property
    def values(self) -> Sequence[tuple[str, int]]: ...


def _library_call(
    api: str,
    name: str,
    family: str,
    dtype: str,
    version: str,
    features: dict[str, float],
    tensor_bytes: int,
) -> Signature:
    return Signature(
        api, name, family, None, None, 0, 0, dtype, version, sorted_features(features), tensor_bytes
    )


def signature_of_gemm(gemm: Gemm) -> Signature:
    """A matrix product as y[m,n] = x[m,k] W[k,n] in row-major terms, m being the tokens' side.

    cuBLAS is column-major: its n is our m and its m is our n. `transpose_a` and `transpose_b` keep
    cuBLAS's sense, in which a linear layer's forward is (1, 0).
    """
    m, n, k, batch = gemm.n, gemm.m, gemm.k, max(gemm.batch, 1)
    dtype = _CUDA_TYPES.get(gemm.type_a, "unknown")
    computed = _COMPUTE_TYPES.get(gemm.compute_type, dtype) if dtype == "float32" else dtype
    copies_a = batch if gemm.stride_a or batch == 1 else 1
    copies_b = batch if gemm.stride_b or batch == 1 else 1
    out = _CUDA_TYPES.get(gemm.type_d, dtype)
    tensor_bytes = (
        n * k * copies_a * element_bytes(dtype)
        + m * k * copies_b * element_bytes(_CUDA_TYPES.get(gemm.type_b, dtype))
        + m * n * batch * element_bytes(out)
    )
    layout = "NTC"[gemm.transpose_a % 3] + "NTC"[gemm.transpose_b % 3]
    features: dict[str, float] = {
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "transpose_a": float(gemm.transpose_a != 0),
        "transpose_b": float(gemm.transpose_b != 0),
        "epilogue": gemm.epilogue,
    }
    version = "cublaslt" if "Lt" in gemm.api else "cublas"
    name = f"{gemm.api} {layout} {m}x{n}x{k}" + (f" batch {batch}" if batch > 1 else "")
    return _library_call(gemm.api, name, "gemm", computed, version, features, tensor_bytes)


def signature_of_dnn(dnn: Dnn) -> Signature:
    """A cuDNN graph: convolutions, attention (by its matrix products), norms, or anything else.

    Attention is one operation, or two matrix products (forward) or five (backward). The end of
    interceptor_c/src/cudnn_graph.c lists the graphs that PyTorch builds.
    """
    tensor_bytes = _dnn_bytes(dnn)
    for operation in dnn.operations:
        if operation.type in _CONVOLUTIONS:
            return _convolution(dnn, operation, tensor_bytes)
        if operation.type in _UNIFIED_ATTENTION:
            family, queries_at, keys_at = _UNIFIED_ATTENTION[operation.type]
            tensors = _tensors(dnn, operation)
            keys = tensors[keys_at].dims
            return _attention(dnn, family, tensors[queries_at], keys[1], keys[2], tensor_bytes)
    products = [o for o in dnn.operations if o.type == _MATMUL]
    if len(products) >= 2:
        family = "attention_backward" if len(products) >= 5 else "attention_forward"
        tensors = _tensors(dnn, products[0])  # [batch, heads, q, d] x [batch, kv heads, d, kv]
        keys = tensors[_MATMUL_B].dims
        return _attention(dnn, family, tensors[_MATMUL_A], keys[1], keys[3], tensor_bytes)
    kinds = {o.type for o in dnn.operations}
    if kinds & _RECURRENT.keys():
        return _recurrent(dnn, dnn.operations[0], tensor_bytes)
    if kinds & {_NORM_FORWARD, _NORM_BACKWARD, *_BATCH_NORMS}:
        family = "normalization"
        name = "norm backward" if _NORM_BACKWARD in kinds else "norm"
    elif _REDUCTION in kinds:
        family, name = "reduction", "reduction"
    elif kinds & _LAYERS.keys():
        family, name = _LAYERS[dnn.operations[0].type]
    elif kinds and kinds <= {_POINTWISE}:
        family, name = "elementwise", "pointwise"
    else:
        family, name = "generic", "graph"
    return _library_call(
        "cudnnBackendExecute",
        f"cudnn {name} {'+'.join(str(o.type) for o in dnn.operations)}",
        family,
        _dnn_dtype(dnn),
        "cudnn",
        {"bytes": tensor_bytes, "operations": len(dnn.operations)},
        tensor_bytes,
    )


def _dnn_bytes(dnn: Dnn) -> int:
    """Bytes of the distinct tensors in memory."""
    sizes: dict[int, int] = {}
    for tensor in dnn.tensors:
        if not tensor.is_virtual:
            sizes[tensor.unique_id] = _product(tensor.dims) * element_bytes(
                _DNN_TYPES.get(tensor.type, "float32")
            )
    return sum(sizes.values())


def _dnn_dtype(dnn: Dnn) -> str:
    """Type of the largest tensor in memory."""
    stored = [t for t in dnn.tensors if not t.is_virtual] or list(dnn.tensors)
    if not stored:
        return "unknown"
    largest = max(stored, key=lambda t: (_product(t.dims), -t.unique_id))
    return _DNN_TYPES.get(largest.type, "unknown")


def _product(values: Sequence[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def _tensors(dnn: Dnn, operation: DnnOperation) -> dict[int, DnnTensor]:
    first = operation.first_tensor
    return {t.attribute: t for t in dnn.tensors[first : first + operation.tensor_count]}


def _convolution(dnn: Dnn, operation: DnnOperation, tensor_bytes: int) -> Signature:
    """Forward, dgrad or wgrad. m, n, k are those of the implicit GEMM."""
    family, image_at, weight_at, out_at = _CONVOLUTIONS[operation.type]
    tensors = _tensors(dnn, operation)
    image, weight, out = tensors[image_at].dims, tensors[weight_at].dims, tensors[out_at].dims
    batch, channels_in, channels_out = image[0], image[1], out[1]
    window = _product(weight[2:])
    groups = max(channels_in // max(weight[1], 1), 1)
    pixels_in, pixels_out = _product(image[2:]), _product(out[2:])
    m, n, k = batch * pixels_out, channels_out, weight[1] * window
    if family == "convolution_dgrad":
        m, n, k = batch * pixels_in, channels_in, channels_out // groups * window
    elif family == "convolution_wgrad":
        m, n, k = channels_out, weight[1] * window, batch * pixels_out
    features: dict[str, float] = {
        "batch": batch,
        "channels_in": channels_in,
        "channels_out": channels_out,
        "pixels_in": pixels_in,
        "pixels_out": pixels_out,
        "window": window,
        "groups": groups,
        "stride": operation.stride[0] if operation.stride else 1,
        "m": m,
        "n": n,
        "k": k,
        "bytes": tensor_bytes,
    }
    kind = family.removeprefix("convolution_")
    name = f"cudnn convolution {kind} {batch}x{channels_in}->{channels_out} window {window}"
    dtype = _DNN_TYPES.get(tensors[image_at].type, "unknown")
    if dtype == "float32":
        dtype = "tensorfloat32"  # torch.backends.cudnn.allow_tf32 is on unless a script says no
    return _library_call(
        "cudnnBackendExecute", name, family, dtype, "cudnn", features, tensor_bytes
    )


def _recurrent(dnn: Dnn, operation: DnnOperation, tensor_bytes: int) -> Signature:
    """A whole recurrent network. Every weight meets every element of the batch at every step."""
    tensors = _tensors(dnn, operation)
    (steps, batch, channels_in), weights = tensors[1].dims, tensors[3].dims[0]
    elements = tensors[4].dims[0] if 4 in tensors else steps * batch  # packed sequences
    name = f"cudnn rnn {_RECURRENT[operation.type]} {steps}x{batch}x{channels_in} weights {weights}"
    features: dict[str, float] = {
        "steps": steps,
        "batch": batch,
        "channels_in": channels_in,
        "channels_out": tensors[2].dims[2],
        "weights": weights,
        "flops": 2.0 * elements * weights,
        "bytes": tensor_bytes,
    }
    dtype = _DNN_TYPES.get(tensors[1].type, "unknown")
    return _library_call("cudnnRNN", name, "recurrent", dtype, "cudnn", features, tensor_bytes)


def _attention(
    dnn: Dnn, family: str, query: DnnTensor, kv_heads: int, seq_kv: int, tensor_bytes: int
) -> Signature:
    """Scaled dot product attention of queries [batch, heads, sequence, head dim]."""
    queries = query.dims
    indices = sum(o.mode == _GEN_INDEX for o in dnn.operations if o.type == _POINTWISE)
    causal = indices >= 2 or any(o.type == _DIAGONAL_BAND_MASK for o in dnn.operations)
    features: dict[str, float] = {
        "batch": queries[0],
        "heads": queries[1],
        "kv_heads": kv_heads,
        "seq_q": queries[2],
        "head_dim": queries[3],
        "seq_kv": seq_kv,
        "causal": float(causal),
        "window": 0,
        "dropout": float(any(o.type == _RNG for o in dnn.operations)),
        "bytes": tensor_bytes,
    }
    name = (
        f"cudnn {family.replace('_', ' ')} {queries[0]}x{queries[1]}x{queries[2]}x{queries[3]}"
        f"{' causal' if causal else ''}"
    )
    dtype = _DNN_TYPES.get(query.type, "unknown")
    return _library_call(
        "cudnnBackendExecute", name, family, dtype, "cudnn", features, tensor_bytes
    )


def signature_of_library(call: Library) -> Signature:
    """A call of cuSOLVER, cuFFT, cuSPARSE, cuRAND or a solver of cuBLAS.

    Features are the recorded values under their own names, `flops` (real operations) and `bytes`
    (read plus written); library_work.py has the formulas. Values that are no size (leading
    dimensions, enumerations) are features as well: they tell two kernels apart.
    """
    dtype = _CUDA_TYPES.get(call.type, "unknown")
    values = dict(call.values)
    work = work_of(call.api, dtype, values)
    features: dict[str, float] = {name: float(value) for name, value in call.values}
    features |= {"flops": work.flops, "bytes": work.size_bytes}
    sizes = "x".join(str(values[name]) for name in _SIZES if values.get(name, 0) > 0)
    repeated = values.get("batch", 1)
    name = f"{call.api} {sizes}".rstrip() + (f" batch {repeated}" if repeated > 1 else "")
    version = next((v for v in _LIBRARIES if call.api.lower().startswith(v)), "library")
    return _library_call(
        call.api, name, work.family, dtype, version, features, round(work.size_bytes)
    )


def signature_of_copy(kind: str, size_bytes: int, pinned: bool) -> Signature:
    """A cudaMemcpyAsync: `kind` is h2d, d2h or d2d; `pinned` tells the host side's memory."""
    touched = 2 * size_bytes if kind == "d2d" else size_bytes
    return _library_call(
        "cudaMemcpyAsync",
        f"memcpy {kind}" + (" pinned" if pinned else ""),
        "copy",
        "uint8",
        "copy_engine",
        {
            "bytes": touched,
            "to_host": float(kind == "d2h"),
            "from_host": float(kind == "h2d"),
            "pinned": float(pinned),
        },
        touched,
    )


def signature_of_memset(size_bytes: int) -> Signature:
    """A cudaMemsetAsync."""
    return _library_call(
        "cudaMemsetAsync", "memset", "memset", "uint8", "driver", {"bytes": size_bytes}, size_bytes
    )


def signature_of_collective(
    kind: str, dtype: str, size_bytes: int, ranks: int, nodes: int
) -> Signature:
    """An NCCL operation over `ranks` on `nodes`; `size_bytes` in the sense of nccl-tests (for
    all_gather and reduce_scatter the whole buffer)."""
    name = f"nccl {kind} {ranks} ranks" + (f" {nodes} nodes" if nodes > 1 else "")
    return _library_call(
        "nccl",
        name,
        "collective",
        dtype,
        "nccl",
        {"size_bytes": size_bytes, "ranks": ranks, "nodes": nodes},
        size_bytes,
    )
