"""FLOPs and bytes of calls of cuSOLVER, cuFFT, cuSPARSE, cuRAND and cuBLAS's solvers.

Counts of real operations are those of the field's textbooks, leading terms only: factorizations and
solvers from LAPACK Working Note 41 ("Installation Guide for LAPACK", appendix C), eigenvalues and
singular values from Golub and Van Loan, "Matrix Computations", 4th edition, sections 7.5, 8.3
and 8.6; 5 n log2 n for a Fourier transform, as cuFFT's and FFTW's documentation count it. One
complex multiply-add counts as four real ones. Iterative methods (Jacobi, QR) take as many sweeps as
their values ask for, so their counts are those of usual matrices. Bytes are the operands read
and the results written once, the least that any implementation moves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from understudy.kernels.signature import element_bytes

#: A Jacobi sweep costs about 4 n^3 with vectors and takes about ten sweeps (Golub and Van Loan,
#: section 8.5: "convergence in O(log n) sweeps, ten in practice").
_JACOBI_SWEEPS = 10
#: Job letters and cusolverEigMode_t that ask for values without vectors.
_NO_VECTORS = (0, ord("N"))
#: cudaDataType_t of real floating point numbers.
_REAL = (0, 1, 2, 14)


@dataclass(frozen=True)
class Work:
    """What one library call does: `flops` real operations, `size_bytes` read plus written, and the
    family of kernels.FAMILIES that estimates it."""

    family: str
    flops: float
    size_bytes: float


class _Values:
    """The named values of a call; one that is absent or negative counts as `otherwise`."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values = values

    def __call__(self, *names: str, otherwise: float = 0.0) -> float:
        for name in names:
            if self._values.get(name, -1) >= 0:
                return float(self._values[name])
        return otherwise


_Count = Callable[[_Values], float]


def _order(v: _Values) -> float:
    return v("n", "m")


def _rows_and_columns(v: _Values) -> tuple[float, float]:
    """The longer and the shorter side of a matrix."""
    m, n = v("m", "n"), v("n", "m")
    return max(m, n), min(m, n)


def _vectors(v: _Values) -> bool:
    return v("jobz", "jobu", "jobvl", "jobvr", otherwise=1) not in _NO_VECTORS


def _qr(v: _Values) -> float:
    long, short = _rows_and_columns(v)
    return 2 * long * short**2 - 2 * short**3 / 3


def _lu(v: _Values) -> float:
    long, short = _rows_and_columns(v)
    return long * short**2 - short**3 / 3


def _generate_q(v: _Values) -> float:
    m, n = v("m"), v("n")
    k = v("k", otherwise=min(m, n))
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3


def _apply_q(v: _Values) -> float:
    m, n, k = v("m"), v("n"), v("k")
    other = m if v("side") else n  # cublasSideMode_t: 0 left, 1 right
    return 4 * m * n * k - 2 * other * k**2


def _least_squares(v: _Values) -> float:
    long, short = _rows_and_columns(v)
    return _qr(v) + v("nrhs", otherwise=1) * (4 * long * short - short**2)


def _singular_values(v: _Values) -> float:
    long, short = _rows_and_columns(v)
    if _vectors(v):
        return 14 * long * short**2 + 8 * short**3
    return 4 * long * short**2 - 4 * short**3 / 3


def _jacobi_singular_values(v: _Values) -> float:
    long, short = _rows_and_columns(v)
    return _JACOBI_SWEEPS * (4 if _vectors(v) else 2) * long * short**2


def _triangular_product(v: _Values) -> float:
    m, n = v("m"), v("n", otherwise=1)
    return m * n * (n if v("side") else m)


#: The routine's name without prefix, type letter and suffix: what it computes.
_DENSE: tuple[tuple[str, _Count], ...] = (
    (r"potrs|sytrs|hetrs|getrs", lambda v: 2 * _order(v) ** 2 * v("nrhs", otherwise=1)),
    (r"potri|trtri", lambda v: 2 * _order(v) ** 3 / 3),
    (r"potrf|sytrf|hetrf", lambda v: _order(v) ** 3 / 3),
    (r"getri", lambda v: 4 * _order(v) ** 3 / 3),
    (r"matinv", lambda v: 2 * _order(v) ** 3),
    (r"getrf", _lu),
    (r"geqrf", _qr),
    (r"orgqr|ungqr", _generate_q),
    (r"ormqr|unmqr", _apply_q),
    (r"gels", _least_squares),
    (r"gesvdj", _jacobi_singular_values),
    (r"gesvd", _singular_values),
    (
        r"(sy|he)evj",
        lambda v: _JACOBI_SWEEPS * (4 if _vectors(v) else 2) * _order(v) ** 3,
    ),
    (r"(sy|he)(ev|gv)", lambda v: (9 if _vectors(v) else 4 / 3) * _order(v) ** 3),
    (r"geev", lambda v: (25 if _vectors(v) else 10) * _order(v) ** 3),
    (r"trsm|trmm", _triangular_product),
    (r"trsv|trmv", lambda v: _order(v) ** 2),
    (r"symv|hemv|syr2|her2", lambda v: (4 if v("m") else 2) * _order(v) ** 2),
    (r"ger[cu]?(_|$)", lambda v: 2 * v("m") * v("n")),
    (r"syr|her", lambda v: _order(v) ** 2),
    (r"dot|axpy|nrm2|asum|rotm?(_|$)|scal", lambda v: 2 * v("n")),
)
_ONE_VECTOR = re.compile(r"nrm2|asum|i[scdz]?am|scal")
_TWO_VECTORS = re.compile(r"dot|axpy|copy|swap|rot")


