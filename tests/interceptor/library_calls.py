"""Plain PyTorch, one case after the other; test_libraries.py reads the trace it leaves.

Each case is preceded by an annotation with its name, so that its records can be found.
"""

from __future__ import annotations

import ctypes
import time

import torch
from torch.nn import functional

annotate = ctypes.CDLL("libunderstudy.so").understudy_annotate
bfloat16, float32 = torch.bfloat16, torch.float32


def case(name: str) -> None:
    annotate(name.encode())


def leaf(*shape: int, dtype: torch.dtype = bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def attention(
    name: str, kv_heads: int = 12, is_causal: bool = False, dropout_p: float = 0.0
) -> None:
    query, key, value = leaf(2, 12, 256, 64), leaf(2, kv_heads, 256, 64), leaf(2, kv_heads, 256, 64)
    case(name)
    out = functional.scaled_dot_product_attention(
        query, key, value, None, dropout_p, is_causal, enable_gqa=kv_heads != 12
    )
    out.backward(torch.ones_like(out))


case(f"cudnn {torch.backends.cudnn.version()}")
x, weight, bias = leaf(4, 96, 48), leaf(80, 48), leaf(80)
case("linear")
functional.linear(x, weight).backward(torch.ones(4, 96, 80, device="cuda", dtype=bfloat16))
case("linear bias")
functional.linear(x, weight, bias)
case("addmm")
torch.addmm(leaf(80), leaf(384, 48), weight.t())
a, b = leaf(6, 32, 48, dtype=float32), leaf(6, 48, 80, dtype=float32)
case("bmm")
torch.bmm(a, b)
torch.backends.cuda.matmul.allow_tf32 = True
case("baddbmm tf32")
torch.baddbmm(leaf(6, 32, 80, dtype=float32), a, b)
torch.backends.cuda.matmul.allow_tf32 = False
double = torch.ones(8, 16, device="cuda", dtype=torch.float64)
case("double")
_ = double @ double.t()
case("vector")
_ = double @ torch.ones(16, device="cuda", dtype=torch.float64)
case("dot")
torch.dot(double[0], double[1])
eight = torch.ones(32, 64, device="cuda").to(torch.float8_e4m3fn)
one = torch.ones((), device="cuda")
case("float8")
torch.ops.aten._scaled_mm(eight, eight.t(), one, one, out_dtype=bfloat16)

attention("attention causal", is_causal=True)
attention("attention full")
attention("attention grouped", kv_heads=4, is_causal=True)
attention("attention dropout", is_causal=True, dropout_p=0.125)

convolution = torch.nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False, device="cuda").half()
image = leaf(8, 3, 64, 64, dtype=torch.float16)
case("convolution")
convolution(image).backward(torch.ones(8, 64, 32, 32, device="cuda", dtype=torch.float16))
norm = torch.nn.BatchNorm2d(64, device="cuda")
features = leaf(8, 64, 32, 32, dtype=float32)
case("batch norm")
norm(features).backward(torch.ones_like(features))
network = torch.nn.LSTM(16, 32, num_layers=2, device="cuda")
sequence = leaf(5, 4, 16, dtype=float32)
case("lstm")
network(sequence)[0].sum().backward()
case("end")
# The thread of the backward pass still lets go of Python objects, which ends the process when
# Python is closing down.
time.sleep(0.5)
