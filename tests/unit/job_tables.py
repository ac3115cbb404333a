"""Emulation's tables of small jobs, written op by op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from warehouse import schemas


def signature(
    name: str, family: str = "elementwise", dtype: str = "float32", **features: float
) -> dict[str, Any]:
    """A row of `signatures`, not numbered yet."""
    return {
        "api": "cudaLaunchKernel",
        "name": name,
        "family": family,
        "grid": [1, 1, 1],
        "block": [128, 1, 1],
        "shared_memory_bytes": 0,
        "registers": 32,
        "dtype": dtype,
        "kernel_version": "",
        "features": sorted(features.items()),
        "tensor_bytes": 64,
    }


ADD = signature("add")
GEMM = signature("gemm", "gemm", "bfloat16", m=64.0, n=64.0, k=64.0)
ALL_REDUCE = signature("all_reduce", "collective", size_bytes=1024.0)


def device(stream: int, what: dict[str, Any] | None = None, gap_ns: int = 10) -> dict[str, Any]:
    """A device op."""
    return {"kind": "device", "stream": stream, "gap_ns": gap_ns, "what": what}


def wait(stream: int, op: int | None, gap_ns: int = 0) -> dict[str, Any]:
    """A stream that waits for an op."""
    return {"kind": "stream_wait", "stream": stream, "gap_ns": gap_ns, "depends_on": op}


def host_wait(stream: int, op: int | None, gap_ns: int = 0) -> dict[str, Any]:
    """A host that waits for an op."""
    return {"kind": "host_wait", "stream": stream, "gap_ns": gap_ns, "depends_on": op}


def collective(
    stream: int = 1,
    kind: str = "all_reduce",
    size_bytes: int = 1024,
    communicator: int = 1,
    **part: Any,
) -> dict[str, Any]:
    """A join of one collective; `communicator` as numbered in the rank."""
    reduce_op = "sum" if kind == "all_reduce" else ""
    row = {
        "kind": kind,
        "communicator_local": communicator,
        "peer": -1,
        "size_bytes": size_bytes,
        "dtype": "float32",
        "reduce_op": reduce_op,
        "root": -1,
    }
    return {
        "kind": "join",
        "stream": stream,
        "gap_ns": 10,
        "what": ALL_REDUCE,
        "parts": [row | part],
    }


def exchange(
    *calls: tuple[str, int], size_bytes: int = 64, communicator: int = 1
) -> dict[str, Any]:
    """A join of sends and receives: (send or recv, peer)."""
    part = {
        "communicator_local": communicator,
        "size_bytes": size_bytes,
        "dtype": "float32",
        "reduce_op": "",
        "root": -1,
    }
    return {
        "kind": "join",
        "stream": 1,
        "gap_ns": 10,
        "what": signature("send_recv", "collective", size_bytes=float(size_bytes)),
        "parts": [part | {"kind": kind, "peer": peer} for kind, peer in calls],
    }


def emulated(
    ranks: Sequence[Sequence[dict[str, Any]]],
    members: Sequence[Sequence[int]] | None = None,
    ranks_per_node: int = 8,
    **rank_columns: Sequence[Any],
) -> dict[str, pa.Table]:
    """The tables of a job whose rank r does `ranks[r]`.

    `members` are the communicators, by default one of all ranks; a rank numbers its own from 1.
    `rank_columns` replace columns of `ranks`.
    """
    count = len(ranks)
    groups = [list(range(count))] if members is None else [list(m) for m in members]
    events, gaps, parts, signatures = [], [], [], []
    for program, ops in enumerate(ranks):
        for op, given in enumerate(ops):
            number = None
            if given.get("what") is not None:
                # Each rank brings its own rows: joining equal ones is merging's task.
                number = len(signatures)
                signatures.append(given["what"] | {"signature": number})
            events.append(
                {
                    "program": program,
                    "op": op,
                    "iteration": 0,
                    "kind": given["kind"],
                    "stream": given["stream"],
                    "signature": number,
                    "depends_on": given.get("depends_on"),
                    "thread": 0,
                }
            )
            gap = {"program": program, "op": op, "gap_ns": given["gap_ns"], "spread_ns": 2}
            gaps.append(gap)
            for position, part in enumerate(given.get("parts", ())):
                where = {"program": program, "group": op, "part": position, "sequence": 0}
                parts.append(where | part)
    rank_rows = [
        {
            "rank": r,
            "program": r,
            "node": r // ranks_per_node,
            "local_rank": r % ranks_per_node,
            "communicator_map": list(
                enumerate((c for c, group in enumerate(groups) if r in group), 1)
            ),
            "iterations": 3,
            "span_iterations": 1,
            "iterations_seen": 20,
            "iteration_source": "optimizer steps",
            "trace_events": 100,
            "peak_allocated_bytes": 1000,
            "peak_reserved_bytes": 1500,
            "peak_device_bytes": 2000 + r,
            "peak_iteration": 1,
            "peak_parts_bytes": [("activations", 1000), ("unused", 500), ("context", 500 + r)],
            "oom_iteration": None,
            "oom_requested_bytes": None,
        }
        | {name: values[r] for name, values in rank_columns.items()}
        for r in range(count)
    ]
    communicators = [
        {"communicator": c, "parent": None, "name": f"group {c}", "description": "", "members": m}
        for c, m in enumerate(groups)
    ]
    rows = {
        "events": events,
        "host_gaps": gaps,
        "signatures": signatures,
        "collective_parts": parts,
        "communicators": communicators,
        "ranks": rank_rows,
        "memory_timeline": [],
    }
    return {
        name: pa.Table.from_pylist(values, schema=schemas.table(name).schema)
        for name, values in rows.items()
    }
