"""What the command line asks the warehouse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import duckdb

from understudy import jobs
from understudy.errors import UsageError
from warehouse import catalog


def answer(query: str) -> tuple[list[str], list[list[Any]]]:
    """Column names and rows of a query; values that JSON lacks become text or None.

    Raises UsageError with DuckDB's message.
    """
    with catalog.connect() as connection:
        try:
            connection.execute(query)
            rows = connection.fetchall()
        except duckdb.Error as error:
            raise UsageError(f"the query failed: {' '.join(str(error).split())}") from None
        names = [column[0] for column in connection.description or []]
    return _distinct(names), [[_plain(value) for value in row] for row in rows]


def job_overview() -> list[dict[str, Any]]:
    """Every known job with each of its predictions, or with none."""
    _, rows = answer(
        "select job, device, fits, iteration_time_ns from simulated_runtimes order by all"
    )
    predictions: dict[str, list[list[Any]]] = {job: [] for job in jobs.known_jobs()}
    for job, *prediction in rows:
        predictions.setdefault(job, []).append(prediction)
    return [
        {"job": job, "device": device, "fits": fits, "iteration_time_ns": time_ns}
        for job, found in sorted(predictions.items())
        for device, fits, time_ns in found or [(None, None, None)]
    ]


def _distinct(names: list[str]) -> list[str]:
    """`select 1, 1` names two columns alike; as keys of a JSON object both must be kept."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return float(value)
    return str(value)
