"""Scripts with pipeline parallelism: PyTorch's schedules, and examples/gpt_3d.py, which adds tensor
and data parallelism."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.e2e.script_case import (
    Gemm,
    ScriptCase,
    ScriptRun,
    Transfer,
    input_gradient,
    linear,
    run_case,
    times,
)
from warehouse import store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor", "script_home")]

FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2


# --- torch.distributed.pipelining ----------------------------------------------------------------

LAYERS, WIDTH, MICRO_BATCH, MICRO_BATCHES = 2, 512, 32, 4
#: By schedule: the rank that holds each stage.
STAGES = {
    "1F1B": [0, 1],
    "Interleaved1F1B": [0, 1, 0, 1],
    "InterleavedZeroBubble": [0, 1, 0, 1],
    "ZBVZeroBubble": [0, 1, 1, 0],
}


def crossings(owners: list[int]) -> Counter[Transfer]:
    """What rank 0 sends and receives: a micro-batch crosses the border between two stages forward
    as activations and backward as gradients, unless both are on one rank."""
    size_bytes = MICRO_BATCH * WIDTH * FLOAT32_BYTES
    borders = sum(a != b for a, b in pairwise(owners))
    both_ways = borders * MICRO_BATCHES
    return Counter(
        {
            Transfer("send", (0, 1), 1, size_bytes, "float32", ""): both_ways,
            Transfer("recv", (0, 1), 1, size_bytes, "float32", ""): both_ways,
        }
    )


def seen_from_the_other_side(transfers: Counter[Transfer]) -> Counter[Transfer]:
    other = {"send": "recv", "recv": "send"}
    return Counter(
        {
            Transfer(other[t.kind], t.members, 0, t.size_bytes, t.dtype, t.reduce_op): n
            for t, n in transfers.items()
        }
    )


def check_pipeline(run: ScriptRun) -> None:
    schedule = run.case.args[-1]
    owners = STAGES[schedule]
    expected = crossings(owners)
    assert Counter(run.transfers(0)) == expected
    assert Counter(run.transfers(1)) == seen_from_the_other_side(expected)
    for rank in run.ranks:
        stages = [number for number, owner in enumerate(owners) if owner == rank]
        layers = len(stages) * LAYERS
        gemms = times(MICRO_BATCHES * layers, linear(MICRO_BATCH, WIDTH, WIDTH))
        if 0 in stages:
            gemms -= times(MICRO_BATCHES, input_gradient(MICRO_BATCH, WIDTH, WIDTH))
        assert run.gemms(rank) == gemms
        ends = len(owners) - 1 in stages
        kernels = run.kernels(rank)
        assert (
            kernels
            == Counter(
                {
                    "GeluCUDAKernelImpl": MICRO_BATCHES * layers,
                    "GeluBackwardCUDAKernelImpl": MICRO_BATCHES * layers,
                    "CUDAFunctor_add": (MICRO_BATCHES - 1) * layers,  # gradients are accumulated,
                    "BUnaryFunctor": layers,  # and divided by the number of micro-batches
                    "BinaryOpListAlphaFunctor": 1,  # SGD
                    # Inputs on the first stage, targets on the last.
                    "distribution_elementwise_grid_stride_kernel": (0 in stages) + ends,
                    # Mean squared error and its gradient.
                    "mse_kernel_cuda": ends * MICRO_BATCHES,
                    "MeanOps": ends * MICRO_BATCHES,
                    "FillFunctor": ends * 2 * MICRO_BATCHES,
                    "elementwise_kernel": ends * MICRO_BATCHES,
                    "CatArrayBatchedCopy_vectorized": ends,  # the outputs of all micro-batches
                }
            )
            - Counter()
        )
        if schedule == "1F1B":
            # All but the first and the last transfer go in pairs.
            assert run.families(rank)["collective"] == MICRO_BATCHES + 1
        # Zero-bubble schedules put off the gradients of a stage's weights.
        assert ("i" * LAYERS in gemm_order(run, rank)) == schedule.endswith("ZeroBubble")


def gemm_order(run: ScriptRun, rank: int) -> str:
    """One letter per GEMM: forward, gradient of input, gradient of weight."""
    letters = {(1, 0): "f", (0, 0): "i", (0, 1): "w"}
    return "".join(
        letters[int(o.features["transpose_a"]), int(o.features["transpose_b"])]
        for o in run.operations(rank)
        if o.family == "gemm"
    )


# --- examples/gpt_3d.py --------------------------------------------------------------------------

TENSOR, PIPELINE, DATA = 2, 2, 2
GPT = {
    "num-layers": 4,
    "hidden-size": 256,
    "num-attention-heads": 4,
    "seq-length": 128,
    "vocab-size": 1024,
    "micro-batch-size": 2,
    "global-batch-size": 16,
    "bucket-size-mb": 2,
}


def check_gpt_3d(run: ScriptRun) -> None:
    width, seq_length, vocab = GPT["hidden-size"], GPT["seq-length"], GPT["vocab-size"]
    layers = GPT["num-layers"] // PIPELINE
    micro_batches = GPT["global-batch-size"] // (GPT["micro-batch-size"] * DATA)
    tokens = GPT["micro-batch-size"] * seq_length
    activations = tokens * width * BFLOAT16_BYTES
    part, vocab_part = width // TENSOR, vocab // TENSOR
    block_sizes = [
        *(width, width),
        *(3 * part * width, 3 * part),
        *(width * part, width),
        *(width, width),
        *(4 * part * width, 4 * part),
        *(width * 4 * part, width),
    ]
    block_gemms = times(
        1,
        linear(tokens, width, 3 * part),
        linear(tokens, part, width),
        linear(tokens, width, 4 * part),
        linear(tokens, 4 * part, width),
    )
    for rank in run.ranks:
        stage, tensor = rank // (TENSOR * DATA), rank % TENSOR
        is_last = stage == PIPELINE - 1
        tensor_group = (rank - tensor, rank - tensor + 1)
        first_data = stage * TENSOR * DATA + tensor
        data_group = (first_data, first_data + TENSOR)
        pipeline_group = (rank % (TENSOR * DATA), rank % (TENSOR * DATA) + TENSOR * DATA)
        peer = pipeline_group[1 - stage]

        def all_reduce(
            group: tuple[int, ...], size_bytes: int, dtype: str, reduce_op: str = "sum"
        ) -> Transfer:
            return Transfer("all_reduce", group, None, size_bytes, dtype, reduce_op)

        expected = Counter(
            {
                # Forward and backward of attention and MLP; forward of the embedding on the first
                # stage, backward of the head on the last.
                all_reduce(tensor_group, activations, "bfloat16"): micro_batches * (4 * layers + 1),
                Transfer("send", pipeline_group, peer, activations, "bfloat16", ""): micro_batches,
                Transfer("recv", pipeline_group, peer, activations, "bfloat16", ""): micro_batches,
                # The square of the gradient's norm.
                all_reduce(tensor_group, FLOAT32_BYTES, "float32"): 1,
                all_reduce(pipeline_group, FLOAT32_BYTES, "float32"): 1,
            }
        )
        sizes = layers * block_sizes
        if is_last:
            # Cross entropy: largest logit, sum of exponentials, the target's logit.
            expected[all_reduce(tensor_group, tokens * FLOAT32_BYTES, "float32", "max")] = (
                micro_batches
            )
            expected[all_reduce(tensor_group, tokens * FLOAT32_BYTES, "float32")] = (
                2 * micro_batches
            )
            sizes = [*sizes, width, width, vocab_part * width]
        else:
            # Parameters of a module come before those of its children.
            sizes = [seq_length * width, vocab_part * width, *sizes]
        gradients = [size * FLOAT32_BYTES for size in reversed(sizes)]
        buckets = [
            all_reduce(data_group, size, "float32", "avg")
            for size in greedy_buckets(gradients, GPT["bucket-size-mb"] << 20)
        ]
        transfers = Counter(run.transfers(rank))
        assert transfers == expected + Counter(buckets)
        assert sum(b.size_bytes for b in buckets) == sum(gradients)

        gemms: Counter[Gemm] = times(micro_batches * layers, block_gemms)
        if is_last:
            gemms += times(micro_batches, linear(tokens, width, vocab_part))
        assert run.gemms(rank) == gemms
        families, kernels = run.families(rank), run.kernels(rank)
        calls = micro_batches * layers
        assert families["attention_forward"] == families["attention_backward"] == calls
        assert kernels["GeluCUDAKernelImpl"] == kernels["GeluBackwardCUDAKernelImpl"] == calls
        norms = 2 * calls + is_last * micro_batches
        assert kernels["vectorized_layer_norm_kernel"] == norms
        assert kernels["layer_norm_grad_input_kernel_vectorized"] == norms
        assert kernels["GammaBetaBackwardCUDAKernelTemplate"] == norms
        # Gradients of four biases per layer; the first stage's positions or the last one's sum of
        # exponentials; the sum of all squares.
        assert kernels["sum_functor"] == 4 * calls + micro_batches + 1
        assert kernels["FusedAdamMathFunctor"] == 1
        # Sends and receives of 1F1B go in pairs, but for the first and the last.
        collectives = transfers.total() - (micro_batches - 1)
        assert families["collective"] == collectives
    check_bytes_on_disk(run)


BYTES_PER_EVENT = 6


def check_bytes_on_disk(run: ScriptRun) -> None:
    """What grows with the events takes few bytes for each, and all of it few for each call."""
    tables, device = run.emulation.tables, run.case.device
    program = {name: table for name, table in tables.items() if name != "host_gaps"}
    store.write_tables("emulation", program, device, "bytes-on-disk")
    gaps = {"host_gaps": tables["host_gaps"]}
    store.write_tables("emulation_host", gaps, device, "bytes-on-disk")

    def file_of(name: str) -> Path:
        return store.table_path("emulation", name, device, "bytes-on-disk")

    def column_bytes(name: str) -> int:
        groups = parquet.ParquetFile(file_of(name)).metadata
        return sum(
            groups.row_group(g).column(c).total_compressed_size
            for g in range(groups.num_row_groups)
            for c in range(groups.num_columns)
        )

    growing = ("events", "host_gaps", "collective_parts")
    events = tables["events"].num_rows
    assert sum(map(column_bytes, growing)) < BYTES_PER_EVENT * events
    calls = sum(tables["ranks"]["trace_events"].to_pylist())
    files = [file_of(name).stat().st_size for name in (*growing, "signatures")]
    assert sum(files) < BYTES_PER_EVENT * calls


def greedy_buckets(sizes: list[int], bucket_bytes: int) -> list[int]:
    """Sizes of buckets that are closed once they hold `bucket_bytes`."""
    buckets, open_bytes = [], 0
    for size in sizes:
        open_bytes += size
        if open_bytes >= bucket_bytes:
            buckets.append(open_bytes)
            open_bytes = 0
    return [*buckets, open_bytes] if open_bytes else buckets


CASES = [
    *(
        ScriptCase(
            "pipeline.py",
            "pipeline",
            check_pipeline,
            args=("--schedule", schedule),
            nproc_per_node=2,
        )
        for schedule in STAGES
    ),
    ScriptCase(
        "examples/gpt_3d.py",
        f"tensor {TENSOR} x pipeline {PIPELINE} x data {DATA}",
        check_gpt_3d,
        title="examples/gpt_3d.py",
        args=tuple(
            word
            for name, value in {
                "tensor-parallel-size": TENSOR,
                "pipeline-parallel-size": PIPELINE,
                **GPT,
            }.items()
            for word in (f"--{name}", str(value))
        ),
        nproc_per_node=TENSOR * PIPELINE * DATA,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_script(case: ScriptCase, tmp_path: Path) -> None:
    run_case(case, tmp_path)
