"""Pipeline parallelism with the schedules of torch.distributed.pipelining.

    torchrun --nproc-per-node 2 pipeline.py --schedule 1F1B

A deep perceptron is cut into stages of equal depth: one per rank for 1F1B, two for the interleaved
and zero-bubble schedules.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

SCHEDULES = {
    "1F1B": Schedule1F1B,
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
}


def stage_module(layers: int, width: int) -> nn.Module:
    modules: list[nn.Module] = []
    for _ in range(layers):
        modules += [nn.Linear(width, width, bias=False), nn.GELU()]
    return nn.Sequential(*modules)


def stages_of(schedule: str, rank: int, ranks: int) -> list[int]:
    """Numbers of the stages that a rank holds."""
    if schedule == "1F1B":
        return [rank]
    if schedule == "ZBVZeroBubble":  # down and up again, in the shape of a V
        return [rank, 2 * ranks - 1 - rank]
    return [rank, rank + ranks]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B")
    parser.add_argument("--layers-per-stage", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--micro-batch-size", type=int, default=32)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(rank)
    dist.init_process_group("nccl", device_id=device)
    numbers = stages_of(args.schedule, rank, ranks)
    count = ranks * len(numbers)
    stages = [
        PipelineStage(stage_module(args.layers_per_stage, args.width).to(device), n, count, device)
        for n in numbers
    ]
    schedule = SCHEDULES[args.schedule](
        stages[0] if len(stages) == 1 else stages, args.micro_batches, nn.functional.mse_loss
    )
    optimizer = torch.optim.SGD([p for s in stages for p in s.submod.parameters()], lr=1e-2)
    shape = (args.micro_batches * args.micro_batch_size, args.width)
    for _ in range(args.steps):
        inputs = [torch.randn(shape, device=device)] if 0 in numbers else []
        is_last = count - 1 in numbers
        targets = torch.randn(shape, device=device) if is_last else None
        schedule.step(*inputs, target=targets)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
