"""Distributed training scripts, each explained by its model's arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.script_case import ScriptCase, ScriptRun, run_case

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor", "script_home")]

MIB = 1 << 20
FLOAT32_BYTES = 4


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
        assert run.gemms(rank) == {
            # Forward, and the gradient of the input, which the first layer does not need.
            (DDP_BATCH, DDP_WIDTH, DDP_WIDTH, 1): DDP_LAYERS + DDP_LAYERS - 1,
            (DDP_WIDTH, DDP_WIDTH, DDP_BATCH, 1): DDP_LAYERS,  # of the weight
        }
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


CASES = [
    ScriptCase("ddp.py", "data (DDP)", check_ddp, nproc_per_node=2, warmup=12),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_script(case: ScriptCase, tmp_path: Path) -> None:
    run_case(case, tmp_path)
