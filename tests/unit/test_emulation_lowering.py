"""Lowering of hand-written traces: CUDA's ordering rules, one case each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lowered import Op, lowered, ops
from tests.unit.trace_writer import TraceWriter, pointer
from understudy.emulation.lowering import FIRST_PRIVATE_STREAM, count_events
from understudy.traces.interceptor import (
    FLAG_BLOCKING,
    FLAG_NOT_READY,
    FLAG_PINNED,
    STREAM_PER_THREAD,
    Api,
    CopyKind,
    read_trace,
)


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
        (CopyKind.H2D, FLAG_PINNED, ["device", "device"]),
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


def test_a_copy_to_the_device_waits_for_its_stream_only(
    writer: TraceWriter, tmp_path: Path
) -> None:
    writer.launch(2)
    writer.launch(3)
    writer.record(Api.MEMCPY, 3, c=4096, d=CopyKind.H2D, flags=FLAG_BLOCKING)
    assert ops(writer, tmp_path)[2:] == [Op("host_wait", 3, 1), Op("device", 3)]


@pytest.mark.parametrize(("flags", "waits"), [(0, 0), (FLAG_BLOCKING, 1)])
def test_a_memset_blocks_only_where_the_host_is_involved(
    writer: TraceWriter, tmp_path: Path, flags: int, waits: int
) -> None:
    writer.record(Api.MEMSET, 2, c=4096, flags=flags)
    assert [op.kind for op in ops(writer, tmp_path)] == ["device"] + ["host_wait"] * waits


def test_host_functions_take_no_time_on_their_stream(writer: TraceWriter, tmp_path: Path) -> None:
    writer.launch(2)
    writer.record(Api.HOST_FUNCTION, 2)
    writer.launch(2)
    assert ops(writer, tmp_path) == [Op("device", 2), Op("device", 2)]


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


def test_a_loop_of_queries_is_one_wait_from_its_begin(writer: TraceWriter, tmp_path: Path) -> None:
    """while not event.query(): time.sleep(...)"""
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.record(Api.EVENT_QUERY, a=1, flags=FLAG_NOT_READY)
    writer.record(Api.EVENT_QUERY, a=1, after_ns=5_000_000)
    writer.launch(3)
    result = lowered(writer, tmp_path)
    assert result.kind == ["device", "host_wait", "device"]
    assert result.depends_on[1] == 0
    assert result.gap_ns == [0, 18_000, 9_000]  # without the time between the two queries


def test_a_loop_over_several_events_waits_for_each(writer: TraceWriter, tmp_path: Path) -> None:
    """while not all(e.query() for e in events): pass"""
    for event, stream in ((1, 2), (2, 3)):
        writer.launch(stream)
        writer.record(Api.EVENT_RECORD, stream, a=event)
    for event, flags in ((1, FLAG_NOT_READY), (1, 0), (2, FLAG_NOT_READY), (1, 0), (2, 0)):
        writer.record(Api.EVENT_QUERY, a=event, flags=flags)
    assert ops(writer, tmp_path)[2:] == [Op("host_wait", 2, 0), Op("host_wait", 3, 1)]


def test_a_loop_of_stream_queries_waits_for_the_stream(writer: TraceWriter, tmp_path: Path) -> None:
    writer.launch(2)
    writer.record(Api.STREAM_QUERY, 2, flags=FLAG_NOT_READY)
    writer.record(Api.STREAM_QUERY, 2)
    assert ops(writer, tmp_path) == [Op("device", 2), Op("host_wait", 2, 0)]


def test_a_program_that_asks_and_does_something_else_does_not_wait(
    writer: TraceWriter, tmp_path: Path
) -> None:
    """if not event.query(): do something; later: if event.query(): ..."""
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.record(Api.EVENT_QUERY, a=1, flags=FLAG_NOT_READY)
    writer.launch(3)
    writer.record(Api.EVENT_QUERY, a=1)
    writer.launch(3)
    result = lowered(writer, tmp_path)
    assert result.kind == ["device"] * 3
    assert result.gap_ns == [0, 27_000, 18_000]


def test_a_thread_that_polls_beside_the_program_is_dropped(
    writer: TraceWriter, tmp_path: Path
) -> None:
    poller = writer.thread("poller")
    writer.launch(2)
    writer.record(Api.EVENT_QUERY, a=1, flags=FLAG_NOT_READY, thread=poller)
    writer.record(Api.EVENT_QUERY, a=1, thread=poller)
    writer.launch(2)
    result = lowered(writer, tmp_path)
    assert result.kind == ["device"] * 2
    assert result.gap_ns == [0, 29_000]


def test_each_thread_has_a_default_stream_of_its_own(writer: TraceWriter, tmp_path: Path) -> None:
    other = writer.thread("pt_autograd_0")
    writer.launch(STREAM_PER_THREAD)
    writer.launch(STREAM_PER_THREAD, thread=other)
    writer.launch(0)  # the legacy stream waits for both: they are blocking streams
    writer.launch(STREAM_PER_THREAD)
    writer.record(Api.DEVICE_SYNCHRONIZE)
    assert ops(writer, tmp_path) == [
        Op("device", STREAM_PER_THREAD),
        Op("device", FIRST_PRIVATE_STREAM),
        Op("stream_wait", 0, 0),
        Op("stream_wait", 0, 1),
        Op("device", 0),
        Op("stream_wait", STREAM_PER_THREAD, 4),
        Op("device", STREAM_PER_THREAD),
        Op("host_wait", 0, 4),
        Op("host_wait", STREAM_PER_THREAD, 6),
        Op("host_wait", FIRST_PRIVATE_STREAM, 1),
    ]


def test_an_event_that_is_destroyed_still_holds_those_that_wait(
    writer: TraceWriter, tmp_path: Path
) -> None:
    writer.launch(2)
    writer.record(Api.EVENT_RECORD, 2, a=1)
    writer.record(Api.STREAM_WAIT_EVENT, 3, a=1)
    writer.record(Api.EVENT_DESTROY, a=1)
    writer.launch(3)
    assert ops(writer, tmp_path)[1:] == [Op("stream_wait", 3, 0), Op("device", 3)]


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
