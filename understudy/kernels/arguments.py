"""Reads kernel arguments of PyTorch's own kernels at known offsets.

Layouts are those of PyTorch's sources; the parameter sizes that the cubins state are checked, and
a kernel whose sizes differ is decoded generically. Only pointer-sized parameters and small arrays
of pointers (at most 64 bytes) are ever scanned: larger structs have uninitialised padding that
holds stale words which look like pointers and change from run to run.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from understudy.kernels.names import dtype_of, template_arguments, types_in
from understudy.kernels.signature import element_bytes

FindBlock = Callable[[int], int | None]

_SCANNED_BYTES = 64
_MAX_DIMS = 25
#: More than any launch touches or counts.
_MOST_BYTES = 2.0**44
#: Capacity of multi_tensor_apply's metadata by depth (PyTorch, MultiTensorApply.cuh, large
#: kernel arguments): tensors of plain lists, tensors of lists with scalars or step counts, blocks.
_LIST_TENSORS = (770, 448, 336, 252, 210)
_SCALAR_LIST_TENSORS = (672, 448, 336, 252, 210)
_LIST_BLOCKS = 2240
_CHUNK_ELEMENTS = 65536


@dataclass
class Decoded:
    """What the arguments of one launch say."""

    features: dict[str, float] = field(default_factory=dict)
    tensor_bytes: int = 0
    family: str | None = None


@dataclass(frozen=True)
class Launch:
    """One launch: its name, shape, argument bytes and the (offset, size) of each parameter."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: bytes
    parameters: tuple[tuple[int, int], ...]
    find_block: FindBlock

    def u8(self, offset: int) -> int:
        return self.arguments[offset]

    def i32(self, offset: int) -> int:
        return struct.unpack_from("<i", self.arguments, offset)[0]

    def u32(self, offset: int) -> int:
        return struct.unpack_from("<I", self.arguments, offset)[0]

    def i64(self, offset: int) -> int:
        return struct.unpack_from("<q", self.arguments, offset)[0]

    def u64(self, offset: int) -> int:
        return struct.unpack_from("<Q", self.arguments, offset)[0]

    def integer(self, parameter: int) -> int:
        """An int or long parameter."""
        offset, size = self.parameters[parameter]
        return self.i64(offset) if size == 8 else self.i32(offset)

    def sizes(self) -> tuple[int, ...]:
        """Parameter sizes, in order."""
        return tuple(size for _, size in self.parameters)


