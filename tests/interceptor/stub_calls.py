"""Calls every stub of the symbol tables and prints what each answered, as JSON.

Run under the interceptor. A stub takes no arguments, whatever the function takes, so none is given.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

TABLES = Path(__file__).resolve().parents[2] / "interceptor_c" / "symbols"


def stubs(table: Path) -> list[str]:
    """The names of a table whose disposition is not `implemented`."""
    rows = [line.split("\t") for line in table.read_text().splitlines() if line[:1] != "#"]
    return [name for name, disposition, _ in rows if disposition != "implemented"]


def main() -> None:
    interceptor = ctypes.CDLL(None)
    answers: dict[str, dict[str, int]] = {}
    for table in sorted(TABLES.glob("*.tsv")):
        if table.stem == "libraries":
            continue
        answers[table.stem] = {}
        for name in stubs(table):
            function = getattr(interceptor, name)
            function.restype = ctypes.c_int
            answers[table.stem][name] = function()
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
