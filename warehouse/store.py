"""The Parquet store of record: one folder per stage and partition, replaced as a whole.

A partition's tables are written and synced in a staging folder outside everything that the views
read (`warehouse/.staging`), then take the partition's place in one step: a plain rename when it is
new, `renameat2(RENAME_EXCHANGE)` when it replaces an older one. At no instant is a table missing or
half-written, and a query that already opened the old file finishes on it. File systems without
the exchange (some network ones) get two renames, with an instant between them in which the
partition is absent.

Writers of one partition queue on a lock file (`warehouse/.locks`); a folder found in the staging
area of a partition whose lock is free was left by a writer that died, and is removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from understudy.errors import UnderstudyError, UsageError
from understudy.home import warehouse_dir
from warehouse import schemas

log = logging.getLogger(__name__)

#: A stage, or the folder of emulation's host gaps, which outlive a new emulation.
Folder = schemas.Stage | Literal["emulation_host"]

#: Integers that follow each other closely; the columns that are in neither set repeat and get a
#: dictionary.
_DELTA_COLUMNS = frozenset(
    {
        "op",
        "depends_on",
        "group",
        "sequence",
        "start_ns",
        "end_ns",
        "step",
        "change_bytes",
        "allocated_bytes",
        "reserved_bytes",
    }
)
#: Measured times: only their high bytes repeat, and compress once all of one place lie together.
_SPLIT_COLUMNS = frozenset({"gap_ns", "spread_ns"})
_HASH_KEY = b"understudy.content_hash"
_VERSION_KEY = b"understudy.schema_version"
_NAME = re.compile(r"[a-z0-9._-]+")


@dataclass(frozen=True)
class Written:
    """A written partition: its folder, and rows and content hash of each table by name."""

    path: Path
    rows: dict[str, int]
    content_hash: dict[str, str]


def folder_tables(folder: Folder) -> tuple[schemas.Table, ...]:
    """The tables that live in one partition of `folder`."""
    if folder == "emulation_host":
        return (schemas.HOST_GAPS,)
    tables = schemas.stage_tables(folder)
    return tuple(t for t in tables if folder != "emulation" or t is not schemas.HOST_GAPS)


def folder_of(stage: Folder, name: str) -> Folder:
    """The folder that holds table `name` of `stage`; raises KeyError when there is none."""
    folder: Folder = stage
    if stage == "emulation" and name == schemas.HOST_GAPS.name:
        folder = "emulation_host"
    if name not in {t.name for t in folder_tables(folder)}:
        raise KeyError(f"stage {stage} has no table {name}")
    return folder


def partition_path(stage: Folder, device: str, job: str | None = None) -> Path:
    """Folder of one partition, whether it exists or not."""
    return warehouse_dir() / _relative(stage, device, job)


def table_path(stage: Folder, name: str, device: str, job: str | None = None) -> Path:
    """File of one table, whether it exists or not."""
    return partition_path(folder_of(stage, name), device, job) / f"{name}.parquet"


def write_tables(
    stage: Folder, tables: Mapping[str, pa.Table], device: str, job: str | None = None
) -> Written:
    """Replace one partition of `stage` by `tables`: exactly those of `folder_tables(stage)`.

    Raises UnderstudyError when a table does not fit its schema or the disk does not take it; the
    older partition is then still in place and nothing new is left behind.
    """
    expected = folder_tables(stage)
    if set(tables) != {t.name for t in expected}:
        wanted = ", ".join(t.name for t in expected)
        raise ValueError(f"a partition of {stage} holds {wanted}; got {', '.join(sorted(tables))}")
    cast_tables = {t.name: conform(tables[t.name], t) for t in expected}
    hashes = {name: content_hash(table) for name, table in cast_tables.items()}
    target = partition_path(stage, device, job)
    with partition_lock(stage, device, job):
        _remove_leftovers()
        area = warehouse_dir() / ".staging" / _key(stage, device, job)
        staging = area / uuid.uuid4().hex
        try:
            staging.mkdir(parents=True)
            for name, table in cast_tables.items():
                _write_file(staging / f"{name}.parquet", table, hashes[name])
            _sync(staging)
            _put_in_place(staging, target)
        except OSError as error:
            raise UnderstudyError(
                f"cannot write {target}: {error.strerror or error}; "
                "free or enlarge that disk, or set UNDERSTUDY_HOME to another one, and run again"
            ) from error
        finally:
            shutil.rmtree(area, ignore_errors=True)
    return Written(target, {name: t.num_rows for name, t in cast_tables.items()}, hashes)


def read_table(stage: Folder, name: str, device: str, job: str | None = None) -> pa.Table:
    """One table as its schema has it. Raises UnderstudyError when it is absent or outdated."""
    table, path = schemas.table(name), table_path(stage, name, device, job)
    try:
        stored = pq.ParquetFile(path).read()
    except FileNotFoundError:
        of_job = f" and job {job}" if job else ""
        raise UnderstudyError(
            f"there is no {name} of stage {stage} for device {device}{of_job} ({path}); "
            f"materialize {stage} first"
        ) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UnderstudyError(
            f"cannot read {path}: {error}; remove its folder and materialize {stage} again"
        ) from error
    version = (stored.schema.metadata or {}).get(_VERSION_KEY, b"none").decode()
    if version != schemas.SCHEMA_VERSION:
        raise UnderstudyError(
            f"{path} has schema version {version}, this program needs {schemas.SCHEMA_VERSION}; "
            f"materialize {stage} again"
        )
    for column in table.columns:
        if column.nullable and column.name not in stored.column_names:
            stored = stored.append_column(column.name, pa.nulls(stored.num_rows, column.type))
    return conform(stored, table)


def stored_hashes(stage: Folder, device: str, job: str | None = None) -> dict[str, str]:
    """Content hash of each table of a partition, from the files' metadata; {} when absent."""
    path = partition_path(stage, device, job)
    hashes = {}
    for table in folder_tables(stage):
        file = path / f"{table.name}.parquet"
        if file.exists():
            hashes[table.name] = pq.read_schema(file).metadata[_HASH_KEY].decode()
    return hashes


