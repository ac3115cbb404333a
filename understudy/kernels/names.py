"""Kernel names -> family, element type and implementation."""

from __future__ import annotations

import re
from functools import cache

from understudy.kernels.demangle import demangle

#: First match wins. The patterns are searched in the demangled name without its parameter list.
_FAMILY_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"flash_bwd_dot_do_o|flash_fwd_splitkv_combine", "reduction"),
    (r"flash_bwd_convert_d", "elementwise"),
    (r"flash_bwd|fmha_cutlassB|cudnn.*sdpa.*bprop", "attention_backward"),
    (r"flash_fwd|fmha_cutlassF|cudnn.*sdpa.*fprop", "attention_forward"),
    (r"multi_tensor_apply", "optimizer"),
    (r"FusedAdam|FusedSgd|fused_adam|adamw?_kernel", "optimizer"),
    (r"nll_loss|NLLCriterion|cross_entropy(?!_out)", "cross_entropy"),
    (r"layer_norm|LayerNorm|GammaBeta|RowwiseMoments|rms_norm|RMSNorm", "normalization"),
    (r"batch_norm|BatchNorm|bn_(fw|bw)_|group_norm|GroupNorm", "normalization"),
    (r"cunn_SoftMax|softmax|SoftMax", "softmax"),
    (r"embedding|EmbeddingBag|indexSelect|vectorized_gather_kernel", "embedding"),
    (r"indexing_backward|compute_grad_weight|sum_and_scatter|krn_partial", "embedding"),
    (r"CatArrayBatchedCopy|direct_copy_kernel|copy_device_to_device", "copy"),
    (
        r"float(8|16)_copy_kernel|copy_kernel_cuda",
        "copy",
    ),
    (r"implicit_convolve|conv_depthwise|convolve|wgrad2d|dgrad2d|fprop", "convolution_forward"),
    (r"elementwise|distribution_|dropout|triton_poi|FillFunctor|arange|tril|triu", "elementwise"),
    (r"reduce|Reduce|scan|Scan|triton_(red|per)|lpnorm|cumsum|argm", "reduction"),
    # What PyTorch compiles at run time (jit_utils.cpp) is named by the operator.
    (r"_vectorized\d+_kernel$", "elementwise"),
    (r"^reduction_\w+_kernel$", "reduction"),
    (r"gemm|gemv|cutlass_\w*tensorop|xmma|triton_tem|wgmma", "generic"),
)
_COMPILED = tuple((re.compile(pattern), family) for pattern, family in _FAMILY_PATTERNS)

_TYPES = {
    "c10::BFloat16": "bfloat16",
    "cutlass::bfloat16_t": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "c10::Half": "float16",
    "cutlass::half_t": "float16",
    "__half": "float16",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
    "float": "float32",
    "double": "float64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
_TYPE = re.compile(
    r"(?<![\w:])("
    + "|".join(re.escape(t) for t in sorted(_TYPES, key=len, reverse=True))
    + r")(?![\w:<])"
)
_BY_WORD = (("bf16", "bfloat16"), ("f16", "float16"), ("fp16", "float16"), ("f32", "float32"))
_FLOATING = ("bfloat16", "float16", "float8", "float32", "float64", "complex64", "complex128")


@cache
def display_name(mangled: str) -> str:
    """The demangled name without return type and parameter list: what a table shows."""
    text = demangle(mangled)
    if text.endswith(")"):
        depth = 0
        for i in range(len(text) - 1, -1, -1):
            depth += (text[i] == ")") - (text[i] == "(")
            if depth == 0:
                text = text[:i] if i > 0 else text
                break
    return text.removeprefix("void ").strip()


@cache
def family_of(name: str) -> str:
    """Family of a kernel by its demangled or plain name; `generic` when nothing matches."""
    for pattern, family in _COMPILED:
        if pattern.search(name):
            return family
    return "generic"


@cache
def types_in(name: str) -> tuple[str, ...]:
    """Element types that a demangled name mentions, in order, template arguments and lambdas."""
    return tuple(_TYPES[found] for found in _TYPE.findall(name))


@cache
def dtype_of(name: str) -> str:
    """Element type of a kernel: the first floating type in its name, else the first type.

    A cast is named by what it makes (`bfloat16_copy_kernel_cuda` -> bfloat16). Kernels that move
    bytes of any type are `opaque<bytes>`; "unknown" when the name says nothing.
    """
    cast = re.search(r"(bfloat16|float16|float8)_copy_kernel", name)
    if cast:
        return cast.group(1)
    opaque = re.search(r"OpaqueType<(\d+)", name)
    if opaque:
        return f"opaque{opaque.group(1)}"
    types = types_in(name)
    for found in types:
        if found in _FLOATING:
            return found
    if types:
        return types[0]
    lowered = name.lower()
    for word, dtype in _BY_WORD:
        if word in lowered:
            return dtype
    return "unknown"


@cache
def kernel_version_of(name: str) -> str:
    """Implementation that a launched kernel belongs to."""
    if "pytorch_flash" in name or "flash_fwd" in name or "flash_bwd" in name:
        return "flash2"
    if "fmha_cutlass" in name:
        return "cutlass_fmha"
    if name.startswith("triton_"):
        return "triton"
    if "cub::" in name or "thrust::" in name:
        return "cub"
    return "aten" if "at::native" in name else "custom"


def template_arguments(name: str, kernel: str) -> tuple[str, ...]:
    """Top-level template arguments of `kernel` in a demangled name; empty when it has none."""
    start = name.find(kernel + "<")
    if start < 0:
        return ()
    i = start + len(kernel) + 1
    depth, current, arguments = 1, [], []
    while i < len(name) and depth > 0:
        c = name[i]
        if c in "<({[":
            depth += 1
        elif c in ">)}]" and not (c == ">" and name[i - 1] == "-"):
            depth -= 1
        if depth == 0:
            break
        if c == "," and depth == 1:
            arguments.append("".join(current).strip())
            current = []
        else:
            current.append(c)
        i += 1
    arguments.append("".join(current).strip())
    return tuple(arguments)
