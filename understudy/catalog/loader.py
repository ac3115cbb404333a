"""Reads the catalog's YAML files, checks them and finds entries by id or alias."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from understudy.catalog.types import (
    SOURCE_GROUPS,
    ComputeCapability,
    Device,
    Host,
    Interconnect,
)
from understudy.errors import UnderstudyError, UsageError

_ROOT = Path(__file__).resolve().parent

Entry = Device | Host | Interconnect
E = TypeVar("E", Device, Host, Interconnect)


def device(id_or_alias: str) -> Device:
    """The GPU called `id_or_alias` (an id, an alias or the name that PyTorch prints).

    Raises UsageError, naming the closest ids, when there is none.
    """
    return _find(id_or_alias, "device", {d.id: d for d in devices()}, "understudy devices")


@cache
def devices() -> tuple[Device, ...]:
    """All GPUs, ordered by id."""
    return tuple(_load(path, Device) for path in _files("devices"))


@cache
def compute_capabilities() -> Mapping[str, ComputeCapability]:
    """What follows from a compute capability ("9.0"), by capability."""
    rows = yaml.safe_load((_ROOT / "compute_capabilities.yaml").read_text(encoding="utf-8"))
    return MappingProxyType({name: ComputeCapability(**row) for name, row in rows.items()})


def host(name: str) -> Host:
    """The host called `name`; raises UsageError when there is none."""
    entries = {h.name: h for h in hosts()}
    return _find(name, "host", entries, "the files in understudy/catalog/hosts")


@cache
def hosts() -> tuple[Host, ...]:
    """All hosts, ordered by name."""
    return tuple(_load(path, Host) for path in _files("hosts"))


def interconnect(name: str) -> Interconnect:
    """The interconnect called `name` (a name or an alias); raises UsageError when there is none."""
    entries = {i.name: i for i in interconnects()}
    return _find(name, "interconnect", entries, "the files in understudy/catalog/interconnects")


@cache
def interconnects() -> tuple[Interconnect, ...]:
    """All interconnects, ordered by name."""
    return tuple(_load(path, Interconnect) for path in _files("interconnects"))


def _files(folder: str) -> list[Path]:
    return sorted((_ROOT / folder).glob("*.yaml"))


def _find(wanted: str, what: str, entries: Mapping[str, E], where: str) -> E:
    spelled = {_spell(key): entry for key, entry in entries.items()}
    for entry in entries.values():
        for alias in _other_names(entry):
            spelled.setdefault(_spell(alias), entry)
    found = spelled.get(_spell(wanted))
    if found is not None:
        return found
    close = difflib.get_close_matches(_spell(wanted), spelled, n=3, cutoff=0.4)
    names = list(dict.fromkeys(_id(spelled[c]) for c in close))
    hint = f" Did you mean {' or '.join(names)}?" if names else ""
    raise UsageError(f"Unknown {what} {wanted!r}.{hint} All of them: {where}.")


def _spell(name: str) -> str:
    """One spelling for what people write: without NVIDIA's name and its brands."""
    spelled = name.strip().lower().replace(" ", "-").replace("_", "-")
    return re.sub(r"^(nvidia-|tesla-|geforce-)+", "", spelled)


def _id(entry: Entry) -> str:
    return entry.id if isinstance(entry, Device) else entry.name


def _other_names(entry: Entry) -> tuple[str, ...]:
    if isinstance(entry, Device):
        return (*entry.aliases, entry.name)
    return entry.aliases if isinstance(entry, Interconnect) else ()


def _load(path: Path, kind: type[E]) -> E:
    """One entry; the file must hold exactly the fields of `kind`, and a source for its figures."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise UnderstudyError(f"{path}: not a mapping of fields to values.")
    wanted = [f.name for f in fields(kind) if f.name != "architecture"]
    unknown = sorted(set(content) - set(wanted))
    optional = {"aliases", "price_usd_per_hour"}
    missing = sorted(set(wanted) - set(content) - optional)
    if unknown or missing:
        raise UnderstudyError(
            f"{path}: unknown fields {unknown or 'none'}, missing fields {missing or 'none'}."
        )
    values: dict[str, Any] = {"aliases": (), "price_usd_per_hour": None} | content
    frozen = {name: _freeze(values[name]) for name in wanted}
    for name in ("peak_flops", "api_cost_ns"):
        for key, figure in dict(frozen.get(name, {})).items():
            if not isinstance(figure, int | float):
                # YAML reads 5e+15 as text: it wants 5.0e+15.
                raise UnderstudyError(f"{path}: {name}.{key} is {figure!r}, not a number.")
    if not frozen["sources"]:
        raise UnderstudyError(f"{path}: `sources` is empty; every figure needs one.")
    if kind is Device:
        _check_sources(path, frozen)
        frozen["architecture"] = _architecture(path, frozen["compute_capability"])
    entry = kind(**frozen)
    if _id(entry) != path.stem:
        raise UnderstudyError(f"{path}: the file must be called {_id(entry)}.yaml.")
    return entry


def _architecture(path: Path, capability: str) -> ComputeCapability:
    known = compute_capabilities()
    if capability not in known:
        raise UnderstudyError(
            f"{path}: compute_capability {capability!r} has no row in compute_capabilities.yaml "
            f"(there are {', '.join(known)})."
        )
    return known[capability]


def _check_sources(path: Path, values: Mapping[str, Any]) -> None:
    """Every figure has a source, its own or its group's."""
    covered = {*values["sources"], "id", "name", "aliases", "sources"}
    for group, names in SOURCE_GROUPS.items():
        if group in values["sources"]:
            covered |= set(names)
    bare = [name for name, value in values.items() if name not in covered and value is not None]
    if bare:
        raise UnderstudyError(f"{path}: `sources` names no source of {', '.join(bare)}.")


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType(value)
    return tuple(value) if isinstance(value, list) else value
