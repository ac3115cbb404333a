"""A detection head: boxes are pooled out of feature maps, classified, and thinned out.

python detection.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import RoIAlign, batched_nms, box_iou, nms


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--boxes", type=int, default=100, help="per image")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    backbone = nn.Conv2d(3, args.channels, 3, stride=4, padding=1).to(device)
    pool = RoIAlign(output_size=7, spatial_scale=0.25, sampling_ratio=2)
    head = nn.Linear(49 * args.channels, args.classes).to(device)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.01)
    image_shape = (args.batch_size, 3, args.image_size, args.image_size)
    for _ in range(args.steps):
        images = torch.rand(image_shape, device=device)
        corners = torch.rand(args.batch_size, args.boxes, 4, device=device) * args.image_size / 2
        boxes = [torch.cat([c[:, :2], c[:, :2] + c[:, 2:]], dim=1) for c in corners]
        labels = torch.randint(args.classes, (args.batch_size * args.boxes,), device=device)
        logits = head(pool(backbone(images), boxes).flatten(1))
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            scores, classes = logits.softmax(1).max(1)
            for of_image, s, c in zip(
                boxes, scores.split(args.boxes), classes.split(args.boxes), strict=True
            ):
                first = of_image[nms(of_image, s, 0.5)]
                best = of_image[batched_nms(of_image, s, c, 0.5)]
                box_iou(first, best)


if __name__ == "__main__":
    main()
