"""Every function that is not emulated says so, by its library's own code and by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interceptor.stub_calls import TABLES
from understudy.traces.interceptor import Api, RankTrace, read_trace

#: Values of each library's headers (CUDA_ERROR_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED, ...).
NOT_SUPPORTED = {
    "cuda": 801,
    "cudart": 801,
    "cublas": 15,
    "cublasLt": 15,
    "cudnn": 3000,
    "nccl": 5,  # ncclInvalidUsage: NCCL has none for it
    "nvml": 3,
    "cusparse": 10,
    "cusparseLt": 10,
    "cusolver": 9,
    "cufft": 16,
    "curand": 202,  # CURAND_STATUS_PREEXISTING_FAILURE: cuRAND has none for it
    "nvrtc": 11,
    "cupti": 27,
    "cufile": 5007,
    "nvshmem": 6,
}

Answers = dict[str, dict[str, int]]
Called = tuple[Answers, RankTrace]


@pytest.fixture(scope="module")
def called(interceptor: Path, tmp_path_factory: pytest.TempPathFactory) -> Called:
    stem = tmp_path_factory.mktemp("stubs") / "trace"
    program = Path(__file__).with_name("stub_calls.py")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("UNDERSTUDY_")}
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**kept, "LD_PRELOAD": str(interceptor), "UNDERSTUDY_TRACE": str(stem)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), read_trace(stem)


def dispositions(library: str) -> dict[str, str]:
    lines = (TABLES / f"{library}.tsv").read_text().splitlines()
    return {line.split("\t")[0]: line.split("\t")[1] for line in lines if line[:1] != "#"}


@pytest.mark.parametrize("library", sorted(NOT_SUPPORTED))
def test_answers(called: Called, library: str) -> None:
    answers = called[0][library]
    wanted = {
        name: 0 if disposition == "harmless" else NOT_SUPPORTED[library]
        for name, disposition in dispositions(library).items()
        if disposition != "implemented"
    }
    assert answers == wanted


def test_every_call_that_is_not_supported_is_recorded_by_name(
    called: Called,
) -> None:
    answers, trace = called
    rows = trace.records[trace.records["api"] == Api.UNSUPPORTED]
    recorded = {trace.texts[definition] for definition in rows["definition"].tolist()}
    refused = {name for of in answers.values() for name, code in of.items() if code}
    assert len(refused) > 600
    assert recorded == refused
