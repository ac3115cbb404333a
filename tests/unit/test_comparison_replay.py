"""Measured ranks, replayed: hand-made traces whose timeline is known."""

from __future__ import annotations

import pytest

from understudy.comparison.replay import replay
from understudy.comparison.replay.dependencies import dependencies
from understudy.comparison.replay.records import (
    Call,
    MeasuredRank,
    MeasuredRun,
    Step,
    Wait,
    Work,
    WorkKind,
)
from understudy.errors import UnderstudyError

US = 1_000
LATENCY = 8 * US


class Trace:
    """Writes down a rank as a profiler would have seen it."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.calls: list[Call] = []
        self.work: list[Work] = []
        self.steps: list[Step] = []
        self.waits: dict[int, Wait] = {}

    def call(self, name: str, start_us: int, end_us: int, thread: str = "main") -> Call:
        call = Call(thread, name, start_us * US, end_us * US, len(self.calls))
        self.calls.append(call)
        return call

    def launch(
        self,
        call_us: int,
        start_us: int,
        end_us: int,
        stream: int = 7,
        name: str = "gemm",
        kind: WorkKind = "kernel",
        returns_us: int | None = None,
    ) -> Work:
        call = self.call("LaunchKernel", call_us, call_us + 5 if returns_us is None else returns_us)
        work = Work(stream, kind, name, start_us * US, end_us * US, call)
        call.work.append(work)
        self.work.append(work)
        return work

    def done(self) -> MeasuredRank:
        work = sorted(self.work, key=lambda w: w.start_ns)
        return MeasuredRank(self.rank, self.calls, work, self.steps, self.waits)


def one(trace: Trace) -> MeasuredRun:
    return MeasuredRun([trace.done()], 1)


def test_work_that_stands_in_line_and_a_host_that_waits() -> None:
    trace = Trace()
    trace.launch(0, 8, 108)
    trace.launch(10, 109, 209)
    trace.launch(20, 210, 310)
    trace.call("DeviceSynchronize", 30, 315)
    trace.launch(320, 328, 350)
    fidelity = replay(one(trace))
    (step,) = fidelity.steps
    assert (step.measured_ns, step.simulated_ns) == (350 * US, 350 * US)
    assert not fidelity.learned_host
    assert fidelity.warnings == ["rank 0: no ProfilerStep in the trace: it is one step"]


def test_a_stream_that_waits_for_another() -> None:
    """Nothing says what the wait is for: the work on stream 7 that ended right before."""
    trace = Trace()
    first = trace.launch(0, 8, 508)
    trace.call("StreamWaitEvent", 10, 12)
    second = trace.launch(15, 509, 609, stream=20, name="ncclKernel_AllReduce")
    rank = trace.done()
    waits = dependencies(rank, rank.calls)
    assert waits.of_work == {second: [first]}
    assert waits.inferred == 1
    fidelity = replay(MeasuredRun([rank], 1))
    assert abs(fidelity.steps[0].error) < 0.005
    assert fidelity.collectives[0].collective == "ncclKernel_AllReduce"


def test_no_wait_is_inferred_for_work_that_ended_later() -> None:
    trace = Trace()
    earlier = trace.launch(0, 8, 28)
    trace.launch(10, 30, 900)
    trace.call("StreamWaitEvent", 17, 19)
    other = trace.launch(20, 29, 40, stream=20)
    rank = trace.done()
    assert dependencies(rank, rank.calls).of_work == {other: [earlier]}


def test_what_the_trace_says_of_a_wait_holds() -> None:
    """Stream 20 waits for stream 14, although the work of stream 7 ended later."""
    trace = Trace()
    trace.launch(0, 8, 60)
    meant = trace.launch(6, 14, 50, stream=14)
    record = trace.call("EventRecord", 12, 13)
    trace.launch(14, 51, 62, stream=14)
    wait = trace.call("StreamWaitEvent", 20, 21)
    trace.waits[wait.correlation] = Wait(14, record.correlation)
    waiting = trace.launch(22, 63, 70, stream=20)
    rank = trace.done()
    waits = dependencies(rank, rank.calls)
    assert waits.of_work == {waiting: [meant]}


def test_polling_threads_do_not_take_host_time() -> None:
    trace = Trace()
    trace.launch(0, 8, 20)
    for start in range(6, 90, 10):
        trace.call("EventQuery", start, start + 9, thread="watchdog")
    trace.launch(100, 108, 120)
    (step,) = replay(one(trace)).steps
    assert step.simulated_ns == step.measured_ns == 120 * US


def test_a_blocking_copy_holds_the_host() -> None:
    trace = Trace()
    trace.launch(0, 8, 508)
    trace.launch(10, 509, 519, kind="copy", name="Memcpy DtoH", returns_us=525)
    trace.launch(530, 538, 560)
    (step,) = replay(one(trace)).steps
    assert abs(step.error) < 0.005


def steps_of(paces_us: list[int]) -> Trace:
    """Steps of two launches each, with the host's pace as given."""
    trace, now = Trace(), 0
    for number, pace_us in enumerate(paces_us):
        begin = now
        trace.launch(now, now + 8, now + 20)
        now += pace_us
        trace.launch(now, now + 8, now + 20)
        now += 50
        trace.steps.append(Step(f"ProfilerStep#{number}", begin * US, now * US))
    return trace