class _Touched:
    """Tensors that a launch touches: `traffic` counts accesses, `tensor_bytes` each tensor once."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._distinct: dict[int, int] = {}
        self.traffic = 0

    def add(self, pointer: int, limit: int | None = None, times: int = 1) -> bool:
        """Counts the tensor at `pointer`, at most `limit` bytes; False when it is none."""
        block = self._launch.find_block(pointer) if pointer else None
        if block is None:
            return False
        size = block if limit is None else min(block, limit)
        self.traffic += size * times
        self._distinct[pointer] = max(size, self._distinct.get(pointer, 0))
        return True

    @property
    def tensor_bytes(self) -> int:
        return sum(self._distinct.values())


def decode(launch: Launch) -> Decoded:
    """Features of one launch, `bytes` (traffic) among them; never fails on an unknown layout."""
    for pattern, decoder in _DECODERS:
        if pattern.search(launch.name):
            try:
                decoded = decoder(launch)
            except (struct.error, LookupError, ValueError, StopIteration):
                decoded = None  # the arguments do not have the layout: another build
            if decoded is not None and _is_sane(decoded):
                return decoded
    return _generic(launch)


def _is_sane(decoded: Decoded) -> bool:
    """Whether the numbers can be those of a launch; bytes of another layout give any."""
    values = (*decoded.features.values(), decoded.tensor_bytes)
    return all(0 <= v <= _MOST_BYTES for v in values)


def _result(touched: _Touched, **features: float) -> Decoded:
    return Decoded({"bytes": touched.traffic, **features}, touched.tensor_bytes)


def _generic(launch: Launch) -> Decoded:
    """Pointers among the small parameters; the traffic is taken as each tensor once."""
    touched = _Touched(launch)
    seen: set[int] = set()
    for offset, size in launch.parameters:
        if size % 8 or size > _SCANNED_BYTES or offset + size > len(launch.arguments):
            continue
        for word in range(offset, offset + size, 8):
            pointer = launch.u64(word)
            if pointer not in seen and touched.add(pointer):
                seen.add(pointer)
    return _result(touched, tensors=len(seen))


def _widest(name: str) -> int:
    return max((element_bytes(t) for t in types_in(name)), default=8)


# --- elementwise ---


def _elementwise(launch: Launch) -> Decoded | None:
    """`vectorized_elementwise_kernel` and `unrolled_elementwise_kernel`: (N, functor, pointers...).

    With casts, each array's element size stands in LoadWithCast and StoreWithCast.
    """
    sizes = launch.sizes()
    array = next((i for i in range(1, min(4, len(sizes))) if _is_pointers(launch, i)), None)
    if array is None or sizes[0] not in (4, 8):
        return None
    elements = launch.integer(0)
    offset, size = launch.parameters[array]
    count = size // 8
    widths = _cast_widths(launch, count) or [_widest(launch.name)] * count
    touched = _Touched(launch)
    for i in range(count):
        touched.add(launch.u64(offset + 8 * i), elements * widths[i])
    return _result(touched, elements=elements, arrays=count)


def _is_pointers(launch: Launch, parameter: int) -> bool:
    """Whether a parameter is `std::array<char*, N>`, whose N the name states."""
    found = re.search(r"std::array<char\*, (\d+)", launch.name)
    return found is not None and launch.parameters[parameter][1] == 8 * int(found.group(1))


def _cast_widths(launch: Launch, arrays: int) -> list[int] | None:
    """Element sizes of outputs and inputs of an unrolled kernel with casts.

    The last two parameters are LoadWithCast<n> and StoreWithCast<m>: n one-byte types, padded to
    4, then n element sizes.
    """
    if "LoadWithCast" not in launch.name or len(launch.parameters) < 2:
        return None
    widths: list[int] = []
    for parameter in (-1, -2):
        offset, size = launch.parameters[parameter]
        for n in range(1, arrays + 1):
            start = (n + 3) // 4 * 4
            if start + 4 * n == size:
                widths += [launch.u32(offset + start + 4 * i) for i in range(n)]
                break
    plausible = len(widths) == arrays and all(0 < w <= 16 for w in widths)
    return widths if plausible else None


def _strided_elementwise(launch: Launch) -> Decoded | None:
    """`elementwise_kernel<128, n, gpu_kernel_impl...>`: (N, {OffsetCalculator, pointers, ...}).

    OffsetCalculator<n>: dimensions, 25 divisors of 12 bytes whose first word is the size, 25 x n
    byte strides.
    """
    if launch.sizes()[:1] not in ((4,), (8,)) or len(launch.parameters) < 2:
        return None
    if "gpu_kernel_impl" not in launch.name:
        return Decoded(
            {
                "bytes": 2.0 * launch.integer(0) * _widest(launch.name),
                "elements": launch.integer(0),
                "arrays": 2,
            },
            2 * launch.integer(0) * _widest(launch.name),
        )
    elements = launch.integer(0)
    base, size = launch.parameters[1]
    count = 0
    for n in range(1, 9):
        if _pointers_offset(n) + 8 * n <= size:
            count = n
    if count == 0:
        return None
    dims = launch.i32(base)
    if not 0 <= dims <= _MAX_DIMS:
        return None
    shape = [launch.u32(base + 4 + 12 * d) for d in range(dims)]
    touched = _Touched(launch)
    broadcast = strided = 0
    for i in range(count):
        strides = [launch.u32(base + 304 + 4 * (d * count + i)) for d in range(dims)]
        reached = 1
        for extent, stride in zip(shape, strides, strict=True):
            reached *= extent if stride else 1
        step = min((s for s in strides if s), default=16)
        broadcast += reached < elements
        strided += step > 16
        touched.add(launch.u64(base + _pointers_offset(count) + 8 * i), reached * min(step, 16))
    return _result(touched, elements=elements, arrays=count, broadcast=broadcast, strided=strided)


def _pointers_offset(arrays: int) -> int:
    return (304 + 4 * _MAX_DIMS * arrays + 7) // 8 * 8


def _count_first(launch: Launch) -> Decoded:
    """Kernels that only write N elements, N being their first parameter."""
    elements = launch.integer(0)
    width = element_bytes(types_in(launch.name)[0]) if types_in(launch.name) else 4
    size = elements * width
    return Decoded({"bytes": size, "elements": elements, "arrays": 1}, size)


# --- TensorInfo ---


def _tensor_info_elements(launch: Launch, parameter: int) -> int:
    """Elements of a TensorInfo: pointer, 25 sizes, 25 strides (4 or 8 bytes each), dimensions."""
    offset, size = launch.parameters[parameter]
    width = {216: 4, 416: 8}[size]
    dims = launch.i32(offset + 8 + 2 * _MAX_DIMS * width)
    if not 0 <= dims <= _MAX_DIMS:
        raise ValueError(dims)
    read = launch.i64 if width == 8 else launch.u32
    elements = 1
    for d in range(dims):
        elements *= read(offset + 8 + width * d)
    return elements


def _dropout(launch: Launch) -> Decoded | None:
    """`fused_dropout_kernel`(TensorInfo in, out, mask, N, p, generator): the mask is one byte."""
    if len(launch.parameters) < 5 or launch.sizes()[0] not in (216, 416):
        return None
    elements = launch.integer(3)
    width = element_bytes(types_in(launch.name)[0])
    size = elements * (2 * width + 1)
    return Decoded({"bytes": size, "elements": elements, "arrays": 3}, size)


def _index_select(launch: Launch) -> Decoded | None:
    """`indexSelect*`(TensorInfo out, in, indices, ...): reads what it writes, plus the indices."""
    if launch.sizes()[:1] not in ((216,), (416,)):
        return None
    elements = _tensor_info_elements(launch, 0)
    indices = _tensor_info_elements(launch, 2)
    width = element_bytes(types_in(launch.name)[0])
    size = 2 * elements * width + indices * 8
    return Decoded({"bytes": size, "rows": indices, "columns": elements / max(indices, 1)}, size)


# --- normalization, softmax ---


def _rows(launch: Launch, rows: int, columns: int) -> Decoded:
    """Row-wise kernels: every pointer parameter, at most rows x columns of the widest type."""
    touched = _Touched(launch)
    limit = rows * columns * _widest(launch.name)
    for offset, size in launch.parameters:
        if size == 8:
            touched.add(launch.u64(offset), limit)
    return _result(touched, rows=rows, columns=columns)


def _layer_norm(launch: Launch) -> Decoded | None:
    """ATen layer norm: one row per block, or (rows, columns) in front for the weight gradients."""
    if "GammaBeta" in launch.name or "LayerNormForwardCUDAKernel" in launch.name:
        rows, columns = launch.integer(0), launch.integer(1)
        # LayerNormForwardCUDAKernel is given the columns twice or with the rows: rows are blocks.
        return _rows(launch, launch.grid[0] if "Forward" in launch.name else rows, columns)
    if "grad_input" in launch.name:
        return _rows(launch, launch.grid[0], launch.integer(len(launch.parameters) - 1))
    return _rows(launch, launch.grid[0], launch.integer(0))


def _softmax_warp(launch: Launch) -> Decoded | None:
    """`softmax_warp_*`(pointers, rows, stride, columns, mask...): short rows."""
    first = 3 if "backward" in launch.name else 2
    return _rows(launch, launch.integer(first), launch.integer(first + 2))


def _softmax_block(launch: Launch) -> Decoded | None:
    """`cunn_SoftMax*`(pointers, columns): one row per block."""
    last = launch.parameters[-1]
    columns = launch.i64(last[0]) if last[1] == 8 else launch.i32(last[0])
    touched = _Touched(launch)
    limit = launch.grid[0] * columns * _widest(launch.name)
    for offset, _ in launch.parameters[:-1]:
        touched.add(launch.u64(offset), limit)
    return _result(touched, rows=launch.grid[0], columns=columns)


# --- reductions ---


def _reduce(launch: Launch) -> Decoded | None:
    """`reduce_kernel`(ReduceOp): {ops, identity, ReduceConfig of 64 bytes, OffsetCalculator<1> of
    404, OffsetCalculator<2> of 504, source, destinations[2], buffers, ...}.

    ReduceConfig starts with the accumulator's size, the inputs per output and the outputs.
    """
    size = launch.sizes()[0]
    source = size - 64
    arguments = template_arguments(launch.name, "ReduceOp")
    read = element_bytes(types_in(arguments[0])[0]) if arguments and types_in(arguments[0]) else 4
    for config in range(4, 33, 4):
        if (config + 64 + 404 + 504 + 7) // 8 * 8 != source:
            continue
        width, inputs, outputs = (launch.i32(config + 4 * i) for i in range(3))
        if width in (1, 2, 4, 8, 16, 32) and inputs > 0 and outputs > 0:
            touched = _Touched(launch)
            touched.add(launch.u64(source), inputs * outputs * read)
            touched.add(launch.u64(source + 8), outputs * width)
            return _result(touched, elements=inputs * outputs, outputs=outputs)
    return None


# --- embedding, loss ---


def _gather(launch: Launch) -> Decoded | None:
    """`vectorized_gather_kernel`(out, in, indices, count, slice bytes, ...)."""
    if len(launch.parameters) < 5:
        return None
    count, row = launch.integer(3), launch.integer(4)
    size = count * (2 * row + 8)
    return Decoded({"bytes": size, "rows": count, "columns": row}, size)


def _embedding_backward(launch: Launch) -> Decoded | None:
    """`embedding_backward_feature_kernel`(indices, grad, grad_weight, count, row elements, ...):
    reads the gradient, reads and writes the weight's rows."""
    if launch.sizes()[:5] != (8, 8, 8, 4, 8):
        return None
    count, row = launch.integer(3), launch.integer(4)
    width = element_bytes(types_in(launch.name)[0])
    size = count * (3 * row * width + 8)
    return Decoded({"bytes": size, "rows": count, "columns": row}, size)


