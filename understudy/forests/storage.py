"""Trained forests as files: one .npz of plain arrays and one JSON document, never pickle.

The JSON holds everything that is not an array, and the SHA-256 of the .npz. `current.json` is the
last one written for a device.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.errors import UnderstudyError
from understudy.forests.collectives import CollectiveTable
from understudy.forests.trees import ARRAYS, Ensemble, FlatTrees
from warehouse import schemas

FORMAT = 1


@dataclass(frozen=True)
class Forest:
    """One ensemble with what was measured: `ranges` by feature name, and implementations."""

    family: str
    dtype: str
    ensemble: Ensemble
    ranges: Mapping[str, tuple[float, float]]
    kernel_versions: tuple[str, ...]


@dataclass(frozen=True)
class Models:
    """Everything that predicts durations on one device."""

    device: str
    forests: Mapping[tuple[str, str], Forest]
    collectives: CollectiveTable
    content_hash: str


@dataclass(frozen=True)
class TrainedForests:
    """What training leaves: the files' folder, the tables for the warehouse, the content hash."""

    path: Path
    tables: Mapping[str, pa.Table]
    content_hash: str


def save(
    folder: Path,
    device: str,
    forests: Mapping[tuple[str, str], Forest],
    collectives: CollectiveTable,
    errors: pa.Table,
    inputs_hash: str,
) -> TrainedForests:
    """Writes the models of a device; the pointer is renamed last, so readers see old or new."""
    arrays: dict[str, np.ndarray] = {}
    described = []
    for i, key in enumerate(sorted(forests)):
        forest = forests[key]
        for part in ("random_trees", "boosted_trees"):
            trees: FlatTrees = getattr(forest.ensemble, part)
            for name in ARRAYS:
                arrays[f"forest{i}.{part}.{name}"] = getattr(trees, name)
        described.append(
            {
                "family": forest.family,
                "dtype": forest.dtype,
                "baseline": forest.ensemble.baseline,
                "z90": forest.ensemble.z90,
                "ranges": {name: list(span) for name, span in sorted(forest.ranges.items())},
                "kernel_versions": list(forest.kernel_versions),
            }
        )
    tables = []
    for i, (kind, ranks) in enumerate(sorted(collectives.points)):
        sizes, times = collectives.points[kind, ranks]
        arrays[f"collective{i}.sizes"], arrays[f"collective{i}.times"] = sizes, times
        tables.append({"kind": kind, "ranks": ranks})
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{inputs_hash[:16]}.npz"
    digest = _write(folder / name, lambda file: np.savez(file, allow_pickle=False, **arrays))
    document = {
        "format": FORMAT,
        "device": device,
        "arrays": name,
        "arrays_sha256": digest,
        "inputs_hash": inputs_hash,
        "forests": described,
        "collectives": {"spread": collectives.spread, "points": tables},
        "forest_errors": errors.to_pylist(),
    }
    text = json.dumps(document, indent=1, sort_keys=True).encode()
    kept = {name, _current_arrays(folder)}
    _write(folder / "current.json", lambda file: file.write(text))
    for old in folder.glob("*.npz"):
        if old.name not in kept:  # a reader may still open what the last pointer named
            old.unlink(missing_ok=True)
    return TrainedForests(folder, {"forest_errors": errors}, _content_hash(document))


def _current_arrays(folder: Path) -> str:
    """Name of the arrays that the pointer names now; empty when there is none."""
    try:
        return _arrays_path(folder, _read_document(folder)).name
    except UnderstudyError:
        return ""


def _write(path: Path, write: Any) -> str:
    """Writes through a temporary name; returns the SHA-256 of what was written."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        digest = hashlib.sha256(Path(temporary).read_bytes()).hexdigest()
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return digest


def _content_hash(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def trained(folder: Path, inputs_hash: str) -> TrainedForests | None:
    """What an earlier training on the same inputs left, or None."""
    try:
        document = _read_document(folder)
    except UnderstudyError:
        return None
    if document.get("inputs_hash") != inputs_hash or not _arrays_path(folder, document).is_file():
        return None
    schema = schemas.table("forest_errors").schema
    errors = pa.Table.from_pylist(document["forest_errors"], schema=schema)
    return TrainedForests(folder, {"forest_errors": errors}, _content_hash(document))


def load(folder: Path) -> Models:
    """The models of a device; raises UnderstudyError when there are none or they are damaged."""
    document = _read_document(folder)
    path = _arrays_path(folder, document)
    try:
        return _load(str(path), document["arrays_sha256"], json.dumps(document, sort_keys=True))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UnderstudyError(
            f"{path}: the trained forests are damaged ({error}). Delete {folder} and train again."
        ) from error


def _read_document(folder: Path) -> dict[str, Any]:
    path = folder / "current.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnderstudyError(
            f"{folder}: there are no trained forests yet. Train them first (`understudy predict` "
            "does, or materialize the asset `forest_errors`)."
        ) from error
    except ValueError as error:
        raise UnderstudyError(
            f"{path}: not JSON ({error}). Delete {folder} and train again."
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UnderstudyError(f"{path}: not format {FORMAT}. Delete {folder} and train again.")
    return document


def _arrays_path(folder: Path, document: Mapping[str, Any]) -> Path:
    # Only the name counts: a document must not lead out of its folder.
    return folder / Path(str(document.get("arrays", ""))).name


@lru_cache(maxsize=8)
def _load(path: str, digest: str, document_text: str) -> Models:
    content = Path(path).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError("its SHA-256 is not the one in current.json")
    document = json.loads(document_text)
    forests = {}
    with np.load(path, allow_pickle=False) as arrays:
        for i, entry in enumerate(document["forests"]):
            random, boosted = (
                FlatTrees(
                    **{n: arrays[f"forest{i}.{part}.{n}"].astype(t) for n, t in ARRAYS.items()}
                )
                for part in ("random_trees", "boosted_trees")
            )
            forests[entry["family"], entry["dtype"]] = Forest(
                entry["family"],
                entry["dtype"],
                Ensemble(random, boosted, float(entry["baseline"]), float(entry["z90"])),
                {name: (float(a), float(b)) for name, (a, b) in entry["ranges"].items()},
                tuple(entry["kernel_versions"]),
            )
        points = {
            (entry["kind"], int(entry["ranks"])): (
                arrays[f"collective{i}.sizes"].astype(np.float64),
                arrays[f"collective{i}.times"].astype(np.float64),
            )
            for i, entry in enumerate(document["collectives"]["points"])
        }
    table = CollectiveTable(points, float(document["collectives"]["spread"]))
    return Models(document["device"], forests, table, _content_hash(document))
