"""Lowering of hand-written NCCL calls: groups, messages, communicators."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lowered import Op, lowered, ops
from tests.unit.trace_writer import TraceWriter
from understudy.emulation.lowering import FIRST_PRIVATE_STREAM, LoweredRank
from understudy.traces.interceptor import Api


@pytest.fixture
def writer() -> TraceWriter:
    """A rank with side streams 2 and 3, and communicators of 2, 4 and 1 ranks (1, 2 and 3)."""
    writer = TraceWriter()
    writer.stream(2)
    writer.stream(3)
    for unique_id, size in ((5, 2), (6, 4), (7, 1)):
        writer.communicator(unique_id, 0, size)
    return writer


def messages(writer: TraceWriter, *calls: tuple[Api, int, int, int]) -> None:
    """A group of sends and receives on stream 2: (call, communicator, peer, bytes)."""
    writer.record(Api.GROUP_START)
    for api, communicator, peer, size_bytes in calls:
        writer.record(api, 2, definition=communicator, a=peer, b=size_bytes, flags=7)
    writer.record(Api.GROUP_END)


def features(result: LoweredRank, op: int) -> dict[str, float]:
    return dict(result.signatures[result.signature[op]].features)


def test_sends_and_receives_of_a_group_are_one_op(writer: TraceWriter, tmp_path: Path) -> None:
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
    """On several streams: all wait for all, before and after."""
    writer.record(Api.GROUP_START)
    writer.all_reduce(1, 400, stream=2)
    writer.launch(2)
    writer.all_reduce(2, 800, stream=3)
    writer.all_reduce(1, 400, stream=3)  # of communicator 1, whose stream is 2
    writer.record(Api.GROUP_END)
    assert ops(writer, tmp_path) == [
        Op("device", 2),
        Op("stream_wait", 3, 0),
        Op("join", 2),
        Op("join", 3),
        Op("join", 2),
        Op("stream_wait", 2, 3),
        Op("stream_wait", 3, 4),
    ]


def test_the_size_of_a_collective_is_that_of_nccl_tests(
    writer: TraceWriter, tmp_path: Path
) -> None:
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


def test_messages_of_a_group_keep_their_order_and_are_one_op_per_communicator(
    writer: TraceWriter, tmp_path: Path
) -> None:
    messages(
        writer,
        (Api.RECV, 2, 1, 100),
        (Api.SEND, 1, 1, 7),
        (Api.SEND, 2, 3, 200),
        (Api.RECV, 2, 3, 300),
    )
    result = lowered(writer, tmp_path)
    assert [[(p.kind, p.peer) for p in parts] for parts in result.parts.values()] == [
        [("recv", 1), ("send", 3), ("recv", 3)],
        [("send", 1)],
    ]


def test_messages_outside_of_a_group_are_ops_of_their_own(
    writer: TraceWriter, tmp_path: Path
) -> None:
    writer.record(Api.SEND, 2, definition=1, a=1, b=8, flags=7)
    writer.record(Api.RECV, 2, definition=1, a=1, b=8, flags=7)
    assert ops(writer, tmp_path) == [Op("join", 2), Op("join", 2)]


def test_groups_of_two_threads_are_apart(writer: TraceWriter, tmp_path: Path) -> None:
    other = writer.thread("pt_autograd_0")
    writer.record(Api.GROUP_START)
    writer.all_reduce(2, 800, stream=2)
    writer.record(Api.COLLECTIVE, 3, definition=1, b=400, c=1, flags=7, thread=other)
    writer.record(Api.GROUP_END)
    result = lowered(writer, tmp_path)
    assert [parts[0].communicator for parts in result.parts.values()] == [1, 2]


def test_empty_groups_do_nothing(writer: TraceWriter, tmp_path: Path) -> None:
    writer.record(Api.GROUP_START)
    writer.record(Api.GROUP_END)
    writer.record(Api.GROUP_END)
    assert ops(writer, tmp_path) == []


def test_messages_between_two_nodes_span_the_nodes_of_their_ranks(
    writer: TraceWriter, tmp_path: Path
) -> None:
    messages(writer, (Api.SEND, 2, 1, 100))  # ranks 0 and 1 of four on two nodes
    messages(writer, (Api.SEND, 2, 1, 100), (Api.RECV, 2, 2, 100))
    result = lowered(writer, tmp_path)
    assert [(features(result, op)["ranks"], features(result, op)["nodes"]) for op in (0, 1)] == [
        (2, 1),
        (3, 2),
    ]


def test_what_a_rank_sends_to_itself_is_no_traffic(writer: TraceWriter, tmp_path: Path) -> None:
    """An uneven all-to-all in which this rank keeps most."""
    messages(
        writer,
        (Api.SEND, 2, 0, 4096),
        (Api.RECV, 2, 0, 4096),
        (Api.SEND, 2, 1, 8),
        (Api.RECV, 2, 1, 0),
    )
    result = lowered(writer, tmp_path)
    assert features(result, 0) == {"size_bytes": 8, "ranks": 2, "nodes": 1}
    # An empty message is one like others: its sender has it, too.
    assert [(p.kind, p.peer, p.size_bytes) for p in result.parts[0]][2:] == [
        ("send", 1, 8),
        ("recv", 1, 0),
    ]


@pytest.mark.parametrize(("receive", "expected"), [(0x1000, []), (0x2000, [Op("device", 2)])])
def test_a_communicator_of_one_copies_unless_in_place(
    writer: TraceWriter, tmp_path: Path, receive: int, expected: list[Op]
) -> None:
    writer.record(Api.COLLECTIVE, 2, definition=3, b=400, c=0x1000, d=receive, flags=7)
    writer.record(Api.COMMUNICATOR_DESTROY, definition=3)
    result = lowered(writer, tmp_path)
    assert [Op(*row) for row in zip(result.kind, result.stream, strict=True)] == expected
    assert [s.family for s in result.signatures] == ["copy"] * len(expected)


def test_a_rank_alone_copies_what_it_sends_to_itself(writer: TraceWriter, tmp_path: Path) -> None:
    messages(writer, (Api.SEND, 3, 0, 64), (Api.RECV, 3, 0, 64))
    assert ops(writer, tmp_path) == [Op("device", 2)]


# --- communicators -----------------------------------------------------------------------------


def test_making_a_communicator_waits_for_its_members(writer: TraceWriter, tmp_path: Path) -> None:
    writer.launch(2)
    writer.record(Api.COMMUNICATOR_INIT, definition=1)
    writer.launch(2)
    writer.record(Api.DEVICE_SYNCHRONIZE)
    result = lowered(writer, tmp_path)
    assert ops(writer, tmp_path) == [
        Op("device", 2),
        Op("join", FIRST_PRIVATE_STREAM),
        Op("host_wait", FIRST_PRIVATE_STREAM, 1),
        Op("device", 2),
        Op("host_wait", 2, 3),
    ]
    assert [(p.kind, p.communicator, p.peer) for p in result.parts[1]] == [
        ("communicator_init", 1, -1)
    ]


def test_a_split_joins_the_members_of_the_parent(writer: TraceWriter, tmp_path: Path) -> None:
    child = writer.communicator(8, 1, -1, parent=2, color=0, key=1)
    writer.record(Api.COMMUNICATOR_SPLIT, definition=child, a=2)
    writer.record(Api.COMMUNICATOR_SPLIT, a=2, b=2**64 - 1)  # this rank is in no child
    result = lowered(writer, tmp_path)
    assert [(p.kind, p.communicator) for (p,) in result.parts.values()] == [
        ("communicator_split", 2)
    ] * 2


def test_a_shrink_joins_those_that_stay(writer: TraceWriter, tmp_path: Path) -> None:
    writer.record(Api.COMMUNICATOR_SPLIT, definition=1, a=2)
    result = lowered(writer, tmp_path)
    assert [p.communicator for (p,) in result.parts.values()] == [1]


def test_ending_a_communicator_waits_for_its_work_once(writer: TraceWriter, tmp_path: Path) -> None:
    writer.all_reduce(1, 400, stream=2)
    writer.launch(3)
    writer.record(Api.COMMUNICATOR_FINALIZE, definition=1)
    writer.record(Api.COMMUNICATOR_DESTROY, definition=1)  # local after it was finalized
    writer.record(Api.COMMUNICATOR_ABORT, definition=2)
    assert ops(writer, tmp_path)[2:] == [
        Op("host_wait", 2, 0),
        Op("join", FIRST_PRIVATE_STREAM),
        Op("host_wait", FIRST_PRIVATE_STREAM, 3),
    ]


def test_communicators_made_in_a_group_are_made_at_its_end(
    writer: TraceWriter, tmp_path: Path
) -> None:
    writer.record(Api.GROUP_START)
    writer.record(Api.COMMUNICATOR_INIT, definition=1)
    writer.record(Api.COMMUNICATOR_INIT, definition=2)
    writer.launch(2)
    writer.record(Api.GROUP_END)
    result = lowered(writer, tmp_path)
    assert result.kind == ["device", "join", "host_wait", "join", "host_wait"]
