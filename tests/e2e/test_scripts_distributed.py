"""Distributed training scripts, each explained by its model's arithmetic."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

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

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor", "script_home")]

MIB = 1 << 20
FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2


def transfer(kind: str, size_bytes: int, dtype: str, reduce_op: str = "") -> Transfer:
    """A collective of both ranks."""
    return Transfer(kind, (0, 1), None, size_bytes, dtype, reduce_op)


# --- DistributedDataParallel ---------------------------------------------------------------------

DDP_LAYERS, DDP_WIDTH, DDP_BATCH = 10, 1024, 64


def ddp_buckets(gradient_bytes: list[int]) -> list[int]:
    """Sizes of DDP's buckets for gradients in the order in which they become ready: a bucket is
    closed once it holds 1 MiB (the first) or 25 MiB (DistributedDataParallel, `bucket_cap_mb`)."""
    buckets, size = [], 0
    for gradient in gradient_bytes:
        size += gradient
        if size >= (25 * MIB if buckets else MIB):
            buckets.append(size)
            size = 0
    return [*buckets, size] if size else buckets


def check_ddp(run: ScriptRun) -> None:
    weight_bytes = DDP_WIDTH * DDP_WIDTH * FLOAT32_BYTES
    for rank in run.ranks:
        transfers = run.transfers(rank)
        assert [t.size_bytes for t in transfers] == ddp_buckets([weight_bytes] * DDP_LAYERS)
        assert sum(t.size_bytes for t in transfers) == DDP_LAYERS * weight_bytes
        assert {(t.kind, t.members, t.dtype, t.reduce_op) for t in transfers} == {
            ("all_reduce", (0, 1), "float32", "sum")
        }
        assert run.gemms(rank) == times(DDP_LAYERS, linear(DDP_BATCH, DDP_WIDTH, DDP_WIDTH)) - (
            input_gradient(DDP_BATCH, DDP_WIDTH, DDP_WIDTH)  # of the first layer
        )
        assert run.kernels(rank) == {
            "distribution_elementwise_grid_stride_kernel": 2,  # inputs and targets
            "GeluCUDAKernelImpl": DDP_LAYERS,
            "GeluBackwardCUDAKernelImpl": DDP_LAYERS,
            "mse_kernel_cuda": 1,
            "MeanOps": 1,
            "FillFunctor": 2,  # gradients of the loss: 1, and the zeros that it is scaled into
            "elementwise_kernel": 1,  # of the mean squared error
            "AUnaryFunctor": DDP_LAYERS,  # each gradient / ranks, into its bucket
            "BinaryOpScalarFunctor": 1,  # the optimizer's step counts
            "FusedAdamMathFunctor": 1,
        }
        # Each gradient out of its bucket.
        assert run.families(rank)["copy"] == DDP_LAYERS


# --- FullyShardedDataParallel --------------------------------------------------------------------

LAYERS, WIDTH, BATCH, SEQ_LEN, VOCAB = 3, 256, 4, 128, 1024
TOKENS = BATCH * SEQ_LEN
RANKS = 2


def block_gemms(layers: int) -> Counter[Gemm]:
    """Of attention's two linear layers and the MLP's."""
    w = WIDTH
    return times(
        layers,
        linear(TOKENS, w, 3 * w),
        linear(TOKENS, w, w),
        linear(TOKENS, w, 4 * w),
        linear(TOKENS, 4 * w, w),
    )


def check_fsdp1(run: ScriptRun) -> None:
    w = WIDTH
    sizes = (3 * w * w, 3 * w, w * w, w, 4 * w * w, 4 * w, 4 * w * w, w, w, w, w, w)
    ends = list(accumulate(sizes))
    gathered = transfer("all_gather", ends[-1] // RANKS * BFLOAT16_BYTES, "bfloat16")
    scattered = transfer("reduce_scatter", ends[-1] // RANKS * FLOAT32_BYTES, "float32", "sum")
    norm = transfer("all_reduce", FLOAT32_BYTES, "float32", "sum")
    for rank in run.ranks:
        # Every layer is a unit: gathered for forward and again for backward.
        assert Counter(run.transfers(rank)) == {
            gathered: 2 * LAYERS,
            scattered: LAYERS,
            norm: 1,
        }
        assert run.gemms(rank) == block_gemms(LAYERS)
        families, kernels = run.families(rank), run.kernels(rank)
        assert families["attention_forward"] == families["attention_backward"] == LAYERS
        assert kernels["vectorized_layer_norm_kernel"] == 2 * LAYERS
        # The first norm's input is data.
        assert kernels["layer_norm_grad_input_kernel_vectorized"] == 2 * LAYERS - 1
        assert kernels["GammaBetaBackwardCUDAKernelTemplate"] == 2 * LAYERS
        assert kernels["sum_functor"] == 4 * LAYERS  # gradients of the biases
        # Gradient clipping: the norm of every parameter that lies in the rank's half of a unit,
        # and the norm of these.
        half = ends[-1] // RANKS
        owned = [
            end > rank * half and end - size < (rank + 1) * half
            for size, end in zip(sizes, ends, strict=True)
        ]
        assert kernels["NormTwoOps"] == LAYERS * sum(owned) + 1


def check_fsdp2(run: ScriptRun) -> None:
    w = WIDTH
    block = 12 * w * w + 4 * w
    root = 2 * VOCAB * w + 2 * w  # embedding, head and the last norm
    parameters = 8 * LAYERS + 4
    for rank in run.ranks:
        assert Counter(run.transfers(rank)) == {
            transfer("all_gather", block // RANKS * BFLOAT16_BYTES, "bfloat16"): 2 * LAYERS,
            # What the root holds stays gathered from forward to backward.
            transfer("all_gather", root // RANKS * BFLOAT16_BYTES, "bfloat16"): 1,
            transfer("reduce_scatter", block // RANKS * FLOAT32_BYTES, "float32", "avg"): LAYERS,
            transfer("reduce_scatter", root // RANKS * FLOAT32_BYTES, "float32", "avg"): 1,
            # The norms of all parameters' shards, for clipping.
            transfer("all_reduce", parameters * FLOAT32_BYTES, "float32", "sum"): 1,
        }
        assert run.gemms(rank) == block_gemms(LAYERS) + linear(TOKENS, w, VOCAB)
        families, kernels = run.families(rank), run.kernels(rank)
        assert families["attention_forward"] == families["attention_backward"] == LAYERS
        norms = 2 * LAYERS + 1
        assert kernels["vectorized_layer_norm_kernel"] == norms
        assert kernels["layer_norm_grad_input_kernel_vectorized"] == norms
        assert kernels["GammaBetaBackwardCUDAKernelTemplate"] == norms
        assert kernels["GeluCUDAKernelImpl"] == kernels["GeluBackwardCUDAKernelImpl"] == LAYERS
        units = LAYERS + 1
        # Per unit: its shards into one buffer before each gather, out of it after each; its
        # gradients into one buffer.
        assert kernels["split_with_sizes_copy_out_contiguous_no_cast_kernel"] == 2 * LAYERS + 1
        assert kernels["chunk_cat_cuda_kernel"] == units
        assert kernels["FusedAdamMathFunctor"] == 1


# --- tensor and sequence parallelism -------------------------------------------------------------

TP_LAYERS = 2


def check_tensor_parallel(run: ScriptRun) -> None:
    w, part = WIDTH, WIDTH // RANKS
    activations = TOKENS // RANKS * w * BFLOAT16_BYTES
    for rank in run.ranks:
        assert Counter(run.transfers(rank)) == {
            # Around attention and around the MLP: along the sequence, forward and backward.
            transfer("all_gather", activations, "bfloat16"): 4 * TP_LAYERS,
            transfer("reduce_scatter", activations, "bfloat16", "sum"): 4 * TP_LAYERS,
            # Weight and bias of two norms, whose gradients are sums over all ranks: they are
            # reduced where AdamW uses them, three times.
            transfer("all_reduce", w * BFLOAT16_BYTES, "bfloat16", "sum"): 3 * 4 * TP_LAYERS,
        }
        assert run.gemms(rank) == times(
            TP_LAYERS,
            *[linear(TOKENS, w, part)] * 3,  # queries, keys, values
            linear(TOKENS, part, w),
            linear(TOKENS, w, 4 * part),
            linear(TOKENS, 4 * part, w),
        )
        families, kernels = run.families(rank), run.kernels(rank)
        assert families["attention_forward"] == families["attention_backward"] == TP_LAYERS
        assert kernels["vectorized_layer_norm_kernel"] == 2 * TP_LAYERS
        # The first norm's input is data.
        assert kernels["layer_norm_grad_input_kernel_vectorized"] == 2 * TP_LAYERS - 1
        assert kernels["GeluCUDAKernelImpl"] == kernels["GeluBackwardCUDAKernelImpl"] == TP_LAYERS


CASES = [
    ScriptCase("ddp.py", "data (DDP)", check_ddp, nproc_per_node=RANKS, warmup=12),
    ScriptCase("fsdp1.py", "data, sharded (FSDP1)", check_fsdp1, nproc_per_node=RANKS),
    ScriptCase("fsdp2.py", "data, sharded (FSDP2)", check_fsdp2, nproc_per_node=RANKS),
    ScriptCase(
        "tensor_parallel.py", "tensor, sequence", check_tensor_parallel, nproc_per_node=RANKS
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_script(case: ScriptCase, tmp_path: Path) -> None:
    run_case(case, tmp_path)
