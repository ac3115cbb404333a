"""`runtime_errors`: the prediction of a job against what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from understudy.comparison.alignment import align, measured_item, simulated_item
from understudy.comparison.measurement import MeasuredKernel, Measurement
from understudy.errors import UnderstudyError
from warehouse import schemas

CODE_VERSION = "2"


def compare(measured: Measurement, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """`runtime_errors` of one job and device.

    `tables` holds `simulated_runtimes` and, for kernels, `events`, `signatures`,
    `collective_parts`, `ranks` and `predicted_kernels`. Each measured rank is compared with the
    same rank of the simulation, operation by operation in the order of launches.

    Raises UnderstudyError when the prediction is that the job does not fit, and when a rank was
    measured that the job does not have.
    """
    simulated_ns = tables["simulated_runtimes"]["iteration_time_ns"][0].as_py()
    if simulated_ns is None:
        raise UnderstudyError(
            "the job was measured, yet predicted not to fit into the device's memory: "
            "there is no predicted time to compare"
        )
    rows = [_row("step", "iteration", None, None, "", measured.iteration_time_ns, simulated_ns)]
    for rank in sorted(measured.kernels):
        rows += _kernel_rows(rank, measured.kernels[rank], _operations(rank, tables))
    return {"runtime_errors": pa.Table.from_pylist(rows, schema=schemas.RUNTIME_ERRORS.schema)}


def _row(
    scope: str,
    key: str,
    rank: int | None,
    op: int | None,
    family: str,
    measured_ns: int | None,
    simulated_ns: int | None,
) -> dict[str, Any]:
    error = None
    if measured_ns and simulated_ns is not None:
        error = simulated_ns / measured_ns - 1
    return {
        "scope": scope,
        "key": key,
        "rank": rank,
        "op": op,
        "family": family,
        "measured_ns": measured_ns,
        "simulated_ns": simulated_ns,
        "error": error,
    }


def _operations(rank: int, tables: Mapping[str, pa.Table]) -> list[dict[str, Any]]:
    """The device operations of a rank in its first iteration, with their predicted durations."""
    ranks = {row["rank"]: row for row in tables["ranks"].to_pylist()}
    if rank not in ranks:
        raise UnderstudyError(
            f"rank {rank} was measured, but the job has ranks 0 to {max(ranks)}; "
            "predict the job with the launch that was measured"
        )
    program = ranks[rank]["program"]
    signatures = {row["signature"]: row for row in tables["signatures"].to_pylist()}
    durations = dict(
        zip(
            tables["predicted_kernels"]["signature"].to_pylist(),
            tables["predicted_kernels"]["duration_ns"].to_pylist(),
            strict=True,
        )
    )
    sizes: dict[int, int] = {}
    for part in tables["collective_parts"].to_pylist():
        if part["program"] == program:
            sizes[part["group"]] = sizes.get(part["group"], 0) + part["size_bytes"]
    events = tables["events"].sort_by([("program", "ascending"), ("op", "ascending")]).to_pylist()
    return [
        {
            "op": event["op"],
            "kind": event["kind"],
            "size_bytes": sizes.get(event["op"]),
            "duration_ns": durations[event["signature"]],
            **{k: signatures[event["signature"]][k] for k in ("name", "family", "grid")},
        }
        for event in events
        if event["program"] == program
        and event["iteration"] == 0
        and event["signature"] is not None
    ]


def _kernel_rows(
    rank: int, measured: Sequence[MeasuredKernel], operations: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    pairs = align(
        [simulated_item(o["name"], o["family"], o["grid"], o["size_bytes"]) for o in operations],
        [measured_item(k.kind, k.name, k.grid, k.size_bytes) for k in measured],
    )
    rows: list[dict[str, Any]] = []
    found: set[int] = set()
    counterpart = dict(pairs)
    for i, operation in enumerate(operations):
        theirs = counterpart.get(i)
        found.update(theirs or ())
        scope = "collective" if operation["kind"] == "join" else "kernel"
        measured_ns = sum(measured[j].duration_ns for j in theirs) if theirs else None
        rows.append(
            _row(
                scope,
                operation["name"],
                rank,
                operation["op"],
                operation["family"],
                measured_ns,
                operation["duration_ns"],
            )
        )
    for j, kernel in enumerate(measured):
        if j not in found:
            item = measured_item(kernel.kind, kernel.name, kernel.grid, kernel.size_bytes)
            scope = "collective" if item.coarse == "collective" else "kernel"
            rows.append(_row(scope, kernel.name, rank, None, item.coarse, kernel.duration_ns, None))
    return rows
