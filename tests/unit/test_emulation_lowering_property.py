"""Random calls: what the lowered ops replay to is what CUDA's rules say of the calls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.cuda_oracle import BLOCKING, GAP_NS, LEGACY, STREAMS, Call, Oracle
from tests.unit.lowered import lowered
from tests.unit.trace_writer import TraceWriter
from understudy.emulation.lowering import NO_DEPENDENCY, NO_SIGNATURE, LoweredRank
from understudy.simulation import world as rules
from understudy.simulation.reference import replay
from understudy.traces.interceptor import FLAG_BLOCKING, Api, CopyKind

_COPY_NS = 7_000
_KINDS = {
    "host": rules.HOST,
    "device": rules.DEVICE,
    "stream_wait": rules.STREAM_WAIT,
    "host_wait": rules.HOST_WAIT,
}
_CAPTURED = (2, 3, 4)

_stream, _event, _none = st.sampled_from(STREAMS), st.integers(1, 3), st.just(0)
_duration = st.sampled_from([1_000, 20_000, 50_000])
_on_events = st.sampled_from(["record", "wait", "event_sync", "query"])
_on_streams = st.sampled_from(["stream_sync", "copy", "upload"])
_calls = st.lists(
    st.one_of(
        st.builds(Call, st.just("kernel"), _stream, _duration),
        st.builds(Call, _on_events, _stream, _event),
        st.builds(Call, _on_streams, _stream, _none),
        st.builds(Call, st.just("device_sync"), _none, _none),
        st.builds(Call, st.just("graph"), _stream, st.integers(1, 2)),
    ),
    min_size=1,
    max_size=25,
)


@st.composite
def _captures(draw: st.DrawFn) -> list[Call]:
    """Kernels on the origin, and on streams that an event has drawn into the capture."""
    inside, recorded, calls = [draw(st.sampled_from(_CAPTURED))], {}, []
    calls.append(Call("kernel", inside[0], draw(_duration)))
    for _ in range(draw(st.integers(0, 10))):
        what = draw(st.sampled_from(["kernel", "record", "wait"]))
        if what == "wait" and recorded:
            event = draw(st.sampled_from(sorted(recorded)))
            stream = draw(st.sampled_from(_CAPTURED))
            inside += [stream] * (stream not in inside)
            calls.append(Call("wait", stream, event))
        elif what != "wait":
            stream = draw(st.sampled_from(inside))
            number = draw(_duration if what == "kernel" else _event)
            if what == "record":
                recorded[number] = stream
            calls.append(Call(what, stream, number))
    return calls


_SYNCHRONIZATION = {
    "record": Api.EVENT_RECORD,
    "wait": Api.STREAM_WAIT_EVENT,
    "event_sync": Api.EVENT_SYNCHRONIZE,
    "query": Api.EVENT_QUERY,
    "stream_sync": Api.STREAM_SYNCHRONIZE,
    "device_sync": Api.DEVICE_SYNCHRONIZE,
}
_COPIES = {"copy": CopyKind.D2H, "upload": CopyKind.H2D}


def write(writer: TraceWriter, call: Call, first_event: int = 0) -> None:
    """The record of a call, GAP_NS after the one before it has returned."""
    if call.what == "kernel":
        writer.launch(call.stream, name=str(call.number))
    elif call.what in _COPIES:
        kind = _COPIES[call.what]
        writer.record(Api.MEMCPY, call.stream, c=64, d=kind, flags=FLAG_BLOCKING)
    elif call.what == "graph":
        writer.record(Api.GRAPH_LAUNCH, call.stream, a=call.number, b=call.number)
    else:
        writer.record(_SYNCHRONIZATION[call.what], call.stream, a=first_event + call.number)


def program(rank: LoweredRank) -> rules.Program:
    """The ops as an engine sees them: durations from the names, no latency, no cost."""
    durations = [_COPY_NS if s.family == "copy" else int(s.name) for s in rank.signatures]
    zeros = np.zeros(len(rank.kind), np.int64)
    depends_on = np.array(rank.depends_on, np.int64)
    return rules.Program(
        kind=np.array([_KINDS[kind] for kind in rank.kind], np.int64),
        stream=np.array(rank.stream, np.int64),
        depends_on=np.where(depends_on == NO_DEPENDENCY, rules.NONE, depends_on),
        gap_ns=np.array(rank.gap_ns, np.int64),
        cost_ns=zeros,
        latency_ns=zeros,
        duration_ns=np.array(
            [0 if s == NO_SIGNATURE else durations[s] for s in rank.signature], np.int64
        ),
        parts={},
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_calls, _captures(), _captures())
def test_lowered_calls_replay_as_cuda_orders_them(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Call], one: list[Call], two: list[Call]
) -> None:
    writer = TraceWriter()
    for stream in STREAMS:
        if stream != LEGACY:
            writer.stream(stream, non_blocking=stream != BLOCKING)
    for number, captured in ((1, one), (2, two)):
        writer.record(Api.CAPTURE_BEGIN, captured[0].stream, a=number)
        for call in captured:
            write(writer, call, first_event=100)
        writer.record(Api.CAPTURE_END, captured[0].stream, a=number)
    writer.mark(0)  # what the capture took is host time before it
    for call in calls:
        write(writer, call)
    writer.mark(1)
    rank = lowered(writer, tmp_path_factory.mktemp("calls"))
    rank.gap_ns[0] = 0
    (timeline,) = replay(
        rules.World([program(rank)], [rules.Placement(0, {})], {}, queue_depth=999)
    )

    oracle = Oracle({1: one, 2: two}, _COPY_NS, host=0)
    oracle.run(calls)
    device = [op for op, kind in enumerate(rank.kind) if kind == "device"]
    starts, ends = timeline.start_ns[0, device], timeline.end_ns[0, device]
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == oracle.kernels
    assert int(timeline.end_ns[0, -1]) == oracle.host + GAP_NS