def _sum_and_scatter(launch: Launch) -> Decoded | None:
    """`sum_and_scatter`(indices, grad_weight, row elements, offsets, count, partial sums, ...), of
    embedding gradients by sorting: reads the partial sums, writes as many rows at most."""
    if launch.sizes()[:3] != (8, 8, 8) or len(launch.parameters) < 6:
        return None
    sums = launch.u64(launch.parameters[5][0])
    limit = launch.find_block(sums)
    if limit is None:
        return None
    touched = _Touched(launch)
    touched.add(sums)
    touched.add(launch.u64(launch.parameters[1][0]), limit)
    return _result(touched, columns=launch.integer(2))


def _nll_loss(launch: Launch) -> Decoded | None:
    """`nll_loss_{forward,backward}_reduce_cuda_kernel_2d`: one target and one 32-byte sector per
    row; the rows are the first integer after the flag."""
    flag = next(i for i, size in enumerate(launch.sizes()) if size == 1)
    rows = launch.integer(flag + 1)
    classes = launch.integer(flag + 3)
    size = rows * (8 + 32)
    return Decoded({"bytes": size, "rows": rows, "columns": classes}, size)


# --- lists of tensors ---


def _multi_tensor(launch: Launch) -> Decoded | None:
    """`multi_tensor_apply_kernel`: element counts of every tensor in the list, per 65 536-element
    chunk and block, so that partly filled launches are counted exactly."""
    found = re.search(
        r"(FusedOptimizerTensorListMetadata|TensorListScalarListMetadata|TensorListMetadata)<([^>]*)>",
        launch.name,
    )
    if found is None:
        return None
    kind, template = found.groups()
    depth = int(template.split(",")[-1])
    plain = kind == "TensorListMetadata"
    tensors = (_LIST_TENSORS if plain else _SCALAR_LIST_TENSORS)[depth - 1]
    counts_at = 8 * depth * tensors
    extra = 0
    if kind == "FusedOptimizerTensorListMetadata":
        extra = 8
    elif kind == "TensorListScalarListMetadata":
        extra = element_bytes((types_in(template) or ("float32",))[0])
    blocks_at = counts_at + 8 * tensors + extra * tensors
    chunks_at = blocks_at + 2 * _LIST_BLOCKS
    if launch.sizes()[0] < chunks_at + 4 * _LIST_BLOCKS:
        return None
    blocks = min(launch.grid[0], _LIST_BLOCKS)
    counts = np.frombuffer(launch.arguments, "<i8", tensors, counts_at)
    owner = np.frombuffer(launch.arguments, "<u2", blocks, blocks_at).astype(np.int64)
    chunk = np.frombuffer(launch.arguments, "<i4", blocks, chunks_at).astype(np.int64)
    if blocks == 0 or owner.max(initial=0) >= tensors:
        return None
    left = counts[owner] - chunk * _CHUNK_ELEMENTS
    elements = int(np.clip(left, 0, _CHUNK_ELEMENTS).sum())
    width = _list_element_bytes(launch.name, found.end())
    reads, writes = _list_accesses(launch.name, depth)
    tensor_bytes = elements * sum(width[:depth] or [4])
    mean = sum(width) / len(width)
    return Decoded(
        {
            "bytes": elements * (reads + writes) * mean,
            "elements": elements,
            "depth": depth,
            "tensors": len(np.unique(owner)),
        },
        tensor_bytes,
    )


