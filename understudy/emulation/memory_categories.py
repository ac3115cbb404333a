"""What a rank's blocks of device memory are for: the `category` of the memory timeline.

A block's category is the first of these that holds:

* what the script's own objects say (records MEMORY_ROLE): parameters, gradients, optimizer state,
  parameters gathered from shards, cuBLAS workspaces; and the workspace of a call of cuDNN;
* alive through a whole iteration: communication when NCCL was given it (the buckets of
  DistributedDataParallel), else other (buffers, inputs that stay on the GPU, set-up);
* alive when a backward pass begins: activations. Backward passes run on autograd's own threads;
  where there is none, or it cannot be told from the forward pass, all that is left is activations;
* given to NCCL: communication;
* temporaries: of the forward and the backward pass (gradients of activations, and activations that
  checkpointing computes again) and of the optimizer.
"""

from __future__ import annotations

import numpy as np

from understudy.traces.interceptor import FLAG_POOL, Api, MemoryRole, RankTrace
from warehouse import schemas

_CODE = {name: code for code, name in enumerate(schemas.MEMORY_CATEGORIES)}
_OF_ROLE = {
    MemoryRole.PARAMETER: "parameters",
    MemoryRole.GRADIENT: "gradients",
    MemoryRole.OPTIMIZER_STATE: "optimizer_state",
    MemoryRole.GATHERED_PARAMETER: "gathered_parameters",
    MemoryRole.CUBLAS_WORKSPACE: "cublas_workspaces",
}
#: Of a block that has several roles the first one counts.
_FIRST = (
    "parameters",
    "optimizer_state",
    "gradients",
    "gathered_parameters",
    "cublas_workspaces",
    "cudnn_workspaces",
)
_AUTOGRAD_THREADS = "pt_autograd_"
_NEVER = np.inf


def is_block(records: np.ndarray) -> np.ndarray:
    """Which of the memory changes (dtype RECORD) are blocks that tensors lie in: those of PyTorch's
    allocator, of CUDA's pools, or where neither is used (PYTORCH_NO_CUDA_MEMORY_CACHING) all."""
    api = records["api"]
    tensors = np.isin(api, [Api.TENSOR_ALLOC, Api.TENSOR_FREE])
    segments = np.isin(api, [Api.MALLOC, Api.FREE])
    from_pool = segments & ((records["flags"] & FLAG_POOL) != 0)
    return tensors | from_pool if (tensors | from_pool).any() else segments


