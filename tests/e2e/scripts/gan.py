"""A small DCGAN: generator and discriminator have an optimizer each and train in turns.

python gan.py
"""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def generator(latent: int, width: int) -> nn.Sequential:
    """Noise of 1 x 1 pixels to images of 32 x 32."""
    channels = [latent, 4 * width, 2 * width, width]
    modules: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(itertools.pairwise(channels)):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        modules += [
            nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*modules, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width: int) -> nn.Sequential:
    modules: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for inputs in (width, 2 * width):
        modules += [
            nn.Conv2d(inputs, 2 * inputs, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * inputs),
            nn.LeakyReLU(0.2),
        ]
    return nn.Sequential(*modules, nn.Conv2d(4 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def adversarial_loss(logits: Tensor, is_real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(is_real)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latent", type=int, default=64)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    make = generator(args.latent, args.width).to(device)
    judge = discriminator(args.width).to(device)
    make_optimizer = torch.optim.Adam(make.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for _ in range(args.steps):
        real = torch.rand(args.batch_size, 3, 32, 32, device=device)
        fake = make(torch.randn(args.batch_size, args.latent, 1, 1, device=device))

        judge_optimizer.zero_grad()
        adversarial_loss(judge(real), True).backward()
        adversarial_loss(judge(fake.detach()), False).backward()
        judge_optimizer.step()

        make_optimizer.zero_grad()
        adversarial_loss(judge(fake), True).backward()
        make_optimizer.step()


if __name__ == "__main__":
    main()
