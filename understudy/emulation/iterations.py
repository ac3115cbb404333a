"""Where the iterations of a job end: puts exactly one ITERATION record there in each trace.

By the first of these that the job has:

* the marker that the user named: each end of that NVTX or profiler range, or mark;
* steps of torch.optim optimizers (steps.py says which of several end an iteration);
* calls of modules that no other module calls: an iteration ends where the next one's first call
  begins, so that it holds what the script does with the output and to get the next input;
* a sequence of operations that is repeated (repetition.py).

Otherwise the whole run counts as one iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from understudy.emulation.lowering import kept_threads
from understudy.emulation.repetition import iteration_ends
from understudy.emulation.steps import ends as ends_of_steps
from understudy.errors import UnderstudyError
from understudy.traces.interceptor import Api, CopyKind, RankTrace

#: Module calls and repeated sequences are a guess: fewer are no loop.
_MIN_GUESSED = 3
_SHOWN_NAMES = 8


class Mark(IntEnum):
    """enum us_mark: what made an ITERATION record."""

    STEP = 0
    MARKER = 1
    CALL = 2


@dataclass(frozen=True)
class Iterations:
    """`traces` with one ITERATION record at the end of each iteration and no others; `source`:
    "marker NAME", "optimizer steps", "module calls", "repeated sequence" or "whole run"; `seen`:
    iterations of each rank before those beyond the wanted ones were cut off."""

    traces: list[RankTrace]
    source: str
    seen: tuple[int, ...]
    warnings: tuple[str, ...]


def find_iterations(
    traces: Sequence[RankTrace], marker: str | None, wanted: int | None
) -> Iterations:
    """Finds the iterations of a job's ranks; what follows the `wanted`-th is cut off (None: nothing
    is).

    Raises UnderstudyError when the marker never occurred on a rank.
    """
    warnings: list[str] = []
    if marker is not None:
        source = f"marker {marker}"
        ends = [_after_marks(trace, Mark.MARKER, _all) for trace in traces]
        for trace, found in zip(traces, ends, strict=True):
            if len(found) == 0 and wanted is not None:
                raise UnderstudyError(_no_marker(trace, marker))
    elif any(_marks(trace, Mark.STEP).any() for trace in traces):
        source = "optimizer steps"
        ends = [_after_marks(trace, Mark.STEP, ends_of_steps) for trace in traces]
        warnings += _several_optimizers(traces, ends)
    else:
        source, ends = _guessed(traces, warnings)
    ends = _agreed(ends)
    seen = tuple(len(found) for found in ends)
    marked = [
        _with_ends(trace, found[:wanted], len(found) > (wanted or len(found)))
        for trace, found in zip(traces, ends, strict=True)
    ]
    return Iterations(marked, source, seen, tuple(warnings))


# --- marks -------------------------------------------------------------------------------------


def _marks(trace: RankTrace, kind: Mark) -> np.ndarray:
    """Which records (bool) are marks of that kind."""
    return (trace.records["api"] == Api.ITERATION) & (trace.records["flags"] == kind)


def _all(numbers: Sequence[int]) -> list[int]:
    return list(range(len(numbers)))


def _after_marks(
    trace: RankTrace, kind: Mark, choose: Callable[[Sequence[int]], list[int]]
) -> np.ndarray:
    """Records before which an iteration ends, of the marks that `choose` chooses."""
    marks = np.flatnonzero(_marks(trace, kind))
    return marks[choose(trace.records["b"][marks].tolist())] + 1


def _no_marker(trace: RankTrace, marker: str) -> str:
    records = trace.records
    noted = records["definition"][records["api"] == Api.ANNOTATION]
    names = list(dict.fromkeys(trace.texts[text] for text in noted.tolist() if text in trace.texts))
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    known = f"rank {trace.rank} has {shown}" if names else f"rank {trace.rank} has none at all"
    return (
        f"no NVTX or profiler range or mark named {marker!r} ended: {known}; push one in the "
        "script (torch.cuda.nvtx.range), name another, or leave the marker out"
    )


def _several_optimizers(traces: Sequence[RankTrace], ends: Sequence[np.ndarray]) -> list[str]:
    """Says when iterations hold different steps: their time is a mean then."""
    for trace, found in zip(traces, ends, strict=True):
        marks = np.flatnonzero(_marks(trace, Mark.STEP))
        numbers = trace.records["b"][marks]
        pieces = np.split(numbers, np.searchsorted(marks, found[1:]))[1:-1] if len(found) else []
        if len({tuple(piece.tolist()) for piece in pieces[len(pieces) // 2 :]}) > 1:
            return [
                f"rank {trace.rank} steps {len(np.unique(numbers))} optimizers in no regular "
                "order: an iteration ends with the one that steps least; name a marker for another "
                "rule"
            ]
    return []


# --- guesses -----------------------------------------------------------------------------------


def _guessed(traces: Sequence[RankTrace], warnings: list[str]) -> tuple[str, list[np.ndarray]]:
    calls = [_before_calls(trace) for trace in traces]
    if min(map(len, calls)) >= _MIN_GUESSED:
        warnings.append(
            "no optimizer step was seen: an iteration goes from one call of the outermost module "
            "to the next; name a marker for another rule"
        )
        return "module calls", calls
    called = any(_marks(trace, Mark.CALL).any() for trace in traces)
    repeated = [(0, np.zeros(0, np.int64))] * len(traces)
    # A model that was called once is no loop, however equal its layers are.
    if not called:
        repeated = [_repeated(trace) for trace in traces]
    if min(len(ends) for _, ends in repeated) >= _MIN_GUESSED:
        warnings.append(
            "no optimizer step was seen: an iteration is a sequence of "
            f"{repeated[0][0]} operations that rank {traces[0].rank} repeats; name a marker for "
            "another rule"
        )
        return "repeated sequence", [ends for _, ends in repeated]
    return "whole run", [np.zeros(0, np.int64) for _ in traces]


def _before_calls(trace: RankTrace) -> np.ndarray:
    """Records before which an iteration ends, of the calls of outermost modules."""
    marks = np.flatnonzero(_marks(trace, Mark.CALL))
    following = np.array(ends_of_steps(trace.records["b"][marks].tolist()), np.int64) + 1
    return marks[following[following < len(marks)]]


_MEETS_HOST = (Api.EVENT_SYNCHRONIZE, Api.STREAM_SYNCHRONIZE, Api.DEVICE_SYNCHRONIZE)
_BY_DEFINITION = (Api.GEMM, Api.DNN, Api.LIBRARY)
_BY_VALUES = (Api.COLLECTIVE, Api.SEND, Api.RECV)
_OPERATIONS = (
    Api.LAUNCH_KERNEL,
    Api.MEMCPY,
    Api.MEMSET,
    Api.GRAPH_LAUNCH,
    *_BY_DEFINITION,
    *_BY_VALUES,
    *_MEETS_HOST,
)


def _repeated(trace: RankTrace) -> tuple[int, np.ndarray]:
    """(operations in the repeated sequence, records before which an iteration ends)."""
    kept = np.isin(trace.records["thread"], sorted(kept_threads(trace)))
    places = np.flatnonzero(kept & np.isin(trace.records["api"], _OPERATIONS))
    records = trace.records[places]
    api = records["api"]
    copy = api == Api.MEMCPY
    from_host = copy & (records["d"] == CopyKind.H2D)
    meets_host = from_host | copy & (records["d"] == CopyKind.D2H) | np.isin(api, _MEETS_HOST)
    period, ends = iteration_ends(_codes(trace, records), meets_host, from_host)
    return period, places[np.array(ends, np.int64) - 1] + 1


def _codes(trace: RankTrace, records: np.ndarray) -> np.ndarray:
    """Equal numbers for equal operations: pointers and handles do not count, sizes do."""
    api = records["api"]
    kinds: dict[tuple, int] = {}
    launches = {
        number: kinds.setdefault(
            (launch.kernel, launch.grid, launch.block, launch.dynamic_shared_bytes), len(kinds)
        )
        for number, launch in trace.launches.items()
    }
    what = np.zeros(len(records), np.int64)
    detail = np.zeros(len(records), np.int64)
    is_launch = api == Api.LAUNCH_KERNEL
    what[is_launch] = [launches[number] for number in records["definition"][is_launch].tolist()]
    for apis, first, second in (
        (_BY_DEFINITION, "definition", None),
        (_BY_VALUES, "definition", "b"),
        ((Api.MEMCPY,), "d", "c"),
        ((Api.MEMSET,), "c", None),
        ((Api.GRAPH_LAUNCH,), "a", None),
    ):
        chosen = np.isin(api, apis)
        what[chosen] = records[first][chosen].astype(np.int64)
        if second is not None:
            detail[chosen] = records[second][chosen].astype(np.int64)
    columns = np.column_stack((api.astype(np.int64), records["stream"], what, detail))
    return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


# --- all ranks -----------------------------------------------------------------------------------


def _agreed(ends: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A rank that seems to run whole multiples of what another one runs has mistaken parts of an
    iteration (microbatches, steps of an optimizer that only it repeats) for iterations."""
    fewest = min(map(len, ends))
    if fewest < _MIN_GUESSED:
        return list(ends)
    agreed = []
    for found in ends:
        parts = round(len(found) / fewest)
        whole = parts > 1 and abs(len(found) - parts * fewest) < parts
        agreed.append(found[parts - 1 :: parts] if whole else found)
    return agreed


