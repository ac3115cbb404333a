"""PyTorch execution traces: which collectives a rank called, and of which sizes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_comparison_replay import Trace
from understudy.comparison.replay import MeasuredRun, add_execution_traces
from understudy.errors import UnderstudyError
from understudy.traces.execution import ExecutedCollective, read_execution_trace


def tensor(elements: int, element_bytes: int = 4) -> list[Any]:
    return [1, 2, 0, elements, element_bytes, "cuda:0"]


def node(number: int, inputs: list[Any], outputs: list[Any], nested: bool) -> dict[str, Any]:
    """A node of schema 1.0, or of 1.1 and later, where arguments are `nested`."""
    sides = {"inputs": inputs, "outputs": outputs}
    if nested:
        sides = {side: {"values": values, "shapes": []} for side, values in sides.items()}
    return {"id": number, "name": "record_param_comms", **sides}


def nodes(nested: bool) -> list[dict[str, Any]]:
    return [
        node(9, [[tensor(100)], 3, "0", 0, "allreduce", [], []], [[tensor(100)]], nested),
        node(4, [tensor(24), 1, "0", 0, "all_to_allv", [8, 16], [4, 4]], [tensor(8)], nested),
        node(5, [1, 0, 0, "wait", [], []], [], nested),
        {"id": 2, "name": "aten::add", "inputs": [], "outputs": []},
    ]


def write(path: Path, of: list[dict[str, Any]], process: int = 77) -> Path:
    text = json.dumps({"schema": "1.0.1", "pid": process, "nodes": of}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", ["et_0.json", "et_0.json.gz"])
def test_collectives_in_the_order_of_their_calls(tmp_path: Path, nested: bool, name: str) -> None:
    trace = read_execution_trace(write(tmp_path / name, nodes(nested)))
    assert trace.process == 77
    assert trace.collectives == [
        ExecutedCollective("all_to_allv", 96, 32, (8, 16), (4, 4)),
        ExecutedCollective("allreduce", 400, 400, (), ()),
    ]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"nodes": 3}', b'{"nodes": [{"id": 1}]}'])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "et.json"
    path.write_bytes(content)
    with pytest.raises(UnderstudyError, match=r"et\.json: not a PyTorch execution trace"):
        read_execution_trace(path)


def run_of(*names: str) -> MeasuredRun:
    trace = Trace()
    for i, name in enumerate(names):
        trace.launch(100 * i, 100 * i + 8, 100 * i + 50, name=name)
    return MeasuredRun([trace.done()], 1)


def test_kernels_get_names_and_sizes(tmp_path: Path) -> None:
    run = run_of("ncclKernel_SendRecv_RING", "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    write(tmp_path / "et_0.json", nodes(nested=False))
    assert add_execution_traces(run, tmp_path) == []
    found = [(work.collective, work.size_bytes) for work in run.ranks[0].work]
    assert found == [("all_to_all", 96), ("", None), ("all_reduce", 400)]


def test_a_trace_of_something_else_is_not_used(tmp_path: Path) -> None:
    write(tmp_path / "et_0.json", nodes(nested=False))
    (warning,) = add_execution_traces(run_of("ncclKernel_SendRecv_RING"), tmp_path)
    assert "it has 2 collectives and the rank 1" in warning
    run = run_of("ncclKernel_AllGather_RING", "ncclKernel_AllReduce_RING")
    (warning,) = add_execution_traces(run, tmp_path)
    assert "collective 0 is all_to_all, its kernel ncclKernel_AllGather_RING" in warning
    assert all(work.size_bytes is None for work in run.ranks[0].work)


def test_a_rank_without_a_trace_is_told(tmp_path: Path) -> None:
    write(tmp_path / "et_5.json", nodes(nested=False))
    (warning,) = add_execution_traces(run_of("ncclKernel_SendRecv_RING"), tmp_path)
    assert warning == f"rank 0: no execution trace in {tmp_path}"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnderstudyError, match="holds no execution trace"):
        add_execution_traces(run_of("gemm"), tmp_path / "empty")
