"""Odd things about a trace of which nothing is dropped: they tell how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from understudy.traces.kineto.records import KinetoTrace

Integers = npt.NDArray[np.int64]
_MISSING = -1


def oddities(trace: KinetoTrace) -> Iterator[tuple[str, int]]:
    """Yields what is odd and how often."""
    device, calls = trace.device_events, trace.host_calls
    if not len(device):
        yield "no kernel, copy or memset in it", 1
    if not any(step is not None for step in trace.annotations.column("step").to_pylist()):
        yield "no ProfilerStep annotation: steps are unknown", 1
    processes = np.unique(_column(calls, "process"))
    if len(processes) > 1:
        yield f"host calls of several processes: {_listed(processes)}", 1
    if not len(device):
        return
    correlations = _column(device, "correlation")
    missing = int((correlations == _MISSING).sum())
    if missing:
        yield "device events without a correlation", missing
    overlapping = _overlapping(device)
    if overlapping:
        yield "device events that start before the one ahead on their stream has ended", overlapping
    yield from _launches(device, calls, correlations)


def _launches(
    device: pa.Table, calls: pa.Table, correlations: Integers
) -> Iterator[tuple[str, int]]:
    of_calls = _column(calls, "correlation")
    starts = _column(calls, "start_ns")
    known = of_calls != _MISSING
    order = np.argsort(of_calls[known], kind="stable")
    sorted_calls, sorted_starts = of_calls[known][order], starts[known][order]
    shared = int((sorted_calls[1:] == sorted_calls[:-1]).sum())
    if shared:
        yield "host calls that share the correlation of another", shared
    at = np.searchsorted(sorted_calls, correlations)
    found = np.zeros(len(correlations), dtype=bool)
    inside = at < len(sorted_calls)
    found[inside] = sorted_calls[at[inside]] == correlations[inside]
    found &= correlations != _MISSING
    orphans = int((~found & (correlations != _MISSING)).sum())
    if orphans and len(calls):
        yield "device events whose launch is not in the trace", orphans
    early = int((_column(device, "start_ns")[found] < sorted_starts[at[found]]).sum())
    if early:
        yield "device events that start before the host call that launched them", early


def _overlapping(device: pa.Table) -> int:
    devices, streams = _column(device, "device"), _column(device, "stream")
    starts = _column(device, "start_ns")
    ends = starts + _column(device, "duration_ns")
    order = np.lexsort((starts, streams, devices))
    same = (devices[order][1:] == devices[order][:-1]) & (streams[order][1:] == streams[order][:-1])
    return int((same & (starts[order][1:] < ends[order][:-1])).sum())


def _column(table: pa.Table, name: str) -> Integers:
    column = table.column(name).combine_chunks()
    values = column.fill_null(_MISSING) if column.null_count else column
    return values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def _listed(numbers: Integers) -> str:
    return ", ".join(str(number) for number in numbers[:5]) + (", ..." if len(numbers) > 5 else "")
