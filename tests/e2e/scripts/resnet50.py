"""ResNet-50 of torchvision with random weights.

python resnet50.py --channels-last
"""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torchvision.models import resnet50


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--channels-last", action="store_true", help="and bfloat16 autocast")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    model = resnet50().to(device)
    precision: contextlib.AbstractContextManager = contextlib.nullcontext()
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
        precision = torch.autocast("cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    for _ in range(args.steps):
        images = torch.rand(shape, device=device)
        labels = torch.randint(1000, (args.batch_size,), device=device)
        if args.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with precision:
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
