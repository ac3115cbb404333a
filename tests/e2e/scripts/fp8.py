"""A perceptron of fp8 linear layers, each tensor scaled by its largest value at every use.

python fp8.py

Values and weights are E4M3, gradients E5M2 (Micikevicius et al., FP8 Formats for Deep Learning,
2022, section 3). The tensor cores want the second operand by columns, so backward transposes.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`x` in fp8 and the factor that scales it back."""
    largest = torch.finfo(dtype).max
    scale = largest / x.abs().amax().float().clamp(min=1e-12)
    return (x * scale).clamp(-largest, largest).to(dtype), scale.reciprocal()


def product(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
    """a times the transpose of b, both row-major fp8, in bfloat16."""
    return torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16
    )


class Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, x_scale = quantized(x, E4M3)
        weight8, weight_scale = quantized(weight, E4M3)
        ctx.save_for_backward(x8, x_scale, weight8, weight_scale)
        return product(x8, weight8, x_scale, weight_scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        x8, x_scale, weight8, weight_scale = ctx.saved_tensors
        gradient8, scale = quantized(gradients[0], E5M2)
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = product(gradient8, weight8.t().contiguous(), scale, weight_scale)
        weight_gradient = product(gradient8.t().contiguous(), x8.t().contiguous(), scale, x_scale)
        return x_gradient, weight_gradient


class Fp8Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, dtype=torch.bfloat16) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        return Fp8Product.apply(x, self.weight)  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for _ in range(args.layers):
        modules += [Fp8Linear(args.width, args.width), nn.SiLU()]
    model = nn.Sequential(*modules).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(args.steps):
        x = torch.randn(args.batch_size, args.width, device=device, dtype=torch.bfloat16)
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