def work_of(api: str, dtype: str, values: Mapping[str, int]) -> Work:
    """FLOPs and bytes of one call, from the values that the interceptor recorded.

    `api` is the function's name, `dtype` the type of its elements; `values` are named as in the
    library's documentation ("m", "n", "k", "nrhs", "nnz", "batch", ...). A function that is not
    known counts the bytes of its matrix and no FLOPs.
    """
    v = _Values(values)
    size = element_bytes(dtype)
    if api.startswith("cufft"):
        return _fourier(v, dtype)
    if api.startswith("cusparse"):
        return _sparse(api, v, dtype)
    if api.startswith("curand"):
        return Work("random", 0.0, v("n") * size)
    batch = v("batch", "batchSize", otherwise=1)
    flops = next((count(v) for form, count in _DENSE if re.search(form, api)), 0.0)
    return Work(
        "linear_algebra",
        max(flops, 0.0) * batch * _complex_factor(dtype),
        _dense_elements(api, v) * batch * size,
    )


def _complex_factor(dtype: str) -> float:
    return 4.0 if dtype.startswith("complex") else 1.0


def _dense_elements(api: str, v: _Values) -> float:
    """The matrix read and written, and the right-hand sides too. Vectors count once each."""
    if _ONE_VECTOR.search(api):
        return v("n")
    if _TWO_VECTORS.search(api):
        return 2 * v("n")
    m, n = v("m", "n"), v("n", "m")
    if re.search(r"trs[mv]|trm[mv]", api):
        triangle = (n if v("side") else m) ** 2 / 2
        return triangle + 2 * m * (n if "m" in api.lower().split("tr")[-1] else 1)
    if re.search(r"ormqr|unmqr", api):
        return (n if v("side") else m) * v("k") + 2 * m * n
    matrix = 2 * m * n
    if _vectors(v) and re.search(r"gesvd|geev", api):
        matrix += m * m + n * n if not v("econ") else (m + n) * min(m, n)
    return matrix + 2 * n * v("nrhs")


def _fourier(v: _Values, dtype: str) -> Work:
    """A plan of `batch` transforms over n0 x n1 x n2; real ones do half of the work."""
    rank = min(max(int(v("rank", otherwise=1)), 1), 3)
    axes = [max(v(f"n{axis}"), 1.0) for axis in range(rank)]
    points, batch = math.prod(axes), v("batch", otherwise=1)
    half = points / axes[-1] * (axes[-1] // 2 + 1)  # a real signal's spectrum is symmetric
    real = int(v("inputtype", otherwise=4)) in _REAL or int(v("outputtype", otherwise=4)) in _REAL
    flops = 5 * points * math.log2(max(points, 2)) * batch * (0.5 if real else 1.0)
    element = element_bytes(dtype)  # of a complex number
    elements = (points / 2 + half) if real else 2 * points
    return Work("fft", flops, elements * element * batch)


def _sparse(api: str, v: _Values, dtype: str) -> Work:
    """Work follows the nonzero elements; structure arrays count 8 bytes an element in COO."""
    size, index = element_bytes(dtype), v("index_bytes", otherwise=4)
    batch = v("batch", otherwise=1)
    m, n, k, nnz = v("m"), v("n", otherwise=1), v("k"), v("nnz")
    stored = nnz * (size + index)
    factor = _complex_factor(dtype)
    if api.startswith("cusparseLt"):
        if "Compress" in api:
            return Work("sparse", 0.0, (m * k + m * k / 2) * size * batch)
        # Half of the products are left out; the metadata are two bits per stored element.
        moved = (m * k / 2 + k * n + m * n) * size + m * k / 8
        return Work("sparse", m * n * k * batch, moved * batch)
    if "SDDMM" in api:
        return Work(
            "sparse", 2 * nnz * k * batch * factor, ((m + n) * k * size + 2 * stored) * batch
        )
    if "SpGEMM" in api:
        other = v("nnz_b")
        # Nonzero elements spread evenly: each of A meets a row of B of average length.
        products = nnz * other / max(k, 1)
        moved = (nnz + other + v("nnz_c")) * (size + index)
        return Work("sparse", 2 * products * factor, moved)
    if re.search(r"SpS[MV]|bsrs[mv]", api):
        flops = 2 * nnz * n * batch * factor if "solve" in api else 0.0
        return Work("sparse", flops, (stored + (2 * m * n * size if flops else 0)) * batch)
    if re.search(r"SpM[MV]|bsrm[mv]", api):
        moved = stored + (k * n + m * n) * size
        return Work("sparse", 2 * nnz * n * batch * factor, moved * batch)
    if re.search(r"geam", api):
        return Work("sparse", nnz * factor, (nnz + v("nnz_b") + v("nnz_c")) * (size + index))
    return Work("sparse", 0.0, 2 * nnz * (index if "sort" not in api else 2 * index + size))
