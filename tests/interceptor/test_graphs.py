"""CUDA graphs of PyTorch: a launch does what the captured work does eagerly."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interceptor.cases import run_program
from understudy.emulation.lowering import FIRST_PRIVATE_STREAM, LoweredRank, lower
from understudy.kernels import Signature
from understudy.traces.interceptor import read_trace

_REPLAYS = 10


@dataclass(frozen=True)
class _Case:
    """The ops of one case."""

    kinds: Counter[str]
    work: Counter[Signature]
    gemms: int
    streams: set[int]


def _cases(lowered: LoweredRank, names: list[str]) -> dict[str, _Case]:
    cases = {}
    for number, name in enumerate(names):
        ops = [op for op, iteration in enumerate(lowered.iteration) if iteration == number]
        work = Counter(
            lowered.signatures[lowered.signature[op]] for op in ops if lowered.kind[op] == "device"
        )
        cases[name] = _Case(
            Counter(lowered.kind[op] for op in ops[:-1]),  # the last one is the case's mark
            work,
            sum(count for signature, count in work.items() if signature.family == "gemm"),
            {lowered.stream[op] for op in ops if lowered.kind[op] == "device"},
        )
    return cases


@pytest.fixture(scope="module")
def cases(interceptor: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, _Case]:
    stem = tmp_path_factory.mktemp("graphs") / "calls"
    printed = run_program("graph_calls.py", interceptor, stem)
    lowered = lower(read_trace(stem), {})
    assert lowered.warnings == []
    return _cases(lowered, json.loads(printed))


def test_ten_launches_do_what_ten_eager_steps_do(cases: dict[str, _Case]) -> None:
    eager, graph = cases["eager step"], cases["captured step"]
    assert graph.work == eager.work
    assert graph.gemms == eager.gemms == 5 * _REPLAYS
    assert graph.kinds["host"] == _REPLAYS


def test_a_module_whose_passes_are_graphs_is_the_module(cases: dict[str, _Case]) -> None:
    """PyTorch copies the weights' gradients, 64 x 64 floats each, out of the graph's memory."""
    eager, graph = cases["eager block"], cases["captured block"]
    more = graph.work - eager.work
    assert not eager.work - graph.work
    assert [(s.family, s.tensor_bytes, count) for s, count in more.items()] == [
        ("copy", 64 * 64 * 4, 2 * _REPLAYS)
    ]
    assert graph.gemms == eager.gemms == 5 * _REPLAYS
    assert graph.kinds["host"] == 2 * _REPLAYS


def test_a_capture_does_nothing(cases: dict[str, _Case]) -> None:
    assert not cases["capture of a step"].work


def test_branches_run_beside_each_other_and_meet(cases: dict[str, _Case]) -> None:
    eager, graph = cases["eager branches"], cases["captured branches"]
    assert graph.work == Counter({s: 2 * count for s, count in eager.work.items()})
    assert graph.gemms == 4
    assert {s for s in graph.streams if s >= FIRST_PRIVATE_STREAM} == {
        FIRST_PRIVATE_STREAM,
        FIRST_PRIVATE_STREAM + 1,
    }
    # Of each launch: both branches wait for the copy, and the launch stream for both of them.
    assert graph.kinds == {"host": 2, "device": 8, "stream_wait": 8}


def test_a_graph_of_library_calls_is_not_empty_to_pytorch(cases: dict[str, _Case]) -> None:
    """It would warn; and a graph may be instantiated after its capture."""
    assert cases["kept graph"].gemms == 1
