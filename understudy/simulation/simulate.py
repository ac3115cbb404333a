"""Predicts the iteration time of a job from its merged trace and the durations of its kernels.

The programs are repeated until they run steadily; an iteration lasts from the end of the
second-last repetition to the end of the last one. A job without iterations runs once, from its
first op to its last.

The interval. Errors of one family of kernels come from the same forest or law and are taken as
fully dependent; those of different families as independent. So the device time of the job moves by
the root of the sum of squares of what each family can move it, a fraction of what all together
could. The bounds replay the job with every duration moved by that fraction of its own 90 %
interval. Host time is measured on the emulating machine; the bounds also move it by
HOST_UNCERTAINTY, which shows only where the job waits for its host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from understudy import catalog
from understudy.catalog import Device
from understudy.errors import UnderstudyError
from understudy.jobs import JobSpec
from understudy.simulation.breakdown import Breakdown, breakdown
from understudy.simulation.engine import replay
from understudy.simulation.programs import Durations, Programs
from understudy.simulation.world import DEVICE, JOIN, Timeline
from warehouse import schemas

CODE_VERSION = "1"

#: Iterations that are replayed, in whole repetitions, before the one that counts: they fill the
#: queues until the job runs steadily.
LEAD_ITERATIONS = 3

#: How far the host of the cluster may be from the emulating machine: a guess, as large as the
#: median error of published host-bound runs (understudy/reporting/accuracy.py).
HOST_UNCERTAINTY = 0.5

#: Shares from which a reader is warned.
_LAW_SHARE = 0.5
_HOST_SHARE = 0.2


@dataclass(frozen=True)
class _Window:
    """One rank's last repetition: [begin_ns, stop_ns), `iterations` long."""

    begin_ns: int
    stop_ns: int
    iterations: int

    @property
    def iteration_time_ns(self) -> int:
        return (self.stop_ns - self.begin_ns) // self.iterations


def simulate(
    job: JobSpec,
    device: Device,
    tables: Mapping[str, pa.Table],
    predicted: pa.Table,
    *,
    versions: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, pa.Table]:
    """The tables `predicted_kernels`, `simulated_events` and `simulated_runtimes` of a job.

    `tables` are merging's; `predicted` has, for each row of `signatures` in order, duration_ns,
    low_ns, high_ns, roofline_ns, flops, estimate_source and extrapolated. `device.memory_bytes` is
    the capacity. `versions` and `warnings` of earlier stages are passed on.

    A job that runs out of memory is a result: `fits` is false, times are null and the other
    tables empty. Raises UnderstudyError when the job never uses its devices or deadlocks.
    """
    ranks = tables["ranks"].sort_by("rank").to_pylist()
    common = {
        "world_size": len(ranks),
        "iterations": min(r["iterations"] for r in ranks),
        "peak_memory_bytes": [r["peak_device_bytes"] for r in ranks],
        "capacity_bytes": device.memory_bytes,
        "trace_events": sum(r["trace_events"] for r in ranks),
        "versions": sorted((versions or {}).items()),
    }
    out_of_memory = [r for r in ranks if r["oom_requested_bytes"] is not None]
    if out_of_memory:
        first = min(out_of_memory, key=lambda r: (r["oom_iteration"], r["rank"]))
        runtime = common | {
            "fits": False,
            "ranks": [],
            "oom_rank": first["rank"],
            "oom_iteration": first["oom_iteration"],
            "oom_requested_bytes": first["oom_requested_bytes"],
            "flops_per_iteration": 0.0,
            "peak_flops": _peak_flops(device, "float32"),
            "warnings": list(warnings),
        }
        return _tables([], [], runtime)

    signatures = tables["signatures"].sort_by("signature").to_pylist()
    estimates = _estimates(predicted, len(signatures))
    host = catalog.host(job.cluster.host)
    programs = Programs(job, host, tables)
    counts = programs.launch_counts(len(signatures))
    durations = np.array(estimates["duration_ns"], np.int64)
    if not (counts * durations).sum():
        raise UnderstudyError(
            f"job {job.job} launches no work on its GPUs in an iteration; "
            'does the script move its model to "cuda"?'
        )
    span = ranks[0]["span_iterations"]
    repeated = repetitions(ranks)

    def run(at: Durations, host_factor: float) -> tuple[list[Timeline], list[_Window]]:
        timelines = replay(programs.world(at, host_factor * host.cpu_factor, repeated))
        return timelines, [_window(t, span) for t in timelines]

    timelines, windows = run(durations, 1.0)
    iteration_time_ns = max(w.iteration_time_ns for w in windows)
    slowest = max(range(len(ranks)), key=lambda r: (windows[r].iteration_time_ns, -r))
    families = [s["family"] for s in signatures]
    bounds = []
    for name, host_factor in (("low_ns", 1 - HOST_UNCERTAINTY), ("high_ns", 1 + HOST_UNCERTAINTY)):
        moved = moved_durations(durations, np.array(estimates[name], np.int64), counts, families)
        bounds.append(max(w.iteration_time_ns for w in run(moved, host_factor)[1]))

    per_rank = [
        _rank_breakdown(programs, ranks[r], timelines[r], windows[r]) for r in range(len(ranks))
    ]
    coverage = _coverage(estimates["estimate_source"], counts * durations)
    flops = float((np.array(estimates["flops"]) * counts).sum()) / span
    idle = per_rank[slowest]["breakdown_ns"]["host_idle"]
    runtime = common | {
        "fits": True,
        "iteration_time_ns": iteration_time_ns,
        "low_ns": min(bounds[0], iteration_time_ns),
        "high_ns": max(bounds[1], iteration_time_ns),
        "slowest_rank": slowest,
        "breakdown_ns": per_rank[slowest]["breakdown_ns"],
        "ranks": per_rank,
        "flops_per_iteration": flops,
        "peak_flops": _peak_flops(device, _dominant_type(signatures, estimates["flops"], counts)),
        **{f"coverage_{source}": share for source, share in coverage.items()},
        "warnings": [
            *warnings,
            *_warnings(coverage, idle / max(iteration_time_ns, 1), span, estimates),
        ],
    }
    kernels = [
        {
            **{name: signature[name] for name in ("signature", "name", "family", "dtype")},
            "launch_count": count,
            **{name: values[i] for name, values in estimates.items()},
        }
        for i, (signature, count) in enumerate(zip(signatures, counts.tolist(), strict=True))
    ]
    return _tables(kernels, _simulated_events(programs, ranks, timelines), runtime)


