"""A perceptron in float16 autocast; the loss is scaled, so that small gradients survive.

python amp_grad_scaler.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for _ in range(args.layers):
        modules += [nn.Linear(args.width, args.width), nn.ReLU()]
    model = nn.Sequential(*modules, nn.Linear(args.width, args.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(args.steps):
        x = torch.randn(args.batch_size, args.width, device=device)
        target = torch.randint(args.classes, (args.batch_size,), device=device)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