def test_the_later_steps_are_scored_with_the_pace_of_the_earlier() -> None:
    fidelity = replay(one(steps_of([100, 100, 120, 120])))
    assert fidelity.learned_host
    assert [step.step for step in fidelity.steps] == ["ProfilerStep#2", "ProfilerStep#3"]
    for step in fidelity.steps:
        assert (step.measured_ns, step.simulated_ns) == (140 * US, 120 * US)
        assert step.own_host_error == 0
    assert fidelity.error == pytest.approx(120 / 140 - 1)
    assert fidelity.step_error_max == pytest.approx(20 / 140)


def collective(trace: Trace, call_us: int, start_us: int, end_us: int) -> None:
    trace.launch(call_us, start_us, end_us, stream=20, name="ncclKernel_AllReduce_RING")


def test_ranks_wait_for_each_other() -> None:
    """Rank 1 comes 200 us later: rank 0's kernel waits for it and its next work comes after."""
    early, late = Trace(0), Trace(1)
    collective(early, 0, 8, 258)
    early.call("StreamWaitEvent", 10, 11)
    early.launch(12, 259, 300)
    collective(late, 200, 208, 258)
    late.call("StreamWaitEvent", 210, 211)
    late.launch(212, 259, 310)
    fidelity = replay(MeasuredRun([early.done(), late.done()], 2))
    # The pause between two pieces of work is a mean: 1 us here and there.
    assert all(abs(s.simulated_ns - s.measured_ns) <= 2 * US for s in fidelity.steps)
    assert all(abs(s.simulated_end_ns - s.measured_end_ns) <= 2 * US for s in fidelity.collectives)


def test_collectives_that_do_not_agree_keep_their_durations() -> None:
    early, late = Trace(0), Trace(1)
    collective(early, 0, 8, 258)
    collective(early, 10, 260, 270)
    collective(late, 200, 208, 258)
    fidelity = replay(MeasuredRun([early.done(), late.done()], 2))
    assert any("rank 0 has 2 of them and rank 1 has 1" in w for w in fidelity.warnings)
    assert all(abs(step.error) < 0.02 for step in fidelity.steps)


def test_a_missing_rank_is_told() -> None:
    early, late = Trace(0), Trace(1)
    for trace in (early, late):
        collective(trace, 0, 8, 258)
    fidelity = replay(MeasuredRun([early.done(), late.done()], 4))
    assert any("2 of 4 ranks have no trace (first: rank 2)" in w for w in fidelity.warnings)


def test_work_from_before_the_trace_starts_when_it_did() -> None:
    trace = Trace()
    trace.work.append(Work(7, "kernel", "gemm", 0, 100 * US))
    trace.work.append(Work(7, "kernel", "gemm", 150 * US, 300 * US))
    trace.launch(10, 301, 350)
    fidelity = replay(one(trace))
    assert abs(fidelity.steps[0].error) < 0.005
    assert any("2 of 3 kernels and copies have no launch" in w for w in fidelity.warnings)


def test_a_trace_without_launches_is_refused() -> None:
    trace = Trace()
    trace.work.append(Work(7, "kernel", "gemm", 0, 100))
    with pytest.raises(UnderstudyError, match="rank 0 has no CUDA or HIP call"):
        replay(one(trace))
