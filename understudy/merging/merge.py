"""Joins the traces of all ranks: one program for all ranks that do the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.errors import UnderstudyError
from understudy.merging.codes import NULL, Codes, integers, text_codes
from understudy.merging.collectives import check_collectives, number_calls
from warehouse import schemas

CODE_VERSION = "1"

_EVENT_INTEGERS = ("iteration", "stream", "signature", "depends_on", "thread", "graph")
_PART_INTEGERS = (
    "group",
    "part",
    "communicator_local",
    "peer",
    "sequence",
    "size_bytes",
    "root",
)


def merge(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The merged tables of a job, from those of emulation, where each rank is its own program.

    Programs are numbered by the first rank that runs them, signatures by first use. The host gaps
    of a program are the medians over its ranks. When a rank ran out of memory the traces are
    partial: collectives are not compared, and the tables serve only to say so.

    Raises UnderstudyError when ranks disagree on their collectives, or the tables on each other.
    """
    ranks = tables["ranks"].sort_by("rank")
    numbers = ranks.column("rank").to_pylist()
    if numbers != list(range(len(numbers))) or not numbers:
        raise UnderstudyError(
            f"the traces are of ranks {numbers}; every rank from 0 is needed once"
        )
    programs = ranks.column("program").to_pylist()
    if len(set(programs)) != len(programs):
        raise UnderstudyError("the traces are merged already: ranks share programs")
    complete = ranks.column("oom_requested_bytes").null_count == len(numbers)
    spans = sorted(set(ranks.column("span_iterations").to_pylist()))
    if complete and len(spans) > 1:
        raise UnderstudyError(
            f"ranks recorded spans of {spans[0]} and of {spans[-1]} iterations; emulate again"
        )

    events = tables["events"].sort_by([("program", "ascending"), ("op", "ascending")])
    gaps = tables["host_gaps"].sort_by([("program", "ascending"), ("op", "ascending")])
    parts = tables["collective_parts"].sort_by(
        [("program", "ascending"), ("group", "ascending"), ("part", "ascending")]
    )
    _check_programs(events, gaps, programs)
    _check_joins(events, parts)
    parts = number_calls(parts)
    if complete:
        check_collectives(parts, events, tables["communicators"], ranks)
    events, signatures = _number_signatures(events, tables["signatures"])

    leaders = _leaders(events, parts, programs)
    first = list(dict.fromkeys(leaders.values()))
    number = {program: i for i, program in enumerate(first)}
    new = [number[leaders[p]] for p in ranks.column("program").to_pylist()]
    return {
        "events": _renumbered(events, number),
        "host_gaps": _median_gaps(gaps, leaders, number),
        "signatures": signatures,
        "collective_parts": _renumbered(parts, number),
        "communicators": tables["communicators"].sort_by("communicator"),
        "ranks": _replaced(ranks, "program", new),
        "memory_timeline": tables["memory_timeline"].sort_by(
            [("rank", "ascending"), ("step", "ascending")]
        ),
    }


def _check_programs(events: pa.Table, gaps: pa.Table, programs: list[int]) -> None:
    """Ops of each program count from 0, each has its host gap, and each program has its rank."""
    program, op = integers(events, "program"), integers(events, "op")
    unknown = sorted(set(np.unique(program).tolist()) - set(programs))
    if unknown:
        raise UnderstudyError(f"events of programs {unknown}, which no rank runs; emulate again")
    if not np.array_equal(op, _positions(program)):
        raise UnderstudyError("ops of a program are missing or double in events; emulate again")
    same = np.array_equal(program, integers(gaps, "program"))
    if not same or not np.array_equal(op, integers(gaps, "op")):
        raise UnderstudyError(
            "events and host_gaps do not have the same ops; emulate again with --remeasure-host"
        )


def _check_joins(events: pa.Table, parts: pa.Table) -> None:
    """Parts are of joins, and every join has some."""
    kind, kinds = text_codes(events, "kind")
    joins = events.filter(pa.array(kind == (kinds.index("join") if "join" in kinds else NULL)))
    expected = np.stack([integers(joins, "program"), integers(joins, "op")], axis=1)
    found = np.stack([integers(parts, "program"), integers(parts, "group")], axis=1)
    if not np.array_equal(np.unique(found, axis=0), expected):
        raise UnderstudyError(
            "events and collective_parts do not have the same joins; emulate again"
        )


def _positions(program: Codes) -> Codes:
    """Position in its run of equal values, for a sorted column."""
    starts = np.flatnonzero(np.diff(program, prepend=NULL))
    return np.arange(len(program)) - np.repeat(starts, np.diff(np.append(starts, len(program))))