def _list_element_bytes(name: str, start: int) -> list[int]:
    """Element size of each tensor list: one type for all, but two for a copy between types."""
    functor = name[start:]
    copy = re.search(r"CopyFunctor<", functor)
    arguments = template_arguments(functor, "CopyFunctor") if copy else ()
    if len(arguments) >= 2 and types_in(arguments[1]):
        out, source = types_in(arguments[0]) or ("float32",), types_in(arguments[1])
        return [element_bytes(source[0]), element_bytes(out[0])]
    types = types_in(functor)
    depth = re.match(r".*?<(?:[^<>]*, )?(\d+)>", name)
    count = int(depth.group(1)) if depth else 1
    return [element_bytes(types[0]) if types else 4] * count


def _list_accesses(name: str, depth: int) -> tuple[int, int]:
    """Lists read and lists written. Functors state `<T, depth, arguments read, result index>`;
    fused optimizers read all lists and write all but the gradients; norms write nothing."""
    if "FusedAdam" in name or "FusedSgd" in name or "FusedAdagrad" in name:
        return depth, depth - 1
    if "LpNorm" in name or "lpnorm" in name:
        return 1, 0
    found = re.search(r"Functor<[^<>]*?, (\d+), (\d+), (\d+)>", name)
    if found and int(found.group(1)) == depth:
        return int(found.group(2)), 1
    return max(depth - 1, 1), 1


