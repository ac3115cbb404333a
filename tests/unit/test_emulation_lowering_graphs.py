"""Lowering of hand-written captures and launches of CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.lowered import Op, lowered, ops
from tests.unit.trace_writer import TraceWriter, pointer
from understudy.emulation.lowering import FIRST_PRIVATE_STREAM, NO_GRAPH
from understudy.traces.interceptor import FLAG_EXTERNAL, Api, CopyKind

BRANCH = FIRST_PRIVATE_STREAM


@pytest.fixture
def writer() -> TraceWriter:
    """A rank with non-blocking streams 2 to 4 and two communicators."""
    writer = TraceWriter()
    for stream in (2, 3, 4):
        writer.stream(stream)
    writer.communicator(5, 0, 2)
    writer.communicator(6, 0, 4)
    return writer


@contextmanager
def captured(writer: TraceWriter, number: int = 1, stream: int = 2) -> Iterator[None]:
    writer.record(Api.CAPTURE_BEGIN, stream, a=number)
    yield
    writer.record(Api.CAPTURE_END, stream, a=number)


def launch_graph(
    writer: TraceWriter, stream: int = 2, number: int = 1, executable: int = 1
) -> None:
    writer.record(Api.GRAPH_LAUNCH, stream, a=number, b=executable)


def fork(writer: TraceWriter, event: int, source: int, stream: int) -> None:
    writer.record(Api.EVENT_RECORD, source, a=event)
    writer.record(Api.STREAM_WAIT_EVENT, stream, a=event)


def test_a_linear_graph_runs_on_the_launch_stream(writer: TraceWriter, tmp_path: Path) -> None:
    with captured(writer):
        writer.launch(2, "first")
        writer.record(Api.MEMCPY, 2, c=4096, d=CopyKind.D2D)
        writer.record(Api.MEMSET, 2, c=512)
        writer.launch(2, "last")
    writer.launch(4)
    launch_graph(writer, stream=4)
    launch_graph(writer, stream=4)
    result = lowered(writer, tmp_path)
    assert result.kind == ["device", *(["host"] + ["device"] * 4) * 2]
    assert [s for k, s in zip(result.kind, result.stream, strict=True) if k == "device"] == [4] * 9
    names = [result.signatures[s].name for s in result.signature[2:6]]
    assert (names[0], names[3]) == ("first", "last")
    assert result.signature[2:6] == result.signature[7:11]
    assert result.graph == [NO_GRAPH, *[1] * 10]
    # The launch pays the host time, its nodes none; that of the capture is no work's.
    assert [gap > 0 for gap in result.gap_ns[1:7]] == [True, *[False] * 4, True]
    assert result.warnings == []


def test_a_captured_kernel_is_the_one_that_runs_eagerly(
    writer: TraceWriter, tmp_path: Path
) -> None:
    """Its tensors are those of the capture, whatever lies there at the launch."""
    kernel = writer.launch_definition(writer.kernel("_Z1fPf", ((0, 8),)), 1, pointer(0x1000))
    writer.record(Api.TENSOR_ALLOC, a=0x1000, b=512, c=512, d=512)
    writer.record(Api.LAUNCH_KERNEL, 2, definition=kernel)
    with captured(writer):
        writer.record(Api.LAUNCH_KERNEL, 2, definition=kernel)
    writer.record(Api.TENSOR_FREE, a=0x1000, b=512, c=0, d=512)
    writer.record(Api.TENSOR_ALLOC, a=0x1000, b=64, c=64, d=512)
    launch_graph(writer)
    result = lowered(writer, tmp_path)
    assert result.signature[0] == result.signature[2] and result.kind[2] == "device"


def test_a_branch_leaves_and_meets_the_launch_stream(writer: TraceWriter, tmp_path: Path) -> None:
    with captured(writer):
        writer.launch(2)
        fork(writer, 1, 2, 3)
        writer.launch(3)
        writer.launch(2)
        fork(writer, 2, 3, 2)
        writer.launch(2)
    writer.launch(3)  # the capture's side stream is its own again
    launch_graph(writer, stream=4)
    launch_graph(writer, stream=4)
    once = [
        Op("host", -1),
        Op("device", 4),
        Op("stream_wait", BRANCH, 2),
        Op("device", BRANCH),
        Op("device", 4),
        Op("stream_wait", 4, 4),
        Op("device", 4),
    ]
    again = [op._replace(depends_on=op.depends_on + 7) if op.depends_on >= 0 else op for op in once]
    assert ops(writer, tmp_path) == [Op("device", 3), *once, *again]


def test_a_branch_from_the_start_waits_for_what_was_before_the_graph(
    writer: TraceWriter, tmp_path: Path
) -> None:
    with captured(writer):
        fork(writer, 1, 2, 3)
        writer.launch(3)
        fork(writer, 2, 3, 2)
    writer.launch(2)
    launch_graph(writer)
    writer.launch(2)
    assert ops(writer, tmp_path) == [
        Op("device", 2),
        Op("host", -1),
        Op("stream_wait", BRANCH, 0),
        Op("device", BRANCH),
        Op("stream_wait", 2, 3),
        Op("device", 2),
    ]


def test_a_graph_ends_with_all_of_its_branches(writer: TraceWriter, tmp_path: Path) -> None:
    """The event that joins the branch may be of an earlier node; one branch may leave another."""
    with captured(writer):
        writer.launch(2)
        fork(writer, 1, 2, 3)
        fork(writer, 2, 3, 4)
        writer.launch(4)
        fork(writer, 3, 4, 2)
        writer.launch(3)
    launch_graph(writer)
    assert ops(writer, tmp_path)[2:] == [
        Op("stream_wait", BRANCH, 1),
        Op("stream_wait", BRANCH + 1, 2),
        Op("device", BRANCH + 1),
        Op("stream_wait", 2, 4),
        Op("device", BRANCH),
        Op("stream_wait", 2, 6),
    ]


def test_work_beside_a_capture_runs(writer: TraceWriter, tmp_path: Path) -> None:
    """Another thread may work on streams that are not captured."""
    other = writer.thread("pt_autograd_0")
    with captured(writer):
        writer.launch(2)
        writer.launch(3, thread=other)
        fork(writer, 9, 3, 4)
        writer.launch(4)
    assert ops(writer, tmp_path) == [
        Op("device", 3),
        Op("stream_wait", 4, 0),
        Op("device", 4),
    ]


def test_events_of_a_capture_are_none_outside_of_it(writer: TraceWriter, tmp_path: Path) -> None:
    writer.launch(3)
    writer.record(Api.EVENT_RECORD, 3, a=1)
    with captured(writer):
        writer.launch(2)
        writer.record(Api.EVENT_RECORD, 2, a=1)
        writer.record(Api.EVENT_RECORD, 3, a=2)
        writer.record(Api.STREAM_WAIT_EVENT, 2, a=2)  # CUDA refuses that
    writer.record(Api.STREAM_WAIT_EVENT, 4, a=1)
    writer.record(Api.EVENT_SYNCHRONIZE, a=1)
    launch_graph(writer)
    assert ops(writer, tmp_path) == [Op("device", 3), Op("host", -1), Op("device", 2)]


def test_external_events_are_recorded_and_waited_for_at_every_launch(
    writer: TraceWriter, tmp_path: Path
) -> None:
    with captured(writer):
        writer.record(Api.STREAM_WAIT_EVENT, 2, a=1, flags=FLAG_EXTERNAL)
        writer.launch(2)
        writer.record(Api.EVENT_RECORD, 2, a=2, flags=FLAG_EXTERNAL)
        writer.launch(2)
    for _ in range(2):
        writer.launch(3)
        writer.record(Api.EVENT_RECORD, 3, a=1)
        launch_graph(writer)
        writer.record(Api.STREAM_WAIT_EVENT, 4, a=2)
    once = [
        Op("device", 3),
        Op("host", -1),
        Op("stream_wait", 2, 0),
        Op("device", 2),
        Op("device", 2),
        Op("stream_wait", 4, 3),
    ]
    again = [op._replace(depends_on=op.depends_on + 6) if op.depends_on >= 0 else op for op in once]
    assert ops(writer, tmp_path) == [*once, *again]


def test_launches_of_one_executable_follow_each_other(writer: TraceWriter, tmp_path: Path) -> None:
    with captured(writer):
        writer.launch(2)
    launch_graph(writer, stream=3, executable=1)
    launch_graph(writer, stream=4, executable=2)
    launch_graph(writer, stream=4, executable=1)
    assert ops(writer, tmp_path) == [
        Op("host", -1),
        Op("device", 3),
        Op("host", -1),
        Op("device", 4),
        Op("host", -1),
        Op("stream_wait", 4, 1),
        Op("device", 4),
    ]


def test_a_launch_on_a_blocking_stream_waits_for_the_legacy_stream(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.stream(2, non_blocking=False)
    with captured(writer):
        writer.launch(2)
    writer.launch(0)
    launch_graph(writer)
    writer.launch(0)
    assert ops(writer, tmp_path) == [
        Op("device", 0),
        Op("host", -1),
        Op("stream_wait", 2, 0),
        Op("device", 2),
        Op("stream_wait", 0, 3),
        Op("device", 0),
    ]


def test_collectives_in_a_graph_join_at_every_launch(writer: TraceWriter, tmp_path: Path) -> None:
    """As PyTorch captures them: on NCCL's stream, in a group, between two events."""
    with captured(writer):
        writer.launch(2)
        fork(writer, 1, 2, 3)
        writer.record(Api.GROUP_START)
        writer.all_reduce(1, 400, stream=3)
        writer.all_reduce(2, 800, stream=3)
        writer.record(Api.GROUP_END)
        fork(writer, 2, 3, 2)
    launch_graph(writer)
    launch_graph(writer)
    result = lowered(writer, tmp_path)
    assert result.kind == ["host", "device", "stream_wait", "join", "join", "stream_wait"] * 2
    assert {op: parts[0].communicator for op, parts in result.parts.items()} == {
        3: 1,
        4: 2,
        9: 1,
        10: 2,
    }


