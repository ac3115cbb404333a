"""FLOPs, bytes and laws of library calls against formulas worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy import kernels
from understudy.catalog import device
from understudy.forests import laws
from understudy.kernels.library_work import work_of


@dataclass(frozen=True)
class Call:
    """A library call as the interceptor records it."""

    api: str
    type: int
    values: tuple[tuple[str, int], ...]


@pytest.mark.parametrize(
    ("api", "values", "flops"),
    [
        ("cusolverDnXpotrf", {"n": 300}, 300**3 / 3),
        ("cusolverDnSgetrf", {"m": 300, "n": 300}, 2 * 300**3 / 3),
        ("cusolverDnSgetrs", {"n": 300, "nrhs": 7}, 2 * 300**2 * 7),
        ("cublasSgetrfBatched", {"n": 30, "batch": 8}, 8 * 2 * 30**3 / 3),
        ("cusolverDnSgeqrf", {"m": 400, "n": 100}, 2 * 400 * 100**2 - 2 * 100**3 / 3),
        ("cusolverDnSgeqrf", {"m": 100, "n": 400}, 2 * 400 * 100**2 - 2 * 100**3 / 3),
        ("cusolverDnSorgqr", {"m": 100, "n": 100, "k": 100}, 4 * 100**3 / 3),
        ("cusolverDnXsyevd", {"jobz": 1, "n": 100}, 9 * 100**3),
        ("cusolverDnXsyevd", {"jobz": 0, "n": 100}, 4 * 100**3 / 3),
        ("cusolverDnSgesvd", {"jobu": 65, "m": 200, "n": 100}, 36e6),
        ("cublasStrsm_v2", {"side": 0, "m": 100, "n": 20}, 100**2 * 20),
        ("cublasStrsm_v2", {"side": 1, "m": 100, "n": 20}, 100 * 20**2),
        ("cusparseSpMM", {"m": 10, "n": 4, "k": 10, "nnz": 30}, 2 * 30 * 4),
        ("cusparseSDDMM", {"m": 10, "n": 4, "k": 6, "nnz": 30}, 2 * 30 * 6),
        ("cusparseSpGEMM_compute", {"m": 9, "n": 9, "k": 10, "nnz": 30, "nnz_b": 40}, 240),
        ("cusparseLtMatmul", {"m": 128, "n": 64, "k": 256}, 128 * 64 * 256),
        ("curandGenerateUniform", {"n": 1000}, 0),
        ("cusolverDnUnheardOf", {"m": 10, "n": 10}, 0),
    ],
)
def test_flops(api: str, values: dict[str, int], flops: float) -> None:
    assert work_of(api, "float32", values).flops == pytest.approx(flops)


def test_complex_numbers_count_four_times() -> None:
    real = work_of("cusolverDnXpotrf", "float64", {"n": 50}).flops
    assert work_of("cusolverDnXpotrf", "complex128", {"n": 50}).flops == 4 * real


def test_fourier_transform() -> None:
    shape = {"rank": 2, "n0": 16, "n1": 64, "n2": 0, "batch": 3}
    plain = work_of("cufftXtExec", "complex64", shape | {"inputtype": 4, "outputtype": 4})
    assert plain.flops == 5 * 1024 * 10 * 3
    assert plain.size_bytes == 2 * 1024 * 8 * 3
    real = work_of("cufftXtExec", "complex64", shape | {"inputtype": 0, "outputtype": 4})
    assert real.flops == plain.flops / 2
    assert real.size_bytes == 3 * (1024 * 4 + 16 * 33 * 8)


def test_signature() -> None:
    call = Call("cusolverDnSgetrf", 0, (("m", 30), ("n", 30), ("lda", 32)))
    signature = kernels.signature_of_library(call)
    assert (signature.family, signature.dtype) == ("linear_algebra", "float32")
    assert (signature.name, signature.kernel_version) == ("cusolverDnSgetrf 30x30", "cusolver")
    assert signature == kernels.signature_of_library(call)
    assert kernels.flops(signature) == 18_000
    assert kernels.bytes_moved(signature) == signature.tensor_bytes == 2 * 900 * 4


@given(
    st.sampled_from(
        [
            "cusolverDnXpotrf",
            "cusolverDnSgetrf",
            "cusolverDnSgeqrf",
            "cusolverDnSormqr",
            "cusolverDnXgeev",
            "cublasSgelsBatched",
            "cublasSaxpy_v2",
            "cufftXtExec",
            "cusparseSpMM",
            "cusparseSpSV_solve",
            "cusparseLtMatmul",
            "curandGenerate",
            "cublasUnheardOf",
        ]
    ),
    st.dictionaries(
        st.sampled_from(["m", "n", "k", "nrhs", "nnz", "batch", "rank", "n0", "side", "jobz"]),
        st.integers(-1, 1000),
    ),
    st.sampled_from([-1, 0, 1, 2, 4, 5, 6, 14, 99]),
)
def test_no_call_is_without_an_estimate(api: str, values: dict[str, int], kind: int) -> None:
    signature = kernels.signature_of_library(Call(api, kind, tuple(sorted(values.items()))))
    target = device("h100")
    features = dict(signature.features)
    assert signature.family in kernels.FAMILIES
    assert kernels.flops(signature) >= 0 and kernels.bytes_moved(signature) >= 0
    assert kernels.roofline_ns(signature, target) >= 0
    law = laws.law_for(signature.family, signature.name, features, target)
    assert law.duration_ns(kernels.bytes_moved(signature), 1e12) > 0
    assert 0 < laws.efficiency(signature.name) <= 1
    assert laws.serial_ns(signature.name, {k: max(v, 0.0) for k, v in features.items()}) >= 0


def test_serial_steps_bound_small_factorizations() -> None:
    assert laws.serial_ns("cusolverDnSgetrf 64x64", {"n": 64.0}) == 32_000
    assert laws.serial_ns("cufftXtExec 64", {"n": 64.0}) == 0
