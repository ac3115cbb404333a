"""From traces of all ranks to tables: windows, spans, communicators, memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.trace_writer import TraceWriter
from understudy.emulation.collection import Collected, OutOfMemory, collect
from understudy.errors import UnderstudyError
from understudy.traces import interceptor as fmt
from understudy.traces.interceptor import Api, RankTrace, read_trace
from warehouse import schemas


def traces(writers: list[TraceWriter], folder: Path) -> list[RankTrace]:
    return [read_trace(writer.write(folder)) for writer in writers]


def collected(
    writers: list[TraceWriter],
    folder: Path,
    warmup: int = 1,
    iterations: int = 3,
    nproc_per_node: int = 8,
    out_of_memory: dict[int, OutOfMemory] | None = None,
) -> Collected:
    return collect(
        traces(writers, folder),
        nproc_per_node=nproc_per_node,
        warmup=warmup,
        iterations=iterations,
        out_of_memory=out_of_memory or {},
    )


def rows(table: pa.Table, *columns: str) -> list[tuple]:
    return list(zip(*(table[c].to_pylist() for c in columns), strict=True))


def steady(iterations: int, rank: int = 0) -> TraceWriter:
    """Set-up, then equal iterations: two launches, the second waits for a side stream."""
    writer = TraceWriter(rank)
    writer.stream(2)
    writer.launch(0, name="initialize")
    for i in range(iterations):
        writer.record(Api.STREAM_WAIT_EVENT, 0, a=1)
        writer.launch(0, name="forward", after_ns=20_000 + 1000 * i)
        writer.launch(2, name="communicate")
        writer.record(Api.EVENT_RECORD, 2, a=1)
        writer.mark(i)
    return writer


def test_equal_iterations_are_one_program_with_median_gaps(tmp_path: Path) -> None:
    result = collected([steady(6)], tmp_path)
    events = result.tables["events"]
    assert rows(events, "op", "iteration", "kind", "stream", "depends_on") == [
        (0, 0, "stream_wait", 0, -2),
        (1, 0, "device", 0, None),
        (2, 0, "device", 2, None),
        (3, 0, "host", -1, None),
    ]
    # Iterations 1, 2 and 3 are recorded: 21, 22 and 23 us less 1 us inside the call before.
    assert rows(result.tables["host_gaps"], "gap_ns", "spread_ns")[1] == (21_000, 1000)
    assert rows(result.tables["ranks"], "iterations", "span_iterations") == [(3, 1)]
    assert result.tables["signatures"]["name"].to_pylist() == ["forward", "communicate"]
    assert result.warnings == ()


def test_a_dependency_whose_op_does_not_repeat_is_dropped(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.stream(2)
    writer.launch(2, name="once")
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.mark(0)
    writer.record(Api.EVENT_SYNCHRONIZE, a=1)
    writer.launch(0, name="work")
    writer.mark(1)
    events = collected([writer], tmp_path, iterations=1).tables["events"]
    assert rows(events, "kind", "stream", "depends_on") == [
        ("host", -1, None),
        ("device", 0, None),
        ("host", -1, None),
    ]


def test_unequal_iterations_are_kept_as_one_span_for_all_ranks(tmp_path: Path) -> None:
    logging = TraceWriter(1)
    for i in range(4):
        logging.launch(name="work")
        if i == 2:
            logging.launch(name="log")
        logging.mark(i)
    plain = TraceWriter(0)
    for i in range(4):
        plain.launch(name="work")
        plain.mark(i)
    result = collected([plain, logging], tmp_path)
    assert rows(result.tables["ranks"], "iterations", "span_iterations") == [(3, 3), (3, 3)]
    events = rows(result.tables["events"], "program", "iteration")
    assert [iteration for program, iteration in events if program == 1] == [0, 0, 1, 1, 1, 2, 2]
    assert set(result.tables["host_gaps"]["spread_ns"].to_pylist()) == {0}


def test_a_script_that_ends_early_gives_what_it_has(tmp_path: Path) -> None:
    result = collected([steady(2)], tmp_path, warmup=2, iterations=8)
    assert rows(result.tables["ranks"], "iterations", "span_iterations") == [(1, 1)]
    assert result.tables["events"]["kind"].to_pylist()[0] == "stream_wait"
    assert "ended after 2 iterations" in result.warnings[0]


def test_a_script_without_optimizer_is_one_span_from_its_first_device_op(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.record(Api.HOST_ALLOC, b=1)
    writer.launch(name="a")
    writer.launch(name="b")
    result = collected([writer], tmp_path)
    assert result.tables["events"]["kind"].to_pylist() == ["device", "device"]
    assert result.tables["host_gaps"]["gap_ns"].to_pylist() == [0, 9000]
    assert "no optimizer step" in result.warnings[0]


def test_no_device_work_is_an_error(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.mark(0)
    with pytest.raises(UnderstudyError, match="no rank launched a kernel"):
        collected([writer], tmp_path)


def data_parallel(rank: int, world_size: int) -> TraceWriter:
    writer = TraceWriter(rank, world_size)
    writer.communicator(0xABC, rank, world_size, description="default_pg")
    pair = rank // 2
    writer.communicator(0x100 + pair, -1, -1, parent=1, color=pair, key=-rank)
    for i in range(3):
        writer.launch(name="work", grid=1 + (rank == 0))
        writer.all_reduce(1, 1 << 20)
        writer.all_reduce(2, 1 << 10)
        writer.all_reduce(1, 1 << 20)
        writer.mark(i)
    return writer


def test_communicators_are_numbered_by_lowest_member_and_creation(tmp_path: Path) -> None:
    result = collected(
        [data_parallel(r, 4) for r in range(4)], tmp_path, iterations=2, nproc_per_node=2
    )
    assert rows(result.tables["communicators"], "communicator", "parent", "members") == [
        (0, None, [0, 1, 2, 3]),
        (1, 0, [1, 0]),  # by key
        (2, 0, [3, 2]),
    ]
    ranks = result.tables["ranks"]
    assert ranks["communicator_map"].to_pylist() == [
        [(1, 0), (2, 1)],
        [(1, 0), (2, 1)],
        [(1, 0), (2, 2)],
        [(1, 0), (2, 2)],
    ]
    assert rows(ranks, "node", "local_rank") == [(0, 0), (0, 1), (1, 0), (1, 1)]
    parts = result.tables["collective_parts"].slice(0, 3)
    assert rows(parts, "communicator_local", "sequence", "size_bytes") == [
        (1, 0, 1 << 20),
        (2, 0, 1 << 10),
        (1, 1, 1 << 20),
    ]
    signatures = result.tables["signatures"].to_pylist()
    nodes = {dict(s["features"]).get("nodes") for s in signatures if s["family"] == "collective"}
    assert nodes == {1, 2}


def test_a_missing_member_is_an_error_unless_memory_ran_out(tmp_path: Path) -> None:
    writers = [data_parallel(r, 4) for r in range(3)]
    with pytest.raises(UnderstudyError, match="communicator rank 3"):
        collected(writers, tmp_path)
    result = collected(writers, tmp_path, out_of_memory={1: OutOfMemory(2, 77)})
    assert rows(result.tables["ranks"], "oom_iteration", "oom_requested_bytes") == [
        (None, None),
        (2, 77),
        (None, None),
    ]
    assert result.tables["events"].num_rows == 0
    assert result.tables["communicators"].num_rows == 3


def test_memory_is_followed_over_the_whole_trace(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.record(Api.MALLOC, a=1 << 20, b=2048, c=600 + 2048)
    writer.record(Api.TENSOR_ALLOC, a=1 << 20, b=512, c=512, d=2048)
    writer.launch()
    writer.mark(0)
    writer.record(Api.TENSOR_ALLOC, a=(1 << 20) + 512, b=1024, c=1536, d=2048)
    writer.record(Api.TENSOR_FREE, a=1 << 20, b=512, c=1024, d=2048)
    writer.launch()
    writer.mark(1)
    result = collected([writer], tmp_path)
    columns = ("iteration", "category", "change_bytes", "allocated_bytes", "reserved_bytes")
    assert rows(result.tables["memory_timeline"], *columns, "device_bytes") == [
        (0, "segment", 2048, 0, 2048, 2648),
        (0, "activations", 512, 512, 2048, 2648),
        (1, "activations", 1024, 1536, 2048, 2648),
        (1, "activations", -512, 1024, 2048, 2648),
    ]
    peaks = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes")
    assert rows(result.tables["ranks"], *peaks) == [(1536, 2048, 2648)]
    (fullest,) = rows(result.tables["ranks"], "peak_iteration", "peak_parts_bytes")
    assert fullest == (1, [("activations", 1536), ("unused", 512), ("context", 600)])


def test_memory_of_a_pool_is_reserved_and_allocated_at_once(tmp_path: Path) -> None:
    """PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync reports no tensors of its own."""
    writer = TraceWriter()
    writer.record(Api.MALLOC, a=1 << 20, b=512, c=600 + 512, flags=fmt.FLAG_POOL)
    writer.launch()
    writer.mark(0)
    writer.record(Api.FREE, a=1 << 20, b=512, c=600, flags=fmt.FLAG_POOL)
    writer.launch()
    writer.mark(1)
    result = collected([writer], tmp_path)
    columns = ("category", "allocated_bytes", "reserved_bytes", "device_bytes")
    assert rows(result.tables["memory_timeline"], *columns) == [
        ("activations", 512, 512, 1112),
        ("activations", 0, 0, 600),
    ]


def test_a_free_by_the_watchdog_counts_at_the_end_of_the_iteration(tmp_path: Path) -> None:
    def timeline(freed_in: int, folder: Path) -> pa.Table:
        folder.mkdir()
        writer = TraceWriter()
        watchdog = writer.thread("pt_nccl_watchdg")
        for i in range(4):
            writer.launch()
            if i == 1:
                writer.record(Api.TENSOR_ALLOC, a=1 << 20, b=512, c=512)
            if i == freed_in:
                writer.record(Api.TENSOR_FREE, a=1 << 20, b=512, thread=watchdog)
            writer.mark(i)
        return collected([writer], folder).tables["memory_timeline"]

    early, late = timeline(1, tmp_path / "1"), timeline(3, tmp_path / "3")
    assert rows(early, "iteration", "change_bytes") == [(1, 512), (1, -512)]
    assert early.equals(late)


def test_the_order_of_frees_between_allocations_does_not_matter(tmp_path: Path) -> None:
    def timeline(order: list[int], folder: Path) -> pa.Table:
        folder.mkdir()
        writer = TraceWriter()
        writer.launch()
        for i in range(3):
            writer.record(Api.TENSOR_ALLOC, a=(i + 1) << 20, b=512 * (i + 1))
        for i in order:
            writer.record(Api.TENSOR_FREE, a=(i + 1) << 20, b=512 * (i + 1))
        writer.record(Api.TENSOR_ALLOC, a=5 << 20, b=512)
        writer.mark(0)
        writer.record(Api.TENSOR_FREE, a=5 << 20, b=512)
        writer.mark(1)
        return collected([writer], folder).tables["memory_timeline"]

    first, second = timeline([0, 1, 2], tmp_path / "1"), timeline([2, 0, 1], tmp_path / "2")
    assert first.equals(second)
    assert first["allocated_bytes"].to_pylist() == [512, 1536, 3072, 1536, 512, 0, 512, 0]


def test_functions_that_are_not_emulated_are_named(tmp_path: Path) -> None:
    writer = steady(6)
    text = writer.define(fmt.TEXT, b"cusolverDnXgetrf")
    writer.record(Api.UNSUPPORTED, definition=text)
    (warning,) = collected([writer], tmp_path).warnings
    assert "cusolverDnXgetrf" in warning


def test_tables_have_the_columns_of_the_warehouse(tmp_path: Path) -> None:
    tables = collected([steady(6)], tmp_path).tables
    assert set(tables) == {t.name for t in schemas.stage_tables("emulation")}
    for name, table in tables.items():
        assert table.schema.equals(schemas.table(name).schema), name


def test_tables_depend_on_nothing_random(tmp_path: Path) -> None:
    def tables(uid: int, folder: Path) -> dict[str, pa.Table]:
        folder.mkdir()
        writers = []
        for rank in range(2):
            writer = TraceWriter(rank, 2)
            writer.communicator(uid, rank, 2)
            for i in range(4):
                writer.launch(after_ns=uid)
                writer.all_reduce(1, 64)
                writer.mark(i)
            writers.append(writer)
        return collected(writers, folder).tables

    first, second = tables(1000, tmp_path / "1"), tables(99_000, tmp_path / "2")
    different = [name for name in first if not first[name].equals(second[name])]
    assert different == ["host_gaps"]
