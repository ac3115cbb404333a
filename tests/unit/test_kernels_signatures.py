"""Signatures of library calls, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy import kernels
from understudy.catalog import device
from understudy.kernels import (
    attention_pairs,
    bytes_moved,
    demangle,
    display_name,
    dtype_of,
    family_of,
    features_of,
    flops,
    roofline_ns,
    signature_of_collective,
    signature_of_copy,
    signature_of_dnn,
    signature_of_gemm,
    signature_of_memset,
)
from understudy.kernels.names import template_arguments
from understudy.traces.interceptor import DnnDefinition, DnnOperation, DnnTensor, GemmDefinition

H100 = device("h100")
BFLOAT16, FLOAT32 = 14, 0


def gemm(m: int, n: int, k: int, transpose: tuple[int, int] = (1, 0), **changes) -> GemmDefinition:
    """y[m,n] = x[m,k] W[n,k]^T as PyTorch hands it to cuBLAS: column-major, sides swapped."""
    values = {
        "id": 1, "m": n, "n": m, "k": k, "batch": 1,
        "lda": k, "ldb": k, "ldc": n, "ldd": n,
        "stride_a": 0, "stride_b": 0, "stride_c": 0, "stride_d": 0,
        "transpose_a": transpose[0], "transpose_b": transpose[1],
        "type_a": BFLOAT16, "type_b": BFLOAT16, "type_c": BFLOAT16, "type_d": BFLOAT16,
        "compute_type": 68, "epilogue": 1, "api": "cublasGemmEx",
    }  # fmt: skip
    return GemmDefinition(**(values | changes))


def test_gemm_is_seen_from_the_tokens_side() -> None:
    s = signature_of_gemm(gemm(8192, 2304, 768))
    f = features_of(s)
    assert (f["m"], f["n"], f["k"], f["batch"]) == (8192, 2304, 768, 1)
    assert (f["transpose_a"], f["transpose_b"]) == (1, 0)
    assert s.name == "cublasGemmEx TN 8192x2304x768" and s.dtype == "bfloat16"
    assert flops(s) == 2 * 8192 * 2304 * 768
    assert bytes_moved(s) == s.tensor_bytes == 2 * (8192 * 768 + 2304 * 768 + 8192 * 2304)


def test_batched_gemm_with_a_shared_operand() -> None:
    s = signature_of_gemm(gemm(64, 32, 16, batch=10, stride_a=512, stride_b=0, stride_d=2048))
    assert s.tensor_bytes == 2 * (10 * 32 * 16 + 64 * 16 + 10 * 64 * 32)
    assert flops(s) == 10 * 2 * 64 * 32 * 16


@pytest.mark.parametrize(
    ("compute", "dtype"), [(68, "float32"), (77, "tensorfloat32"), (-1, "float32")]
)
def test_float32_gemm_by_compute_type(compute: int, dtype: str) -> None:
    s = signature_of_gemm(
        gemm(8, 8, 8, type_a=FLOAT32, type_b=FLOAT32, type_d=FLOAT32, compute_type=compute)
    )
    assert s.dtype == dtype and s.tensor_bytes == 3 * 64 * 4


def test_roofline_of_a_large_gemm_is_compute_bound() -> None:
    s = signature_of_gemm(gemm(8192, 8192, 8192))
    assert roofline_ns(s, H100) == pytest.approx(2 * 8192**3 / 989.4e12 * 1e9)
    narrow = signature_of_gemm(gemm(8192, 8192, 1))
    assert roofline_ns(narrow, H100) == pytest.approx(narrow.tensor_bytes / 3.35e12 * 1e9)


@dataclass
class Graph:
    """A cuDNN operation graph, built up."""

    operations: list[DnnOperation] = field(default_factory=list)
    tensors: list[DnnTensor] = field(default_factory=list)

    def add(self, kind: int, *tensors: tuple[int, tuple[int, ...], bool], mode: int = 0) -> None:
        first = len(self.tensors)
        for i, (attribute, dims, virtual) in enumerate(tensors):
            self.tensors.append(DnnTensor(attribute, 9, virtual, first + i, dims, dims))
        self.operations.append(
            DnnOperation(kind, mode, first, len(tensors), 2, (1, 1, 1), (1, 1, 1), (0, 0, 0))
        )

    def signature(self) -> kernels.Signature:
        return signature_of_dnn(DnnDefinition(1, tuple(self.operations), tuple(self.tensors)))


def attention_graph(products: int, causal: bool) -> kernels.Signature:
    q, k, s = (8, 12, 1024, 64), (8, 12, 64, 1024), (8, 12, 1024, 1024)
    g = Graph()
    g.add(19, (1520, q, False), (1521, k, False), (1522, s, True))
    if causal:
        for _ in range(2):
            g.add(13, (751, s, True), (753, s, True), mode=501)
    g.add(22, (1610, s, True), (1611, (8, 12, 1024, 1), True))
    for _ in range(products - 1):
        g.add(19, (1520, s, True), (1521, q, False), (1522, q, False))
    return g.signature()


def test_attention_graphs() -> None:
    forward = attention_graph(2, causal=True)
    assert (forward.family, forward.kernel_version) == ("attention_forward", "cudnn")
    f = features_of(forward)
    assert (f["batch"], f["heads"], f["seq_q"], f["seq_kv"], f["head_dim"]) == (
        8,
        12,
        1024,
        1024,
        64,
    )
    assert f["causal"] == 1
    assert flops(forward) == 4 * 8 * 12 * 64 * 1024 * 1025 / 2
    backward = attention_graph(5, causal=False)
    assert backward.family == "attention_backward"
    assert flops(backward) == 10 * 8 * 12 * 64 * 1024**2


@pytest.mark.parametrize(
    ("kind", "attributes", "family", "product"),
    [
        (10, (704, 703, 705), "convolution_forward", (4 * 56 * 56, 128, 64 * 9)),
        (12, (710, 709, 711), "convolution_dgrad", (4 * 56 * 56, 64, 128 * 9)),
        (11, (716, 715, 717), "convolution_wgrad", (128, 64 * 9, 4 * 56 * 56)),
    ],
)
def test_convolutions(
    kind: int, attributes: tuple[int, int, int], family: str, product: tuple[int, int, int]
) -> None:
    image, weight, out = (4, 64, 56, 56), (128, 64, 3, 3), (4, 128, 56, 56)
    g = Graph()
    g.add(kind, *((a, d, False) for a, d in zip(attributes, (image, weight, out), strict=True)))
    s = g.signature()
    assert s.family == family
    f = features_of(s)
    assert (f["m"], f["n"], f["k"]) == product
    assert flops(s) == 2 * 4 * 56 * 56 * 64 * 128 * 9
    assert bytes_moved(s) == 2 * sum(a * b * c * d for a, b, c, d in (image, weight, out))


def test_other_graphs_have_a_family() -> None:
    g = Graph()
    g.add(13, (751, (1, 8, 4), False), (753, (1, 8, 4), False))
    assert g.signature().family == "elementwise"
    g.add(22, (1610, (1, 8, 4), False), (1611, (1, 8, 1), False))
    assert g.signature().family == "reduction"
    assert Graph().signature().family == "generic"


def test_copies_are_bound_by_the_link_they_cross() -> None:
    up = signature_of_copy("h2d", 64_000_000, pinned=True)
    across = signature_of_copy("d2d", 64_000_000, pinned=False)
    assert roofline_ns(up, H100) == pytest.approx(1e6)
    assert roofline_ns(across, H100) == pytest.approx(2 * 64e6 / 3.35e12 * 1e9)
    assert bytes_moved(signature_of_memset(100)) == 100


def test_collectives_move_what_a_ring_moves() -> None:
    reduce = signature_of_collective("all_reduce", "float32", 800, 8, 1)
    gather = signature_of_collective("all_gather", "float32", 800, 8, 1)
    assert bytes_moved(reduce) == 1400 and bytes_moved(gather) == 700
    assert kernels.collective_kind(reduce) == "all_reduce"


def test_rows_of_the_table_count_like_signatures() -> None:
    s = signature_of_gemm(gemm(64, 32, 16))
    row = {
        "family": s.family, "name": s.name, "dtype": s.dtype,
        "features": list(s.features), "tensor_bytes": s.tensor_bytes,
    }  # fmt: skip
    assert (flops(row), bytes_moved(row), roofline_ns(row, H100)) == (
        flops(s), bytes_moved(s), roofline_ns(s, H100),
    )  # fmt: skip


@given(st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 45))
def test_attention_pairs_by_counting(queries: int, keys: int, causal: bool, window: int) -> None:
    reach = min(window or keys, keys)
    counted = sum(min(i + 1, reach) if causal else reach for i in range(queries))
    f = {"seq_q": queries, "seq_kv": keys, "causal": float(causal), "window": window}
    assert attention_pairs(f) == counted


def test_names() -> None:
    assert demangle("_ZN2at6native3fooEv") == "at::native::foo()"
    assert demangle("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
    assert display_name("_ZN2at6native3fooEv") == "at::native::foo"
    assert demangle("_Znonsense") == "_Znonsense"
    assert family_of("triton_red_fused_native_layer_norm_3") == "normalization"
    assert family_of("triton_poi_fused_add_0") == "elementwise"
    assert family_of("something_else") == "generic"
    assert dtype_of("fmha_cutlassF_bf16_aligned_64x64_rf_sm80") == "bfloat16"
    assert dtype_of("noise") == "unknown"


@given(st.lists(st.sampled_from(["int", "a<b, c>", "f(x, y)", "{lambda(int)#1}"]), min_size=1))
def test_template_arguments(arguments: list[str]) -> None:
    name = f"void ns::kernel<{', '.join(arguments)}>::run"
    assert list(template_arguments(name, "kernel")) == arguments
