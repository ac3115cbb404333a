"""The README's table of scripts, made of what the script cases measured.

Every case leaves its row in var/scripts_table/ and compares it with the README's. `make
scripts-table` runs the cases with $SCRIPTS_TABLE=write, which does not compare, and then this
module, which writes the table. Host times are those of one machine and are not compared.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from understudy.home import write_whole

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
ROWS = REPOSITORY / "var" / "scripts_table"
BEGIN, END = "<!-- scripts: made by `make scripts-table` -->", "<!-- end of scripts -->"
_HEAD = (
    "| script | parallelism | ranks | events per rank | peak memory | not supported calls "
    "| host time |\n"
    "|---|---|--:|--:|--:|---|--:|\n"
)


@dataclass(frozen=True)
class Row:
    """What one case measured: events (lowest, highest of all ranks) and host time of an iteration,
    PyTorch's memory peaks of the largest rank."""

    script: str
    parallelism: str
    ranks: int
    events: tuple[int, int]
    peak_bytes: int
    reserved_bytes: int
    unsupported: tuple[str, ...]
    host_ns: int

    def cells(self) -> tuple[str, ...]:
        """The row as the README shows it, without the host time."""
        low, high = self.events
        return (
            f"`{self.script}`",
            self.parallelism,
            f"{self.ranks}",
            f"{low:,}" if low == high else f"{low:,} to {high:,}",
            f"{self.peak_bytes / 2**20:.2f} MiB",
            ", ".join(self.unsupported) or "none",
        )

    def line(self) -> str:
        return f"| {' | '.join(self.cells())} | {self.host_ns / 1e6:.1f} ms |"


def check(row: Row) -> None:
    """Keeps the row, and compares it with the README's unless $SCRIPTS_TABLE is "write"."""
    write_whole(ROWS / f"{_file_name(row.script)}.json", json.dumps(dataclasses.asdict(row)))
    if os.environ.get("SCRIPTS_TABLE") == "write":
        return
    stated = shown().get(row.script)
    assert stated == row.cells(), (
        f"README.md states {stated} for {row.script}; run `make scripts-table`"
    )


def _file_name(script: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", script)


def _section(text: str) -> tuple[int, int]:
    """Where the table lies between its two marks."""
    begin, end = text.find(BEGIN), text.find(END)
    assert 0 <= begin < end, f"README.md lacks the marks {BEGIN} and {END}"
    return begin + len(BEGIN), end


def rows_in(text: str) -> dict[str, tuple[str, ...]]:
    """The rows of a README by script, without their host times."""
    begin, end = _section(text)
    rows = {}
    for line in text[begin:end].splitlines():
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if cells[0].startswith("`"):
            rows[cells[0].strip("`")] = cells[:-1]
    return rows


def shown() -> dict[str, tuple[str, ...]]:
    """The rows of our README."""
    return rows_in(README.read_text())


def table(rows: Iterable[Row]) -> str:
    """Rows as Markdown: one process first, then by parallelism."""
    ordered = sorted(rows, key=lambda row: (row.ranks > 1, row.ranks, row.parallelism, row.script))
    return _HEAD + "".join(f"{row.line()}\n" for row in ordered)


def _measured() -> list[Row]:
    rows = []
    for path in sorted(ROWS.glob("*.json")):
        values = json.loads(path.read_text())
        for name in ("events", "unsupported"):
            values[name] = tuple(values[name])
        rows.append(Row(**values))
    return rows


def write() -> None:
    """Writes the rows that were measured into the README."""
    text = README.read_text()
    begin, end = _section(text)
    write_whole(README, f"{text[:begin]}\n\n{table(_measured())}\n{text[end:]}")


if __name__ == "__main__":
    write()
