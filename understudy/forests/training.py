"""Trains the forests of one device and scores them on rows they have not seen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from understudy.catalog import Device, devices
from understudy.errors import UnderstudyError
from understudy.forests.collectives import CollectiveTable, table_of
from understudy.forests.features import (
    attention_features,
    attention_scale_ns,
    gemm_features,
    gemm_scale_ns,
    gemm_work,
)
from understudy.forests.storage import Forest, TrainedForests, save, trained
from understudy.forests.trees import Ensemble, flatten_boosting, flatten_forest
from understudy.home import forests_dir
from understudy.kernels import element_bytes, peak_flops
from understudy.profiling import CODE_VERSION as PROFILING_VERSION
from understudy.profiling import SYSTEMS, packaged_profiles
from warehouse import schemas


def _code_version() -> str:
    """Version of what a trained model depends on: a hash of its modules' text."""
    digest = hashlib.sha256()
    for name in ("features", "storage", "training", "trees", "collectives"):
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


#: Changes whenever features or models do: part of the cache's key.
CODE_VERSION = _code_version()

#: Families with forests -> feature matrix and scale from feature columns.
MODELLED = {
    "gemm": (gemm_features, gemm_scale_ns),
    "attention_forward": (attention_features, attention_scale_ns),
}
#: Features that make a shape: rows that share them are held out together.
_SHAPES = {"gemm": ("n", "k"), "attention_forward": ("heads", "kv_heads", "head_dim")}

_SEED = 0
_HELD_OUT = 0.12
_RANDOM_TREES = 20
_BOOSTED_TREES = 120
_WORKERS = 2
#: Row counts below this are not worth a forest.
_FEWEST_ROWS = 200
#: Held-out shapes below this are halved by row.
_FEWEST_SHAPES = 8
#: The forest that also learns from twins.
_SHARED = ("gemm", "bfloat16")
#: The spread of the trees times this is never taken as less.
_SMALLEST_Z = 1.0

Progress = Callable[[str], None]


@dataclass(frozen=True)
class _Rows:
    """Measured rows of one family and element type; `own` is false for a twin's."""

    family: str
    dtype: str
    features: np.ndarray
    target: np.ndarray
    shapes: np.ndarray
    own: np.ndarray
    ranges: Mapping[str, tuple[float, float]]
    kernel_versions: tuple[str, ...]


def train(
    device: Device, profiles: Mapping[str, pa.Table], progress: Progress | None = None
) -> TrainedForests:
    """Trains on `kernel_profiles` and `collective_profiles` of `device` and stores the models.

    The result is a function of the profiles and CODE_VERSION alone; when those have been trained
    on already, the stored models are returned. The models of a device that is not in SYSTEMS are
    empty, and all of it is predicted by law; of one that is, no rows are an UnderstudyError.
    """
    folder = forests_dir(device.id)
    inputs = _inputs_hash(device, profiles)
    done = trained(folder, inputs)
    if done is not None:
        return done
    report = progress or (lambda _: None)
    groups = _rows(device, profiles["kernel_profiles"])
    if not groups and device.id in SYSTEMS:
        raise UnderstudyError(
            f"{device.id}: kernel_profiles has no GEMM or attention rows to train on."
        )
    with ThreadPoolExecutor(_WORKERS) as pool:
        futures = []
        for rows in groups:
            report(f"training {rows.family} {rows.dtype} on {len(rows.target)} rows")
            futures.append((pool.submit(_evaluate, rows), pool.submit(_fit, rows, None)))
        fitted = [(score.result(), final.result()) for score, final in futures]
    forests, errors = {}, []
    for rows, ((z90, scores), ensemble) in zip(groups, fitted, strict=True):
        forests[rows.family, rows.dtype] = Forest(
            rows.family,
            rows.dtype,
            Ensemble(ensemble.random_trees, ensemble.boosted_trees, ensemble.baseline, z90),
            rows.ranges,
            rows.kernel_versions,
        )
        errors += scores
    collectives, scores = _collectives(profiles["collective_profiles"])
    table = pa.Table.from_pylist([*errors, *scores], schema=schemas.table("forest_errors").schema)
    return save(folder, device.id, forests, collectives, table, inputs)


