"""The Parquet store: whole partitions or nothing, whatever happens to the writer."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.errors import UnderstudyError, UsageError
from warehouse import catalog, schemas, store

pytestmark = pytest.mark.usefixtures("understudy_home")

DEVICE = "h100-sxm-80gb"
BY_FAMILY = "select family, sum(duration_ns * launch_count) from predicted_kernels group by 1"


def kernels(rows: int, duration_ns: int = 5) -> pa.Table:
    return pa.table(
        {
            "signature": range(rows),
            "name": ["k"] * rows,
            "family": ["gemm"] * rows,
            "dtype": ["bfloat16"] * rows,
            "launch_count": [2] * rows,
            "duration_ns": [duration_ns] * rows,
            "low_ns": [1] * rows,
            "high_ns": [9] * rows,
            "roofline_ns": [1] * rows,
            "flops": [1.0] * rows,
            "estimate_source": ["law"] * rows,
            "extrapolated": [False] * rows,
        }
    )


def simulation(rows: int = 3, duration_ns: int = 5) -> dict[str, pa.Table]:
    return {
        "predicted_kernels": kernels(rows, duration_ns),
        "simulated_events": schemas.SIMULATED_EVENTS.schema.empty_table(),
        "simulated_runtimes": schemas.SIMULATED_RUNTIMES.schema.empty_table(),
    }


def files(home: Path) -> list[str]:
    """Everything in the warehouse but the locks."""
    root = home / "warehouse"
    return sorted(
        str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and ".locks" not in p.parts
    )


def test_tables_of_a_partition_share_one_folder(understudy_home: Path) -> None:
    written = store.write_tables("simulation", simulation(), DEVICE, "gpt2")
    folder = "simulation/device=h100-sxm-80gb/job=gpt2"
    assert files(understudy_home) == [
        f"{folder}/{name}.parquet"
        for name in ("predicted_kernels", "simulated_events", "simulated_runtimes")
    ]
    assert written.path == understudy_home / "warehouse" / folder
    assert written.rows == {"predicted_kernels": 3, "simulated_events": 0, "simulated_runtimes": 0}
    assert store.stored_hashes("simulation", DEVICE, "gpt2") == written.content_hash
    assert store.has_partition("simulation", DEVICE, "gpt2")
    assert store.list_partitions("simulation") == [(DEVICE, "gpt2")]


def test_tables_come_back_as_their_schema_has_them() -> None:
    store.write_tables("simulation", simulation(), DEVICE, "gpt2")
    table = store.read_table("simulation", "predicted_kernels", DEVICE, "gpt2")
    assert table.schema.equals(schemas.PREDICTED_KERNELS.schema)
    assert table.column("signature").to_pylist() == [0, 1, 2]
    version = table.schema.metadata[b"understudy.schema_version"]
    assert version == schemas.SCHEMA_VERSION.encode()


def test_nested_columns_come_back() -> None:
    row = {
        "rank": 0,
        "program": 0,
        "node": 0,
        "local_rank": 0,
        "communicator_map": [(1, 0), (2, 5)],
        "iterations": 1,
        "span_iterations": 1,
        "iterations_seen": 20,
        "iteration_source": "optimizer steps",
        "trace_events": 1,
        "peak_allocated_bytes": 1,
        "peak_reserved_bytes": 1,
        "peak_device_bytes": 1,
        "peak_iteration": 0,
        "peak_parts_bytes": [("context", 1)],
    }
    tables = {t.name: t.schema.empty_table() for t in store.folder_tables("emulation")}
    tables["ranks"] = pa.Table.from_pylist([row], schema=schemas.RANKS.schema)
    store.write_tables("emulation", tables, DEVICE, "gpt2")
    back = store.read_table("emulation", "ranks", DEVICE, "gpt2").to_pylist()
    assert back == [row | {"oom_iteration": None, "oom_requested_bytes": None}]


def test_host_gaps_of_emulation_have_a_folder_of_their_own() -> None:
    gaps = pa.table({"program": [0], "op": [0], "gap_ns": [7], "spread_ns": [1]})
    store.write_tables("emulation_host", {"host_gaps": gaps}, DEVICE, "gpt2")
    empty = {t.name: t.schema.empty_table() for t in store.folder_tables("emulation")}
    assert "host_gaps" not in empty
    store.write_tables("emulation", empty, DEVICE, "gpt2")
    back = store.read_table("emulation", "host_gaps", DEVICE, "gpt2")
    assert back.column("gap_ns").to_pylist() == [7]


def test_device_stages_have_no_job() -> None:
    empty = {t.name: t.schema.empty_table() for t in store.folder_tables("profiling")}
    store.write_tables("profiling", empty, DEVICE)
    assert store.list_partitions("profiling") == [(DEVICE, None)]
    with pytest.raises(ValueError, match="not partitioned by job"):
        store.write_tables("profiling", empty, DEVICE, "gpt2")


def test_rewriting_replaces_the_partition(understudy_home: Path) -> None:
    first = store.write_tables("simulation", simulation(3), DEVICE, "gpt2")
    second = store.write_tables("simulation", simulation(4), DEVICE, "gpt2")
    assert store.read_table("simulation", "predicted_kernels", DEVICE, "gpt2").num_rows == 4
    assert first.content_hash != second.content_hash
    assert len(files(understudy_home)) == 3
    assert not list((understudy_home / "warehouse" / ".staging").iterdir())


def test_rewriting_works_where_folders_cannot_be_exchanged(
    monkeypatch: pytest.MonkeyPatch, understudy_home: Path
) -> None:
    monkeypatch.setattr(store, "_exchange", lambda first, second: False)
    store.write_tables("simulation", simulation(3), DEVICE, "gpt2")
    store.write_tables("simulation", simulation(4), DEVICE, "gpt2")
    assert store.read_table("simulation", "predicted_kernels", DEVICE, "gpt2").num_rows == 4
    assert len(files(understudy_home)) == 3


# --- bad input ---------------------------------------------------------------------------------


def changed(**columns: Any) -> dict[str, pa.Table]:
    tables = simulation()
    table = tables["predicted_kernels"]
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return tables | {"predicted_kernels": table}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (changed(signature=[0, 1, 2**40]), r"predicted_kernels\.signature is not int32"),
        (changed(family=["a", None, "b"]), r"predicted_kernels\.family is null in row 1"),
        (changed(duration_ns=[1.5, 2.0, 3.0]), r"predicted_kernels\.duration_ns is not int64"),
        (
            simulation() | {"predicted_kernels": kernels(1).drop_columns("flops")},
            r"missing columns \['flops'\]",
        ),
        (
            simulation() | {"predicted_kernels": kernels(1).append_column("more", pa.array([1]))},
            r"unknown columns \['more'\]",
        ),
    ],
)
def test_table_that_does_not_fit_its_schema_is_an_error(
    tables: dict[str, pa.Table], message: str, understudy_home: Path
) -> None:
    with pytest.raises(UnderstudyError, match=message):
        store.write_tables("simulation", tables, DEVICE, "gpt2")
    assert files(understudy_home) == []


def test_partition_must_be_complete() -> None:
    with pytest.raises(ValueError, match="a partition of simulation holds predicted_kernels, "):
        store.write_tables("simulation", {"predicted_kernels": kernels(1)}, DEVICE, "gpt2")


@pytest.mark.parametrize("job", ["../x", "a/b", "A", "", "a b"])
def test_names_that_are_no_folder_are_refused(job: str) -> None:
    with pytest.raises(UsageError, match="cannot name a folder"):
        store.write_tables("simulation", simulation(), DEVICE, job)


def test_absent_partition_says_what_to_do() -> None:
    assert not store.has_partition("simulation", DEVICE, "gpt2")
    assert store.stored_hashes("simulation", DEVICE, "gpt2") == {}
    with pytest.raises(UnderstudyError, match=r"job gpt2 .*materialize simulation first"):
        store.read_table("simulation", "predicted_kernels", DEVICE, "gpt2")


def test_older_schema_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_tables("simulation", simulation(), DEVICE, "gpt2")
    monkeypatch.setattr(schemas, "SCHEMA_VERSION", "2")
    with pytest.raises(UnderstudyError, match="has schema version 1, this program needs 2"):
        store.read_table("simulation", "predicted_kernels", DEVICE, "gpt2")


def test_unreadable_file_is_an_error() -> None:
    store.write_tables("simulation", simulation(), DEVICE, "gpt2")
    path = store.table_path("simulation", "predicted_kernels", DEVICE, "gpt2")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        UnderstudyError, match=r"cannot read .*predicted_kernels\.parquet: .*materialize"
    ):
        store.read_table("simulation", "predicted_kernels", DEVICE, "gpt2")


# --- full disks and dead writers ---------------------------------------------------------------


def test_full_disk_leaves_the_older_partition(
    monkeypatch: pytest.MonkeyPatch, understudy_home: Path
) -> None:
    store.write_tables("simulation", simulation(3), DEVICE, "gpt2")

    def full(table: pa.Table, file: Any, **options: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(UnderstudyError, match=r"job=gpt2: No space left on device; free"):
        store.write_tables("simulation", simulation(4), DEVICE, "gpt2")
    assert len(files(understudy_home)) == 3
    assert store.read_table("simulation", "predicted_kernels", DEVICE, "gpt2").num_rows == 3


def test_really_full_disk(tmp_path: Path) -> None:
    """On a file system of 64 KiB that is full but for the folders."""
    script = """
        import os, sys
        from pathlib import Path
        from tests.unit.test_store import DEVICE, files, simulation
        from understudy.errors import UnderstudyError
        from warehouse import store
        home = Path(os.environ["UNDERSTUDY_HOME"])
        store.write_tables("simulation", simulation(3), DEVICE, "gpt2")
        with open(home / "ballast", "wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass
        for job in ("gpt2", "new"):
            try:
                store.write_tables("simulation", simulation(9), DEVICE, job)
            except UnderstudyError as error:
                assert "No space left on device" in str(error), error
            else:
                sys.exit("a full disk took a partition")
        assert store.read_table("simulation", "predicted_kernels", DEVICE, "gpt2").num_rows == 3
        assert store.list_partitions("simulation") == [(DEVICE, "gpt2")]
        assert len(files(home)) == 3, files(home)
    """
    mount = f'mount -t tmpfs -o size=96k tmpfs {tmp_path} && exec {sys.executable} -c "$0"'
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare(1)")
    isolated = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*isolated, f"mount -t tmpfs tmpfs {tmp_path}"], check=False).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    environment = os.environ | {"UNDERSTUDY_HOME": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [*isolated, mount, textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_leftovers_of_a_killed_writer_are_removed(understudy_home: Path) -> None:
    """The writer is killed with one file written; a later write of any partition cleans up."""
    script = textwrap.dedent("""
        import os, signal
        from tests.unit.test_store import DEVICE, simulation
        from warehouse import store
        write = store._write_file
        def once(*args):
            write(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        store._write_file = once
        store.write_tables("simulation", simulation(), DEVICE, "gpt2")
    """)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert [f for f in files(understudy_home) if f.startswith(".staging")]
    assert not store.has_partition("simulation", DEVICE, "gpt2")
    store.write_tables("simulation", simulation(), DEVICE, "other")
    assert not [f for f in files(understudy_home) if f.startswith(".staging")]


def test_interrupted_writer_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, understudy_home: Path
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write_tables("simulation", simulation(), DEVICE, "gpt2")
    assert files(understudy_home) == []


# --- locks -------------------------------------------------------------------------------------


def test_lock_may_be_taken_again_by_its_thread() -> None:
    with (
        store.partition_lock("simulation", DEVICE, "gpt2"),
        store.partition_lock("simulation", DEVICE, "gpt2"),
    ):
        store.write_tables("simulation", simulation(), DEVICE, "gpt2")


def test_lock_holds_back_other_threads_and_only_of_its_partition() -> None:
    order: list[str] = []

    def other() -> None:
        with store.partition_lock("simulation", DEVICE, "gpt2"):
            order.append("other")

    with store.partition_lock("simulation", DEVICE, "gpt2"):
        thread = threading.Thread(target=other)
        thread.start()
        with store.partition_lock("simulation", DEVICE, "another"):
            time.sleep(0.1)
        order.append("this")
    thread.join()
    assert order == ["this", "other"]


def hold(connection: Any) -> None:
    with store.partition_lock("simulation", DEVICE, "gpt2"):
        connection.send("held")
        connection.recv()


def test_lock_holds_back_other_processes_and_ends_with_them() -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(there,))
    process.start()
    assert here.recv() == "held"
    got: list[float] = []

    def take() -> None:
        with store.partition_lock("simulation", DEVICE, "gpt2"):
            got.append(time.monotonic())

    thread = threading.Thread(target=take)
    thread.start()
    time.sleep(0.1)
    assert not got
    process.kill()
    thread.join(10)
    process.join()
    assert got


# --- readers beside writers --------------------------------------------------------------------


def rewrite(stop: Any) -> None:
    duration_ns = 0
    while not stop.is_set():
        duration_ns += 1
        store.write_tables("simulation", simulation(2000, duration_ns), DEVICE, "gpt2")


def test_query_answers_while_another_process_materializes() -> None:
    store.write_tables("simulation", simulation(2000, 1), DEVICE, "gpt2")
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    writer = context.Process(target=rewrite, args=(stop,))
    writer.start()
    seen = set()
    try:
        connection = catalog.connect()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            ((family, total),) = connection.execute(BY_FAMILY).fetchall()
            # Every answer is of one version: 2000 kernels, launched twice, of equal duration.
            assert family == "gemm" and total % 4000 == 0
            seen.add(total)
    finally:
        stop.set()
        writer.join()
    assert writer.exitcode == 0
    assert len(seen) > 1, "the writer never replaced the partition"


# --- removal -----------------------------------------------------------------------------------


def test_removing_a_job_removes_it_on_every_device(understudy_home: Path) -> None:
    for device in (DEVICE, "h200-sxm-141gb"):
        for job in ("gpt2", "other"):
            store.write_tables("simulation", simulation(), device, job)
    assert len(store.remove_job("gpt2", DEVICE)) == 1
    assert len(store.remove_job("gpt2")) == 1
    assert store.remove_job("gpt2") == []
    assert [job for _, job in store.list_partitions("simulation")] == ["other", "other"]
    assert len(files(understudy_home)) == 6


# --- content hash ------------------------------------------------------------------------------


def test_hash_of_a_written_table_is_that_of_the_read_one() -> None:
    written = store.write_tables("simulation", simulation(), DEVICE, "gpt2")
    for name, digest in written.content_hash.items():
        table = store.read_table("simulation", name, DEVICE, "gpt2")
        assert store.content_hash(table) == digest


def test_hash_is_stable_across_versions() -> None:
    table = pa.table({"a": pa.array([1, None], pa.int32()), "b": ["x", ""]})
    assert store.content_hash(table) == (
        "1f3003da8dae6ab858996f1d2d437fb41969b6fa1ce0fef0ae20206e7f6bc822"
    )


NESTED = pa.schema(
    [
        pa.field("number", pa.int32()),
        pa.field("text", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("real", pa.float64()),
        pa.field("triple", pa.list_(pa.int32(), 3)),
        pa.field("list", pa.list_(pa.string())),
        pa.field("map", pa.map_(pa.string(), pa.float64())),
        pa.field("struct", pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())])),
    ]
)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


rows = st.lists(
    st.fixed_dictionaries(
        {
            "number": optional(st.integers(-9, 9)),
            "text": optional(st.text(max_size=3)),
            "flag": optional(st.booleans()),
            "real": optional(st.floats(-1, 1)),
            "triple": optional(st.lists(st.integers(0, 2), min_size=3, max_size=3)),
            "list": optional(st.lists(optional(st.text(max_size=2)), max_size=3)),
            "map": optional(
                st.dictionaries(st.text(max_size=2), st.floats(-1, 1), max_size=2).map(
                    lambda d: list(d.items())
                )
            ),
            "struct": optional(
                st.fixed_dictionaries(
                    {"x": optional(st.integers(0, 9)), "y": optional(st.text(max_size=2))}
                )
            ),
        }
    ),
    max_size=6,
)

ENCODINGS: list[Callable[[pa.Table], pa.Table]] = [
    lambda t: t,
    lambda t: pa.concat_tables([t.slice(0, 1), t.slice(1)]),
    lambda t: pa.concat_tables([t, t]).slice(t.num_rows),
    lambda t: t.replace_schema_metadata({"written": "yesterday"}),
    lambda t: t.set_column(1, "text", t.column("text").dictionary_encode()),
]


def _canonical(value: Any) -> str:
    """Equal for equal values: the order in which a generator fills a record does not count, while
    0.0 and -0.0 differ."""
    if isinstance(value, dict):
        return repr(sorted((key, _canonical(item)) for key, item in value.items()))
    if isinstance(value, list):
        return repr([_canonical(item) for item in value])
    return repr(value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows, rows, st.sampled_from(ENCODINGS), st.sampled_from(ENCODINGS))
def test_hashes_are_equal_exactly_when_the_values_are(
    one: list[dict[str, Any]],
    two: list[dict[str, Any]],
    encode_one: Callable[[pa.Table], pa.Table],
    encode_two: Callable[[pa.Table], pa.Table],
) -> None:
    table, other = (pa.Table.from_pylist(r, schema=NESTED) for r in (one, two))
    digest = store.content_hash(encode_one(table))
    assert digest == store.content_hash(encode_two(table))
    assert (digest == store.content_hash(other)) == (_canonical(one) == _canonical(two))