def repetitions(ranks: Sequence[Mapping[str, Any]]) -> int:
    """How often the programs are replayed, from the rows of `ranks`; the last time counts."""
    if min(r["iterations"] for r in ranks) == 0:
        return 1
    return 1 + math.ceil(LEAD_ITERATIONS / ranks[0]["span_iterations"])


def iteration_times(timelines: Sequence[Timeline], span_iterations: int) -> list[int]:
    """The time of one iteration of each rank, in ns, from a replay of `repetitions`."""
    return [_window(timeline, span_iterations).iteration_time_ns for timeline in timelines]


def moved_durations(
    durations: Durations, bounds: Durations, counts: NDArray[np.int64], families: Sequence[str]
) -> Durations:
    """`durations` moved towards `bounds` by the fraction that families' independent errors leave.

    All arrays are by signature, in ns; `counts` are launches.
    """
    change = (bounds - durations) * counts.astype(np.float64)
    of_family: dict[str, float] = {}
    for family, value in zip(families, change.tolist(), strict=True):
        of_family[family] = of_family.get(family, 0.0) + value
    together = abs(sum(of_family.values()))
    if together == 0:
        return durations
    independent = np.sqrt(sum(v * v for v in of_family.values()))
    fraction = min(float(independent) / together, 1.0)
    return np.rint(durations + fraction * (bounds - durations)).astype(np.int64)


def _estimates(predicted: pa.Table, signatures: int) -> dict[str, list[Any]]:
    names = (
        "duration_ns",
        "low_ns",
        "high_ns",
        "roofline_ns",
        "flops",
        "estimate_source",
        "extrapolated",
    )
    if predicted.num_rows != signatures:
        raise ValueError(f"{predicted.num_rows} estimates for {signatures} signatures")
    return {name: predicted.column(name).to_pylist() for name in names}


def _window(timeline: Timeline, span_iterations: int) -> _Window:
    """From the end of the repetition before the last, or from the start, to the last end."""
    ends = timeline.end_ns.max(axis=1, initial=0)
    begin = int(ends[-2]) if len(ends) > 1 else 0
    return _Window(begin, int(ends[-1]), span_iterations)


