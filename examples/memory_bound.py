"""Normalizations and elementwise operations on large tensors: memory bandwidth decides its time."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(F.gelu(self.norm(x)) * self.scale, p=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()

    device, dtype = torch.device("cuda"), torch.bfloat16
    model = nn.Sequential(*(Layer(args.width) for _ in range(args.layers))).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.randn(args.rows, args.width, device=device, dtype=dtype)
    for _ in range(args.steps):
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
