"""A U-Net learns to predict the noise in images (DDPM).

python unet_diffusion.py
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS_OF_NOISE = 1000


def timestep_embedding(t: Tensor, width: int) -> Tensor:
    frequencies = torch.exp(
        torch.arange(width // 2, device=t.device) * (-math.log(10000.0) / (width // 2))
    )
    angles = t[:, None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.norm_1 = nn.GroupNorm(8, inputs)
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedding, outputs)
        self.norm_2 = nn.GroupNorm(8, outputs)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        h = self.conv_1(F.silu(self.norm_1(x)))
        h = h + self.time(F.silu(embedding))[:, :, None, None]
        return self.skip(x) + self.conv_2(F.silu(self.norm_2(h)))


class Attention(nn.Module):
    """Among all pixels of a feature map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.qkv(pixels).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        y = self.proj(y.transpose(1, 2).flatten(2))
        return x + y.transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """Two resolutions, one residual block each way at each, attention at the lower one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        embedding = 4 * width
        self.width = width
        self.embed = nn.Sequential(
            nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down_1 = ResidualBlock(width, width, embedding)
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down_2 = ResidualBlock(width, 2 * width, embedding)
        self.attention = Attention(2 * width, heads)
        self.up_2 = ResidualBlock(4 * width, 2 * width, embedding)
        self.grow = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up_1 = ResidualBlock(3 * width, width, embedding)
        self.norm = nn.GroupNorm(8, width)
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        embedding = self.embed(timestep_embedding(t, self.width))
        high = self.down_1(self.enter(x), embedding)
        low = self.down_2(self.shrink(high), embedding)
        h = self.attention(low)
        h = self.up_2(torch.cat([h, low], dim=1), embedding)
        h = self.grow(F.interpolate(h, scale_factor=2, mode="nearest"))
        h = self.up_1(torch.cat([h, high], dim=1), embedding)
        return self.leave(F.silu(self.norm(h)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    model = UNet(args.width, args.heads).to(device)
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    kept = torch.cumprod(1.0 - torch.linspace(1e-4, 0.02, STEPS_OF_NOISE, device=device), dim=0)
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    for _ in range(args.steps):
        image, noise = torch.rand(shape, device=device), torch.randn(shape, device=device)
        t = torch.randint(STEPS_OF_NOISE, (args.batch_size,), device=device)
        share = kept[t][:, None, None, None]
        noisy = share.sqrt() * image + (1.0 - share).sqrt() * noise
        loss = F.mse_loss(model(noisy, t), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
                average, list(model.parameters()), 1e-3
            )


if __name__ == "__main__":
    main()
