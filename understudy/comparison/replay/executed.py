"""Names and sizes of collectives from PyTorch execution traces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from understudy.comparison.replay.from_kineto import COLLECTIVES
from understudy.comparison.replay.records import MeasuredRank, MeasuredRun
from understudy.errors import UnderstudyError
from understudy.traces.execution import ExecutionTrace, read_execution_trace

#: Words in the names of NCCL's kernels, by collective.
_KERNEL_WORDS = {"all_to_all": "sendrecv", "send": "sendrecv", "recv": "sendrecv"}


def add_execution_traces(run: MeasuredRun, folder: Path) -> list[str]:
    """Gives the collectives of each rank the names and sizes of its execution trace in `folder`.

    A trace belongs to the rank whose process id it has, else to the rank that its name ends with.
    Returns warnings: of ranks without one, and where the two traces of a rank do not agree.

    Raises UnderstudyError when the folder has no execution trace.
    """
    paths = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")))
    if not paths:
        raise UnderstudyError(f"{folder}: holds no execution trace (.json, .json.gz)")
    traces = [read_execution_trace(path) for path in paths]
    warnings = []
    for rank in run.ranks:
        trace = _trace_of(rank, traces)
        if trace is None:
            warnings.append(f"rank {rank.rank}: no execution trace in {folder}")
        elif problem := _add(rank, trace):
            warnings.append(f"rank {rank.rank}: {trace.path} is not used: {problem}")
    return warnings + _disagreements(run)


def _trace_of(rank: MeasuredRank, traces: Sequence[ExecutionTrace]) -> ExecutionTrace | None:
    processes = {call.thread.split(":")[0] for call in rank.calls}
    for trace in traces:
        if str(trace.process) in processes:
            return trace
    numbered: Mapping[int, ExecutionTrace] = {
        int(found[-1]): trace
        for trace in traces
        if (found := re.findall(r"\d+", trace.path.name.split(".json")[0]))
    }
    return numbered.get(rank.rank)


def _add(rank: MeasuredRank, trace: ExecutionTrace) -> str:
    """Adds what `trace` says, or returns why it cannot be the rank's."""
    kernels = [work for work in rank.work if work.is_collective]
    if len(kernels) != len(trace.collectives):
        return f"it has {len(trace.collectives)} collectives and the rank {len(kernels)}"
    names = [COLLECTIVES.get(c.name, c.name) for c in trace.collectives]
    for i, (work, name) in enumerate(zip(kernels, names, strict=True)):
        word = _KERNEL_WORDS.get(name, name.replace("_", ""))
        # A generic kernel serves all.
        if word not in work.name.lower() and "generic" not in work.name.lower():
            return f"collective {i} is {name}, its kernel {work.name}"
    for work, name, collective in zip(kernels, names, trace.collectives, strict=True):
        work.collective = name
        work.size_bytes = max(collective.in_bytes, collective.out_bytes)
    return ""


def _disagreements(run: MeasuredRun) -> list[str]:
    """All-reduces are of one size on all ranks; exchanges may differ."""
    by_rank = [[w for w in rank.work if w.is_collective] for rank in run.ranks]
    for i, works in enumerate(zip(*by_rank, strict=False)):
        sizes = {work.size_bytes for work in works}
        if {work.collective for work in works} == {"all_reduce"} and len(sizes) > 1:
            return [f"collective {i} is an all_reduce of {sorted(map(str, sizes))} bytes"]
    return []
