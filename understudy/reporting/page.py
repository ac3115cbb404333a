"""The report as one self-contained HTML page: no scripts, nothing fetched, plots as inline SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from understudy.reporting import charts, memory, units
from understudy.reporting.labels import kernel_label, shortened
from understudy.reporting.record import iterations_used, kernels
from warehouse import schemas, store

#: Kernels in the page's table.
LISTED_KERNELS = 25
#: Ranks drawn in the timeline, and in the bars.
TIMELINE_RANKS = 3
BAR_RANKS = 16

_SOURCES = ("measured", "transferred", "law")
_PARTS = (
    ("compute", "compute"),
    ("exposed_communication", "exposed communication"),
    ("host_idle", "host idle"),
)
_TABLES: tuple[tuple[schemas.Stage, str], ...] = (
    ("merging", "events"),
    ("merging", "signatures"),
    ("merging", "ranks"),
    ("merging", "memory_timeline"),
    ("simulation", "predicted_kernels"),
    ("simulation", "simulated_events"),
)


def html(report: dict[str, Any]) -> str:
    """The page of a report, with plots from the warehouse's tables of its device and job."""
    device, job = report["device"], report["job"]
    tables = {name: store.read_table(stage, name, device, job) for stage, name in _TABLES}
    return render(report, tables)


