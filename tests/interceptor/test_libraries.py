"""Real PyTorch through cuBLAS, cuDNN and NCCL: what the trace says of its calls."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from understudy.kernels import signature_of_dnn
from understudy.traces.interceptor import Api, GemmDefinition, RankTrace, read_trace

HERE = Path(__file__).resolve().parent
BFLOAT16, FLOAT32, FLOAT64, FLOAT8 = 14, 0, 1, 28  # cudaDataType_t
TF32 = 77  # CUBLAS_COMPUTE_32F_FAST_TF32
INT64, NCCL_FLOAT32 = 4, 7  # ncclDataType_t
ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER = 0, 1, 3, 4  # us_collective_kind


def _run(library: Path, *arguments: str, **variables: str) -> None:
    """Runs a program on the emulated device. Fails with its output."""
    folder = library.parent
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{folder / 'shadow'}:{folder}",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "test_cublas",
        "test_cublas_solvers",
        "test_cudnn",
        "test_cufft",
        "test_curand",
        "test_cusolver",
        "test_cusparse",
        "test_nccl",
        "test_nvrtc",
    ],
)
def test_library_program(programs: Path, program: str) -> None:
    """Status codes, lifetimes, values and records, checked in C; once under ASan and UBSan."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UNDERSTUDY_")}
    done = subprocess.run(
        [str(programs / program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Cases:
    """The records of library_calls.py by the annotation before them."""

    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace
        self.records: dict[str, np.ndarray] = {}
        marks = np.flatnonzero(trace.records["api"] == Api.ANNOTATION)
        for start, end in pairwise(marks):
            name = trace.texts[int(trace.records["definition"][start])]
            self.records[name] = trace.records[start + 1 : end]

    def definitions(self, case: str, api: Api) -> list[int]:
        records = self.records[case]
        return [int(number) for number in records["definition"][records["api"] == api]]

    def gemms(self, case: str) -> list[GemmDefinition]:
        return [self.trace.gemms[number] for number in self.definitions(case, Api.GEMM)]

    def attention(self, case: str) -> list[tuple[str, str, dict[str, float]]]:
        """(family, dtype, features) of each executed cuDNN graph."""
        graphs = [self.trace.dnns[number] for number in self.definitions(case, Api.DNN)]
        signatures = [signature_of_dnn(graph) for graph in graphs]
        return [(s.family, s.dtype, dict(s.features)) for s in signatures]


@pytest.fixture(scope="module")
def cases(interceptor: Path, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    stem = tmp_path_factory.mktemp("libraries") / "calls"
    _run(interceptor, str(HERE / "library_calls.py"), UNDERSTUDY_TRACE=str(stem))
    trace = read_trace(stem)
    assert "cudnn 92400" in trace.texts.values()
    assert Api.UNSUPPORTED not in trace.records["api"]
    return Cases(trace)


def _shape(gemm: GemmDefinition) -> tuple[int, int, int, int, int, int]:
    return gemm.m, gemm.n, gemm.k, gemm.batch, gemm.transpose_a, gemm.transpose_b


def test_linear_forward_and_backward(cases: Cases) -> None:
    """y[384,80] = x[384,48] W[80,48]^T; then dW[80,48] and dx[384,48]; cuBLAS counts columns."""
    forward, *backward = cases.gemms("linear")
    assert _shape(forward) == (80, 384, 48, 1, 1, 0)
    assert (forward.lda, forward.ldb, forward.ldc) == (48, 48, 80)
    assert {_shape(gemm) for gemm in backward} == {(48, 80, 384, 1, 0, 1), (48, 384, 80, 1, 0, 0)}
    for gemm in (forward, *backward):
        assert (gemm.type_a, gemm.type_b, gemm.type_d) == (BFLOAT16, BFLOAT16, BFLOAT16)


@pytest.mark.parametrize("case", ["linear bias", "addmm"])
def test_bias_is_an_epilogue(cases: Cases, case: str) -> None:
    (gemm,) = cases.gemms(case)
    assert _shape(gemm) == (80, 384, 48, 1, 1, 0)
    assert (gemm.api, gemm.epilogue) == ("cublasLtMatmul", 4)


def test_batched_products(cases: Cases) -> None:
    (plain,), (tf32,) = cases.gemms("bmm"), cases.gemms("baddbmm tf32")
    for gemm in (plain, tf32):
        assert _shape(gemm) == (80, 32, 48, 6, 0, 0)
        assert (gemm.stride_a, gemm.stride_b, gemm.stride_c) == (48 * 80, 32 * 48, 32 * 80)
        assert gemm.type_d == FLOAT32
    assert plain.compute_type == -1
    assert tf32.compute_type == TF32


def test_other_types_and_vectors(cases: Cases) -> None:
    (double,), (vector,) = cases.gemms("double"), cases.gemms("vector")
    (dot,), (eight,) = cases.gemms("dot"), cases.gemms("float8")
    assert (double.m, double.n, double.k, double.type_d) == (8, 8, 16, FLOAT64)
    assert (vector.m, vector.n, vector.k, vector.api) == (8, 1, 16, "cublasDgemv")
    assert (dot.m, dot.n, dot.k) == (1, 1, 16)
    assert (eight.m, eight.n, eight.k) == (32, 32, 64)
    assert (eight.type_a, eight.type_d) == (FLOAT8, BFLOAT16)


@pytest.mark.parametrize(
    ("case", "causal", "kv_heads", "dropout"),
    [
        ("attention causal", 1, 12, 0),
        ("attention full", 0, 12, 0),
        ("attention grouped", 1, 4, 0),
        ("attention dropout", 1, 12, 1),
    ],
)
def test_attention(cases: Cases, case: str, causal: int, kv_heads: int, dropout: int) -> None:
    graphs = cases.attention(case)
    assert [family for family, _, _ in graphs] == ["attention_forward", "attention_backward"]
    expected = {
        "batch": 2,
        "heads": 12,
        "kv_heads": kv_heads,
        "seq_q": 256,
        "seq_kv": 256,
        "head_dim": 64,
        "causal": causal,
        "dropout": dropout,
    }
    for _, dtype, features in graphs:
        assert dtype == "bfloat16"
        assert {name: features[name] for name in expected} == expected


def test_convolution(cases: Cases) -> None:
    graphs = cases.attention("convolution")
    families = [family for family, _, _ in graphs]
    assert families[0] == "convolution_forward"
    assert set(families[1:]) == {"convolution_dgrad", "convolution_wgrad"}
    for _, dtype, features in graphs:
        assert dtype == "float16"
        shape = [features[name] for name in ("batch", "channels_in", "channels_out", "window")]
        assert shape == [8, 3, 64, 49]
        assert (features["pixels_in"], features["pixels_out"]) == (64 * 64, 32 * 32)


def test_batch_norm(cases: Cases) -> None:
    graphs = cases.attention("batch norm")
    assert [family for family, _, _ in graphs] == ["normalization", "normalization"]


def test_recurrent_network(cases: Cases) -> None:
    """One record for the forward and two for the backward, with all weights."""
    graphs = [cases.trace.dnns[number] for number in cases.definitions("lstm", Api.DNN)]
    assert [graph.operations[0].type for graph in graphs] == [1001, 1002, 1003]
    for graph in graphs:
        weights = 4 * 32 * (16 + 32 + 2) + 4 * 32 * (32 + 32 + 2)
        assert [tensor.dims for tensor in graph.tensors] == [(5, 4, 16), (5, 4, 32), (weights,)]


@pytest.fixture(scope="module")
def ranks(interceptor: Path, tmp_path_factory: pytest.TempPathFactory) -> list[RankTrace]:
    folder = tmp_path_factory.mktemp("ddp")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    _run(interceptor, *launcher, str(HERE / "ddp.py"), str(folder), UNDERSTUDY_DEVICE_COUNT="2")
    return [read_trace(folder / f"rank{rank}") for rank in range(2)]


def _collectives(trace: RankTrace) -> list[tuple[int, int, int, int]]:
    """(communicator definition, kind, bytes, type) in order."""
    records = trace.records[trace.records["api"] == Api.COLLECTIVE]
    return [
        (int(r["definition"]), int(r["a"]) & 255, int(r["b"]), int(r["flags"])) for r in records
    ]


def test_ddp_reduces_exactly_its_gradients(ranks: list[RankTrace]) -> None:
    for trace in ranks:
        assert "gradient bytes 4200448" in trace.texts.values()
        reduced = [
            size
            for _, kind, size, dtype in _collectives(trace)
            if (kind, dtype) == (ALL_REDUCE, NCCL_FLOAT32) and size > 4
        ]
        # One bucket in the first iteration, two once the buckets are rebuilt.
        assert sum(reduced) == 2 * 4200448
        assert len(reduced) == 3


def test_ranks_agree_on_collectives_and_communicators(ranks: list[RankTrace]) -> None:
    first, second = ranks
    assert _collectives(first) == _collectives(second)
    assert (1, ALL_GATHER, 24, INT64) in _collectives(first)
    assert any(kind == BROADCAST for _, kind, _, _ in _collectives(first))
    # The second communicator is the subset's.
    assert (2, REDUCE_SCATTER, 512, NCCL_FLOAT32) in _collectives(first)
    assert first.communicators.keys() == second.communicators.keys() == {1, 2}
    for number in (1, 2):
        a, b = first.communicators[number], second.communicators[number]
        assert (a.unique_id, a.size) == (b.unique_id, b.size)
        assert (a.rank, b.rank) == (0, 1)
    assert first.communicators[1].unique_id != first.communicators[2].unique_id


def test_point_to_point_in_one_group(ranks: list[RankTrace]) -> None:
    for rank, trace in enumerate(ranks):
        kinds = (Api.GROUP_START, Api.SEND, Api.RECV, Api.GROUP_END)
        records = trace.records[np.isin(trace.records["api"], kinds)]
        assert sorted(records["api"]) == sorted(kinds)
        assert (records["api"][0], records["api"][-1]) == (Api.GROUP_START, Api.GROUP_END)
        messages = records[1:3]
        assert messages["a"].tolist() == [1 - rank, 1 - rank]
        assert messages["b"].tolist() == [256, 256]
