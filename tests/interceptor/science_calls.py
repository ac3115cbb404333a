"""Plain PyTorch through cuFFT, cuSPARSE, cuSPARSELt, NVRTC and the older parts of cuDNN.

test_science.py reads the trace; each case is preceded by an annotation with its name.
"""

from __future__ import annotations

import ctypes
import time
import warnings

import torch
from torch.nn import functional
from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured

warnings.filterwarnings("ignore", message=".*(beta state|prototype|deprecated|experimental).*")
annotate = ctypes.CDLL("libunderstudy.so").understudy_annotate
device = torch.device("cuda")
half, bfloat16 = torch.float16, torch.bfloat16


def case(name: str) -> None:
    annotate(name.encode())


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)


# --- cuFFT ---
signal = torch.randn(8, 60, device=device)
case("fft c2c")
torch.fft.fft(signal.to(torch.complex64))
case("fft r2c c2r")
torch.fft.irfft(torch.fft.rfft(signal))
case("fft 2d double")
torch.fft.ifft2(torch.randn(3, 16, 20, device=device, dtype=torch.complex128))
case("fft nd")
torch.fft.fftn(torch.randn(4, 6, 8, device=device).to(torch.complex64))
case("fft half")
torch.fft.rfft(torch.randn(4, 64, device=device).half())
case("fft backward")
torch.fft.rfft(leaf(4, 60)).abs().sum().backward()

# --- cuSPARSE ---
crow = torch.tensor([0, 1, 2, 3, 3], device=device)
columns = torch.tensor([1, 0, 3], device=device)
ones = torch.ones(3, device=device)


def csr() -> torch.Tensor:
    return torch.sparse_csr_tensor(crow, columns, ones, (4, 4))


dense = torch.randn(4, 5, device=device)
matrix = torch.sparse_coo_tensor(
    torch.tensor([[0, 1, 2], [1, 0, 3]], device=device),
    ones,
    (4, 4),
    check_invariants=False,
    is_coalesced=True,
)
case("coo dense")
torch.sparse.mm(matrix, dense)
case("csr dense")
_ = csr() @ dense
case("csr vector")
_ = csr() @ dense[:, 0]
case("addmm")
torch.addmm(dense, csr(), dense)
case("csr csr")
_ = csr() @ csr()
case("csr add")
torch.add(csr(), csr())
case("sampled")
torch.sparse.sampled_addmm(
    csr(), torch.randn(4, 6, device=device), torch.randn(6, 4, device=device)
)
case("triangular")
torch.triangular_solve(dense, csr(), upper=False)
blocks = torch.sparse_bsr_tensor(
    torch.tensor([0, 1, 2], device=device),
    torch.tensor([0, 1], device=device),
    torch.ones(2, 2, 2, device=device),
    (4, 4),
)
case("bsr")
_ = blocks @ dense[:, 0]
torch.triangular_solve(dense, blocks, upper=True)
case("semi-structured")
SparseSemiStructuredTensor._FORCE_CUTLASS = False
pruned = torch.tensor([0, 0, 1, 1]).tile((128, 64)).half().to(device)
functional.linear(
    torch.randn(64, 256, device=device, dtype=half), to_sparse_semi_structured(pruned)
)

# --- NVRTC ---
case("special")
torch.special.airy_ai(signal)
case("jiterator")
scaled = torch.cuda.jiterator._create_jit_fn(
    "template <typename T> T scaled(T x, T y, T alpha) { return alpha * x * y; }", alpha=0.5
)
scaled(signal, signal)
scaled(signal, signal[0], alpha=2.0)
case("complex product")
torch.prod(signal.to(torch.complex64))

# --- cuDNN ---
networks = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "tanh": torch.nn.RNN}
for name, kind in networks.items():
    network = kind(16, 32, num_layers=2, bidirectional=True, dropout=0.3, device=device)
    case(name)
    network(leaf(7, 4, 16))[0].sum().backward()
case("packed")
packed = torch.nn.utils.rnn.pack_padded_sequence(leaf(7, 4, 16), torch.tensor([7, 5, 3, 2]))
torch.nn.LSTM(16, 32, device=device)(packed)[0].data.sum().backward()
labels = torch.randint(1, 20, (40,), dtype=torch.int32)
case("ctc")
torch.ctc_loss(leaf(50, 4, 20).log_softmax(2), labels, [50] * 4, [10] * 4).sum().backward()
case("ctc on device")
lengths = torch.tensor([[50, 10]] * 4, dtype=torch.int32, device=device)
functional.ctc_loss(
    leaf(50, 4, 20).log_softmax(2), labels.to(device), lengths[:, 0], lengths[:, 1]
).backward()
case("grid sample")
grid = functional.affine_grid(leaf(2, 2, 3), [2, 3, 8, 12], align_corners=True)
functional.grid_sample(leaf(2, 3, 16, 16), grid, align_corners=True).sum().backward()
for dims in (1, 2, 3):
    for dtype in (torch.float32, half, bfloat16):
        layout = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)[dims - 1]
        image = leaf(2, 8, *[12] * dims, dtype=dtype)
        plain = getattr(torch.nn, f"Conv{dims}d")
        transposed = getattr(torch.nn, f"ConvTranspose{dims}d")
        for name, layer in (
            ("grouped", plain(8, 16, 3, padding=1, groups=2)),
            ("dilated", plain(8, 16, 3, stride=2, dilation=2)),
            ("transposed", transposed(8, 16, 3, stride=2)),
        ):
            case(f"conv{dims} {name} {str(dtype)[6:]}")
            layer.to(device, dtype)(image.to(memory_format=layout)).sum().backward()
case("end")
# The thread of the backward pass still lets go of Python objects, which ends the process when
# Python is closing down.
time.sleep(0.5)
