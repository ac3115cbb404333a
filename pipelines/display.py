"""What the command line shows: progress on a terminal, and plain tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: Steps of a run and what they do, as shown while they run.
_STAGES = {
    "profiling": "reading measured data",
    "forests": "training forests",
    "emulation": "emulating",
    "merging": "merging traces",
    "simulation": "simulating",
    "comparison": "comparing",
}


@contextmanager
def progress(title: str) -> Iterator[Listener | None]:
    """A listener for runs that shows stage, message and time on standard error; None when that
    is no terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield Listener(bar, bar.add_task(title, total=None), title)


@contextmanager
def steps(preparing: str, title: str) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, when that is a terminal. What it yields is called with the number of
    steps once it is known, then with 0 after each step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(preparing, total=None)

        def advance(total: int) -> None:
            if total:
                bar.update(task, total=total, description=title)
            else:
                bar.advance(task)

        yield advance


class Listener(logging.Handler):
    """Turns a run's log records into the description of one task."""

    def __init__(self, bar: Any, task: Any, title: str) -> None:
        super().__init__(logging.DEBUG)
        self._bar, self._task, self.title = bar, task, title

    def emit(self, record: logging.LogRecord) -> None:
        meta = getattr(record, "dagster_meta", {})
        event = meta.get("dagster_event")
        if event is None:
            message = str(meta.get("orig_message", "")).split("\n")[0]
        elif event.event_type_value == "STEP_START":
            message = _STAGES.get(event.step_key or "", "")
        else:
            return
        # What Dagster says of its own pipe is of no interest.
        if not message.startswith("[pipes]"):
            self._bar.update(self._task, description=f"{self.title}  {message}")


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned columns under their names; numbers to the right. An absent value is '-'."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(len(name), *(len(row[i]) for row in cells)) if cells else len(name)
        for i, name in enumerate(names)
    ]
    right = [
        bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
        for i in range(len(names))
    ]
    lines = [list(names), ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).split())
