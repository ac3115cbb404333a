"""Short names of device operations for tables and plots."""

from __future__ import annotations

import re
from collections.abc import Mapping

from understudy.reporting import units

#: Longer names are cut, so that the bytes behind them fit into a line of the text report.
NAME_WIDTH = 32

_NAMESPACE = re.compile(r"^.*::")
#: PyTorch's kernels that only apply something else to every element or list of tensors.
_APPLYING = re.compile(r"\w*elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel")
#: What they apply: FillFunctor, GeluCUDAKernelImpl, reciprocal_kernel_cuda, NormTwoOps, ...
_APPLIED = re.compile(
    r"(?!gpu_kernel_impl|TensorListMetadata)\b\w*"
    r"(?:Functor(?!Wrapper)|_functor|CUDAKernelImpl|_kernel_cuda|_cuda_out|launch_|scale_kernel|Ops)\w*"
)


def kernel_label(family: str, name: str, features: Mapping[str, float]) -> str:
    """What runs, with the shape that decides its time: 'gemm 8192 x 2304 x 768'.

    GEMMs, attention and collectives are named by their shapes, other kernels by `short_name` and
    the bytes that they move.
    """
    sized = {key: round(value) for key, value in features.items()}
    if family == "gemm" and {"m", "n", "k"} <= sized.keys():
        batch = f"{sized['batch']} x " if sized.get("batch", 1) > 1 else ""
        return f"gemm {batch}{sized['m']} x {sized['n']} x {sized['k']}"
    if family.startswith("attention") and "seq_q" in sized:
        causal = " causal" if sized.get("causal") else ""
        shape = " ".join(
            f"{letter}{sized[key]}"
            for letter, key in (("b", "batch"), ("h", "heads"), ("s", "seq_q"), ("d", "head_dim"))
            if key in sized
        )
        return f"{family.replace('_', ' ')} {shape}{causal}"
    if family == "collective" and {"size_bytes", "ranks"} <= sized.keys():
        kind = name.removeprefix("nccl ").split(" ")[0]
        return f"{kind} {units.size(sized['size_bytes'])} on {sized['ranks']} ranks"
    moved = f" {units.size(sized['bytes'])}" if sized.get("bytes") else ""
    return shortened(short_name(name), NAME_WIDTH) + moved


def short_name(name: str) -> str:
    """What a demangled kernel name says: PyTorch's elementwise, reduction and multi-tensor kernels
    are named by the functor that they apply, others by their own name without namespaces."""
    own, _, arguments = name.removeprefix("void ").partition("<")
    own = _NAMESPACE.sub("", own.replace("(anonymous namespace)::", "").partition("(")[0])
    applied = _APPLIED.search(arguments) if _APPLYING.fullmatch(own) else None
    return applied[0] if applied else own or name


def shortened(label: str, width: int) -> str:
    """`label` in at most `width` characters; an ellipsis stands for what is cut."""
    return label if len(label) <= width else f"{label[: width - 1]}…"