def render(report: dict[str, Any], tables: dict[str, pa.Table]) -> str:
    """The page of a report and the tables named in _TABLES."""
    if report["fits"]:
        body = [
            _cards(_result_cards(report)),
            _warnings(report),
            _breakdown(report),
            _timeline(report, tables),
            _kernels(report, tables),
            _memory(report, tables),
        ]
    else:
        body = [
            _cards(_oom_cards(report)),
            _warnings(report),
            _memory(report, tables),
        ]
    title = f"{report['job']} on {report['device']}"
    style = Path(__file__).with_name("style.css").read_text()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} - Understudy</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{_header(report)}\n"
        + "\n".join(section for section in [*body, _provenance(report)] if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def _header(report: dict[str, Any]) -> str:
    gpus = units.plural(report["world_size"], "GPU")
    return (
        f"<header><h1>{escape(report['job'])}</h1>"
        f'<p class="sub">Predicted on {gpus} of the model {escape(report["device_name"])} '
        f"({escape(report['device'])}), without a GPU</p></header>"
    )


def _cards(cards: Iterable[tuple[str, str, str, str]]) -> str:
    """(css class, name, value, more) each."""
    rendered = "".join(
        f'<div class="card {css_class}"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div><div class="more">{escape(more)}</div></div>'
        for css_class, name, value, more in cards
    )
    return f'<div class="cards">{rendered}</div>'


def _result_cards(report: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    low, high = units.duration(report["low_ns"]), units.duration(report["high_ns"])
    time = units.duration(report["iteration_time_ns"])
    cards = [("main", "Iteration time", time, f"90 % interval {low} to {high}")]
    rates = [
        (units.significant(rate), f"{name.removesuffix('_per_second')} per second")
        for name, rate in (report["throughput"] or {}).items()
    ]
    if rates:
        (value, unit), *others = rates
        more = "".join(f", {other} {noun}" for other, noun in others)
        cards.append(("", "Throughput", value, unit + more))
    hfu = units.percent(report["hfu"])
    peak = units.flops_rate(report["peak_flops"])
    if report["mfu"] is None:
        cards.append(("", "HFU", hfu, f"of {peak} per GPU"))
    else:
        cards.append(("", "MFU", units.percent(report["mfu"]), f"HFU {hfu} of {peak} per GPU"))
    peaks = report["peak_memory_bytes"]
    capacity = units.size(report["capacity_bytes"])
    cards.append(("", "Peak memory", units.size(max(peaks)), f"of {capacity}, fullest rank"))
    for key, noun in (
        ("per_billion_tokens", "billion tokens"),
        ("per_million_samples", "million samples"),
    ):
        if key in report["gpu_hours"]:
            hours = f"{units.significant(report['gpu_hours'][key])} GPU-hours"
            cost = report["cost_usd"]
            if cost:
                cards.append(("", f"Cost per {noun}", f"${units.significant(cost[key])}", hours))
            else:
                cards.append(("", f"Per {noun}", hours, ""))
            break
    return cards


def _oom_cards(report: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    oom = report["oom"]
    when = "before iteration 0" if oom["iteration"] < 0 else f"in iteration {oom['iteration']}"
    return [
        ("bad", "Does not fit", "out of memory", f"rank {oom['rank']}, {when}"),
        ("", "Requested", units.size(oom["requested_bytes"]), "in one allocation"),
        ("", "Capacity", units.size(oom["capacity_bytes"]), "per GPU"),
        ("", "Peak in use", units.size(max(report["peak_memory_bytes"], default=0)), ""),
    ]


def _warnings(report: dict[str, Any]) -> str:
    if not report["warnings"]:
        return ""
    items = "".join(f"<li>{escape(warning)}</li>" for warning in report["warnings"])
    return f'<section class="warnings"><h2>Warnings</h2><ul>{items}</ul></section>'


def _breakdown(report: dict[str, Any]) -> str:
    ranks = report["ranks"]
    shown = ranks[:BAR_RANKS]
    rows = []
    for row in shown:
        breakdown, total = row["breakdown_ns"], row["iteration_time_ns"]
        parts = [
            (
                key,
                breakdown[key],
                f"{word}: {units.duration(breakdown[key])} "
                f"({units.percent(breakdown[key] / max(total, 1))})",
            )
            for key, word in _PARTS
        ]
        slowest = ", slowest" if len(ranks) > 1 and row["rank"] == report["slowest_rank"] else ""
        rows.append(charts.Bar(f"rank {row['rank']}", parts, f"{units.duration(total)}{slowest}"))
    table_rows = [
        [
            str(row["rank"]),
            units.duration(row["iteration_time_ns"]),
            *(units.duration(row["breakdown_ns"][key]) for key, _ in _PARTS),
            units.duration(row["breakdown_ns"]["communication"]),
            units.size(row["peak_memory_bytes"]),
        ]
        for row in shown
    ]
    head = ["Rank", "Iteration", "Compute", "Exposed communication", "Host idle"]
    table = _table([*head, "All communication", "Peak memory"], table_rows, "nnnnnnn")
    more = f'<p class="note">The first {BAR_RANKS} of {len(ranks)} ranks.</p>'
    return (
        "<section><h2>Where the time goes</h2>"
        '<p class="note">Compute is time in which a kernel runs; exposed communication is time '
        "in which only collectives run; host idle is time in which the GPU waits for "
        "the host.</p>"
        f"{charts.bars(rows, left=90)}{_legend(_PARTS)}{table}"
        f"{more if len(ranks) > len(shown) else ''}</section>"
    )


def _timeline(report: dict[str, Any], tables: dict[str, pa.Table]) -> str:
    simulated = tables["simulated_events"]
    if simulated.num_rows == 0:
        return ""
    everyone = sorted(set(simulated["rank"].to_pylist()))
    wanted = [everyone[0], report["slowest_rank"], everyone[-1]]
    chosen = sorted({rank for rank in wanted if rank in everyone})[:TIMELINE_RANKS]
    titles = _operation_titles(tables)
    programs = dict(
        zip(
            tables["ranks"]["rank"].to_pylist(), tables["ranks"]["program"].to_pylist(), strict=True
        )
    )
    rows = [
        row
        for row in simulated.filter(pc.field("rank").isin(chosen)).to_pylist()
        if (programs[row["rank"]], row["op"]) in titles
    ]
    first_ns = min((row["start_ns"] for row in rows), default=0)
    lanes: defaultdict[tuple[int, int], list[charts.Span]] = defaultdict(list)
    used: set[str] = set()
    for row in sorted(rows, key=lambda row: (row["start_ns"], row["op"])):
        group, label = titles[programs[row["rank"]], row["op"]]
        used.add(group)
        title = f"{label}: {units.duration(row['end_ns'] - row['start_ns'])}"
        lanes[row["rank"], row["stream"]].append(
            charts.Span(row["start_ns"] - first_ns, row["end_ns"] - first_ns, group, title)
        )
    end_ns = max((span.end_ns for spans in lanes.values() for span in spans), default=0)
    drawn = [
        charts.Lane(f"rank {rank}, stream {stream}", spans)
        for (rank, stream), spans in sorted(lanes.items())
    ]
    legend = [(key, word) for key, word in charts.GROUPS.items() if key in used]
    of_ranks = "" if len(everyone) == len(chosen) else f" ({len(chosen)} of {len(everyone)} ranks)"
    return (
        f"<section><h2>Timeline of one iteration{of_ranks}</h2>"
        '<p class="note">Hover over a block for its kernel and duration.</p>'
        f"{charts.timeline(drawn, end_ns)}{_legend(legend)}</section>"
    )


def _operation_titles(tables: dict[str, pa.Table]) -> dict[tuple[int, int], tuple[str, str]]:
    """(program, op) -> (colour group, label) of the device work in a program's first iteration."""
    signatures = {
        row["signature"]: (
            charts.group(row["family"]),
            shortened(kernel_label(row["family"], row["name"], dict(row["features"])), 80),
        )
        for row in tables["signatures"].to_pylist()
    }
    titles = {}
    events = tables["events"].filter(pc.field("iteration") == 0)
    for row in events.select(["program", "op", "kind", "signature"]).to_pylist():
        if row["signature"] is not None:
            titles[row["program"], row["op"]] = signatures[row["signature"]]
        elif row["kind"] == "join":
            titles[row["program"], row["op"]] = ("collective", "sends and receives")
    return titles


def _kernels(report: dict[str, Any], tables: dict[str, pa.Table]) -> str:
    spans = tables["ranks"]["span_iterations"].to_pylist()
    rows = kernels(tables["predicted_kernels"], tables["signatures"], max(spans, default=1))
    if not rows:
        return ""
    families: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        families[row["family"]][row["estimate_source"]] += row["share"]
    ordered = sorted(families.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    family_bars = [
        charts.Bar(
            family.replace("_", " "),
            [(s, by[s], f"{s}: {units.percent(by[s])} of device time") for s in _SOURCES],
            units.percent(sum(by.values())),
        )
        for family, by in ordered
    ]
    coverage = ", ".join(f"{units.percent(report['coverage'][s])} {s}" for s in _SOURCES)
    note = report["accuracy"]["note"]
    table_rows = [
        [
            units.percent(row["share"]),
            f"{row['launches']:,.0f}",
            units.duration(row["duration_ns"]),
            f"{units.duration(row['low_ns'])} to {units.duration(row['high_ns'])}",
            f"{row['roofline_ns'] / max(row['duration_ns'], 1):.0%}",
            f'<i class="{row["estimate_source"]}"></i>{row["estimate_source"]}'
            + ("&nbsp;*" if row["extrapolated"] else ""),
            escape(row["dtype"]),
            f'<span title="{escape(shortened(row["name"], 600))}">'
            f"{escape(shortened(row['label'], 110))}</span>",
        ]
        for row in rows[:LISTED_KERNELS]
    ]
    head = ["Share", "Launches", "Each", "90 % interval", "Of roofline", "Source", "Type", "Kernel"]
    return (
        "<section><h2>Kernels</h2>"
        f'<p class="note">Share of the predicted device time by kernel family: {coverage}. '
        "Measured: forests trained on this device's measurements. Transferred: the data holds a "
        "related layout or implementation. Law: roofline with stated constants.</p>"
        f"{charts.bars(family_bars)}{_legend([(s, s) for s in _SOURCES])}"
        f'<p class="note">{escape(note[0].upper() + note[1:])}.</p>'
        f"{_table(head, table_rows, 'nnnnnstk', raw=True)}"
        f'<p class="note">The {min(LISTED_KERNELS, len(rows))} most expensive of '
        f"{len(rows)}; launches are of one iteration of all ranks; * outside the measured "
        "range.</p></section>"
    )


def _memory(report: dict[str, Any], tables: dict[str, pa.Table]) -> str:
    rank = memory.fullest_rank(report)
    changes = tables["memory_timeline"].filter(pc.field("rank") == rank).sort_by("step")
    if changes.num_rows == 0:
        return ""
    plot = charts.memory(
        changes["allocated_bytes"].to_pylist(),
        changes["device_bytes"].to_pylist(),
        changes["iteration"].to_pylist(),
        report["capacity_bytes"],
    )
    return (
        f"<section><h2>Memory of rank {rank}</h2>"
        f"{_peak_memory(report, tables['ranks'])}{_memory_of_iteration(report, changes)}"
        "<h3>Over the whole run</h3>"
        '<p class="note">After each change of the allocator, in program order: tensors (area) '
        "and device memory in use, with the allocator's reserve and the CUDA context (line).</p>"
        f"{plot}</section>"
    )


def _peak_memory(report: dict[str, Any], ranks: pa.Table) -> str:
    """What memory holds at its peak: a bar of each rank, and the figures of the fullest."""
    peak = report["peak_memory"]
    if not peak or not peak["parts_bytes"]:
        return ""
    bars, used = [], set()
    rows = ranks.sort_by("rank").to_pylist()
    for row in rows[:BAR_RANKS]:
        of_rank = dict(row["peak_parts_bytes"])
        used |= set(of_rank)
        parts = [
            (f"m-{name}", of_rank[name], f"{word}: {units.size(of_rank[name])}")
            for name, word in memory.WORDS.items()
            if name in of_rank
        ]
        note = units.size(row["peak_device_bytes"])
        bars.append(charts.Bar(f"rank {row['rank']}", parts, note))
    total = sum(peak["parts_bytes"].values())
    table_rows = [
        [
            f'<i class="m-{name}"></i>{escape(memory.WORDS[name])}',
            units.size(size_bytes),
            units.percent(size_bytes / total),
            "guess" if name in peak["guessed_parts"] else "",
        ]
        for name, size_bytes in peak["parts_bytes"].items()
    ]
    guessed = units.size(peak["guessed_bytes"])
    note = (
        f"At the moment when rank {peak['rank']} uses most device memory, in iteration "
        f"{peak['iteration']}: {units.size(total)}"
        + (f", of which {guessed} are a guess." if peak["guessed_bytes"] else ".")
    )
    more = f'<p class="note">The first {BAR_RANKS} of {len(rows)} ranks.</p>'
    legend = [(f"m-{name}", word) for name, word in memory.WORDS.items() if name in used]
    return (
        f'<h3>At its peak</h3><p class="note">{escape(note)} Activations are what is alive when '
        "the backward pass begins; temporaries come and go within one pass.</p>"
        f"{charts.bars(bars, left=90)}{_legend(legend)}"
        f"{more if len(rows) > len(bars) else ''}"
        f"{_table(['Part', 'Size', 'Share', ''], table_rows, 'tnnt', raw=True)}"
    )


def _memory_of_iteration(report: dict[str, Any], changes: pa.Table) -> str:
    """The iteration in which memory is fullest, by part."""
    peak = report["peak_memory"]
    if not peak:
        return ""
    parts = memory.over_iteration(changes, peak["iteration"])
    if not parts:
        return ""
    layers = [charts.Layer(f"m-{name}", memory.WORDS[name], level) for name, level in parts.items()]
    return (
        f"<h3>Over iteration {peak['iteration']}</h3>"
        '<p class="note">What PyTorch\'s allocator holds after each of its changes, in program '
        "order. Hover over an area for its name and its highest level.</p>"
        f"{charts.layers(layers)}{_legend((layer.css_class, layer.name) for layer in layers)}"
    )


def _provenance(report: dict[str, Any]) -> str:
    entries = {
        "API calls recorded": f"{report['trace_events']:,}",
        "Iterations": iterations_used(report),
        **dict(sorted(report["versions"].items())),
    }
    if report["fits"]:
        tflop = units.significant(report["flops_per_iteration"] / 1e12)
        entries["Operations"] = f"{tflop} TFLOP per iteration, all ranks"
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in entries.items()
    )
    return f"<section><h2>What made this prediction</h2><dl>{rows}</dl></section>"


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<span><i class="{key}"></i>{escape(word)}</span>' for key, word in entries)
    return f'<div class="legend">{items}</div>'


def _table(head: list[str], rows: list[list[str]], kinds: str, *, raw: bool = False) -> str:
    """`kinds`, per column: n number, s source, t text, k kernel. `raw` cells are HTML already."""
    classes = {"n": ' class="n"', "s": ' class="source"', "t": "", "k": ' class="kernel"'}
    head_cells = "".join(
        f"<th{classes['n'] if kind == 'n' else ''}>{escape(name)}</th>"
        for name, kind in zip(head, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{classes[kind]}>{cell if raw else escape(cell)}</td>"
            for cell, kind in zip(row, kinds, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head_cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
