"""What memory is for: the categories of blocks, and what device memory held when it was fullest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trace_writer import TraceWriter
from understudy.emulation.lowering import kept_threads
from understudy.emulation.memory import MemoryHistory, check_peaks, memory_history
from understudy.traces import interceptor as fmt
from understudy.traces.interceptor import Api, MemoryRole, read_trace

#: Starts of blocks.
PARAMETER, GRADIENT, STATE, INPUT, HIDDEN, SCRATCH, BUCKET, BUFFER = (n << 20 for n in range(1, 9))


class Script:
    """Writes what PyTorch's allocator and a script's rank hook write."""

    def __init__(self) -> None:
        self.writer = TraceWriter()
        self.autograd = self.writer.thread("pt_autograd_0")
        self.allocated = 0
        self.sizes: dict[int, int] = {}
        self.marks = 0

    def allocate(self, start: int, size_bytes: int = 512, thread: int | None = None) -> None:
        self.allocated += size_bytes
        self.sizes[start] = size_bytes
        self.writer.record(Api.TENSOR_ALLOC, a=start, b=size_bytes, c=self.allocated, thread=thread)

    def free(self, start: int, thread: int | None = None) -> None:
        size_bytes = self.sizes.pop(start)
        self.allocated -= size_bytes
        self.writer.record(Api.TENSOR_FREE, a=start, b=size_bytes, c=self.allocated, thread=thread)

    def role(self, start: int, role: MemoryRole) -> None:
        self.writer.record(Api.MEMORY_ROLE, a=start, b=role)

    def backward(self) -> None:
        self.writer.launch(thread=self.autograd)

    def mark(self) -> None:
        self.writer.mark(self.marks)
        self.marks += 1

    def history(self, folder: Path) -> MemoryHistory:
        trace = read_trace(self.writer.write(folder))
        return memory_history(trace, kept_threads(trace))


def steps(history: MemoryHistory) -> list[tuple[int, str, int]]:
    return list(
        zip(
            history.iteration.tolist(),
            history.category.tolist(),
            history.change_bytes.tolist(),
            strict=True,
        )
    )


def training(iterations: int) -> Script:
    """Gradients are new ones in each iteration, at an address that was something else's before."""
    script = Script()
    script.allocate(PARAMETER, 1024)
    script.allocate(BUFFER)
    for i in range(iterations):
        if i:
            script.free(GRADIENT)
        script.allocate(INPUT)
        script.allocate(HIDDEN, 2048)
        script.allocate(SCRATCH)
        script.free(SCRATCH)
        script.writer.launch()
        script.backward()
        script.allocate(SCRATCH, thread=script.autograd)
        script.free(HIDDEN, thread=script.autograd)
        script.allocate(GRADIENT, 1024, thread=script.autograd)
        script.free(SCRATCH, thread=script.autograd)
        if i == 0:
            script.allocate(STATE, 2048)
            script.role(STATE, MemoryRole.OPTIMIZER_STATE)
            script.role(PARAMETER, MemoryRole.PARAMETER)
        script.role(GRADIENT, MemoryRole.GRADIENT)
        script.free(INPUT)
        script.mark()
    return script


def test_every_block_has_its_category(tmp_path: Path) -> None:
    history = training(3).history(tmp_path)
    first = [
        (0, "parameters", 1024),
        (0, "other", 512),
        (0, "activations", 512),
        (0, "activations", 2048),
        (0, "temporaries", 512),
        (0, "temporaries", -512),
        (0, "temporaries", 512),
        (0, "activations", -2048),
        (0, "gradients", 1024),
        (0, "temporaries", -512),
        (0, "optimizer_state", 2048),
        (0, "activations", -512),
    ]
    later = [(1, "gradients", -1024), *((1, c, b) for _, c, b in first[2:10]), first[-1]]
    assert steps(history)[:12] == first
    # Equal frees that follow each other have an order of their own.
    assert sorted(s for s in steps(history) if s[0] == 1) == sorted((1, c, b) for _, c, b in later)


def test_parts_at_the_fullest_moment_sum_to_the_peak(tmp_path: Path) -> None:
    script = Script()
    script.writer.record(Api.LIBRARY_MEMORY, b=100, c=700)
    script.writer.record(Api.MALLOC, a=PARAMETER, b=8192, c=700 + 8192)
    script.allocate(PARAMETER, 1024)
    script.role(PARAMETER, MemoryRole.PARAMETER)
    script.writer.launch()
    script.mark()
    script.allocate(PARAMETER + 1024, 4096)
    script.free(PARAMETER + 1024)
    script.mark()
    history = script.history(tmp_path)
    assert history.fullest() == (
        1,
        {
            "parameters": 1024,
            "activations": 4096,
            "unused": 3072,
            "libraries": 100,
            "context": 600,
        },
    )
    assert sum(history.fullest()[1].values()) == history.peaks.peak_device_bytes


def test_what_nccl_is_given_is_communication_unless_the_script_says_more(tmp_path: Path) -> None:
    script = Script()
    communicator = script.writer.communicator(1, 0, 1)
    script.allocate(BUCKET)
    for _ in range(3):
        script.allocate(GRADIENT)
        script.backward()
        script.role(GRADIENT, MemoryRole.GRADIENT)
        script.writer.record(
            Api.COLLECTIVE, definition=communicator, b=512, c=GRADIENT, d=BUCKET, flags=7
        )
        script.allocate(SCRATCH)
        script.writer.record(Api.SEND, definition=communicator, b=512, c=SCRATCH, flags=7)
        script.free(SCRATCH)
        script.free(GRADIENT)
        script.mark()
    categories = dict.fromkeys((c, abs(b)) for _, c, b in steps(script.history(tmp_path)))
    assert list(categories) == [("communication", 512), ("gradients", 512)]


