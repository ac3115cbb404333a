"""`understudy what-if`: a predicted job with stragglers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from pipelines.command import (
    as_json_option,
    milliseconds,
    predicted_device,
    print_json,
    time_ns,
)
from understudy.errors import UsageError

_Value = TypeVar("_Value", int, float)


@click.command(name="what-if")
@click.argument("job")
@click.option("--device", metavar="DEVICE", help="Device of the prediction (id or alias).")
@click.option(
    "--slow-gpu",
    "gpus",
    multiple=True,
    metavar="RANK=FACTOR",
    help="Kernels of a rank take FACTOR times as long.",
)
@click.option(
    "--slow-host",
    "hosts",
    multiple=True,
    metavar="RANK=FACTOR",
    help="The host of a rank takes FACTOR times as long.",
)
@click.option(
    "--delay",
    "delays",
    multiple=True,
    metavar="RANK=TIME",
    help="The host of a rank is held up by TIME (as 5ms) whenever its program repeats.",
)
@as_json_option
def what_if(
    job: str,
    device: str | None,
    gpus: Sequence[str],
    hosts: Sequence[str],
    delays: Sequence[str],
    as_json: bool,
) -> None:
    """Replays the prediction of JOB with stragglers; nothing that is stored changes.

    Collectives keep their durations: what a slow rank costs is what the others wait for it.
    """
    from pipelines import display
    from understudy import jobs, simulation
    from understudy.reporting import units
    from warehouse import schemas, store

    stragglers = simulation.Stragglers(
        by_rank("--slow-gpu", gpus, _factor, "a factor as 1.2"),
        by_rank("--slow-host", hosts, _factor, "a factor as 1.2"),
        by_rank("--delay", delays, time_ns, "a time as 5ms"),
    )
    if not (gpus or hosts or delays):
        raise UsageError("what is slow? give --slow-gpu, --slow-host or --delay")
    found = predicted_device(job, device)
    merged = {
        table.name: store.read_table("merging", table.name, found, job)
        for table in schemas.stage_tables("merging")
    }
    durations = store.read_table("simulation", "predicted_kernels", found, job)
    result = simulation.what_if(jobs.load(job), merged, durations, stragglers)
    before_ns, after_ns = max(result.predicted_ns), max(result.what_if_ns)
    if as_json:
        print_json(
            {
                "job": job,
                "device": found,
                "iteration_time_ns": before_ns,
                "what_if_ns": after_ns,
                "ranks": [
                    {"rank": rank, "iteration_time_ns": a, "what_if_ns": b}
                    for rank, (a, b) in enumerate(
                        zip(result.predicted_ns, result.what_if_ns, strict=True)
                    )
                ],
            }
        )
        return
    click.echo(
        f"{job} on {found}: {units.duration(before_ns)} an iteration, with the stragglers "
        f"{units.duration(after_ns)} ({after_ns / before_ns - 1:+.1%})"
    )
    rows = [
        (rank, milliseconds(a), milliseconds(b))
        for rank, (a, b) in enumerate(zip(result.predicted_ns, result.what_if_ns, strict=True))
    ]
    click.echo(display.table(("rank", "predicted ms", "with stragglers ms"), rows))


def by_rank(
    option: str, texts: Sequence[str], parse: Callable[[str], _Value | None], wanted: str
) -> dict[int, _Value]:
    """RANK=VALUE by rank; raises UsageError."""
    values: dict[int, _Value] = {}
    for text in texts:
        rank, _, value = text.partition("=")
        parsed = parse(value)
        if not rank.isdecimal() or parsed is None:
            raise UsageError(f"{option} {text}: write it as RANK=VALUE, the value {wanted}")
        values[int(rank)] = parsed
    return values


def _factor(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
