"""Reads what PyTorch execution traces say of collectives.

An execution trace (torch.profiler.ExecutionTraceObserver) lists the operators of one rank with
their arguments. It has the sizes of collectives where Kineto traces of older versions have none.
The arguments of `record_param_comms` are those of torch/csrc/distributed/c10d/ParamCommsUtils.hpp:
tensors, sequence, process group, rank, name, input splits, output splits; since schema 1.1 they
lie under `inputs.values`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.errors import UnderstudyError

_NOT_ON_DEVICE = ("wait", "init", "start_coalescing", "end_coalescing")


@dataclass(frozen=True)
class ExecutedCollective:
    """A collective as it was called; `name` as PyTorch spells it (allreduce, all_to_allv, ...)."""

    name: str
    in_bytes: int
    out_bytes: int
    in_splits: tuple[int, ...]
    out_splits: tuple[int, ...]


@dataclass(frozen=True)
class ExecutionTrace:
    """The collectives of one rank in the order of their calls; `process` is its process id."""

    path: Path
    process: int | None
    collectives: Sequence[ExecutedCollective]


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Raises UnderstudyError where the file is no execution trace."""
    try:
        content = path.read_bytes()
        trace = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        nodes = sorted(trace["nodes"], key=lambda node: node["id"])
        found = [
            _collective(node)
            for node in nodes
            if node["name"] == "record_param_comms" and _name(node) not in _NOT_ON_DEVICE
        ]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnderstudyError(
            f"{path}: not a PyTorch execution trace ({error!r}); write one with "
            "torch.profiler.ExecutionTraceObserver"
        ) from None
    return ExecutionTrace(path, trace.get("pid"), found)


def _values(node: dict[str, Any], side: str) -> list[Any]:
    values = node[side]
    return values["values"] if isinstance(values, dict) else values


def _name(node: dict[str, Any]) -> str:
    """The first text among the arguments that is no process group."""
    texts = [value for value in _values(node, "inputs") if isinstance(value, str)]
    names = [text for text in texts if text and not text.isdigit()]
    if not names:
        raise ValueError(f"node {node['id']} names no collective")
    return names[0]


def _collective(node: dict[str, Any]) -> ExecutedCollective:
    inputs = _values(node, "inputs")
    name = _name(node)
    after = inputs[inputs.index(name) + 1 :]
    splits = [tuple(value) for value in after if isinstance(value, list)]
    in_splits, out_splits = (*splits, (), ())[:2]
    return ExecutedCollective(
        name,
        sum(_tensor_bytes(inputs[:1])),
        sum(_tensor_bytes(_values(node, "outputs"))),
        in_splits,
        out_splits,
    )


def _tensor_bytes(values: Sequence[Any]) -> Iterator[int]:
    """Sizes of the tensors among (nested lists of) arguments: a tensor is written as
    [id, storage, offset, elements, bytes of an element, device]."""
    for value in values:
        if isinstance(value, list):
            if len(value) == 6 and isinstance(value[5], str):
                yield value[3] * value[4]
            else:
                yield from _tensor_bytes(value)
