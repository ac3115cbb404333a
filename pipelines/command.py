"""What the commands of `understudy` share. Quick to import: the rest is imported when needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from understudy.errors import UsageError

if TYPE_CHECKING:
    from dagster import DagsterInstance

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@contextmanager
def quiet_instance() -> Iterator[DagsterInstance]:
    """Dagster's instance; its warnings about its own previews are not for users."""
    import warnings

    warnings.filterwarnings("ignore", module=r"dagster\b.*")
    from pipelines.instance import open_instance

    with open_instance() as instance:
        yield instance


def predicted_devices(job: str, device: str | None) -> list[str]:
    """Ids of the devices that `job` was predicted on, or `device` alone; raises UsageError."""
    from understudy import catalog
    from warehouse import store

    found = [d for d, j in store.list_partitions("simulation") if j == job]
    wanted = found if device is None else [catalog.device(device).id]
    if not wanted or not set(wanted) <= set(found):
        where = f" on {wanted[0]}" if wanted else ""
        raise UsageError(f"job {job} was not predicted{where}; run `understudy predict` first")
    return wanted


def predicted_device(job: str, device: str | None) -> str:
    """The one device that `job` was predicted on, or `device`; raises UsageError."""
    found = predicted_devices(job, device)
    if len(found) > 1:
        raise UsageError(f"{job} was predicted on {', '.join(found)}: choose one with --device")
    return found[0]


def milliseconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else round(time_ns / 1e6, 3)


def print_json(value: Any) -> None:
    # The catalog's mappings are read-only views, which json does not know.
    text = json.dumps(value, indent=2, default=dict, allow_nan=False)
    click.echo(text)


_SCALES_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)")


def time_ns(text: str) -> int | None:
    """Nanoseconds of '10ms' or '1.5 s'; None where it is no time."""
    match = _TIME.fullmatch(text.strip())
    return None if match is None else round(float(match[1]) * _SCALES_NS[match[2]])