def _inputs_hash(device: Device, profiles: Mapping[str, pa.Table]) -> str:
    """SHA-256 of the code version, the device's figures, its rows and its twins' version."""
    others = [(twin.id, PROFILING_VERSION) for twin in twins(device)]
    digest = hashlib.sha256(f"{CODE_VERSION} {device!r} {others}".encode())
    for name in ("kernel_profiles", "collective_profiles"):
        table = profiles[name].replace_schema_metadata(None).combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        digest.update(sink.getvalue())
    return digest.hexdigest()


def feature_columns(
    features: pa.Array, names: tuple[str, ...] | None = None
) -> dict[str, np.ndarray]:
    """A column per feature of a map array whose rows all have the same keys in one order."""
    rows = len(features)
    keys = features.keys.to_pylist() if rows else []
    width = len(keys) // rows if rows else 0
    first = keys[:width]
    if keys != first * rows:
        raise UnderstudyError("rows of one family have different features")
    values = features.items.to_numpy(zero_copy_only=False).reshape(rows, width)
    return {name: values[:, i] for i, name in enumerate(first) if not names or name in names}


def twins(device: Device) -> list[Device]:
    """Other devices with measured data whose multiprocessors are the same in number, kind, clock
    and peak: only their memory differs."""

    def processors(d: Device) -> tuple:
        return d.compute_capability, d.multiprocessors, d.clock_hz, dict(d.peak_flops)

    return [
        d
        for d in devices()
        if d.id != device.id and d.id in SYSTEMS and processors(d) == processors(device)
    ]


def _rows(device: Device, profiles: pa.Table) -> list[_Rows]:
    """Rows of every modelled family and element type with enough of them, in a fixed order."""
    found = []
    for name in MODELLED:
        family = profiles["family"].to_numpy() == name
        for dtype in sorted(set(profiles["dtype"].to_numpy()[family])):
            chosen = _selected(profiles, name, dtype)
            if chosen.num_rows >= _FEWEST_ROWS:
                found.append(_rows_of(device, name, dtype, chosen))
    return found


def _selected(profiles: pa.Table, family: str, dtype: str) -> pa.Table:
    mask = (profiles["family"].to_numpy() == family) & (profiles["dtype"].to_numpy() == dtype)
    return profiles.filter(pa.array(mask))


def _rows_of(device: Device, family: str, dtype: str, chosen: pa.Table) -> _Rows:
    """Measured rows and, for GEMMs, the compute-bound ones of the device's twins.

    Nothing but the measuring machine tells those apart from the device's own: between H100 and
    H200 single large GEMMs differ by up to 11 % either way, with a median of 0.
    """
    make, scale = MODELLED[family]
    width = element_bytes(dtype)
    f = feature_columns(chosen["features"].combine_chunks())
    duration = chosen["duration_ns"].to_numpy().astype(np.float64)
    ranges = {n: (float(v.min()), float(v.max())) for n, v in f.items()}
    own = len(duration)
    if (family, dtype) == _SHARED:
        for twin in twins(device):
            rows = _selected(packaged_profiles(twin)["kernel_profiles"], family, dtype)
            theirs = feature_columns(rows["features"].combine_chunks())
            bound = _compute_bound(theirs, device, dtype) & _compute_bound(theirs, twin, dtype)
            f = {n: np.concatenate([f[n], theirs[n][bound]]) for n in f}
            duration = np.concatenate([duration, rows["duration_ns"].to_numpy()[bound]])
    shape = np.column_stack([f[s] for s in _SHAPES[family]])
    return _Rows(
        family,
        dtype,
        make(f, device, dtype, width),
        np.log(duration / scale(f, device, dtype, width)),
        np.unique(shape, axis=0, return_inverse=True)[1].ravel(),
        np.arange(len(duration)) < own,
        ranges,
        tuple(sorted(set(chosen["kernel_version"].to_pylist()))),
    )


