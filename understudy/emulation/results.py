"""An emulation as a folder: what `python -m understudy.emulation` leaves for its caller."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from understudy.emulation.launcher import Emulation
from understudy.errors import UnderstudyError, UsageError
from warehouse import schemas

_RESULT = "result.json"


def save_emulation(emulation: Emulation, folder: Path) -> None:
    """Writes `<table>.parquet` of each table, then `result.json`, which makes it complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in emulation.tables.items():
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
    result = {"versions": emulation.versions, "warnings": list(emulation.warnings)}
    _write(folder / _RESULT, result)


def save_error(error: UnderstudyError, folder: Path) -> None:
    """Writes a `result.json` that says why there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / _RESULT, {"error": str(error), "exit_code": error.exit_code})


def _write(path: Path, content: dict) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1, sort_keys=True))
    temporary.replace(path)


def load_emulation(folder: Path) -> Emulation:
    """Reads what `save_emulation` wrote.

    Raises the error that `save_error` wrote, or UnderstudyError when the emulation never ended.
    """
    path = folder / _RESULT
    if not path.is_file():
        raise UnderstudyError(
            f"{folder}: the emulation was interrupted before it ended; run it again"
        )
    result = json.loads(path.read_text())
    if "error" in result:
        kind = UsageError if result["exit_code"] == UsageError.exit_code else UnderstudyError
        raise kind(result["error"])
    tables = {
        table.name: pq.read_table(folder / f"{table.name}.parquet", schema=table.schema)
        for table in schemas.stage_tables("emulation")
    }
    return Emulation(tables, result["versions"], tuple(result["warnings"]))
