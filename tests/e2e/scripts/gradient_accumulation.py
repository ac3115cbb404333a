"""A perceptron whose gradients are accumulated over micro-batches, then clipped.

python gradient_accumulation.py
"""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--micro-batch-size", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for _ in range(args.layers):
        modules += [nn.Linear(args.width, args.width), nn.ReLU()]
    model = nn.Sequential(*modules).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shape = (args.micro_batch_size, args.width)
    for batch in range(args.steps * args.micro_batches):
        x = torch.randn(shape, device=device)
        loss = model(x).square().mean() / args.micro_batches
        loss.backward()
        if (batch + 1) % args.micro_batches == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
