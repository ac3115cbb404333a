"""`understudy export`: the simulated timeline for Perfetto's and PyTorch's tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.command import as_json_option, predicted_device, print_json, time_ns
from understudy.errors import UsageError

if TYPE_CHECKING:
    from understudy.reporting.export import Exported, Format

#: Files named after an export.
_FILES_SHOWN = 4
_OPEN = {
    "perfetto": "open it at https://ui.perfetto.dev (the file stays on this machine)",
    "kineto": (
        "open with https://ui.perfetto.dev, or in Python with traceinsight (pandas<3; "
        "HTA_DISABLE_NS_ROUNDING=1 keeps nanoseconds):\n"
        "  from hta.trace_analysis import TraceAnalysis\n"
        "  TraceAnalysis(trace_dir={folder!r}).get_temporal_breakdown()"
    ),
}


@click.command()
@click.argument("job")
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["perfetto", "kineto"]),
    default="perfetto",
    show_default=True,
    help="One .perfetto-trace, or a .json.gz of torch.profiler's kind per rank.",
)
@click.option(
    "--out",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder to write to; it is made if need be.",
)
@click.option("--ranks", metavar="RANKS", help="Only these ranks: 0-7, or 0,8,16-19.")
@click.option(
    "--window", metavar="BEGIN:END", help="Only what runs in this time of it, as 10ms:25ms."
)
@click.option("--device", metavar="DEVICE", help="Device of the prediction (id or alias).")
@as_json_option
def export(
    job: str,
    wanted: Format,
    folder: Path,
    ranks: str | None,
    window: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Writes the simulated timeline of JOB: every kernel, copy and collective of an iteration on
    its stream, and the calls of the host.
    """
    from pipelines import display
    from understudy import jobs
    from understudy.reporting.export import export as write

    chosen = None if ranks is None else parse_ranks(ranks)
    window_ns = None if window is None else parse_window(window)
    spec = jobs.load(job)
    found = jobs.device_of(spec, predicted_device(job, device))
    with display.steps(f"{job}  replaying", "writing ranks") as advance:
        exported = write(
            found, spec, wanted, folder, ranks=chosen, window_ns=window_ns, advance=advance
        )
    if as_json:
        print_json(_as_dict(exported))
    else:
        click.echo(_text(exported, wanted, folder))


def parse_ranks(text: str) -> set[int]:
    """Ranks of '0-7' or '0,8,16-19'; raises UsageError."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"--ranks {text}: write ranks as 0-7, or as 0,8,16-19")
        # A job has no more ranks than this; a slip of the pen would fill the memory.
        ranks.update(range(first, min(last, first + 1_000_000) + 1))
    return ranks


def parse_window(text: str) -> tuple[int, int]:
    """Nanoseconds of '10ms:25ms' or '1.5s:2s'; raises UsageError."""
    bounds = [time_ns(bound) for bound in text.split(":")]
    if len(bounds) == 2:
        begin_ns, end_ns = bounds
        if begin_ns is not None and end_ns is not None and begin_ns < end_ns:
            return begin_ns, end_ns
    raise UsageError(f"--window {text}: write it as 10ms:25ms, the earlier time first")


def _as_dict(exported: Exported) -> dict[str, Any]:
    return {
        "files": [str(path) for path in exported.paths],
        "slices": exported.slices,
        "size_bytes": exported.size_bytes,
        "origin_ns": exported.origin_ns,
        "ranks": [
            {"rank": rank, "occupancy_ns": vars(occupancy)}
            for rank, occupancy in exported.occupancy.items()
        ],
    }


def _text(exported: Exported, wanted: str, folder: Path) -> str:
    from understudy.reporting import units

    shown = [str(path) for path in exported.paths[:_FILES_SHOWN]]
    if more := len(exported.paths) - len(shown):
        shown.append(f"... and {more:,} more")
    what = "slices" if wanted == "perfetto" else "operations of devices"
    return "\n".join(
        [
            *shown,
            f"{units.plural(len(exported.paths), 'file')}, "
            f"{units.plural(len(exported.occupancy), 'rank')}, {exported.slices:,} {what}, "
            f"{units.size(exported.size_bytes)}",
            f"the first operation of the iteration is at {units.duration(exported.origin_ns)}; "
            "what is before are calls of the host, which runs ahead",
            _OPEN[wanted].format(folder=str(folder)),
        ]
    )
