"""Measured data that ship with the product: the PyPI package aiconfigurator-core (Apache-2.0).

Its tables are Parquet files `systems/data/<system>/<family>/<framework>/<version>/<table>.parquet`
with `latency` in milliseconds, host launch excluded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy.catalog import Device
from understudy.errors import UnderstudyError
from warehouse import schemas

PACKAGE = "aiconfigurator-core"
LICENCE = "Apache-2.0"


def _package_version() -> str:
    """Version of the installed package; reading its data is what reports that it is missing."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "missing"


#: Changes with what the rows are read from, or how.
CODE_VERSION = f"1+{PACKAGE}-{_package_version()}"

#: The package's folder of each device.
SYSTEMS = {
    "a100-sxm-80gb": "a100_sxm",
    "b200-sxm-180gb": "b200_sxm",
    "b300-sxm-288gb": "b300_sxm",
    "gb200-nvl-186gb": "gb200",
    "gb300-nvl-288gb": "gb300",
    "h100-sxm-80gb": "h100_sxm",
    "h200-sxm-141gb": "h200_sxm",
    "l40s-pcie-48gb": "l40s",
    "rtxpro6000-pcie-96gb": "rtx_pro_6000_server",
}

#: Frameworks by preference: vLLM's GEMM is torch.nn.functional.linear, its attention the
#: FlashAttention kernels, which is closest to what a training script runs.
_FRAMEWORKS = ("vllm", "sglang", "trtllm")
#: A framework is passed over when another has so many times its rows.
_SPARSE = 2

_GEMM_DTYPES = {"bfloat16": "bfloat16", "fp8": "float8"}
_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
_COLLECTIVE_DTYPES = {"half": ("float16", 2), "int8": ("int8", 1)}


@dataclass(frozen=True)
class _File:
    path: Path
    framework: str
    version: str

    @property
    def source(self) -> str:
        """How the rows name their origin."""
        parts = self.path.parts
        return f"{PACKAGE} {_package_version()}: {'/'.join(parts[parts.index('data') + 1 :])}"


def packaged_profiles(device: Device) -> dict[str, pa.Table]:
    """`kernel_profiles` and `collective_profiles` of `device`; without rows for a device that is
    not in SYSTEMS, whose predictions are by law.

    GEMMs are y[m,n] = x[m,k] W[n,k]^T, the linear layer's forward (cuBLAS layout TN). Raises
    UnderstudyError when the package, or every table of the device, is missing.
    """
    if device.id not in SYSTEMS:
        names = ("kernel_profiles", "collective_profiles")
        return {name: schemas.table(name).schema.empty_table() for name in names}
    folder = _system_folder(device)
    kernels = [
        *_gemms(folder),
        *_causal_attention(folder),
        *_encoder_attention(folder),
    ]
    if not kernels:
        raise UnderstudyError(
            f"{folder} holds no measured GEMM or attention: the installed {PACKAGE} "
            f"{_package_version()} has another layout. Install the version in requirements.lock."
        )
    empty = schemas.table("collective_profiles").schema.empty_table()
    collectives = _collectives(folder, device)
    return {
        "kernel_profiles": pa.concat_tables(kernels).combine_chunks(),
        "collective_profiles": collectives if collectives is not None else empty,
    }


def measured_families(device: Device) -> tuple[str, ...]:
    """Which kinds of operations have measured rows, without reading them: of gemm, attention and
    collectives. Raises UnderstudyError when the package is missing."""
    if device.id not in SYSTEMS:
        return ()
    folder = _system_folder(device)
    places = {"gemm": "gemm", "attention": "attention", "collectives": "comm/nccl"}
    return tuple(name for name, place in places.items() if any((folder / place).rglob("*.parquet")))


def _system_folder(device: Device) -> Path:
    try:
        root = Path(str(resources.files("aiconfigurator_core"))) / "systems" / "data"
    except ModuleNotFoundError as error:
        raise UnderstudyError(
            f"The measured data are missing: install them with `pip install {PACKAGE}==0.12.0` "
            "(`make setup` does)."
        ) from error
    folder = root / SYSTEMS[device.id]
    if not folder.is_dir():
        raise UnderstudyError(
            f"{folder} does not exist: the installed {PACKAGE} {_package_version()} lacks "
            f"{device.id}. Install the version in requirements.lock."
        )
    return folder


