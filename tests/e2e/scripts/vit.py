"""A small Vision Transformer of torchvision in bfloat16 autocast.

python vit.py
"""

import argparse

import torch
import torch.nn.functional as F
from torchvision.models import VisionTransformer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--patch-size", type=int, default=8)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    model = VisionTransformer(
        args.image_size,
        args.patch_size,
        args.layers,
        args.heads,
        args.width,
        4 * args.width,
        dropout=0.1,
        num_classes=args.classes,
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    for _ in range(args.steps):
        images = torch.rand(shape, device=device)
        labels = torch.randint(args.classes, (args.batch_size,), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
