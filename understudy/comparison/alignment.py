"""Which simulated operation is which measured kernel.

Both sides launch in the same order, but not the same kernels: a library call is one operation here
and may be several kernels there, versions of PyTorch name kernels differently, and one side may do
something that the other does not. So the two sequences are aligned: the longest common subsequence
of what each kernel is, first by name and shape, then, between the pairs found, by what it computes.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rapidfuzz.distance import LCSseq

from understudy import kernels

#: Kernels that a library runs before the one that computes: they belong to its call.
_BEFORE = re.compile(
    r"nchwToNhwc|nchwToFold|im2col|[cC]ompute\w*Offsets|scalePackedTensor|generateWinogradTiles"
    r"|winograd\w*(Data|Filter|Delta)|fft2d_r2c|flip_filter|kern_precompute|dgrad_alg1_nd"
    r"|compute_gemm_pointers|batched_transpose"
)
#: The same, after it.
_AFTER = re.compile(
    r"splitKreduce|nhwcToNchw|foldedNhwc|tensorTransform|convertTensor|winograd\w*Output|fft2d_c2r"
    r"|op_tensor_kernel|reduce_wgrad|SubTensorOp"
)
_CONVOLUTION = re.compile(
    r"fprop|dgrad|wgrad|\dcudnn_|scudnn_|convolve|conv_depthwise|implicit_gemm|implicit_con|winograd|_conv_|conv2d"
    r"|cudnn::cnn|igemm_(fwd|bwd|wrw)|miopen.*Conv|naive_conv"
)
_MATRIX = re.compile(r"gemm|gemv|cublas|cutlass|xmma|wgmma|nvjet|Cijk_|dot_kernel")
_ATTENTION = re.compile(r"flash_(fwd|bwd)|fmha|sdpa|attn_(fwd|bwd)|FmhaFwd|FmhaBwd")
#: What names a kernel or its functor among the words of a demangled name.
_WORDS = re.compile(r"\w*(?:[Ff]unctor|[Kk]ernel)\w*")
#: cuDNN computes some convolutions with matrix products, so both are one class.
_CLASSES = {
    "gemm": "matrix",
    "convolution_forward": "matrix",
    "convolution_dgrad": "matrix",
    "convolution_wgrad": "matrix",
    "recurrent": "matrix",
    "attention_forward": "attention",
    "attention_backward": "attention",
}


@dataclass(frozen=True, slots=True)
class Item:
    """One device operation of either side. `fine` says exactly what it is, `coarse` roughly.

    `helps` says where the kernel lies that a library's helper belongs to: -1 before, 1 after.
    """

    fine: Hashable
    coarse: str
    helps: int = 0


def simulated_item(
    name: str, family: str, grid: Sequence[int] | None, size_bytes: int | None = None
) -> Item:
    """An operation of the simulation, from its signature."""
    coarse = _CLASSES.get(family, family)
    if family in ("collective", "memset", "copy") and grid is None:
        return Item((coarse, size_bytes), coarse)
    return Item((_short(name), tuple(grid) if grid else None), coarse)


def measured_item(
    kind: str, name: str, grid: Sequence[int] | None, size_bytes: int | None = None
) -> Item:
    """A kernel, copy or memset of a trace: `kind` is kernel, memcpy or memset."""
    if kind != "kernel":
        coarse = "copy" if kind == "memcpy" else "memset"
        return Item((coarse, size_bytes), coarse)
    if name.startswith(("nccl", "rccl")):
        return Item(("collective", size_bytes), "collective")
    short = _short(name)
    helps = 1 if _BEFORE.search(name) else -1 if _AFTER.search(name) else 0
    return Item((short, tuple(grid) if grid else None), _class_of(name), helps)


def _class_of(name: str) -> str:
    if _ATTENTION.search(name):
        return "attention"
    if _CONVOLUTION.search(name) or _MATRIX.search(name):
        return "matrix"
    family = kernels.family_of(name)
    return _CLASSES.get(family, family)


def _short(name: str) -> tuple[str, ...]:
    """A kernel's name without namespaces and types, with the functors that say what it does."""
    plain = kernels.display_name(name)
    base = re.sub(r"<.*", "", plain).rsplit("::", 1)[-1]
    return (base, *dict.fromkeys(_WORDS.findall(plain)))


def align(simulated: Sequence[Item], measured: Sequence[Item]) -> list[tuple[int, list[int]]]:
    """Pairs (index of a simulated operation, indices of its measured kernels), in order.

    Operations and kernels without a counterpart are in no pair.
    """
    main = [i for i, item in enumerate(measured) if not item.helps]
    pairs = _common([item.fine for item in simulated], [measured[i].fine for i in main], 0, 0)
    filled: list[tuple[int, int]] = []
    last = (-1, -1)
    for pair in [*pairs, (len(simulated), len(main))]:
        ours = simulated[last[0] + 1 : pair[0]]
        theirs = [measured[main[j]] for j in range(last[1] + 1, pair[1])]
        coarse = [item.coarse for item in ours], [item.coarse for item in theirs]
        filled += _common(*coarse, last[0] + 1, last[1] + 1)
        filled.append(pair)
        last = pair
    filled.pop()
    found = {main[j]: i for i, j in filled}
    return _with_helpers(found, measured)


def _common(
    ours: Sequence[Hashable], theirs: Sequence[Hashable], at: int, other_at: int
) -> list[tuple[int, int]]:
    if not ours or not theirs:
        return []
    return [
        (at + block.src_start + k, other_at + block.dest_start + k)
        for block in LCSseq.opcodes(ours, theirs)
        if block.tag == "equal"
        for k in range(block.src_end - block.src_start)
    ]


def _with_helpers(found: dict[int, int], measured: Sequence[Item]) -> list[tuple[int, list[int]]]:
    groups: dict[int, list[int]] = {}
    leading: list[int] = []
    last: int | None = None
    for j, item in enumerate(measured):
        if item.helps > 0:
            leading.append(j)
        elif item.helps < 0:
            if last is not None:
                groups[last].append(j)
        else:
            last = found.get(j)
            if last is not None:
                groups[last] = [*leading, j]
            leading = []
    return sorted(groups.items())
