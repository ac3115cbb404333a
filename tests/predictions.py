"""Predictions without the stages that make them, for tests of what reads them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from warehouse import schemas, store

DEVICE = "h100-sxm-80gb"


def write_prediction(job: str, iteration_time_ns: int | None) -> None:
    """A partition of simulation with this result on DEVICE."""
    tables = {
        table.name: table.schema.empty_table() for table in schemas.stage_tables("simulation")
    }
    schema = schemas.SIMULATED_RUNTIMES.schema
    row: dict[str, Any] = {}
    for field in schema:
        kind = field.type
        listed = pa.types.is_list(kind) or pa.types.is_map(kind)
        row[field.name] = None if field.nullable else [] if listed else 0
    row |= {"fits": iteration_time_ns is not None, "iteration_time_ns": iteration_time_ns}
    tables["simulated_runtimes"] = pa.Table.from_pylist([row], schema=schema)
    store.write_tables("simulation", tables, DEVICE, job)