def _version_key(version: str) -> tuple[tuple[int, int | str], ...]:
    """Orders 0.5.9 before 0.5.10, and 1.3.0rc20 before 1.3.0."""
    parts = re.findall(r"\d+|[a-z]+", version)
    return (*((1, int(p)) if p.isdigit() else (0, p) for p in parts), (1, -1))


def _latest(folder: Path, family: str, table: str) -> list[_File]:
    """The newest file of each framework, in the order of preference."""
    found = []
    for framework in _FRAMEWORKS:
        files = sorted(
            (folder / family / framework).glob(f"*/{table}.parquet"),
            key=lambda p: _version_key(p.parent.name),
        )
        if files:
            found.append(_File(files[-1], framework, files[-1].parent.name))
    return found


def _choose(files: Sequence[tuple[_File, pa.Table]]) -> tuple[_File, pa.Table] | None:
    """The first preferred framework, unless another has more than `_SPARSE` times its rows."""
    candidates = [(f, t) for f, t in files if t.num_rows]
    most = max((t.num_rows for _, t in candidates), default=0)
    for file, table in candidates:
        if table.num_rows * _SPARSE >= most:
            return file, table
    return None


def _read(file: _File, **equal: str) -> pa.Table:
    """Rows with a positive, finite latency whose columns `equal` the given values."""
    table = pq.read_table(file.path)
    latency = np.asarray(table["latency"], dtype=np.float64)
    mask = np.isfinite(latency) & (latency > 0)
    for column, value in equal.items():
        mask &= _values(table, column) == value
    return table.filter(pa.array(mask))


def _values(table: pa.Table, column: str) -> np.ndarray:
    return table[column].combine_chunks().to_numpy(zero_copy_only=False)


def _gemms(folder: Path) -> Iterable[pa.Table]:
    for theirs, dtype in _GEMM_DTYPES.items():
        files = [(f, _read(f, gemm_dtype=theirs)) for f in _latest(folder, "gemm", "gemm_perf")]
        chosen = _choose(files)
        if chosen is None:
            continue
        file, table = chosen
        ones = np.ones(table.num_rows)
        features = {
            "m": table["m"],
            "n": table["n"],
            "k": table["k"],
            "batch": ones,
            "transpose_a": ones,
            "transpose_b": 0 * ones,
        }
        yield _kernel_rows("gemm", features, dtype, "cublas", table, file)


def _causal_attention(folder: Path) -> Iterable[pa.Table]:
    table_name = "context_attention_perf"
    files = [
        (f, _read(f, attn_dtype="bfloat16", kv_cache_dtype="bfloat16"))
        for f in _latest(folder, "attention", table_name)
    ]
    chosen = _choose(files)
    if chosen is None:
        return
    file, table = chosen
    if "step" in table.column_names:
        table = table.filter(pa.array(_values(table, "step") == 0))
    zeros = np.zeros(table.num_rows)
    window = table["window_size"] if "window_size" in table.column_names else zeros
    features = {
        "batch": table["batch_size"],
        "seq_q": table["isl"],
        "seq_kv": table["isl"],
        "heads": table["num_heads"],
        "kv_heads": table["num_key_value_heads"],
        "head_dim": table["head_dim"] if "head_dim" in table.column_names else zeros + 128,
        "causal": zeros + 1,
        "window": window,
    }
    version = _attention_version(table)
    yield _kernel_rows("attention_forward", features, "bfloat16", version, table, file)


