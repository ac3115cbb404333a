"""What the rows of `runtime_errors` come to: by family, and which operations matter most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Operations listed as the biggest contributors.
TOP = 10


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The errors of kernels and collectives, added up.

    `families` has a row per scope and family over the operations that both sides have, largest
    measured time first; `contributors` the operations (by name) whose difference adds most to that
    of the whole; `only_measured` and `only_simulated` what has no counterpart. Times in ns over
    all measured ranks.
    """
    kernels = [row for row in rows if row["scope"] != "step"]
    both = [r for r in kernels if r["measured_ns"] is not None and r["simulated_ns"] is not None]
    return {
        "families": _grouped(both, ("scope", "family")),
        "contributors": sorted(
            _grouped(both, ("scope", "family", "key")),
            key=lambda g: (-abs(g["simulated_ns"] - g["measured_ns"]), g["key"]),
        )[:TOP],
        "only_measured": _unmatched(kernels, "simulated_ns", "measured_ns"),
        "only_simulated": _unmatched(kernels, "measured_ns", "simulated_ns"),
    }


def _grouped(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        group = groups.setdefault(
            key,
            dict(zip(by, key, strict=True)) | {"count": 0, "measured_ns": 0, "simulated_ns": 0},
        )
        group["count"] += 1
        group["measured_ns"] += row["measured_ns"]
        group["simulated_ns"] += row["simulated_ns"]
    for group in groups.values():
        measured_ns = group["measured_ns"]
        group["error"] = group["simulated_ns"] / measured_ns - 1 if measured_ns else None
    return sorted(groups.values(), key=lambda g: (-g["measured_ns"], *(g[name] for name in by)))


def _unmatched(rows: Sequence[Mapping[str, Any]], lacks: str, has: str) -> dict[str, int]:
    found = [row[has] for row in rows if row[lacks] is None]
    return {"count": len(found), "time_ns": sum(found)}
