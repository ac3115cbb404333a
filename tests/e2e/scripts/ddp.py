"""A deep perceptron trained with DistributedDataParallel.

    torchrun --nproc-per-node 2 ddp.py

DDP reduces gradients in buckets: the first holds about 1 MiB, the others about 25 MiB.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def perceptron(layers: int, width: int) -> nn.Sequential:
    modules: list[nn.Module] = []
    for _ in range(layers):
        modules += [nn.Linear(width, width, bias=False), nn.GELU()]
    return nn.Sequential(*modules)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    dist.init_process_group("nccl")
    model = DistributedDataParallel(perceptron(args.layers, args.width).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(args.steps):
        x = torch.randn(args.batch_size, args.width, device=device)
        y = torch.randn(args.batch_size, args.width, device=device)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
