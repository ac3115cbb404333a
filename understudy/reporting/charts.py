"""The plots of the HTML report, as inline SVG: no scripts, no fonts, nothing fetched.

Colours are CSS classes of `style.css`, so that the page's light and dark schemes apply.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from understudy.reporting import units

WIDTH = 1080
#: Class of the colour and the word for each group of kernel families.
GROUPS = {
    "gemm": "matrix products",
    "attention": "attention",
    "convolution": "convolutions",
    "normalization": "normalization, softmax",
    "elementwise": "elementwise, reductions",
    "embedding": "embedding, loss",
    "optimizer": "optimizer",
    "copy": "copies",
    "collective": "collectives",
    "other": "other kernels",
}

_GROUP_OF_FAMILY = {
    "gemm": "gemm",
    "attention_forward": "attention",
    "attention_backward": "attention",
    "convolution_forward": "convolution",
    "convolution_dgrad": "convolution",
    "convolution_wgrad": "convolution",
    "normalization": "normalization",
    "softmax": "normalization",
    "elementwise": "elementwise",
    "reduction": "elementwise",
    "embedding": "embedding",
    "cross_entropy": "embedding",
    "optimizer": "optimizer",
    "copy": "copy",
    "memset": "copy",
    "collective": "collective",
}


def group(family: str) -> str:
    """The colour group of a kernel family."""
    return _GROUP_OF_FAMILY.get(family, "other")


@dataclass(frozen=True)
class Span:
    """One stretch of device work: its colour group, and a sentence shown on hovering."""

    start_ns: int
    end_ns: int
    group: str
    title: str


@dataclass(frozen=True)
class Lane:
    """One row of the timeline; spans in order of start."""

    name: str
    spans: Sequence[Span]


def timeline(lanes: Sequence[Lane], end_ns: int) -> str:
    """Device work over time, one row per lane; work under a pixel is drawn together."""
    left, row, gap = 128, 22, 6
    scale = (WIDTH - left - 8) / max(end_ns, 1)
    height = len(lanes) * (row + gap) + 28
    parts = [_open(height, "Timeline of one iteration")]
    for tick in ticks(end_ns / 1e6):
        x = left + tick * 1e6 * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 24}"/>')
        anchor = "middle" if x < WIDTH - 40 else "end"
        parts.append(_text(x, height - 8, f"{tick:g} ms", "axis", anchor))
    for index, lane in enumerate(lanes):
        y = index * (row + gap)
        parts.append(_text(left - 8, y + row * 0.7, lane.name, "axis", "end"))
        parts.append(
            f'<rect class="lane" x="{left}" y="{y}" width="{WIDTH - left - 8}" height="{row}"/>'
        )
        for span in _drawn_together(lane.spans, 1 / scale):
            x = left + span.start_ns * scale
            width = max((span.end_ns - span.start_ns) * scale, 0.4)
            parts.append(
                f'<rect class="{span.group}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
                f'height="{row}"><title>{escape(span.title)}</title></rect>'
            )
    return "".join([*parts, "</svg>"])


def _drawn_together(spans: Iterable[Span], pixel_ns: float) -> list[Span]:
    """Joins neighbours into blocks of at most two pixels, coloured by what takes most of them."""
    blocks: list[list[Span]] = []
    for span in spans:
        block = blocks[-1] if blocks else None
        if (
            block is not None
            and span.end_ns - block[0].start_ns < 2 * pixel_ns
            and span.start_ns - block[-1].end_ns < pixel_ns / 2
        ):
            block.append(span)
        else:
            blocks.append([span])
    return [_joined(block) for block in blocks]


def _joined(block: list[Span]) -> Span:
    if len(block) == 1:
        return block[0]
    busy_ns: dict[str, int] = {}
    for span in block:
        busy_ns[span.group] = busy_ns.get(span.group, 0) + span.end_ns - span.start_ns
    start_ns, end_ns = block[0].start_ns, max(span.end_ns for span in block)
    title = f"{len(block)} short operations, {units.duration(end_ns - start_ns)}"
    return Span(start_ns, end_ns, max(busy_ns, key=lambda group: busy_ns[group]), title)


@dataclass(frozen=True)
class Bar:
    """One horizontal bar of stacked parts: (class of the colour, value, sentence on hovering)."""

    name: str
    parts: Sequence[tuple[str, float, str]]
    note: str


def bars(rows: Sequence[Bar], left: int = 190) -> str:
    """Horizontal stacked bars on one scale, each with its note at the end."""
    row, gap, right = 20, 8, 150
    longest = max((sum(value for _, value, _ in bar.parts) for bar in rows), default=1) or 1
    scale = (WIDTH - left - right) / longest
    height = len(rows) * (row + gap)
    parts = [_open(height, "Bars")]
    for index, bar in enumerate(rows):
        y, x = index * (row + gap), float(left)
        parts.append(_text(left - 8, y + row * 0.72, bar.name, "axis", "end"))
        for css_class, value, title in bar.parts:
            width = value * scale
            if width > 0:
                parts.append(
                    f'<rect class="{css_class}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
                    f'height="{row}"><title>{escape(title)}</title></rect>'
                )
            x += width
        parts.append(_text(x + 8, y + row * 0.72, bar.note, "axis", "start"))
    return "".join([*parts, "</svg>"])


def memory(
    allocated: Sequence[int], in_use: Sequence[int], iterations: Sequence[int], capacity: int
) -> str:
    """Allocated tensors (area) and device memory in use (line) after each allocator change.

    Long timelines are drawn as the peaks of equal stretches, so that no peak is lost.
    """
    left, height, bottom = 74, 240, 24
    top = max(capacity, max(in_use, default=0)) * 1.08
    count = len(allocated)
    buckets = min(count, WIDTH - left)

    def x(position: float) -> float:
        return left + (WIDTH - left - 4) * position / max(count - 1, 1)

    def y(size_bytes: float) -> float:
        return (height - bottom) * (1 - size_bytes / top) + 2

    bounds = [count * b // buckets for b in range(buckets + 1)]
    stretches = list(itertools.pairwise(bounds))
    parts = [_open(height, "Memory over the trace"), *_memory_grid(left, top, y)]
    previous, free = None, 0.0
    for position, iteration in enumerate(iterations):
        if iteration != previous and iteration >= 0:
            at = x(position)
            parts.append(
                f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height - bottom}"/>'
            )
            if at >= free:
                parts.append(_text(at + 4, height - 8, f"iteration {iteration}", "axis", "start"))
                free = at + 80
        previous = iteration
    area = " ".join(f"{x(a):.1f},{y(max(allocated[a:b])):.1f}" for a, b in stretches)
    line = " ".join(f"{x(a):.1f},{y(max(in_use[a:b])):.1f}" for a, b in stretches)
    base = y(0)
    parts.append(
        f'<polygon class="allocated" points="{left},{base:.1f} {area} {WIDTH},{base:.1f}"/>'
    )
    parts.append(f'<polyline class="in-use" points="{line}"/>')
    limit = y(capacity)
    parts.append(
        f'<line class="capacity" x1="{left}" x2="{WIDTH}" y1="{limit:.1f}" y2="{limit:.1f}"/>'
    )
    parts.append(_text(WIDTH - 4, limit - 5, f"capacity {units.size(capacity)}", "limit", "end"))
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True)
class Layer:
    """One part of a whole over time: class of its colour, name, bytes after each change."""

    css_class: str
    name: str
    levels_bytes: Sequence[int]


def layers(parts: Sequence[Layer]) -> str:
    """Parts of memory on top of each other, after each change; all lists are equally long.

    Long ones are drawn as the moments at which the whole is largest in equal stretches.
    """
    left, height, bottom = 74, 260, 8
    totals = [sum(levels) for levels in zip(*(p.levels_bytes for p in parts), strict=True)]
    top = max(totals, default=0) * 1.04 or 1
    count = len(totals)
    buckets = min(count, (WIDTH - left) // 2)
    bounds = [count * b // buckets for b in range(buckets + 1)] if buckets else []
    moments = [max(range(a, b), key=lambda i: totals[i]) for a, b in itertools.pairwise(bounds)]

    def y(size_bytes: float) -> float:
        return (height - bottom) * (1 - size_bytes / top) + 2

    drawn = [_open(height, "Memory over one iteration"), *_memory_grid(left, top, y)]
    x = [left + (WIDTH - left - 4) * i / max(len(moments) - 1, 1) for i in range(len(moments))]
    below = [0] * len(moments)
    for part in parts:
        above = [base + part.levels_bytes[m] for base, m in zip(below, moments, strict=True)]
        upper = [f"{at:.1f},{y(size):.1f}" for at, size in zip(x, above, strict=True)]
        lower = [f"{at:.1f},{y(size):.1f}" for at, size in zip(x, below, strict=True)]
        title = f"{part.name}: up to {units.size(max(part.levels_bytes, default=0))}"
        drawn.append(
            f'<polygon class="{part.css_class}" points="{" ".join([*upper, *reversed(lower)])}">'
            f"<title>{escape(title)}</title></polygon>"
        )
        below = above
    return "".join([*drawn, "</svg>"])


def _memory_grid(left: int, top: float, y: Callable[[float], float]) -> list[str]:
    """Lines and their sizes; `top` (bytes) is the end of the axis."""
    unit, name = (2**30, "GiB") if top >= 2**30 else (2**20, "MiB")
    parts = []
    for tick in ticks(top / unit, 5):
        level = y(tick * unit)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{WIDTH}" y1="{level:.1f}" y2="{level:.1f}"/>'
        )
        parts.append(_text(left - 8, level + 4, f"{tick:g} {name}", "axis", "end"))
    return parts


def ticks(end: float, count: int = 8) -> list[float]:
    """Round values from 0 to `end`, about `count` of them."""
    if end <= 0:
        return [0.0]
    raw = end / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    return [step * i for i in range(int(end / step + 1e-9) + 1)]


def _open(height: float, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}" '
        'xmlns="http://www.w3.org/2000/svg">'
    )


def _text(x: float, y: float, content: str, css_class: str, anchor: str) -> str:
    return (
        f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(content)}</text>"
    )