def has_partition(stage: Folder, device: str, job: str | None = None) -> bool:
    """Whether the partition has been written."""
    return partition_path(stage, device, job).is_dir()


def list_partitions(stage: Folder) -> list[tuple[str, str | None]]:
    """(device, job) of every partition of `stage`, sorted; job is None in device stages."""
    root = warehouse_dir() / stage
    if folder_tables(stage)[0].partition == "device":
        return sorted((d.name.removeprefix("device="), None) for d in root.glob("device=*"))
    return sorted(
        (j.parent.name.removeprefix("device="), j.name.removeprefix("job="))
        for j in root.glob("device=*/job=*")
    )


def remove_job(job: str, device: str | None = None) -> list[Path]:
    """Remove every partition of `job` (on one device if given); returns the folders removed."""
    removed = []
    for stage in (*schemas.STAGES, "emulation_host"):
        folder = cast(Folder, stage)
        for partition_device, partition_job in list_partitions(folder):
            if partition_job != job or device not in (None, partition_device):
                continue
            with partition_lock(folder, partition_device, job):
                path = partition_path(folder, partition_device, job)
                area = warehouse_dir() / ".staging" / _key(folder, partition_device, job)
                area.mkdir(parents=True, exist_ok=True)
                # Renamed first: readers see all of the partition or nothing.
                path.rename(area / uuid.uuid4().hex)
                shutil.rmtree(area)
                removed.append(path)
    return removed


# --- locks -------------------------------------------------------------------------------------

_thread_locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
_depth: defaultdict[str, int] = defaultdict(int)


@contextlib.contextmanager
def partition_lock(stage: Folder, device: str, job: str | None = None) -> Iterator[None]:
    """Hold the partition against other threads and processes; a thread may take it again.

    Waits as long as another run holds it. The lock ends with the process, however that ends.
    """
    with _lock(_key(stage, device, job), wait=True):
        yield