def _mark_at(records: np.ndarray, end: int) -> np.ndarray:
    """The ITERATION record before record `end`: the mark that stands on either side, or a new one
    at the moment when the call before it returned, on its thread."""
    for at in (end - 1, end):
        if at < len(records) and records["api"][at] == Api.ITERATION:
            return records[at]
    mark = np.zeros(1, records.dtype)
    before = records[end - 1]
    mark["api"] = Api.ITERATION
    mark["begin_ns"] = before["begin_ns"] + before["inside_ns"]
    mark["thread"] = before["thread"]
    mark["device"] = before["device"]
    return mark[0]


def _with_ends(trace: RankTrace, ends: np.ndarray, cut: bool) -> RankTrace:
    """The trace with its ITERATION records exactly before `ends`; `cut`: it ends with the last."""
    records = trace.records[: ends[-1]] if cut else trace.records
    marks = records["api"] == Api.ITERATION
    inserted = np.zeros(len(ends), records.dtype)
    for number, end in enumerate(ends.tolist()):
        inserted[number] = _mark_at(trace.records, end)
    inserted["a"] = np.arange(len(ends))
    # Positions shift by the old marks that go; the chosen ones come back.
    gone = np.concatenate(([0], np.cumsum(marks)))
    placed = np.insert(records[~marks], ends - gone[ends], inserted)
    return dataclasses.replace(trace, records=placed)
