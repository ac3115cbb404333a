"""Kernel arguments: real names and parameter layouts of PyTorch 2.14.1, argument bytes by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.kernels import Signature, bytes_moved, flops, signature_of_launch

NAMES = json.loads(
    (Path(__file__).parents[1] / "data" / "kernel_names" / "torch-2.14.1.json").read_text()
)
STALE = 0xABCDEF


class Arguments:
    """Argument bytes of one kernel and the tensors that its pointers lead to."""

    def __init__(self, kernel: str) -> None:
        self.name = NAMES[kernel]["name"]
        self.parameters = [(o, s) for o, s in NAMES[kernel]["parameters"]]
        self.bytes = bytearray(max(o + s for o, s in self.parameters))
        self.blocks: dict[int, int] = {STALE: 10**9}
        self._next = 0x7F0000000000

    def tensor(self, size_bytes: int) -> int:
        self._next += 2**30
        self.blocks[self._next] = size_bytes
        return self._next

    def put(self, offset: int, fmt: str, *values: float) -> None:
        struct.pack_into("<" + fmt, self.bytes, offset, *values)

    def set(self, parameter: int, value: int) -> None:
        offset, size = self.parameters[parameter]
        self.put(offset, {1: "B", 4: "i", 8: "q"}[size], value)

    def signature(
        self, grid: tuple[int, int, int] = (1, 1, 1), arguments: bytes | None = None
    ) -> Signature:
        return signature_of_launch(
            "cudaLaunchKernel",
            self.name,
            grid,
            (128, 1, 1),
            0,
            32,
            bytes(self.bytes) if arguments is None else arguments,
            self.parameters,
            self.blocks.get,
        )


def features(signature: Signature) -> dict[str, float]:
    return dict(signature.features)


def test_elementwise_counts_each_array() -> None:
    a = Arguments("add")
    a.set(0, 1000)
    x, y = a.tensor(4096), a.tensor(4096)
    a.put(a.parameters[2][0], "3q", x, x, y)
    s = a.signature()
    assert (s.family, s.dtype, s.kernel_version) == ("elementwise", "float32", "aten")
    assert s.name.startswith("at::native::vectorized_elementwise_kernel<4, ")
    assert "(int," not in s.name
    # x is read and written in place: traffic of three arrays, memory of two.
    assert bytes_moved(s) == 3 * 4000 and s.tensor_bytes == 2 * 4000
    assert features(s)["elements"] == 1000


def test_a_view_into_a_larger_block_counts_its_own_elements() -> None:
    a = Arguments("fill")
    a.set(0, 10)
    a.put(a.parameters[2][0], "q", a.tensor(25 * 2**20))
    assert bytes_moved(a.signature()) == 40


def test_casts() -> None:
    a = Arguments("cast_to_bfloat16")
    a.set(0, 512)
    a.put(a.parameters[2][0], "2q", a.tensor(1024), a.tensor(2048))
    s = a.signature()
    assert (s.family, s.dtype) == ("copy", "bfloat16")
    assert bytes_moved(s) == 512 * (2 + 4)


def test_casts_with_types_in_the_arguments() -> None:
    a = Arguments("cast_with_types")
    a.set(0, 100)
    a.put(8, "2q", a.tensor(2**20), a.tensor(2**20))
    load, store = a.parameters[-2][0], a.parameters[-1][0]
    a.put(load + 4, "I", 2)
    a.put(store + 4, "I", 4)
    assert bytes_moved(a.signature()) == 100 * (2 + 4)


def test_strided_elementwise_sees_broadcasts() -> None:
    a = Arguments("strided_add")
    rows, columns = 64, 32
    a.set(0, rows * columns)
    base = a.parameters[1][0]
    a.put(base, "i", 2)
    a.put(base + 4, "I", columns)
    a.put(base + 16, "I", rows)
    a.put(base + 304, "3I", 4, 4, 4)  # strides of dimension 0
    a.put(base + 304 + 12, "3I", 4 * columns, 4 * columns, 0)
    pointers = base + 608
    a.put(pointers, "3q", a.tensor(8192), a.tensor(8192), a.tensor(512))
    s = a.signature()
    assert bytes_moved(s) == 2 * rows * columns * 4 + columns * 4
    assert features(s)["broadcast"] == 1


def test_layer_norm() -> None:
    a = Arguments("layer_norm")
    rows, columns = 8192, 768
    a.set(0, columns)
    big, small, moments = rows * columns * 4, columns * 4, rows * 4
    for parameter, size in zip(
        range(2, 8), (big, small, small, moments, moments, big), strict=True
    ):
        a.set(parameter, a.tensor(size))
    s = a.signature(grid=(rows, 1, 1))
    assert s.family == "normalization"
    assert s.tensor_bytes == 50_403_328 == bytes_moved(s)
    assert features(s)["rows"] == rows and features(s)["columns"] == columns


def test_layer_norm_backward() -> None:
    a = Arguments("layer_norm_grad_input")
    rows, columns = 512, 256
    big = rows * columns * 4
    for parameter, size in enumerate((big, big, rows * 4, rows * 4, columns * 4, big)):
        a.set(parameter, a.tensor(size))
    a.set(6, columns)
    assert bytes_moved(a.signature(grid=(rows, 1, 1))) == 3 * big + 8 * rows + 4 * columns
    b = Arguments("layer_norm_grad_weight")
    b.set(0, rows)
    b.set(1, columns)
    for parameter in (2, 3):
        b.set(parameter, b.tensor(big))
    assert features(b.signature())["rows"] == rows


def test_softmax() -> None:
    a = Arguments("softmax_block")
    rows, columns = 128, 50304
    a.set(0, a.tensor(rows * columns * 2))
    a.set(1, a.tensor(rows * columns * 2))
    a.set(2, columns)
    s = a.signature(grid=(rows, 1, 1))
    assert s.family == "softmax" and bytes_moved(s) == 4 * rows * columns
    b = Arguments("softmax_warp")
    b.set(0, b.tensor(2**20))
    b.set(1, b.tensor(2**20))
    b.set(2, 512)
    b.set(3, 1024)
    b.set(4, 1024)
    assert features(b.signature()) == {"bytes": 2**21, "columns": 1024, "rows": 512}


def test_reduction_reads_known_offsets_only() -> None:
    a = Arguments("reduce_sum")
    size = a.parameters[0][1]
    a.put(8, "3i", 4, 8192, 768)
    a.put(size - 64, "2q", a.tensor(8192 * 768 * 2), a.tensor(768 * 2))
    for stale in range(200, 900, 8):
        a.put(stale, "q", STALE)
    s = a.signature()
    assert s.family == "reduction" and s.dtype == "bfloat16"
    assert bytes_moved(s) == 8192 * 768 * 2 + 768 * 2
    assert features(s)["outputs"] == 768


def test_embedding_counts_rows_not_the_table() -> None:
    a = Arguments("embedding")
    a.set(0, a.tensor(2**20))
    a.set(1, a.tensor(50304 * 3072))
    a.set(3, 8192)
    a.set(4, 3072)
    s = a.signature()
    assert s.family == "embedding" and bytes_moved(s) == 8192 * (2 * 3072 + 8)
    b = Arguments("embedding_backward")
    b.set(3, 1024)
    b.set(4, 768)
    assert bytes_moved(b.signature()) == 1024 * (3 * 768 * 4 + 8)


def test_dropout_and_loss() -> None:
    a = Arguments("dropout")
    a.set(3, 6000)
    s = a.signature()
    assert (s.family, bytes_moved(s)) == ("elementwise", 6000 * (2 + 2 + 1))
    b = Arguments("nll_loss")
    b.set(6, 8192)
    b.set(8, 50304)
    assert features(b.signature()) == {"bytes": 8192 * 40, "columns": 50304, "rows": 8192}


def put_tensor_list(
    a: Arguments, depth: int, capacity: int, counts: list[int], *, fused: bool = False
) -> int:
    """Fills multi_tensor_apply's metadata; returns the blocks that it needs."""
    numel = 8 * depth * capacity
    a.put(numel, f"{len(counts)}q", *counts)
    owner = numel + 8 * capacity + (8 * capacity if fused else 0)
    blocks = [(t, c) for t, n in enumerate(counts) for c in range(-(-n // 65536))]
    a.put(owner, f"{len(blocks)}H", *(t for t, _ in blocks))
    a.put(owner + 2 * 2240, f"{len(blocks)}i", *(c for _, c in blocks))
    return len(blocks)


@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=40))
def test_fused_adamw_counts_elements_exactly(counts: list[int]) -> None:
    a = Arguments("fused_adamw")
    blocks = put_tensor_list(a, 4, 252, counts, fused=True)
    s = a.signature(grid=(blocks, 1, 1))
    assert s.family == "optimizer"
    assert features(s)["elements"] == sum(counts)
    assert features(s)["tensors"] == len(counts)
    # Parameters, gradients and two moments are read, all but the gradients written.
    assert bytes_moved(s) == 28 * sum(counts) and s.tensor_bytes == 16 * sum(counts)


@pytest.mark.parametrize(
    ("kernel", "depth", "capacity", "per_element"),
    [("foreach_mul", 1, 770, 8), ("foreach_norm", 1, 770, 4), ("foreach_copy", 2, 448, 6)],
)
def test_lists_of_tensors(kernel: str, depth: int, capacity: int, per_element: int) -> None:
    a = Arguments(kernel)
    blocks = put_tensor_list(a, depth, capacity, [65536, 3, 70000])
    s = a.signature(grid=(blocks, 1, 1))
    assert bytes_moved(s) == per_element * (65536 + 3 + 70000)


def test_a_list_split_over_launches_counts_its_part() -> None:
    a = Arguments("foreach_mul")
    put_tensor_list(a, 1, 770, [65536 * 4])
    assert features(a.signature(grid=(3, 1, 1)))["elements"] == 3 * 65536


def test_concatenation() -> None:
    a = Arguments("cat")
    counts = [1000, 2000, 3000]
    a.set(0, a.tensor(12000))
    base = a.parameters[1][0]
    for i, count in enumerate(counts):
        a.put(base + 8 * i, "q", a.tensor(2 * count))
        a.put(base + 8 * 128 + 8 * 128 + 4 * i, "I", count)
    s = a.signature(grid=(16, 3, 1))
    assert s.family == "copy" and bytes_moved(s) == 2 * 2 * 6000


def flash(kernel: str) -> Arguments:
    a = Arguments(kernel)
    a.put(96, "2i", 12, 4)
    a.put(176, "3i", 8, 1024, 2048)
    a.put(192, "i", 64)
    return a


def test_flash_attention() -> None:
    s = flash("flash_forward").signature()
    assert (s.family, s.kernel_version, s.dtype) == ("attention_forward", "flash2", "bfloat16")
    f = features(s)
    assert (f["batch"], f["heads"], f["kv_heads"], f["head_dim"]) == (8, 12, 4, 64)
    assert (f["seq_q"], f["seq_kv"], f["causal"]) == (1024, 2048, 1)
    backward = flash("flash_backward").signature()
    assert backward.family == "attention_backward"
    assert flops(backward) == 2.5 * flops(s)
    helper = flash("flash_backward_helper").signature()
    assert helper.family == "reduction" and flops(helper) == 0
    assert bytes_moved(helper) == 2 * 8 * 1024 * 12 * 64 * 2


def test_efficient_attention() -> None:
    a = Arguments("efficient_forward")
    a.put(96, "4i", 64, 64, 512, 256)
    a.put(116, "B", 1)
    a.put(192, "2i", 4, 16)
    b = Arguments("efficient_backward")
    b.put(144, "5i", 64, 64, 512, 256, 16)
    b.put(164, "B", 1)
    b.put(384, "i", 4)
    forward, backward = a.signature(), b.signature()
    f = features(forward)
    assert (f["seq_q"], f["seq_kv"], f["batch"], f["heads"], f["causal"]) == (512, 256, 4, 16, 1)
    assert backward.family == "attention_backward" and flops(backward) == 2.5 * flops(forward)


def test_unknown_kernels_count_what_their_small_parameters_point_to() -> None:
    tensors = {0x1000: 300, 0x2000: 700, STALE: 10**9}
    arguments = bytearray(8 + 40 + 200)
    struct.pack_into("<q", arguments, 0, 0x1000)
    struct.pack_into("<3q", arguments, 8, 5, 0x2000, 0x1000)
    struct.pack_into("<q", arguments, 48, STALE)  # in a large struct: never looked at
    s = signature_of_launch(
        "cuLaunchKernel", "mystery", (1, 1, 1), (1, 1, 1), 0, 0,
        bytes(arguments), [(0, 8), (8, 40), (48, 200)], tensors.get,
    )  # fmt: skip
    assert s.family == "generic" and s.tensor_bytes == 1000 == bytes_moved(s)


@pytest.mark.parametrize("kernel", sorted(NAMES))
def test_arguments_of_another_build_are_no_error(kernel: str) -> None:
    a = Arguments(kernel)
    short = a.signature(arguments=bytes(a.bytes[: len(a.bytes) // 3]))
    empty = signature_of_launch(
        "cudaLaunchKernel", a.name, (1, 1, 1), (1, 1, 1), 0, 0, b"", [], a.blocks.get
    )
    assert short.family == empty.family or "attention" in short.family


@pytest.mark.parametrize("kernel", sorted(NAMES))
@settings(max_examples=20, deadline=None)
@given(seed=st.binary(min_size=64, max_size=64))
def test_addresses_do_not_enter_the_signature(kernel: str, seed: bytes) -> None:
    """Whatever the bytes: equal tensor sizes give equal signatures wherever they lie."""
    a = Arguments(kernel)
    content = (seed * (len(a.bytes) // 64 + 1))[: len(a.bytes)]
    first = a.signature(arguments=content)
    assert first == a.signature(arguments=content)
    assert all(isinstance(v, float) for _, v in first.features)
    assert first.tensor_bytes >= 0
