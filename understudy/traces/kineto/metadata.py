"""What a trace says about itself: rank, process groups, devices and the base of its clock."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.traces.kineto.findings import Findings
from understudy.traces.kineto.records import Device, TraceHeader
from understudy.traces.kineto.repair import repaired

_tolerant = json.JSONDecoder(strict=False)
#: The keys that are looked for one by one where the text as a whole is not JSON.
_KEYS = ("distributedInfo", "baseTimeNanoseconds", "deviceProperties", "traceName")

#: Ranks in file names, most telling first: rank-3, rank3, worker3, r3, and a number alone before
#: the ending (trace.3.json).
_RANK_IN_NAME = (
    re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE),
    re.compile(r"worker[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE),
    re.compile(r"(?:^|[-_.])r(\d{1,6})(?=[-_.])", re.IGNORECASE),
    re.compile(r"(?:^|[-_.])(\d{1,5})(?:\.pt)?(?:\.trace)?\.json", re.IGNORECASE),
)


@dataclass(frozen=True)
class Documents:
    """The JSON documents of a file: one, unless files were concatenated."""

    values: tuple[dict[str, Any], ...]
    #: Index into `values` by traceEvents array.
    of_array: tuple[int, ...]


def documents(
    outside: Sequence[bytes], arrays: int, findings: Findings, *, cut_off: bool
) -> Documents:
    """Decodes the text around the arrays, which the scanner left in pieces.

    `cut_off`: the file ends within the last array.
    """
    text = ""
    array_positions = []
    for piece in outside:
        if text.endswith("[") and not piece.startswith(b"]"):
            text += "]"  # the file ends within the array
        text += repaired(piece).decode("utf-8")
        if len(array_positions) < arrays:
            array_positions.append(len(text))
    values: list[dict[str, Any]] = []
    ends: list[int] = []
    text = text.removeprefix("\ufeff")
    position = 0
    while (position := _after_space(text, position)) < len(text):
        try:
            value, position = _tolerant.raw_decode(text, position)
        except (ValueError, RecursionError):
            value = _head(text[position : max(array_positions, default=0)]) if cut_off else None
            if value is None:
                findings.note("the text around traceEvents is damaged: read key by key")
                value = {}
            value, position = {**value, **_known_keys(text, position)}, len(text)
        values.append(value if isinstance(value, dict) else {})
        ends.append(position)
    if len(values) > 1:
        findings.note(f"the file holds {len(values)} JSON documents")
    of_array = [
        next((i for i, end in enumerate(ends) if position < end), max(len(ends) - 1, 0))
        for position in array_positions
    ]
    return Documents(tuple(values) or ({},), tuple(of_array))


def _head(text: str) -> dict[str, Any] | None:
    """A document up to its traceEvents, where that is sound."""
    try:
        value = _tolerant.raw_decode(text + "]}")[0]
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _after_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position


def _known_keys(text: str, start: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key in _KEYS:
        for match in re.finditer(rf'"{key}"\s*:\s*', text[start:]):
            try:
                values[key] = _tolerant.raw_decode(text, start + match.end())[0]
            except (ValueError, RecursionError):
                continue
    return values


def base_time_ns(document: dict[str, Any]) -> int:
    """`baseTimeNanoseconds`: what the time stamps count from; 0 where they count from 1970."""
    base = document.get("baseTimeNanoseconds")
    if isinstance(base, str) and base.strip().isdigit():
        base = int(base)
    if isinstance(base, float) and base.is_integer():
        base = int(base)
    return base if isinstance(base, int) and 0 <= base < 2**62 else 0


def header(document: dict[str, Any], group_ranks: dict[str, str]) -> TraceHeader:
    """The header, as far as the document gives it.

    `group_ranks` holds what the events say of process groups, by name; it counts where the document
    does not list a group.
    """
    info = document.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = _count(info.get("rank"))
    backend = info.get("backend")
    name = document.get("traceName")
    groups = {name: ranks for name, text in group_ranks.items() if (ranks := _ranks(text))}
    configured = info.get("pg_config")
    for group in configured if isinstance(configured, list) else ():
        if isinstance(group, dict) and (ranks := _ranks(group.get("ranks"))):
            groups[_text(str(group.get("pg_name")))] = ranks
    return TraceHeader(
        rank=rank,
        rank_source="nowhere" if rank is None else "distributedInfo",
        world_size=_count(info.get("world_size")),
        backend=_text(backend) if isinstance(backend, str) else None,
        devices=_devices(document.get("deviceProperties")),
        process_groups=groups,
        trace_name=_text(name) if isinstance(name, str) else None,
    )


def rank_in_name(path: Path) -> int | None:
    """The rank that a file name states."""
    for pattern in _RANK_IN_NAME:
        if match := pattern.search(path.name):
            return int(match[1])
    return None


def _devices(value: object) -> tuple[Device, ...]:
    devices = []
    for entry in value if isinstance(value, list) else ():
        if not isinstance(entry, dict) or (index := _count(entry.get("id"))) is None:
            continue
        major, minor = _count(entry.get("computeMajor")), _count(entry.get("computeMinor"))
        devices.append(
            Device(
                index=index,
                name=_text(str(entry.get("name", ""))),
                memory_bytes=_count(entry.get("totalGlobalMem")),
                compute_capability=None if major is None or minor is None else (major, minor),
                multiprocessors=_count(entry.get("numSms")),
            )
        )
    return tuple(devices)


def _count(value: object) -> int | None:
    """A number that counts something, also where it was written as a text."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,18}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**63 else None


def _ranks(value: object) -> tuple[int, ...] | None:
    """Ranks given as a list or as its text; None where the list was cut ('[0, 1, ...]')."""
    if isinstance(value, str):
        if not re.fullmatch(r"\s*\[[\d\s,]*\]\s*", value):
            return None
        value = [int(rank) for rank in re.findall(r"\d{1,9}", value)]
    if not isinstance(value, list) or not value:
        return None
    ranks = [_count(rank) for rank in value]
    return None if None in ranks else tuple(rank for rank in ranks if rank is not None)


def _text(text: str) -> str:
    """Text that can be written: half of a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
