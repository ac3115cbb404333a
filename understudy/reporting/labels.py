"""Short names of device operations for tables and plots."""

from __future__ import annotations

import re
from collections.abc import Mapping

from understudy.reporting import units

_NAMESPACES = re.compile(
    r"(?<!\w)(?:at::native::|at::|c10::|std::|cuda::|\(anonymous namespace\)::|_GLOBAL__N_\w*::)"
)


def kernel_label(family: str, name: str, features: Mapping[str, float]) -> str:
    """What runs, with the shape that decides its time: 'gemm 8192 x 2304 x 768'.

    GEMMs, attention and collectives are named by their shapes; other kernels by their C++ name
    without return type, namespaces and parameters.
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
        return f"{name} {units.size(sized['size_bytes'])} on {sized['ranks']} ranks"
    if family in ("copy", "memset") and "size_bytes" in sized:
        return f"{name} {units.size(sized['size_bytes'])}"
    return short_name(name)


def short_name(name: str) -> str:
    """A demangled kernel name without return type, namespaces and parameter list."""
    plain = _NAMESPACES.sub("", name.removeprefix("void ")).strip()
    depth = 0
    for position, character in enumerate(plain):
        if character in "<{[":
            depth += 1
        elif character in ">}]":
            depth -= 1
        elif character == "(" and depth == 0 and position > 0:
            return plain[:position]
    return plain


def shortened(label: str, width: int) -> str:
    """`label` in at most `width` characters; an ellipsis stands for what is cut."""
    return label if len(label) <= width else f"{label[: width - 1]}…"