def _concatenate(launch: Launch) -> Decoded | None:
    """`CatArrayBatchedCopy*`(out, {inputs[n], offsets[n], sizes[n], elements[n], ...}, ...):
    grid.y inputs."""
    kernel = next((a for a in re.findall(r"CatArrayBatchedCopy\w*", launch.name)), None)
    if kernel is None or len(launch.parameters) < 3:
        return None
    arguments = template_arguments(launch.name, kernel)
    opaque = re.search(r"OpaqueType<(\d+)", arguments[0])
    width = int(opaque.group(1)) if opaque else element_bytes((types_in(arguments[0]) or ("",))[0])
    index = 8 if "long" in arguments[1] else 4
    capacity = int(arguments[3])
    base = launch.parameters[1][0]
    inputs = min(launch.grid[1], capacity)
    touched = _Touched(launch)
    read = launch.u64 if index == 8 else launch.u32
    elements = 0
    for i in range(inputs):
        count = read(base + 8 * capacity + 2 * index * capacity + index * i)
        elements += count
        touched.add(launch.u64(base + 8 * i), max(count * width, 1))
    size = elements * width
    return Decoded({"bytes": 2 * size, "elements": elements, "arrays": inputs + 1}, 2 * size)


# --- attention ---


def _flash(launch: Launch) -> Decoded | None:
    """FlashAttention 2: Flash_fwd_params and, with the same head, Flash_bwd_params."""
    if not launch.parameters or launch.parameters[0][1] < 224:
        return None
    heads, kv_heads = launch.i32(96), launch.i32(100)
    batch, seq_q, seq_kv, head_dim = (launch.i32(o) for o in (176, 180, 184, 192))
    if min(heads, kv_heads, batch, seq_q, seq_kv, head_dim) <= 0:
        return None
    flags = re.findall(r"(?<=, )(true|false)(?=[,>])", launch.name.split("> >")[-1])
    causal = 0 if "splitkv" in launch.name else 1
    features = {
        "batch": batch,
        "seq_q": seq_q,
        "seq_kv": seq_kv,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "causal": float(len(flags) > causal and flags[causal] == "true"),
        "window": 0,
    }
    return _attention(launch, features)