def _compute_bound(f: Mapping[str, np.ndarray], device: Device, dtype: str) -> np.ndarray:
    """GEMMs whose compute time at the peak is well above their memory time."""
    flops, size = gemm_work(f, element_bytes(dtype))
    memory = size / device.memory_bandwidth_bytes_per_s
    return flops / peak_flops(device, dtype) > 1.5 * memory


def _fit(rows: _Rows, chosen: np.ndarray | None) -> Ensemble:
    """Fits both ensembles. One thread each: sums over several depend on their number."""
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    x, y = (
        (rows.features, rows.target)
        if chosen is None
        else (rows.features[chosen], rows.target[chosen])
    )
    with threadpool_limits(1):
        random = ExtraTreesRegressor(
            _RANDOM_TREES, min_samples_leaf=3, max_features=0.5, random_state=_SEED, n_jobs=1
        ).fit(x, y)
        boosted = HistGradientBoostingRegressor(
            max_iter=_BOOSTED_TREES,
            max_leaf_nodes=63,
            learning_rate=0.12,
            early_stopping=False,  # pyright: ignore[reportArgumentType] (a bool is documented)
            random_state=_SEED,
        ).fit(x, y)
    trees, baseline = flatten_boosting(boosted)
    return Ensemble(flatten_forest(random), trees, baseline, 1.0)


def _evaluate(rows: _Rows) -> tuple[float, list[dict]]:
    """One fit without held-out shapes and held-out random rows: z90 and the error of each split.

    z90 is fitted on one half of what is held out (of the shapes, by shape), and the coverage is
    that of the other half.
    """
    rng = np.random.default_rng(_SEED)
    shape_share = rng.random(int(rows.shapes.max()) + 1)
    held_shapes = shape_share[rows.shapes] < _HELD_OUT
    held_rows = ~held_shapes & (rng.random(len(rows.target)) < _HELD_OUT)
    ensemble = _fit(rows, ~(held_shapes | held_rows))
    held_shapes, held_rows = held_shapes & rows.own, held_rows & rows.own
    calibration = rng.random(len(rows.target)) < 0.5
    if len(np.unique(rows.shapes[held_shapes])) >= _FEWEST_SHAPES:
        calibration = np.where(held_shapes, shape_share[rows.shapes] < _HELD_OUT / 2, calibration)
    mean, spread = ensemble.predict(rows.features)
    deviation = np.abs(mean - rows.target) / np.maximum(spread, 1e-6)
    splits = (("random", held_rows), ("shapes", held_shapes))
    z90 = max(
        _SMALLEST_Z, *(float(np.quantile(deviation[h & calibration], 0.9)) for _, h in splits)
    )
    scores = []
    for split, held in splits:
        covered = deviation[held & ~calibration] <= z90
        ratio = np.exp(mean[held] - rows.target[held])
        scores.append(_score(rows.family, rows.dtype, split, ratio, float(covered.mean())))
    return z90, scores


def _score(family: str, dtype: str, split: str, ratio: np.ndarray, coverage: float) -> dict:
    error = np.abs(ratio - 1)
    return {
        "family": family,
        "dtype": dtype,
        "split": split,
        "rows": len(ratio),
        "mape": float(error.mean()),
        "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)),
        "bias": float(np.median(ratio) - 1),
        "coverage90": coverage,
    }


def _collectives(profiles: pa.Table) -> tuple[CollectiveTable, list[dict]]:
    """The table of measured points and its error when every second size is held out."""
    whole = table_of(profiles, 0.0)
    ratios: list[float] = []
    for key, (sizes, times) in whole.points.items():
        kept = CollectiveTable({key: (sizes[::2], times[::2])}, 0.0)
        for size, time in zip(sizes[1::2], times[1::2], strict=True):
            predicted, extrapolated = kept.interpolate(*key, float(size))
            if not extrapolated:
                ratios.append(predicted / time)
    if not ratios:
        return whole, []
    ratio = np.array(ratios)
    deviation = np.abs(np.log(ratio))
    spread = float(np.quantile(deviation[::2], 0.9))
    coverage = float((deviation[1::2] <= spread).mean())
    score = _score("collective", "float16+int8", "sizes", ratio, coverage)
    return CollectiveTable(whole.points, spread), [score]