def test_the_workspace_of_a_cudnn_call_is_told_apart(tmp_path: Path) -> None:
    script = Script()
    tensor = fmt.DNN_TENSOR.pack(705, 9, 0, 2, 1, 4, 5, *[0] * 6, 5, 1, *[0] * 6)
    operation = fmt.DNN_OPERATION.pack(10, 0, 0, 1, 2, 1, 1, 0, 1, 1, 0, 0, 0, 0)
    dnn = script.writer.define(fmt.DNN, fmt.DNN_PAYLOAD.pack(1, 1) + operation + tensor)
    script.allocate(SCRATCH)
    script.writer.record(Api.DNN, definition=dnn, a=SCRATCH)
    script.free(SCRATCH)
    script.allocate(SCRATCH, 1024)
    script.writer.record(Api.DNN, definition=dnn)
    script.free(SCRATCH)
    script.mark()
    assert steps(script.history(tmp_path)) == [
        (0, "cudnn_workspaces", 512),
        (0, "cudnn_workspaces", -512),
        (0, "activations", 1024),
        (0, "activations", -1024),
    ]


def test_without_caching_segments_are_blocks(tmp_path: Path) -> None:
    script = Script()
    script.writer.record(Api.MALLOC, a=PARAMETER, b=512, c=1112)
    script.role(PARAMETER, MemoryRole.PARAMETER)
    script.writer.launch()
    script.mark()
    history = script.history(tmp_path)
    assert steps(history) == [(0, "parameters", 512)]
    assert history.fullest() == (0, {"parameters": 512, "context": 600})
    assert history.peaks.peak_allocated_bytes == 0  # PyTorch counts nothing then


def test_a_role_belongs_to_the_block_that_is_alive(tmp_path: Path) -> None:
    """An address that was given back, and one inside a block, name nothing."""
    script = Script()
    script.allocate(SCRATCH)
    script.free(SCRATCH)
    script.role(SCRATCH, MemoryRole.PARAMETER)
    script.allocate(HIDDEN)
    script.role(HIDDEN + 256, MemoryRole.PARAMETER)
    script.role(INPUT, MemoryRole.PARAMETER)
    script.free(HIDDEN)
    script.writer.record(Api.TENSOR_FREE, a=STATE, b=512)  # from before the trace
    script.mark()
    categories = [category for _, category, _ in steps(script.history(tmp_path))]
    assert categories == ["activations"] * 4 + ["other"]


def test_without_memory_there_is_no_fullest_moment(tmp_path: Path) -> None:
    script = Script()
    script.writer.launch()
    script.mark()
    assert script.history(tmp_path).fullest() == (0, {})


def test_peaks_are_compared_with_those_of_pytorch(tmp_path: Path) -> None:
    """From one record to the next: PyTorch begins anew where a script resets its peaks."""
    script = Script()
    script.writer.record(Api.MALLOC, a=PARAMETER, b=4096, c=5000)
    script.allocate(PARAMETER, 1024)
    script.allocate(SCRATCH, 2048)
    script.free(SCRATCH)
    script.writer.record(Api.MEMORY_PEAKS, a=3072, b=4096)
    script.writer.record(Api.MEMORY_PEAKS, a=1024, b=4096)
    script.allocate(SCRATCH, 512)
    script.writer.record(Api.MEMORY_PEAKS, a=1536, b=4096)
    assert check_peaks(read_trace(script.writer.write(tmp_path))) == []


def test_a_peak_that_is_not_pytorchs_is_named(tmp_path: Path) -> None:
    script = Script()
    script.writer.record(Api.MALLOC, a=PARAMETER, b=4096, c=5000)
    script.allocate(PARAMETER, 1024)
    script.allocate(SCRATCH, 1_000_000)
    script.writer.record(Api.MEMORY_PEAKS, a=1_001_536, b=8192)
    script.mark()
    assert check_peaks(read_trace(script.writer.write(tmp_path))) == [
        "rank 0: PyTorch's own peak of allocated memory on device 0 is 1,001,536 bytes, that of "
        "the memory timeline 1,001,024 (-512 bytes): the memory figures of this rank are wrong",
        "rank 0: PyTorch's own peak of reserved memory on device 0 is 8,192 bytes, that of the "
        "memory timeline 4,096 (-4,096 bytes): the memory figures of this rank are wrong",
    ]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_categories_neither_gain_nor_lose_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the order of calls: what is freed leaves the category that it came into."""
    script = Script()
    starts = [n << 20 for n in range(1, 5)]
    for _ in range(data.draw(st.integers(0, 40))):
        start = data.draw(st.sampled_from(starts))
        call = data.draw(st.sampled_from(["tensor", "role", "backward", "mark"]))
        if call == "tensor" and start in script.sizes:
            script.free(start)
        elif call == "tensor":
            script.allocate(start, 512 * data.draw(st.integers(1, 4)))
        elif call == "role":
            script.role(start, data.draw(st.sampled_from(list(MemoryRole))))
        elif call == "backward":
            script.backward()
        else:
            script.mark()
    left = sum(script.sizes.values())
    for start in list(script.sizes):
        script.free(start)
    history = script.history(tmp_path_factory.mktemp("trace"))
    of_category: dict[str, int] = {}
    for _, category, change in steps(history):
        of_category[category] = of_category.get(category, 0) + change
        assert of_category[category] >= 0
    assert set(of_category.values()) <= {0}
    assert history.peaks.peak_allocated_bytes >= left
