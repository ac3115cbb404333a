"""Transformer blocks with tensor and sequence parallelism: DTensor and parallelize_module.

    torchrun --nproc-per-node 2 tensor_parallel.py

Attention and MLP split their weights over the ranks (column-wise, then row-wise); between them
activations are split along the sequence: an all-gather before each, a reduce-scatter after each.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Attention(nn.Module):
    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for t in (self.q(x), self.k(x), self.v(x))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attention = Attention(width, head_dim)
        self.ln_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


PLAN = {
    "ln_1": SequenceParallel(),
    "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    "attention.q": ColwiseParallel(),
    "attention.k": ColwiseParallel(),
    "attention.v": ColwiseParallel(),
    "attention.proj": RowwiseParallel(output_layouts=Shard(1)),
    "ln_2": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    dist.init_process_group("nccl", device_id=device)
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("tensor",))
    model = nn.Sequential(*(Block(args.width, args.head_dim) for _ in range(args.layers)))
    model.to(device=device, dtype=torch.bfloat16)
    for block in model:
        parallelize_module(block, mesh, PLAN)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    shape = (args.batch_size, args.seq_len // ranks, args.width)  # this rank's part of sequences
    for _ in range(args.steps):
        x = torch.randn(shape, device=device, dtype=torch.bfloat16)
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
