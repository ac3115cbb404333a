"""Plain PyTorch through cuSOLVER and cuBLAS's factorizations and solvers.

test_linear_algebra.py reads the trace; each case is preceded by an annotation with its name.
Values do not exist here, so nothing but shapes is asserted.
"""

from __future__ import annotations

import ctypes
import itertools

import torch

annotate = ctypes.CDLL("libunderstudy.so").understudy_annotate
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
BATCHES = ((), (3,), (40,))


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


for dtype, batch in itertools.product(DTYPES, BATCHES):
    annotate(f"{dtype} {batch}".removeprefix("torch.").encode())
    square, tall = matrix(*batch, 6, 6, dtype=dtype), matrix(*batch, 8, 5, dtype=dtype)
    right = matrix(*batch, 6, 2, dtype=dtype)
    factor, _ = torch.linalg.cholesky_ex(square)
    assert factor.shape == (*batch, 6, 6)
    assert torch.cholesky_solve(right, factor).shape == right.shape
    assert torch.cholesky_inverse(factor).shape == square.shape
    lu, pivots = torch.linalg.lu_factor(square)
    assert pivots.cpu().reshape(-1, 6)[0].tolist() == [1, 2, 3, 4, 5, 6]
    p, _, _ = torch.lu_unpack(lu, pivots)
    assert p.shape == square.shape
    assert torch.linalg.lu_solve(lu, pivots, right).shape == right.shape
    assert torch.linalg.solve(square, right).shape == right.shape
    assert torch.linalg.inv(square).shape == square.shape
    assert torch.linalg.det(square).shape == batch
    assert torch.linalg.slogdet(square).logabsdet.shape == batch
    q, r = torch.linalg.qr(tall)
    assert (q.shape, r.shape) == ((*batch, 8, 5), (*batch, 5, 5))
    reflectors, tau = torch.geqrf(tall)
    assert torch.linalg.householder_product(reflectors, tau).shape == tall.shape
    assert torch.ormqr(reflectors, tau, matrix(*batch, 8, 3, dtype=dtype)).shape[-2:] == (8, 3)
    for driver in ("gesvd", "gesvdj", "gesvda"):
        u, s, vh = torch.linalg.svd(tall, full_matrices=False, driver=driver)
        assert (u.shape, s.shape, vh.shape) == ((*batch, 8, 5), (*batch, 5), (*batch, 5, 5))
    assert torch.linalg.svdvals(tall).shape == (*batch, 5)
    values, vectors = torch.linalg.eigh(square)
    assert (values.shape, vectors.shape) == ((*batch, 6), square.shape)
    assert torch.linalg.eigvalsh(square).shape == (*batch, 6)
    assert torch.linalg.lstsq(tall, matrix(*batch, 8, 2, dtype=dtype)).solution.shape[-2:] == (5, 2)
    assert torch.linalg.ldl_factor(square).LD.shape == square.shape
    assert torch.linalg.pinv(tall).shape == (*batch, 5, 8)
    assert torch.linalg.matrix_rank(square).shape == batch
    triangle = torch.linalg.solve_triangular(square.triu(), right, upper=True)
    assert triangle.shape == right.shape

annotate(b"vectors and products")
for dtype in DTYPES:
    a, x, y = matrix(6, 4, dtype=dtype), matrix(4, dtype=dtype), matrix(6, dtype=dtype)
    torch.addmv(y, a, x)
    torch.dot(x, x)
    torch.vdot(x, x)
    torch.ger(y, x)
    torch.linalg.matrix_exp(matrix(3, 3, dtype=dtype))
    torch.baddbmm(matrix(2, 6, 6, dtype=dtype), matrix(2, 6, 4, dtype=dtype), a.mT.expand(2, 4, 6))
annotate(b"end")
torch.cuda.synchronize()
