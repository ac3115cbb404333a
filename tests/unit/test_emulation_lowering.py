"""Lowering of hand-written traces: CUDA's ordering rules, one case each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.trace_writer import TraceWriter, pointer
from understudy.emulation.lowering import NO_DEPENDENCY, LoweredRank, count_events, lower
from understudy.traces.interceptor import FLAG_BLOCKING, FLAG_PINNED, Api, CopyKind, read_trace


class Op(NamedTuple):
    kind: str
    stream: int
    depends_on: int = NO_DEPENDENCY


def lowered(writer: TraceWriter, folder: Path) -> LoweredRank:
    return lower(read_trace(writer.write(folder)), {1: (2, 1), 2: (4, 2)})


def ops(writer: TraceWriter, folder: Path) -> list[Op]:
    result = lowered(writer, folder)
    return [Op(*row) for row in zip(result.kind, result.stream, result.depends_on, strict=True)]


@pytest.fixture
def writer() -> TraceWriter:
    """A rank with two non-blocking side streams, 2 and 3."""
    writer = TraceWriter()
    writer.stream(2)
    writer.stream(3)
    return writer


def test_a_wait_refers_to_the_record_before_it(writer: TraceWriter, tmp_path: Path) -> None:
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.record(Api.STREAM_WAIT_EVENT, 3, a=1)
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.launch(3)
    assert ops(writer, tmp_path) == [
        Op("device", 2),
        Op("stream_wait", 3, 0),
        Op("device", 2),
        Op("device", 3),
    ]


def test_a_rerecorded_event_moves_later_waits_only(writer: TraceWriter, tmp_path: Path) -> None:
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.record(Api.EVENT_SYNCHRONIZE, a=1)
    assert ops(writer, tmp_path)[-1] == Op("host_wait", 2, 1)


def test_an_event_never_recorded_orders_nothing(writer: TraceWriter, tmp_path: Path) -> None:
    writer.record(Api.STREAM_WAIT_EVENT, 2, a=5)
    writer.record(Api.EVENT_SYNCHRONIZE, a=5)
    writer.record(Api.EVENT_RECORD, 3, a=6)  # nothing was issued on stream 3
    writer.record(Api.STREAM_WAIT_EVENT, 2, a=6)
    writer.record(Api.STREAM_SYNCHRONIZE, 3)
    writer.launch(2)
    assert ops(writer, tmp_path) == [Op("device", 2)]


def test_a_new_event_with_an_old_number_is_not_recorded(
    writer: TraceWriter, tmp_path: Path
) -> None:
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.record(Api.EVENT_DESTROY, a=1)
    writer.record(Api.EVENT_CREATE, a=1)
    writer.record(Api.STREAM_WAIT_EVENT, 3, a=1)
    assert ops(writer, tmp_path) == [Op("device", 2)]


def test_order_of_one_stream_needs_no_waits(writer: TraceWriter, tmp_path: Path) -> None:
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.record(Api.STREAM_WAIT_EVENT, 2, a=1)
    writer.record(Api.STREAM_WAIT_EVENT, 3, a=1)
    writer.record(Api.STREAM_WAIT_EVENT, 3, a=1)
    assert ops(writer, tmp_path) == [Op("device", 2), Op("stream_wait", 3, 0)]


def test_legacy_and_blocking_streams_wait_for_each_other(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.stream(2, non_blocking=False)
    writer.stream(3)
    writer.launch(2)
    writer.launch(3)
    writer.launch(0)  # waits for stream 2, not for the non-blocking stream 3
    writer.launch(0)  # nothing new
    writer.launch(2)  # waits for stream 0
    writer.launch(2)
    assert ops(writer, tmp_path) == [
        Op("device", 2),
        Op("device", 3),
        Op("stream_wait", 0, 0),
        Op("device", 0),
        Op("device", 0),
        Op("stream_wait", 2, 4),
        Op("device", 2),
        Op("device", 2),
    ]


def test_an_event_on_the_legacy_stream_covers_blocking_streams(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.stream(2, non_blocking=False)
    writer.stream(3)
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 0, a=1)
    writer.record(Api.STREAM_WAIT_EVENT, 3, a=1)
    assert ops(writer, tmp_path) == [
        Op("device", 2),
        Op("stream_wait", 0, 0),
        Op("stream_wait", 3, 1),
    ]


@pytest.mark.parametrize(
    ("kind", "flags", "expected"),
    [
        (CopyKind.D2H, FLAG_BLOCKING, ["device", "device", "host_wait"]),
        (CopyKind.D2H, FLAG_BLOCKING | FLAG_PINNED, ["device", "device", "host_wait"]),
        (CopyKind.D2H, FLAG_PINNED, ["device", "device"]),
        (CopyKind.H2D, FLAG_BLOCKING, ["device", "host_wait", "device"]),
        (CopyKind.H2D, FLAG_BLOCKING | FLAG_PINNED, ["device", "device", "host_wait"]),
        (CopyKind.H2D, 0, ["device", "device"]),
        (CopyKind.D2D, FLAG_BLOCKING, ["device", "device"]),
        (CopyKind.H2H, FLAG_BLOCKING, ["device"]),
    ],
)
def test_copies_block_as_documented(
    writer: TraceWriter, tmp_path: Path, kind: CopyKind, flags: int, expected: list[str]
) -> None:
    writer.launch(2)
    writer.record(Api.MEMCPY, 2, c=4096, d=kind, flags=flags)
    result = ops(writer, tmp_path)
    assert [op.kind for op in result] == expected
    waits = [op for op in result if op.kind == "host_wait"]
    assert all(op.depends_on == result.index(op) - 1 for op in waits)


def test_device_synchronize_waits_for_what_is_new(writer: TraceWriter, tmp_path: Path) -> None:
    writer.launch(2)
    writer.launch(3)
    writer.record(Api.STREAM_SYNCHRONIZE, 2)
    writer.record(Api.DEVICE_SYNCHRONIZE)
    writer.record(Api.DEVICE_SYNCHRONIZE)
    assert ops(writer, tmp_path) == [
        Op("device", 2),
        Op("device", 3),
        Op("host_wait", 2, 0),
        Op("host_wait", 3, 1),
    ]


def test_queries_are_host_time_only(writer: TraceWriter, tmp_path: Path) -> None:
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.record(Api.EVENT_QUERY, a=1)
    writer.launch(2)
    result = lowered(writer, tmp_path)
    assert result.kind == ["device", "device"]
    # Three records later: three gaps of 10 us less the 1 us inside each call before.
    assert result.gap_ns == [0, 27_000]


def test_polling_and_idle_threads_are_dropped(writer: TraceWriter, tmp_path: Path) -> None:
    watchdog = writer.thread("pt_nccl_watchdg")
    pinning = writer.thread("pin_memory")
    autograd = writer.thread("pt_autograd_0")
    writer.launch(2)
    writer.record(Api.EVENT_QUERY, a=1, thread=watchdog)
    writer.record(Api.EVENT_RECORD, 2, a=9, thread=watchdog)
    writer.record(Api.HOST_ALLOC, a=1, b=2, thread=pinning)
    writer.launch(2, thread=autograd)
    writer.launch(2)
    result = lowered(writer, tmp_path)
    assert result.kind == ["device"] * 3
    assert result.thread == [0, 1, 0]
    assert result.gap_ns == [0, 39_000, 9_000]
    assert count_events(read_trace(tmp_path / "rank-0")) == 3


def test_sends_and_receives_of_a_group_are_one_op(writer: TraceWriter, tmp_path: Path) -> None:
    writer.communicator(5, 0, 2)
    writer.launch(2)
    writer.record(Api.GROUP_START)
    writer.record(Api.SEND, 2, definition=1, a=1, b=4096, flags=7)
    writer.record(Api.RECV, 2, definition=1, a=1, b=8192, flags=7)
    writer.record(Api.GROUP_END)
    result = lowered(writer, tmp_path)
    assert result.kind == ["device", "join"]
    (parts,) = result.parts.values()
    assert [(p.kind, p.peer, p.size_bytes) for p in parts] == [("send", 1, 4096), ("recv", 1, 8192)]
    features = dict(result.signatures[result.signature[1]].features)
    assert features["size_bytes"] == 8192


def test_collectives_of_a_group_stay_apart_and_are_issued_at_its_end(
    writer: TraceWriter, tmp_path: Path
) -> None:
    writer.communicator(5, 0, 2)
    writer.communicator(6, 0, 4)
    writer.record(Api.GROUP_START)
    writer.all_reduce(1, 400, stream=2)
    writer.launch(2)
    writer.all_reduce(2, 800, stream=3)
    writer.record(Api.GROUP_END)
    assert ops(writer, tmp_path) == [
        Op("device", 2),
        Op("join", 2),
        Op("join", 2),
        Op("stream_wait", 3, 2),
    ]


def test_the_size_of_a_collective_is_that_of_nccl_tests(
    writer: TraceWriter, tmp_path: Path
) -> None:
    writer.communicator(5, 0, 2)
    writer.communicator(6, 0, 4)
    writer.record(Api.COLLECTIVE, 2, definition=2, a=3, b=1000, flags=9)  # all_gather
    writer.record(Api.COLLECTIVE, 2, definition=2, a=1 | 2 << 8, b=1000, flags=9)  # broadcast
    writer.record(Api.COLLECTIVE, 2, definition=2, a=0 | 4 << 40, b=1000, flags=9)  # all_reduce
    result = lowered(writer, tmp_path)
    sizes = [dict(result.signatures[s].features)["size_bytes"] for s in result.signature]
    assert sizes == [4000, 1000, 1000]
    parts = [p for (p,) in result.parts.values()]
    assert [p.size_bytes for p in parts] == [1000, 1000, 1000]
    assert [p.root for p in parts] == [-1, 2, -1]
    assert [p.reduce_op for p in parts] == ["", "", "avg"]
    assert {p.dtype for p in parts} == {"bfloat16"}


def test_the_size_of_a_tensor_is_that_of_its_block_at_the_time(
    writer: TraceWriter, tmp_path: Path
) -> None:
    kernel = writer.kernel("_Z1fPf", ((0, 8),))
    launch = writer.launch_definition(kernel, 1, pointer(0x1100))
    writer.record(Api.MALLOC, a=0x1000, b=0x10000, c=0x10000)
    for size in (0x200, 0x400, 0x200):
        writer.record(Api.TENSOR_ALLOC, a=0x1000, b=size, c=size, d=0x10000)
        writer.record(Api.LAUNCH_KERNEL, 2, definition=launch)
        writer.record(Api.TENSOR_FREE, a=0x1000, b=size, c=0, d=0x10000)
    writer.record(Api.LAUNCH_KERNEL, 2, definition=launch)
    result = lowered(writer, tmp_path)
    sizes = [result.signatures[s].tensor_bytes for s in result.signature]
    assert sizes == [0x200, 0x400, 0x200, 0]
    assert result.signature[0] == result.signature[2]


def test_a_graph_launch_is_a_warning(writer: TraceWriter, tmp_path: Path) -> None:
    writer.record(Api.CAPTURE_BEGIN, 2, a=1)
    writer.launch(2)
    writer.record(Api.CAPTURE_END, 2, a=1)
    writer.record(Api.GRAPH_LAUNCH, 2, a=1)
    result = lowered(writer, tmp_path)
    assert result.kind == []
    assert "CUDA graphs" in result.warnings[0]