def _number_signatures(events: pa.Table, signatures: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Events and signatures with equal signatures joined, numbered by first use, unused dropped."""
    content: dict[tuple[Any, ...], int] = {}
    joined = np.full(signatures.num_rows + 1, NULL, np.int64)
    rows = signatures.sort_by("signature").to_pylist()
    for row in rows:
        key = tuple(
            tuple(sorted(value) if name == "features" else value)
            if isinstance(value, list)
            else value
            for name, value in row.items()
            if name != "signature"
        )
        joined[row["signature"]] = content.setdefault(key, row["signature"])
    used = integers(events, "signature")
    if used.size and used.max() >= signatures.num_rows:
        raise UnderstudyError(f"events name signature {used.max()}, which is absent; emulate again")
    # The last entry of `joined` answers for null.
    used = joined[np.where(used == NULL, signatures.num_rows, used)]
    values, where = np.unique(used[used != NULL], return_index=True)
    by_first_use = values[np.argsort(where)]
    number = np.full(signatures.num_rows + 1, NULL, np.int64)
    number[by_first_use] = np.arange(len(by_first_use))
    numbered = number[np.where(used == NULL, signatures.num_rows, used)]
    kept = signatures.sort_by("signature").take(pa.array(by_first_use))
    return (
        _replaced(events, "signature", numbered),
        _replaced(kept, "signature", np.arange(kept.num_rows)),
    )


def _leaders(events: pa.Table, parts: pa.Table, programs: Sequence[int]) -> dict[int, int]:
    """For each program, in the order of ranks, the first program that is equal to it."""
    event_codes = np.stack(
        [text_codes(events, "kind")[0], *(integers(events, c) for c in _EVENT_INTEGERS)], axis=1
    )
    part_codes = np.stack(
        [text_codes(parts, c)[0] for c in ("kind", "dtype", "reduce_op")]
        + [integers(parts, c) for c in _PART_INTEGERS],
        axis=1,
    )
    event_program, part_program = integers(events, "program"), integers(parts, "program")
    first: dict[bytes, int] = {}
    leaders: dict[int, int] = {}
    for program in programs:
        digest = hashlib.sha256()
        for codes, owner in ((event_codes, event_program), (part_codes, part_program)):
            begin, end = np.searchsorted(owner, [program, program + 1])
            digest.update(codes[begin:end].tobytes())
            digest.update(b"|")
        leaders[program] = first.setdefault(digest.digest(), program)
    return leaders


def _renumbered(table: pa.Table, number: Mapping[int, int]) -> pa.Table:
    """The rows of the programs in `number`, under their new numbers and in their order."""
    program = integers(table, "program")
    rows = [np.arange(*np.searchsorted(program, [p, p + 1])) for p in number]
    kept = table.take(pa.array(np.concatenate([*rows, np.zeros(0, np.int64)]).astype(np.int64)))
    new = [np.full(len(r), n) for r, n in zip(rows, number.values(), strict=True)]
    return _replaced(kept, "program", np.concatenate([*new, np.zeros(0, np.int64)]))


def _median_gaps(gaps: pa.Table, leaders: Mapping[int, int], number: Mapping[int, int]) -> pa.Table:
    """Host gaps of each shared program: per op, the median over the ranks that run it."""
    program = integers(gaps, "program")
    columns = {"gap_ns": integers(gaps, "gap_ns"), "spread_ns": integers(gaps, "spread_ns")}
    merged: dict[str, list[Codes]] = {"program": [], "op": [], "gap_ns": [], "spread_ns": []}
    for leader, new in number.items():
        followers = [p for p, first in leaders.items() if first == leader]
        ranges = [slice(*np.searchsorted(program, [p, p + 1])) for p in followers]
        ops = ranges[0].stop - ranges[0].start
        merged["program"].append(np.full(ops, new, np.int64))
        merged["op"].append(np.arange(ops))
        for name, values in columns.items():
            stacked = np.stack([values[r] for r in ranges])
            merged[name].append(np.rint(np.median(stacked, axis=0)).astype(np.int64))
    return pa.table({name: np.concatenate(values) for name, values in merged.items()}).cast(
        pa.schema(schemas.HOST_GAPS.schema, metadata=None)
    )


def _replaced(table: pa.Table, column: str, values: Any) -> pa.Table:
    """`table` with another integer column; NULL becomes null."""
    field = table.schema.field(column)
    array = np.asarray(values, np.int64)
    column_values = pa.array(array, mask=array == NULL).cast(field.type)
    return table.set_column(table.schema.get_field_index(column), field, column_values)