def _rank_breakdown(
    programs: Programs, rank: Mapping[str, Any], timeline: Timeline, window: _Window
) -> dict[str, Any]:
    """One entry of the column `ranks`: integer ns per iteration that sum exactly."""
    kinds = programs.kinds[rank["program"]]
    ops = np.flatnonzero(np.isin(kinds, (DEVICE, JOIN)))
    repeated = len(timeline.start_ns)
    whole = breakdown(
        timeline.start_ns[:, ops].ravel(),
        timeline.end_ns[:, ops].ravel(),
        np.tile(kinds[ops] == JOIN, repeated),
        window.begin_ns,
        window.stop_ns,
    )
    n = window.iterations
    compute, exposed = whole.compute // n, whole.exposed_communication // n
    per_iteration = Breakdown(
        compute=compute,
        exposed_communication=exposed,
        host_idle=window.iteration_time_ns - compute - exposed,
        communication=whole.communication // n,
    )
    return {
        "rank": rank["rank"],
        "iteration_time_ns": window.iteration_time_ns,
        "breakdown_ns": asdict(per_iteration),
        "peak_memory_bytes": rank["peak_device_bytes"],
    }


def _coverage(sources: Sequence[str], device_time_ns: NDArray[np.int64]) -> dict[str, float]:
    """Fractions of the predicted device time of all ranks by source; they sum to 1."""
    by_source: dict[str, int] = dict.fromkeys(schemas.ESTIMATE_SOURCES, 0)
    for source, time_ns in zip(sources, device_time_ns.tolist(), strict=True):
        by_source[source] += time_ns
    total = sum(by_source.values())
    return {source: time_ns / total for source, time_ns in by_source.items()}


def _dominant_type(
    signatures: Sequence[Mapping[str, Any]], flops: Sequence[float], counts: NDArray[np.int64]
) -> str:
    """Element type of most of the GEMM operations; float32 for a job without GEMM."""
    by_type: dict[str, float] = {}
    for signature, each, count in zip(signatures, flops, counts.tolist(), strict=True):
        if signature["family"] == "gemm":
            dtype = signature["dtype"]
            by_type[dtype] = by_type.get(dtype, 0.0) + each * count
    return max(sorted(by_type), key=lambda t: by_type[t], default="float32")


def _peak_flops(device: Device, dtype: str) -> float:
    peak = device.peak_flops.get(dtype, device.peak_flops.get("float32"))
    if peak is None:
        raise UnderstudyError(f"device {device.id} of the catalog has no peak for float32; add it")
    return float(peak)


def _warnings(
    coverage: Mapping[str, float],
    idle_share: float,
    span: int,
    estimates: Mapping[str, Sequence[Any]],
) -> list[str]:
    texts = []
    if coverage["law"] > _LAW_SHARE:
        texts.append(
            f"{coverage['law']:.0%} of the predicted device time follows a law, not measured data"
        )
    if idle_share > _HOST_SHARE:
        texts.append(
            f"the device waits for the host {idle_share:.0%} of the time; host time was measured "
            "on the emulating machine, not on the cluster"
        )
    if span > 1:
        texts.append(
            f"iterations differ; the prediction is the mean over the {span} that were recorded"
        )
    outside = sum(map(bool, estimates["extrapolated"]))
    if outside:
        texts.append(
            f"{outside} of {len(estimates['extrapolated'])} kernels lie outside the measured range"
        )
    return texts


def _simulated_events(
    programs: Programs, ranks: Sequence[Mapping[str, Any]], timelines: Sequence[Timeline]
) -> list[pa.Table]:
    """Device ops of the last repetition, one table per rank, timed from the first of all."""
    chosen = []
    for row, timeline in zip(ranks, timelines, strict=True):
        ops = np.flatnonzero(np.isin(programs.kinds[row["program"]], (DEVICE, JOIN)))
        chosen.append((row, ops, timeline.start_ns[-1, ops], timeline.end_ns[-1, ops]))
    origin = min(int(start.min()) for _, _, start, _ in chosen if len(start))
    return [
        pa.table(
            {
                "rank": np.full(len(ops), row["rank"], np.int32),
                "op": ops.astype(np.int32),
                "stream": programs.streams[row["program"]][ops].astype(np.int32),
                "start_ns": start - origin,
                "end_ns": end - origin,
            },
            schema=schemas.SIMULATED_EVENTS.schema,
        )
        for row, ops, start, end in chosen
    ]


def _tables(
    kernels: list[dict[str, Any]], events: list[pa.Table], runtime: dict[str, Any]
) -> dict[str, pa.Table]:
    row = {c.name: runtime.get(c.name) for c in schemas.SIMULATED_RUNTIMES.columns}
    return {
        "predicted_kernels": pa.Table.from_pylist(kernels, schema=schemas.PREDICTED_KERNELS.schema),
        "simulated_events": pa.concat_tables(
            [schemas.SIMULATED_EVENTS.schema.empty_table(), *events]
        ),
        "simulated_runtimes": pa.Table.from_pylist([row], schema=schemas.SIMULATED_RUNTIMES.schema),
    }