def test_a_group_over_captured_streams_orders_them_in_the_graph(
    writer: TraceWriter, tmp_path: Path
) -> None:
    with captured(writer):
        fork(writer, 1, 2, 3)
        writer.record(Api.GROUP_START)
        writer.all_reduce(1, 400, stream=2)
        writer.all_reduce(2, 800, stream=3)
        writer.record(Api.GROUP_END)
    launch_graph(writer)
    kinds = [op.kind for op in ops(writer, tmp_path)]
    assert kinds.count("join") == 2 and kinds[-2:] == ["stream_wait", "stream_wait"]


def test_a_capture_of_the_warm_up_is_launched_later(writer: TraceWriter, tmp_path: Path) -> None:
    with captured(writer):
        writer.launch(2)
    for number in range(3):
        launch_graph(writer)
        writer.mark(number)
    result = lowered(writer, tmp_path, first_iteration=2)
    assert result.iterations == 3
    assert result.iteration == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_graph_captured_in_parts_has_all_of_them(writer: TraceWriter, tmp_path: Path) -> None:
    for name in ("one", "two"):
        with captured(writer):
            writer.launch(2, name)
    launch_graph(writer)
    result = lowered(writer, tmp_path)
    assert [result.signatures[s].name for s in result.signature[1:]] == ["one", "two"]


def test_a_graph_without_a_capture_is_named(writer: TraceWriter, tmp_path: Path) -> None:
    launch_graph(writer, number=0)
    launch_graph(writer, number=0)
    result = lowered(writer, tmp_path)
    assert result.kind == ["host", "host"]
    assert "did not capture from streams (2 launches)" in result.warnings[0]