@contextlib.contextmanager
def _lock(key: str, wait: bool) -> Iterator[bool]:
    """Whether the lock was taken; always True with `wait`."""
    folder = warehouse_dir() / ".locks"
    path = folder / f"{key}.lock"
    thread_lock = _thread_locks[str(path)]
    if not thread_lock.acquire(blocking=False):
        if not wait:
            yield False
            return
        log.warning("waiting for another run that holds %s", path)
        thread_lock.acquire()
    try:
        if _depth[str(path)] > 0:
            with _deeper(str(path)):
                yield True
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UnderstudyError(f"cannot write {path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    yield False
                    return
                log.warning("waiting for another run that holds %s", path)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            with _deeper(str(path)):
                yield True
        finally:
            os.close(descriptor)
    finally:
        thread_lock.release()


@contextlib.contextmanager
def _deeper(key: str) -> Iterator[None]:
    _depth[key] += 1
    try:
        yield
    finally:
        _depth[key] -= 1


def _remove_leftovers() -> None:
    """Remove the staging folders whose writers are gone: their partition's lock is free."""
    for area in (warehouse_dir() / ".staging").glob("*"):
        with _lock(area.name, wait=False) as taken:
            if taken:
                shutil.rmtree(area, ignore_errors=True)


# --- files -------------------------------------------------------------------------------------


def _relative(stage: Folder, device: str, job: str | None) -> Path:
    by_job = folder_tables(stage)[0].partition == "device_job"
    if by_job != (job is not None):
        raise ValueError(f"stage {stage} is {'' if by_job else 'not '}partitioned by job")
    for kind, name in (("device", device), ("job", job)):
        if name is not None and not _NAME.fullmatch(name):
            raise UsageError(
                f"{kind} id {name!r} cannot name a folder; use a-z, 0-9, '.', '_' and '-'"
            )
    path = Path(stage) / f"device={device}"
    return path / f"job={job}" if job is not None else path


def _key(stage: Folder, device: str, job: str | None) -> str:
    return ",".join(_relative(stage, device, job).parts)


def _write_file(path: Path, table: pa.Table, digest: str) -> None:
    names = table.column_names
    encodings = {n: "DELTA_BINARY_PACKED" for n in names if n in _DELTA_COLUMNS}
    encodings |= {n: "BYTE_STREAM_SPLIT" for n in names if n in _SPLIT_COLUMNS}
    metadata = {**(table.schema.metadata or {}), _HASH_KEY: digest.encode()}
    # pyarrow's annotation knows only the boolean form of use_dictionary.
    dictionary = cast(Any, [n for n in names if n not in encodings])
    with path.open("wb") as file:
        pq.write_table(
            table.replace_schema_metadata(metadata),
            file,
            compression="zstd",
            compression_level=3,
            use_dictionary=dictionary,
            column_encoding=encodings or None,
        )
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(staging: Path, target: Path) -> None:
    """Make `staging` the partition `target`; an older one ends up inside the staging area."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        staging.rename(target)
    elif not _exchange(staging, target):
        target.rename(staging.with_name("old"))
        staging.rename(target)
    _sync(target.parent)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders atomically; False where the C library or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    renameat2.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )
    done = renameat2(
        _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    )
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EXDEV):
        return False
    raise OSError(code, os.strerror(code), str(second))


# --- content -----------------------------------------------------------------------------------


def conform(data: pa.Table, table: schemas.Table) -> pa.Table:
    """`data` with exactly the columns and types of `table`.

    Raises UnderstudyError naming the column that is missing, unknown, of a type or range that
    does not fit, or null where it may not be.
    """
    names = [c.name for c in table.columns]
    missing = [n for n in names if n not in data.column_names]
    unknown = [n for n in data.column_names if n not in names]
    if missing or unknown:
        raise UnderstudyError(
            f"table {table.name} does not match warehouse/schemas.py: "
            f"missing columns {missing}, unknown columns {unknown}"
        )
    columns = []
    for column in table.columns:
        values = data.column(column.name)
        try:
            values = values.cast(column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnderstudyError(
                f"column {table.name}.{column.name} is not {column.type}: {error}"
            ) from error
        if not column.nullable and values.null_count:
            row = pc.index(values.is_null(), True).as_py()
            raise UnderstudyError(
                f"column {table.name}.{column.name} is null in row {row} and must not be"
            )
        columns.append(values)
    return pa.table(columns, schema=table.schema)


def content_hash(table: pa.Table) -> str:
    """SHA-256 (hex) of names, types and values in row order.

    Equal tables hash equally however they are chunked, sliced, encoded or dictionary-compressed,
    and whatever their metadata says.
    """
    digest = hashlib.sha256()
    for field, column in zip(table.schema, table.columns, strict=True):
        chunk = column.combine_chunks()
        array = pa.concat_arrays(chunk.chunks) if isinstance(chunk, pa.ChunkedArray) else chunk
        digest.update(f"{field.name}\0".encode())
        _hash_array(digest, array)
    return digest.hexdigest()


def _hash_array(digest: Any, array: pa.Array) -> None:
    if pa.types.is_dictionary(array.type):
        array = cast(pa.DictionaryArray, array).dictionary_decode()
    kind = array.type
    digest.update(f"{_type_name(kind)}\0{len(array)}\0".encode())
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    digest.update(np.packbits(valid).tobytes())
    if pa.types.is_struct(kind):
        for child in cast(pa.StructArray, array).flatten():
            _hash_array(digest, child)
    elif pa.types.is_map(kind):
        entries = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        _hash_array(digest, array.cast(pa.list_(entries)))
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.fill_null(pc.call_function("list_value_length", [array]), 0)
        digest.update(lengths.to_numpy(zero_copy_only=False).astype("<i8").tobytes())
        _hash_array(digest, cast(pa.ListArray, array).flatten())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = pc.fill_null(array, "")
        lengths = pc.call_function("binary_length", [texts]).to_numpy(zero_copy_only=False)
        digest.update(lengths.astype("<i8").tobytes())
        digest.update("".join(texts.to_pylist()).encode())
    elif pa.types.is_boolean(kind):
        values = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
        digest.update(np.packbits(values).tobytes())
    else:
        values = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(values).tobytes())


def _type_name(kind: pa.DataType) -> str:
    """The type without the names of nested fields, which readers and writers choose freely."""
    if pa.types.is_nested(kind):
        return type(kind).__name__
    return str(kind)