def _encoder_attention(folder: Path) -> Iterable[pa.Table]:
    table_name = "encoder_attention_perf"
    files = [
        (f, _read(f, attn_dtype="bfloat16"))
        for f in _latest(folder, "encoder_attention", table_name)
    ]
    chosen = _choose(files)
    if chosen is None:
        return
    file, table = chosen
    zeros = np.zeros(table.num_rows)
    features = {
        "batch": table["batch_size"],
        "seq_q": table["isl"],
        "seq_kv": table["isl"],
        "heads": table["num_heads"],
        "kv_heads": table["num_heads"],
        "head_dim": table["head_dim"],
        "causal": zeros,
        "window": zeros,
    }
    version = _attention_version(table)
    yield _kernel_rows("attention_forward", features, "bfloat16", version, table, file)


def _attention_version(table: pa.Table) -> str:
    """flash3 for kernels that say FA3, flash4 for FA4; else flash2, what older ones are."""
    counts = Counter(table["kernel_source"].to_pylist())
    most = max(counts, key=lambda name: (counts[name], name))
    for generation in ("3", "4"):
        if f"fa{generation}" in most:
            return f"flash{generation}"
    return "flash2" if re.search(r"flash_?att", most) else most


def _kernel_rows(
    family: str,
    features: dict[str, pa.ChunkedArray | np.ndarray],
    dtype: str,
    version: str,
    table: pa.Table,
    file: _File,
) -> pa.Table:
    rows = table.num_rows
    names = sorted(features)
    values = np.column_stack([np.asarray(features[n], dtype=np.float64) for n in names])
    keys = pa.DictionaryArray.from_arrays(
        pa.array(np.tile(np.arange(len(names), dtype=np.int32), rows)), pa.array(names)
    ).cast(pa.string())
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * len(names))
    columns = {
        "family": pa.repeat(family, rows),
        "features": pa.MapArray.from_arrays(offsets, keys, pa.array(values.ravel())),
        "dtype": pa.repeat(dtype, rows),
        "kernel_version": pa.repeat(version, rows),
        "duration_ns": _nanoseconds(table),
        "launch_included": pa.repeat(False, rows),
        "source": pa.repeat(file.source, rows),
        "licence": pa.repeat(LICENCE, rows),
        "drop": pa.repeat("", rows),
    }
    schema = schemas.table("kernel_profiles").schema
    return pa.table(columns).cast(schema)


def _nanoseconds(table: pa.Table) -> pa.Array:
    """`latency` is in milliseconds."""
    return pa.array(np.rint(np.asarray(table["latency"]) * 1e6).astype(np.int64))


def _collectives(folder: Path, device: Device) -> pa.Table | None:
    """Medians of the repeats in the file with most rows that holds all four operations.

    `message_size` counts elements.
    """
    best: tuple[_File, pa.Table] | None = None
    for path in sorted((folder / "comm" / "nccl").glob("*/nccl_perf.parquet")):
        file = _File(path, "nccl", path.parent.name)
        table = _read(file)
        kinds = set(_values(table, "op_name"))
        if kinds >= set(_COLLECTIVES) and (best is None or table.num_rows > best[1].num_rows):
            best = (file, table)
    if best is None:
        return None
    file, table = best
    mask = np.isin(_values(table, "op_name"), list(_COLLECTIVES))
    mask &= np.isin(_values(table, "nccl_dtype"), list(_COLLECTIVE_DTYPES))
    table = table.filter(pa.array(mask))
    keys = ["op_name", "nccl_dtype", "num_gpus", "message_size"]
    groups: dict[tuple, list[float]] = {}
    for row in table.select([*keys, "latency"]).to_pylist():
        groups.setdefault(tuple(row[k] for k in keys), []).append(row["latency"])
    rows = []
    for (kind, theirs, ranks, elements), latencies in sorted(groups.items()):
        dtype, width = _COLLECTIVE_DTYPES[theirs]
        rows.append(
            {
                "interconnect": device.interconnect,
                "kind": _COLLECTIVES[kind],
                "dtype": dtype,
                "ranks": ranks,
                "nodes": 1,
                "size_bytes": elements * width,
                "duration_ns": round(float(np.median(latencies)) * 1e6),
                "source": file.source,
                "licence": LICENCE,
                "drop": "",
            }
        )
    return pa.Table.from_pylist(rows, schema=schemas.table("collective_profiles").schema)
