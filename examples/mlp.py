"""A stack of wide linear layers: nearly all of its time is large matrix products."""

from __future__ import annotations

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--batch-size", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()

    device, dtype = torch.device("cuda"), torch.bfloat16
    layers: list[nn.Module] = []
    for _ in range(args.layers):
        linear = nn.Linear(args.width, args.width, bias=False, device=device, dtype=dtype)
        layers += [linear, nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.randn(args.batch_size, args.width, device=device, dtype=dtype)
    for _ in range(args.steps):
        # The gradient of the sum, without the sum.
        outputs = model(inputs)
        outputs.backward(torch.ones_like(outputs))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
