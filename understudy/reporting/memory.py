"""What device memory holds: at its peak, and over one iteration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from understudy.catalog import Device
from warehouse import schemas

#: The reader's words for MEMORY_CATEGORIES and MEMORY_REST, in the order in which they are drawn.
WORDS = {
    "parameters": "parameters",
    "gathered_parameters": "gathered parameters",
    "optimizer_state": "optimizer state",
    "gradients": "gradients",
    "activations": "activations",
    "temporaries": "temporaries",
    "communication": "communication buffers",
    "cublas_workspaces": "cuBLAS workspaces",
    "cudnn_workspaces": "cuDNN workspaces",
    "other": "other tensors",
    "unused": "reserved, not used",
    "libraries": "NCCL buffers",
    "context": "CUDA context",
}


def peak_memory(device: Device, ranks: pa.Table, rank: int) -> dict[str, Any] | None:
    """What the memory of `rank` holds when it is fullest: the iteration, bytes by part (they sum to
    the peak), and the parts that are a guess. None of ranks that were emulated before it was kept.
    """
    (row,) = ranks.filter(pc.field("rank") == rank).to_pylist()
    if row["peak_parts_bytes"] is None:
        return None
    parts = dict(row["peak_parts_bytes"])
    constants = {"libraries": "nccl_channels", "context": "context_bytes"}
    guessed = ["cudnn_workspaces"]
    guessed += [p for p, key in constants.items() if device.sources[key].startswith("guess")]
    return {
        "rank": rank,
        "iteration": row["peak_iteration"],
        "parts_bytes": {name: parts[name] for name in WORDS if name in parts},
        "guessed_parts": [name for name in guessed if name in parts],
        "guessed_bytes": sum(parts.get(name, 0) for name in guessed),
    }


def fullest_rank(report: Mapping[str, Any]) -> int:
    """The rank with the highest peak; of a job that does not fit the one that ran out of memory."""
    peaks = report["peak_memory_bytes"]
    if not report["fits"]:
        return report["oom"]["rank"]
    return max(range(len(peaks)), key=lambda rank: peaks[rank])


def over_iteration(changes: pa.Table, iteration: int) -> dict[str, list[int]]:
    """Bytes of each part after each change of one iteration, from the timeline of one rank.

    Parts are those of PyTorch's allocator, named and ordered as in WORDS: context and libraries do
    not change in an iteration. Those that are 0 in all of it are left out.
    """
    changes = changes.sort_by("step")
    wanted = changes["iteration"].to_numpy() == iteration
    category = np.array(changes["category"].to_pylist(), dtype=str)
    change = changes["change_bytes"].to_numpy()
    levels = {
        name: np.cumsum(np.where(category == name, change, 0)) for name in schemas.MEMORY_CATEGORIES
    }
    levels["unused"] = changes["reserved_bytes"].to_numpy() - sum(levels.values())
    return {name: level[wanted].tolist() for name, level in levels.items() if level[wanted].any()}
