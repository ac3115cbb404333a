"""Real PyTorch through cuFFT, cuSPARSE(Lt), NVRTC and older cuDNN: what the trace says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interceptor.cases import Cases, run_cases
from understudy.kernels import signature_of_library
from understudy.traces.interceptor import LibraryDefinition

FLOAT32, COMPLEX64, COMPLEX128, COMPLEX32 = 0, 4, 5, 6  # cudaDataType_t


@pytest.fixture(scope="module")
def cases(interceptor: Path, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return run_cases("science_calls.py", interceptor, tmp_path_factory.mktemp("science"))


def _values(call: LibraryDefinition, *names: str) -> tuple[int, ...]:
    values = dict(call.values)
    return tuple(values[name] for name in names)


def test_fourier_transforms(cases: Cases) -> None:
    geometry = ("rank", "n0", "n1", "n2", "batch", "direction")
    (plain,) = cases.calls("fft c2c")
    assert (plain.api, plain.type) == ("cufftXtExec", COMPLEX64)
    assert _values(plain, *geometry) == (1, 60, 0, 0, 8, -1)
    forward, backward = cases.calls("fft r2c c2r")
    assert _values(forward, "inputtype", "outputtype", "direction") == (FLOAT32, COMPLEX64, -1)
    assert _values(backward, "inputtype", "outputtype", "direction") == (COMPLEX64, FLOAT32, 1)
    (double,) = cases.calls("fft 2d double")
    assert double.type == COMPLEX128
    assert _values(double, *geometry) == (2, 16, 20, 0, 3, 1)
    (three,) = cases.calls("fft nd")
    assert _values(three, *geometry) == (3, 4, 6, 8, 1, -1)
    (half,) = cases.calls("fft half")
    assert half.type == COMPLEX32
    assert len(cases.calls("fft backward")) == 2


@pytest.mark.parametrize(
    ("case", "apis"),
    [
        ("coo dense", ["cusparseXcoo2csr", "cusparseSpMM"]),
        ("csr dense", ["cusparseSpMM"]),
        ("csr vector", ["cusparseSpMV"]),
        ("addmm", ["cusparseSpMM"]),
        ("csr csr", ["cusparseSpGEMM_compute", "cusparseSpGEMM_copy"]),
        ("csr add", ["cusparseXcsrgeam2Nnz", "cusparseScsrgeam2"]),
        ("sampled", ["cusparseSDDMM"]),
        ("triangular", ["cusparseSpSM_analysis", "cusparseSpSM_solve"]),
        ("bsr", ["cusparseSbsrmv", "cusparseSbsrsm2_analysis", "cusparseSbsrsm2_solve"]),
        ("semi-structured", ["cusparseLtSpMMACompress2", "cusparseLtMatmul"]),
    ],
)
def test_sparse_calls(cases: Cases, case: str, apis: list[str]) -> None:
    calls = cases.calls(case)
    assert [call.api for call in calls] == apis
    assert {signature_of_library(call).family for call in calls} == {"sparse"}


def test_sparse_shapes(cases: Cases) -> None:
    (product,) = cases.calls("csr dense")
    assert product.type == FLOAT32
    assert _values(product, "m", "n", "k", "nnz") == (4, 5, 4, 3)
    assert dict(signature_of_library(product).features)["flops"] == 2 * 3 * 5
    (sampled,) = cases.calls("sampled")
    assert _values(sampled, "m", "n", "k", "nnz") == (4, 4, 6, 3)
    solve = cases.calls("bsr")[2]
    assert _values(solve, "m", "n", "nnz", "blockDim") == (4, 5, 8, 2)
    compression, pruned = cases.calls("semi-structured")
    assert _values(compression, "m", "k") == (128, 256)
    assert _values(pruned, "m", "n", "k", "sparsity") == (128, 64, 256, 50)


def test_compiled_kernels(cases: Cases) -> None:
    """NVRTC's kernels have the parameters of their source: count, pointers, calculators, scalars;
    the structure of a reduction has 1048 bytes as in PyTorch's own kernels."""
    assert cases.compiled("special") == [
        ("airy_ai_forward_vectorized4_kernel", (4, 16, 4), 480, "elementwise")
    ]
    contiguous, broadcast = cases.compiled("jiterator")
    assert contiguous[1:3] == ((4, 24, 4, 8), 480)
    assert broadcast[1:3] == ((4, 24, 504, 404, 1, 1, 4, 8), 480)
    ((name, sizes, _, family),) = cases.compiled("complex product")
    assert (name, sizes, family) == ("reduction_prod_kernel", (1048,), "reduction")


def test_recurrent_networks(cases: Cases) -> None:
    """Weights: two layers in two directions; an LSTM has four matrices of each kind, a GRU three;
    packed sequences do 7 + 5 + 3 + 2 steps."""
    gates = {"lstm": 4, "gru": 3, "tanh": 1}
    for case, count in gates.items():
        graphs = cases.graphs(case)
        assert [family for family, _, _ in graphs] == ["recurrent"] * 3
        weights = count * 2 * 32 * ((16 + 32 + 2) + (64 + 32 + 2))
        for _, dtype, features in graphs:
            assert (dtype, features["weights"]) == ("float32", weights)
            assert features["flops"] == 2 * 7 * 4 * weights
    for _, _, features in cases.graphs("packed"):
        assert features["flops"] == 2 * (7 + 5 + 3 + 2) * features["weights"]


def test_other_layers(cases: Cases) -> None:
    for case in ("ctc", "ctc on device"):
        assert [family for family, _, _ in cases.graphs(case)] == ["cross_entropy"]
    assert len(cases.graphs("grid sample")) == 2


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_convolutions(cases: Cases, dims: int, dtype: str) -> None:
    """A transposed convolution's forward is the others' data gradient."""
    kinds = ["convolution_forward", "convolution_dgrad", "convolution_wgrad"]
    stored = "tensorfloat32" if dtype == "float32" else dtype
    for name, groups, side in (("grouped", 2, 12), ("dilated", 1, 4), ("transposed", 1, 12)):
        graphs = cases.graphs(f"conv{dims} {name} {dtype}")
        assert sorted(family for family, _, _ in graphs) == sorted(kinds)
        assert graphs[0][0] == ("convolution_dgrad" if name == "transposed" else kinds[0])
        for _, found, features in graphs:
            assert (found, features["window"], features["groups"]) == (stored, 3**dims, groups)
            assert features["pixels_out"] == side**dims