def block_categories(trace: RankTrace, position: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Category, as an index of MEMORY_CATEGORIES, of the memory changes at records `position`.

    `key`: where a change counts as made, in positions of records. What is no block is `other`.
    """
    changes = trace.records[position]
    rows = np.flatnonzero(is_block(changes))
    is_allocation = np.isin(changes["api"][rows], [Api.MALLOC, Api.TENSOR_ALLOC])
    start, at = changes["a"][rows], position[rows]
    codes = np.full(len(position), _CODE["other"], np.int8)
    block_of, blocks = _pair(start, at, is_allocation)
    if len(blocks) == 0:
        return codes

    allocated = key[rows][blocks]
    freed = np.full(len(blocks), _NEVER)
    freed_at = np.full(len(blocks), _NEVER)
    frees = np.flatnonzero(~is_allocation & (block_of >= 0))
    freed[block_of[frees]] = key[rows][frees]
    freed_at[block_of[frees]] = at[frees]

    named, communicated = _told(trace, start[blocks], at[blocks], freed_at)
    category = _by_lifetime(trace, allocated, freed, communicated)
    category[named >= 0] = named[named >= 0]
    known = block_of >= 0
    codes[rows[known]] = category[block_of[known]]
    return codes


def _pair(
    start: np.ndarray, at: np.ndarray, is_allocation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(block of each change, -1 for frees of what was allocated before the trace; the change that
    allocated each block). Blocks are ordered by start, then by time."""
    order = np.lexsort((at, start))
    block = np.cumsum(is_allocation[order]) - 1
    blocks = order[is_allocation[order]]
    if len(blocks) == 0:
        return np.full(len(start), -1), blocks
    known = (block >= 0) & (start[blocks[np.maximum(block, 0)]] == start[order])
    block_of = np.empty(len(start), np.int64)
    block_of[order] = np.where(known, block, -1)
    return block_of, blocks


def _told(
    trace: RankTrace, start: np.ndarray, allocated_at: np.ndarray, freed_at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(category that something names for each block or -1, whether NCCL was given it)."""
    records = trace.records
    api = records["api"]
    named = np.full(len(start), len(_FIRST))
    roles = np.flatnonzero(api == Api.MEMORY_ROLE)
    for role, category in _OF_ROLE.items():
        of_role = roles[records["b"][roles] == role]
        found = _alive(records["a"][of_role], of_role, start, allocated_at, freed_at)
        named[found] = np.minimum(named[found], _FIRST.index(category))
    calls = np.flatnonzero((api == Api.DNN) & (records["a"] != 0))
    found = _alive(records["a"][calls], calls, start, allocated_at, freed_at)
    named[found] = np.minimum(named[found], _FIRST.index("cudnn_workspaces"))

    communicated = np.zeros(len(start), bool)
    for apis, pointer in (((Api.COLLECTIVE, Api.SEND), "c"), ((Api.COLLECTIVE, Api.RECV), "d")):
        calls = np.flatnonzero(np.isin(api, apis))
        communicated[_alive(records[pointer][calls], calls, start, allocated_at, freed_at)] = True
    codes = np.array([*(_CODE[name] for name in _FIRST), -1])
    return codes[named], communicated


def _alive(
    pointer: np.ndarray,
    at: np.ndarray,
    start: np.ndarray,
    allocated_at: np.ndarray,
    freed_at: np.ndarray,
) -> np.ndarray:
    """Blocks that begin at `pointer` and are allocated at record `at`, for those that have one."""
    both = np.concatenate((start, pointer))
    when = np.concatenate((allocated_at, at))
    is_block = np.concatenate((np.ones(len(start), bool), np.zeros(len(pointer), bool)))
    order = np.lexsort((when, both))
    # Blocks come in the order of start and time, so counting them gives the last one before.
    block = (np.cumsum(is_block[order]) - 1)[~is_block[order]]
    asked = order[~is_block[order]]
    exists = block >= 0
    block, asked = block[exists], asked[exists]
    return block[(start[block] == both[asked]) & (when[asked] < freed_at[block])]


def _by_lifetime(
    trace: RankTrace, allocated: np.ndarray, freed: np.ndarray, communicated: np.ndarray
) -> np.ndarray:
    """Category of blocks by the positions between which they are allocated."""
    marks = np.flatnonzero(trace.records["api"] == Api.ITERATION)
    first, end = np.searchsorted(marks, allocated), np.searchsorted(marks, freed)
    last = int(np.searchsorted(marks, len(trace.records) - 1))
    kept = np.where(freed == _NEVER, first < last, end - first >= 2)
    begins = _backward_begins(trace)
    next_begin = np.append(begins, _NEVER)[np.searchsorted(begins, allocated)]
    alive_in_backward = (next_begin < freed) if len(begins) else np.ones(len(freed), bool)
    return np.select(
        [kept & communicated, kept, alive_in_backward, communicated],
        [_CODE[name] for name in ("communication", "other", "activations", "communication")],
        _CODE["temporaries"],
    ).astype(np.int8)


def _backward_begins(trace: RankTrace) -> np.ndarray:
    """Records at which work passes from the main thread to one of autograd's."""
    autograd = [t.id for t in trace.threads.values() if t.name.startswith(_AUTOGRAD_THREADS)]
    main = [t.id for t in trace.threads.values() if t.is_main]
    thread = trace.records["thread"]
    at = np.flatnonzero(np.isin(thread, [*autograd, *main]))
    in_autograd = np.isin(thread[at], autograd)
    return at[1:][in_autograd[1:] & ~in_autograd[:-1]]
