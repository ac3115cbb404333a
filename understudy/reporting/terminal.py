"""The report as plain text for a terminal."""

from __future__ import annotations

from typing import Any

from understudy.reporting import memory, units
from understudy.reporting.labels import shortened
from understudy.reporting.record import iterations_used

WIDTH = 96
#: Ranks listed one by one; of larger jobs the first ones and the slowest are.
LISTED_RANKS = 8

_BAR = (("compute", "█"), ("exposed_communication", "▒"), ("host_idle", "·"))
_WORDS = {
    "compute": "compute",
    "exposed_communication": "exposed communication",
    "host_idle": "host idle",
}


def text(report: dict[str, Any]) -> str:
    """The report in at most WIDTH columns, without colours; ends without a line break."""
    sections = [_head(report)]
    if report["fits"]:
        sections += [_breakdown(report), _ranks(report)]
    sections.append(_peak_memory(report))
    if report["fits"]:
        sections += [_kernels(report), _basis(report)]
    sections += [_warnings(report), _foot(report)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _head(report: dict[str, Any]) -> list[str]:
    gpus = f"{report['world_size']} x " if report["world_size"] > 1 else ""
    lines = [f"{report['job']} on {gpus}{report['device_name']} ({report['device']})", ""]
    rows = _result_rows(report) if report["fits"] else _oom_rows(report)
    return lines + [f"  {name:<16} {value}" for name, value in rows]


def _oom_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    oom = report["oom"]
    when = (
        "before the first iteration" if oom["iteration"] < 0 else f"in iteration {oom['iteration']}"
    )
    return [
        ("does not fit", f"rank {oom['rank']} runs out of memory {when}"),
        ("requested", f"{units.size(oom['requested_bytes'])} in one allocation"),
        ("capacity", f"{units.size(oom['capacity_bytes'])} per GPU"),
        ("peak in use", units.size(max(report["peak_memory_bytes"], default=0))),
    ]


def _result_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    low, high = units.duration(report["low_ns"]), units.duration(report["high_ns"])
    time = units.duration(report["iteration_time_ns"])
    rows = [("iteration time", f"{time}   90 % interval {low} to {high}")]
    if report["throughput"]:
        rates = [
            f"{units.significant(rate)} {name.removesuffix('_per_second')}/s"
            for name, rate in report["throughput"].items()
        ]
        rows.append(("throughput", ", ".join(rates)))
    peak = units.flops_rate(report["peak_flops"])
    mfu = f"MFU {units.percent(report['mfu'])}, " if report["mfu"] is not None else ""
    rows.append(("utilization", f"{mfu}HFU {units.percent(report['hfu'])} of {peak} per GPU"))
    rows.append(("peak memory", _memory(report)))
    for key, noun in (
        ("per_billion_tokens", "billion tokens"),
        ("per_million_samples", "million samples"),
    ):
        if key in report["gpu_hours"]:
            hours = units.significant(report["gpu_hours"][key])
            cost = report["cost_usd"]
            price = f", about {units.significant(cost[key])} USD" if cost else ""
            rows.append(("cost", f"{hours} GPU-hours{price} per {noun}"))
            break
    return rows


def _memory(report: dict[str, Any]) -> str:
    peaks = report["peak_memory_bytes"]
    capacity = units.size(report["capacity_bytes"])
    fullest = max(range(len(peaks)), key=lambda rank: peaks[rank])
    where = f", rank {fullest} is fullest" if len(set(peaks)) > 1 else ""
    return f"{units.size(peaks[fullest])} of {capacity}{where}"


def _peak_memory(report: dict[str, Any]) -> list[str]:
    peak = report["peak_memory"]
    if not peak or not peak["parts_bytes"]:
        return []
    parts = sorted(peak["parts_bytes"].items(), key=lambda part: -part[1])
    total = sum(peak["parts_bytes"].values())
    rows = [
        (
            memory.WORDS[name] + (" (guess)" if name in peak["guessed_parts"] else ""),
            units.size(size_bytes),
            units.percent(size_bytes / total),
        )
        for name, size_bytes in parts
    ]
    of_rank = f" of rank {peak['rank']}" if report["world_size"] > 1 else ""
    lines = [f"Memory{of_rank} at its peak (iteration {peak['iteration']})"]
    lines += _columns(rows, "lrr")
    if peak["guessed_bytes"]:
        share = units.percent(peak["guessed_bytes"] / total)
        lines.append(f"  {units.size(peak['guessed_bytes'])} of it, {share}, are a guess")
    return lines


def _breakdown(report: dict[str, Any]) -> list[str]:
    breakdown, total = report["breakdown_ns"], report["iteration_time_ns"]
    width = WIDTH - 4
    ends, before = [], 0
    for key, _ in _BAR:
        before += breakdown[key]
        ends.append(round(width * before / max(total, 1)))
    bar, start = "", 0
    for (_, mark), end in zip(_BAR, ends, strict=True):
        bar += mark * (end - start)
        start = end
    legend = [
        (
            f"{mark} {_WORDS[key]}",
            units.duration(breakdown[key]),
            units.percent(breakdown[key] / max(total, 1)),
        )
        for key, mark in _BAR
    ]
    lines = _columns(legend, "lrr")
    communication = breakdown["communication"]
    if communication:
        hidden = 1 - breakdown["exposed_communication"] / communication
        lines.append(
            f"  communication takes {units.duration(communication)}, "
            f"of which compute hides {units.percent(max(hidden, 0))}"
        )
    of_rank = f" of the slowest rank ({report['slowest_rank']})" if report["world_size"] > 1 else ""
    return [f"Where the time{of_rank} goes", f"  {bar}", *lines]


def _ranks(report: dict[str, Any]) -> list[str]:
    ranks = report["ranks"]
    if len(ranks) < 2:
        return []
    listed = ranks[:LISTED_RANKS]
    if report["slowest_rank"] not in {row["rank"] for row in listed}:
        listed = [*listed, *(r for r in ranks if r["rank"] == report["slowest_rank"])]
    rows = [
        (
            str(row["rank"]),
            units.duration(row["iteration_time_ns"]),
            units.duration(row["breakdown_ns"]["compute"]),
            units.duration(row["breakdown_ns"]["communication"]),
            units.duration(row["breakdown_ns"]["exposed_communication"]),
            units.duration(row["breakdown_ns"]["host_idle"]),
            units.size(row["peak_memory_bytes"]),
        )
        for row in listed
    ]
    head = ("rank", "iteration", "compute", "communication", "exposed", "host idle", "peak memory")
    lines = ["Ranks", *_columns([head, *rows], "rrrrrrr")]
    if len(listed) < len(ranks):
        lines.append(f"  ... and {units.plural(len(ranks) - len(listed), 'more rank')}")
    return lines


def _kernels(report: dict[str, Any]) -> list[str]:
    rows = report["top_kernels"]
    if not rows:
        return []
    table = [("share", "launches", "each", "source", "dtype", "kernel")]
    for row in rows:
        beyond = " *" if row["extrapolated"] else ""
        table.append(
            (
                units.percent(row["share"]),
                f"{row['launches']:,.0f}",
                units.duration(row["duration_ns"]),
                row["estimate_source"] + beyond,
                row["dtype"],
                row["label"],
            )
        )
    lines = ["Most expensive kernels (all ranks, one iteration)", *_columns(table, "rrrlll")]
    if any(row["extrapolated"] for row in rows):
        lines.append("  * outside the measured range")
    return [shortened(line, WIDTH) for line in lines]


def _basis(report: dict[str, Any]) -> list[str]:
    coverage = report["coverage"]
    shares = ", ".join(f"{units.percent(share)} {source}" for source, share in coverage.items())
    return [
        f"Basis of the predicted device time: {shares}",
        *_wrapped(f"Accuracy ({report['accuracy']['regime']}): {report['accuracy']['note']}."),
    ]


def _warnings(report: dict[str, Any]) -> list[str]:
    return [line for warning in report["warnings"] for line in _wrapped(f"warning: {warning}")]


def _foot(report: dict[str, Any]) -> list[str]:
    versions = report["versions"]
    named = [f"{key} {versions[key]}" for key in ("understudy", "torch") if key in versions]
    events = f"{report['trace_events']:,} API calls recorded"
    return _wrapped(", ".join([events, iterations_used(report), *named]))


def _wrapped(sentence: str) -> list[str]:
    lines = [""]
    for word in sentence.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(f"  {word}")
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1].strip() else f"{lines[-1]}{word}"
    return lines


def _columns(rows: list[tuple[str, ...]], alignment: str) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(alignment))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, alignment, strict=True)
        ).rstrip()
        for row in rows
    ]