def _attention(launch: Launch, features: dict[str, float]) -> Decoded:
    """Traffic of attention: q, k, v and o once; the backward reads them again with their
    gradients. The helpers of the backward read or write the queries twice."""
    width = element_bytes(dtype_of(launch.name))
    queries = features["batch"] * features["seq_q"] * features["heads"] * features["head_dim"]
    keys = features["batch"] * features["seq_kv"] * features["kv_heads"] * features["head_dim"]
    if re.search(r"dot_do_o|convert_d|combine", launch.name):
        size = round(2 * queries * width)
        return Decoded({"bytes": size, "elements": queries, "arrays": 2}, size)
    size = round((2 * queries + 2 * keys) * width)
    if re.search(r"bwd|cutlassB", launch.name):
        size = round((4 * queries + 4 * keys) * width)
    return Decoded({"bytes": size, **features}, size)


def _efficient(launch: Launch) -> Decoded | None:
    """Memory-efficient attention: AttentionKernel::Params (272 bytes) forward,
    AttentionBackwardKernel::Params (472 bytes) backward. The mask is 0 none, 1 and 2 causal."""
    if launch.sizes() == (272,):
        head_dim, seq_q, seq_kv, batch, heads = (launch.i32(o) for o in (96, 104, 108, 192, 196))
        mask = launch.u8(116)
    elif launch.sizes() == (472,):
        head_dim, seq_q, seq_kv, heads, batch = (launch.i32(o) for o in (144, 152, 156, 160, 384))
        mask = launch.u8(164)
    else:
        return None
    if min(head_dim, seq_q, seq_kv, batch, heads) <= 0:
        return None
    return _attention(
        launch,
        {
            "batch": batch,
            "seq_q": seq_q,
            "seq_kv": seq_kv,
            "heads": heads,
            "kv_heads": heads,
            "head_dim": head_dim,
            "causal": float(mask in (1, 2)),
            "window": 0,
        },
    )


_DECODERS: tuple[tuple[re.Pattern[str], Callable[[Launch], Decoded | None]], ...] = tuple(
    (re.compile(pattern), decoder)
    for pattern, decoder in (
        (r"multi_tensor_apply_kernel", _multi_tensor),
        (r"pytorch_flash::flash_(fwd|bwd)", _flash),
        (r"fmha_cutlass[FB]_", _efficient),
        (r"distribution_\w*grid_stride_kernel|elementwise_kernel_with_index", _count_first),
        (r"(vectorized|unrolled)_elementwise_kernel\w*<", _elementwise),
        (r"(^|::)(elementwise|index_elementwise)_kernel<", _strided_elementwise),
        (r"fused_dropout_kernel", _dropout),
        (r"indexSelect", _index_select),
        (
            r"layer_norm|LayerNorm|GammaBetaBackward(CUDAKernelTemplate|Simple)|RowwiseMoments",
            _layer_norm,
        ),
        (r"softmax_warp_", _softmax_warp),
        (r"cunn_SoftMax", _softmax_block),
        (r"(^|::)reduce_kernel<", _reduce),
        (r"vectorized_gather_kernel", _gather),
        (r"embedding_backward_feature_kernel", _embedding_backward),
        (r"(^|::)sum_and_scatter<", _sum_and_scatter),
        (r"nll_loss_(forward|backward)_reduce_cuda_kernel_2d", _nll_loss),
        (r"CatArrayBatchedCopy", _concatenate),
    )
)


def parameters_tuple(parameters: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(offset, size) pairs as plain integers."""
    return tuple((int(offset), int(size)) for offset, size in parameters)
