"""What the ops of a job are, in words: for the exports of its timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from understudy.reporting.labels import kernel_label

Activity = Literal["compute", "communication", "copy"]

_COPIES = ("cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync", "cudaMemset")
_NCCL_CALLS = {"send": "ncclSend", "recv": "ncclRecv"}


@dataclass(frozen=True)
class Part:
    """What an operation does on one communicator of the job; `peer` is a rank of the job."""

    kind: str
    communicator: int
    members: tuple[int, ...]
    description: str
    size_bytes: int
    dtype: str
    reduce_op: str
    root: int | None
    peer: int | None
    sequence: int


@dataclass(frozen=True, eq=False)
class Operation:
    """One kind of work of a stream. `signature` and `prediction` are rows of their tables."""

    label: str
    activity: Activity
    call: str  #: API function that asks for it
    signature: Mapping[str, Any]
    prediction: Mapping[str, Any]
    parts: tuple[Part, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes that it touches; of communication those of its count arguments."""
        if self.parts:
            return sum(part.size_bytes for part in self.parts)
        return (
            round(dict(self.signature["features"]).get("bytes", 0))
            or (self.signature["tensor_bytes"])
        )


class Operations:
    """The operations of all ranks; `all` grows with each rank that is asked for."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        predictions = tables["predicted_kernels"].sort_by("signature").to_pylist()
        signatures = tables["signatures"].sort_by("signature").to_pylist()
        self._rows = list(zip(signatures, predictions, strict=True))
        self.all: list[Operation] = [
            Operation(
                kernel_label(row["family"], row["name"], dict(row["features"])),
                "copy" if row["api"] in _COPIES else "compute",
                row["api"],
                row,
                prediction,
            )
            for row, prediction in self._rows
        ]
        self._communicators = {
            row["communicator"]: row for row in tables["communicators"].to_pylist()
        }
        self._parts: dict[int, dict[int, list[Mapping[str, Any]]]] = {}
        rows = tables["collective_parts"].sort_by([("group", "ascending"), ("part", "ascending")])
        for row in rows.to_pylist():
            self._parts.setdefault(row["program"], {}).setdefault(row["group"], []).append(row)
        self._joins: dict[tuple[int, tuple[Part, ...]], int] = {}

    def of_rank(self, rank: Mapping[str, Any], signature: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index into `all` of each op of the rank's program, whose signatures are given (-1: an op
        that only orders others, which is no operation).
        """
        index = signature.copy()
        communicators = dict(rank["communicator_map"])
        for op, rows in self._parts.get(rank["program"], {}).items():
            if signature[op] < 0:  # hosts that wait for each other
                continue
            parts = tuple(self._part(row, communicators[row["communicator_local"]]) for row in rows)
            index[op] = self._join(int(signature[op]), parts)
        return index

    def _part(self, row: Mapping[str, Any], communicator: int) -> Part:
        entry = self._communicators[communicator]
        members = tuple(entry["members"])
        return Part(
            row["kind"],
            communicator,
            members,
            entry["description"] or entry["name"],
            row["size_bytes"],
            row["dtype"],
            row["reduce_op"],
            None if row["root"] < 0 else members[row["root"]],
            None if row["peer"] < 0 else members[row["peer"]],
            row["sequence"],
        )

    def _join(self, signature: int, parts: tuple[Part, ...]) -> int:
        key = (signature, parts)
        if key not in self._joins:
            row, prediction = self._rows[signature]
            call = _NCCL_CALLS.get(parts[0].kind, "nccl" + _camel(parts[0].kind))
            label = kernel_label(row["family"], row["name"], dict(row["features"]))
            self._joins[key] = len(self.all)
            self.all.append(Operation(label, "communication", call, row, prediction, parts))
        return self._joins[key]


def kernel_name(operation: Operation) -> str:
    """The name that a profiler shows of the operation: of NCCL's kernels what is decided by the
    call, of copies CUPTI's words."""
    if operation.parts:
        part = operation.parts[0]
        if part.peer is not None:
            return "ncclDevKernel_SendRecv"
        reduction = f"_{part.reduce_op.capitalize()}_{part.dtype}" if part.reduce_op else ""
        return f"ncclDevKernel_{_camel(part.kind)}{reduction}"
    name = operation.signature["name"]
    if operation.activity == "compute":
        return name
    if operation.signature["family"] == "memset":
        return "Memset (Device)"
    features = dict(operation.signature["features"])
    host = "Pinned" if features.get("pinned") else "Pageable"
    source = host if features.get("from_host") else "Device"
    target = host if features.get("to_host") else "Device"
    letters = "".join("D" if side == "Device" else "H" for side in (source, target))
    return f"Memcpy {letters[0]}to{letters[1]} ({source} -> {target})"


def activity_of_stream(
    operations: Sequence[Operation], index: NDArray[np.int64], duration_ns: NDArray[np.int64]
) -> Activity:
    """What a stream does for most of its time; `index` and `duration_ns` are by op on it."""
    total: dict[Activity, int] = {"compute": 0, "communication": 0, "copy": 0}
    for which in np.unique(index[index >= 0]).tolist():
        # A stream whose operations take no time still has a purpose.
        total[operations[which].activity] += int(duration_ns[index == which].sum()) + 1
    return max(total, key=lambda activity: total[activity])


def _camel(kind: str) -> str:
    return "".join(word.capitalize() for word in kind.split("_"))
