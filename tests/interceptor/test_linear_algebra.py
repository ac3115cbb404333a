"""torch.linalg through cuSOLVER and cuBLAS: what the trace says of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.interceptor.cases import Cases, run_cases
from understudy.kernels import signature_of_library

#: cudaDataType_t and the letter of the functions.
TYPES = {"float32": (0, "S"), "float64": (1, "D"), "complex64": (4, "C"), "complex128": (5, "Z")}
BATCHES = {"()": 1, "(3,)": 3, "(40,)": 40}


@pytest.fixture(scope="module")
def cases(interceptor: Path, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    folder = tmp_path_factory.mktemp("linear_algebra")
    return run_cases("linear_algebra_calls.py", interceptor, folder)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", BATCHES)
def test_calls_have_the_type_and_the_size_of_the_matrices(
    cases: Cases, dtype: str, batch: str
) -> None:
    calls = cases.calls(f"{dtype} {batch}")
    code, letter = TYPES[dtype]
    assert {call.type for call in calls} == {code}
    matrices: Counter[str] = Counter()
    for call in calls:
        name = call.api.removeprefix("cublas").removeprefix("cusolverDn").removesuffix("Batched")
        assert name[0] in (letter, "X")
        values = dict(call.values)
        assert values.get("m", 6) in (5, 6, 8)
        assert values["n"] in (2, 3, 5, 6)
        matrices[name[1:]] += values.get("batch", 1)
    # lu_factor, solve, inv, det, slogdet factorize; lu_solve, solve and inv solve.
    assert matrices["getrf"] == 5 * BATCHES[batch]
    assert matrices["getrs"] == 3 * BATCHES[batch]
    assert matrices["potrf"] == BATCHES[batch]
    assert matrices["gesvd"] == matrices["gesvdaStrided"] == BATCHES[batch]
    assert matrices["syev"] == 2 * BATCHES[batch]  # eigh and eigvalsh
    assert matrices["sytrf"] == BATCHES[batch]


def test_every_call_is_estimated(cases: Cases) -> None:
    for name in cases.names():
        for call in cases.calls(name):
            signature = signature_of_library(call)
            assert signature.family == "linear_algebra"
            assert dict(signature.features)["flops"] > 0
