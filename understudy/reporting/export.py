"""Exports the simulated timeline of a job to the formats of other tools."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from understudy.catalog import Device
from understudy.errors import UnderstudyError
from understudy.jobs import JobSpec
from understudy.reporting import to_kineto, to_perfetto
from understudy.reporting.timeline import JobView, RankView, view
from understudy.simulation.breakdown import Occupancy, occupancy
from warehouse import store
from warehouse.schemas import Stage

Format = Literal["perfetto", "kineto"]
FORMATS: tuple[Format, ...] = ("perfetto", "kineto")

_TABLES: Mapping[Stage, tuple[str, ...]] = {
    "merging": (
        "events",
        "host_gaps",
        "signatures",
        "collective_parts",
        "communicators",
        "ranks",
        "memory_timeline",
    ),
    "simulation": ("predicted_kernels", "simulated_events", "simulated_runtimes"),
}


@dataclass(frozen=True)
class Exported:
    """What was written. `slices` counts operations of the devices and, in Perfetto traces, all
    other slices. The first operation of the simulated repetition is at `origin_ns` of the traces.
    `occupancy` is that of each rank by what is shown of it."""

    paths: tuple[Path, ...]
    slices: int
    size_bytes: int
    origin_ns: int
    occupancy: Mapping[int, Occupancy]


def export(
    device: Device,
    job: JobSpec,
    wanted: Format,
    folder: Path,
    *,
    ranks: Collection[int] | None = None,
    window_ns: tuple[int, int] | None = None,
    advance: Callable[[int], None] = lambda ranks: None,
) -> Exported:
    """Writes the last simulated repetition of `job` on `device` into `folder`, which is made.

    `ranks`: None is all. `window_ns` counts from the first operation of all ranks: what runs in it
    is shown whole, with the calls that asked for it. `advance` is called with the number of ranks
    and then, after each rank, with 0.

    Raises UsageError for ranks that the job lacks and where nothing runs in the window, and
    UnderstudyError when the job was not simulated on the device or does not fit.
    """
    tables = {
        name: store.read_table(stage, name, device.id, job.job)
        for stage, names in _TABLES.items()
        for name in names
    }
    if not tables["simulated_runtimes"]["fits"][0].as_py():
        raise UnderstudyError(
            f"job {job.job} runs out of memory on {device.id}: there is no timeline to export"
        )
    shown = view(job, tables, ranks, window_ns)
    advance(len(shown.ranks))
    stem = f"{job.job}_{device.id}"
    if wanted == "perfetto":
        paths = [folder / f"{stem}.perfetto-trace"]
        slices = to_perfetto.write(paths[0], shown, tables, device.name, lambda: advance(0))
    else:
        paths, slices = to_kineto.write(
            folder, stem, shown, tables, device.name, lambda: advance(0)
        )
    return Exported(
        tuple(paths),
        slices,
        sum(path.stat().st_size for path in paths),
        -shown.base_ns,
        {of_rank.rank: _occupancy(of_rank, shown) for of_rank in shown.ranks},
    )


def _occupancy(of_rank: RankView, shown: JobView) -> Occupancy:
    ops = of_rank.on_stream[of_rank.operation[of_rank.on_stream] >= 0]
    activity = np.array([operation.activity for operation in shown.operations])
    of_op = activity[of_rank.operation[ops]]
    return occupancy(
        of_rank.times.start_ns[ops],
        of_rank.times.end_ns[ops],
        of_op == "communication",
        of_op == "copy",
    )
