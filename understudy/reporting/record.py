"""The report of one prediction as a dict: what `predict --json` and `show --json` print."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from understudy.catalog import Device
from understudy.jobs import JobSpec
from understudy.reporting import units
from understudy.reporting.accuracy import expected_accuracy
from understudy.reporting.labels import kernel_label
from understudy.reporting.memory import fullest_rank, peak_memory
from warehouse import store

#: Kernels listed in a report.
TOP_KERNELS = 10

_NS_PER_HOUR = 3_600_000_000_000


def report(device: Device, job: JobSpec) -> dict[str, Any]:
    """The prediction for `job` on `device`, from the tables of merging and simulation.

    Times are integer nanoseconds per iteration. `hfu` counts the operations as launched, `mfu`
    the job's `model_flops_per_iteration` (null where the job states none), both over the ranks'
    dense peak. `peak_memory` says what the fullest rank's memory holds at its peak. Of a job that
    does not fit, times and fractions are null and `oom` is there.

    Raises UnderstudyError when the job was not simulated on the device.
    """
    runtime = _single_row(store.read_table("simulation", "simulated_runtimes", device.id, job.job))
    predicted = store.read_table("simulation", "predicted_kernels", device.id, job.job)
    signatures = store.read_table("merging", "signatures", device.id, job.job)
    ranks = store.read_table("merging", "ranks", device.id, job.job)
    spans = ranks["span_iterations"].to_pylist()
    record = make_report(
        device, job, runtime, kernels(predicted, signatures, max(spans, default=1))
    )
    record["iteration_source"] = ranks["iteration_source"][0].as_py()
    record["iterations_seen"] = min(ranks["iterations_seen"].to_pylist())
    record["peak_memory"] = peak_memory(device, ranks, fullest_rank(record))
    return record


def make_report(
    device: Device, job: JobSpec, runtime: dict[str, Any], kernel_rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """`report` from a row of `simulated_runtimes` and the rows of `kernels`."""
    time_ns = runtime["iteration_time_ns"]
    fits = runtime["fits"]
    world_size = runtime["world_size"]
    record: dict[str, Any] = {
        "job": job.job,
        "device": device.id,
        "device_name": device.name,
        "world_size": world_size,
        "fits": fits,
        "iteration_time_ns": time_ns,
        "low_ns": runtime["low_ns"],
        "high_ns": runtime["high_ns"],
        "iterations": runtime["iterations"],
        "iteration_source": None,
        "iterations_seen": None,
        "breakdown_ns": runtime["breakdown_ns"],
        "slowest_rank": runtime["slowest_rank"],
        "ranks": runtime["ranks"],
        "peak_memory_bytes": runtime["peak_memory_bytes"],
        "capacity_bytes": runtime["capacity_bytes"],
        "peak_memory": None,
        "hfu": None,
        "mfu": None,
        "flops_per_iteration": runtime["flops_per_iteration"],
        "peak_flops": runtime["peak_flops"],
        "throughput": None,
        "gpu_hours": None,
        "cost_usd": None,
        "coverage": None,
        "accuracy": None,
        "top_kernels": kernel_rows[:TOP_KERNELS],
        "trace_events": runtime["trace_events"],
        "versions": dict(runtime["versions"]),
        "warnings": list(runtime["warnings"]),
    }
    if not fits:
        record["oom"] = {
            "rank": runtime["oom_rank"],
            "iteration": runtime["oom_iteration"],
            "requested_bytes": runtime["oom_requested_bytes"],
            "capacity_bytes": runtime["capacity_bytes"],
        }
        return record
    record["coverage"] = {
        source: runtime[f"coverage_{source}"] for source in ("measured", "transferred", "law")
    }
    attainable_flops = runtime["peak_flops"] * world_size * time_ns / 1e9
    record["hfu"] = runtime["flops_per_iteration"] / attainable_flops
    if job.model_flops_per_iteration is not None:
        record["mfu"] = job.model_flops_per_iteration / attainable_flops
    record |= _economy(device, job, world_size, time_ns)
    record["accuracy"] = expected_accuracy(runtime)
    return record


def iterations_used(report: dict[str, Any]) -> str:
    """'8 of 20 iterations by optimizer steps', 'the whole run as one iteration'."""
    if report["iteration_source"] is None:
        return units.plural(report["iterations"], "iteration")
    if report["iterations"] == 0:
        return "the whole run as one iteration"
    seen = units.plural(report["iterations_seen"], "iteration")
    return f"{report['iterations']:,} of {seen} by {report['iteration_source']}"


def _economy(device: Device, job: JobSpec, world_size: int, time_ns: int) -> dict[str, Any]:
    """Throughput, GPU-hours and cost, of what the job says an iteration handles."""
    units = {
        name: count
        for name, count in (
            ("tokens", job.tokens_per_iteration),
            ("samples", job.samples_per_iteration),
        )
        if count is not None
    }
    iteration_hours = world_size * time_ns / _NS_PER_HOUR
    scale = {"tokens": ("per_billion_tokens", 1e9), "samples": ("per_million_samples", 1e6)}
    hours = {scale[u][0]: scale[u][1] / n * iteration_hours for u, n in units.items()}
    price = device.price_usd_per_hour
    return {
        "throughput": {f"{u}_per_second": n / (time_ns / 1e9) for u, n in units.items()} or None,
        "gpu_hours": {"per_iteration": iteration_hours, **hours},
        "cost_usd": None
        if price is None
        else {"per_iteration": iteration_hours * price}
        | {key: value * price for key, value in hours.items()},
    }


def kernels(
    predicted: pa.Table, signatures: pa.Table, span_iterations: int
) -> list[dict[str, Any]]:
    """Predicted kernels, most expensive first (ties by signature).

    `total_ns` and `launches` are per iteration over all ranks, `share` is of the device time of
    all kernels.
    """
    features = dict(
        zip(
            signatures["signature"].to_pylist(),
            zip(
                (dict(f) for f in signatures["features"].to_pylist()),
                signatures["kernel_version"].to_pylist(),
                strict=True,
            ),
            strict=True,
        )
    )
    rows = predicted.to_pylist()
    total_ns = sum(row["duration_ns"] * row["launch_count"] for row in rows)
    rows.sort(key=lambda row: (-row["duration_ns"] * row["launch_count"], row["signature"]))
    return [
        {
            "signature": row["signature"],
            "label": kernel_label(row["family"], row["name"], features[row["signature"]][0]),
            "name": row["name"],
            "family": row["family"],
            "dtype": row["dtype"],
            "kernel_version": features[row["signature"]][1],
            "launches": row["launch_count"] / span_iterations,
            "duration_ns": row["duration_ns"],
            "low_ns": row["low_ns"],
            "high_ns": row["high_ns"],
            "roofline_ns": row["roofline_ns"],
            "total_ns": round(row["duration_ns"] * row["launch_count"] / span_iterations),
            "share": row["duration_ns"] * row["launch_count"] / total_ns if total_ns else 0.0,
            "estimate_source": row["estimate_source"],
            "extrapolated": row["extrapolated"],
        }
        for row in rows
    ]


def _single_row(table: pa.Table) -> dict[str, Any]:
    rows = table.to_pylist()
    if len(rows) != 1:
        raise ValueError(f"simulated_runtimes of a partition has one row, not {len(rows)}")
    return rows[0]
