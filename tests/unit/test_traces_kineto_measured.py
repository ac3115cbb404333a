"""Kineto traces of real GPUs against an independent reading of the same files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from understudy.traces.kineto import Dropped, KinetoTrace, read_kineto, read_kineto_folder

DATA = Path(__file__).parents[1] / "data"

DEVICE_CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}

#: NVIDIA and AMD, old and new names, microseconds and nanoseconds, with and without a clock base.
COMPARED = (
    "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    "hta/nccl_parser_config/nccl_data.json.gz",
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "hta/trace_file_list/inference_rank_1.json.gz",
    "hta/trace_filter/sampled_rank-0.json.gz",
    "kineto_tb/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    "tracelens/h100/gaunernst_bert-small-uncased__1016001.json.gz",
    "tracelens/mi210/gpu_only_trace.json.gz",
    "tracelens/mi300/resnet_act_checkpoint.json.gz",
)


def document(path: Path) -> dict[str, Any]:
    text = gzip.decompress(path.read_bytes())
    return json.loads(text, parse_float=Decimal, strict=False)


def absolute(trace: KinetoTrace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    data = trace.tables()[table].select(["start_ns", "duration_ns", *columns]).to_pydict()
    rows = zip(*data.values(), strict=True)
    return sorted(((row[0] + trace.base_ns, *row[1:]) for row in rows), key=repr)


def expected(
    document: dict[str, Any], categories: set[str], *arguments: str
) -> list[tuple[Any, ...]]:
    base_ns = int(document.get("baseTimeNanoseconds", 0))
    return sorted(
        (
            (
                base_ns + int(Decimal(event["ts"]) * 1000),
                int(Decimal(event["dur"]) * 1000),
                event["name"],
                *(event["args"].get(argument) for argument in arguments),
            )
            for event in document["traceEvents"]
            if event["ph"] == "X"
            and event.get("cat", "").lower() in categories
            and not event["name"].startswith("ProfilerStep")
        ),
        key=repr,
    )


@pytest.mark.parametrize("name", COMPARED)
def test_rows_are_the_events_of_the_file(shared_data: Path, name: str) -> None:
    path = shared_data / "traces" / name
    trace, raw = read_kineto(path), document(path)
    assert absolute(trace, "device_events", "name", "correlation", "stream") == expected(
        raw, set(DEVICE_CATEGORIES), "correlation", "stream"
    )
    assert absolute(trace, "host_calls", "name", "correlation") == expected(
        raw, {"cuda_runtime", "cuda_driver", "runtime"}, "correlation"
    )
    assert absolute(trace, "host_ops", "name", "external_id") == (
        expected(raw, {"cpu_op", "operator"}, "External id")
    )
    counted = sum(len(table) for table in trace.tables().values()) - len(trace.collective_calls)
    assert counted + sum(trace.ignored.values()) == len(raw["traceEvents"])
    assert not any(isinstance(problem, Dropped) for problem in trace.problems)


def test_all_traces_are_read_without_a_loss(shared_data: Path) -> None:
    paths = [
        path
        for path in sorted((shared_data / "traces").rglob("*.json.gz"))
        if "_et." not in path.name and not path.name.startswith("graph_")
    ]
    assert len(paths) > 30
    for path in paths:
        trace = read_kineto(path)
        assert sum(len(table) for table in trace.tables().values()) > 0, path
        assert not any(isinstance(problem, Dropped) for problem in trace.problems), path


def test_collectives_of_a_real_job(shared_data: Path) -> None:
    """A CNN on two A100: 21 collectives whose kernels carry their descriptions."""
    trace = read_kineto(shared_data / "traces/hta/nccl_parser_config/nccl_data.json.gz")
    assert trace.header.process_groups == {"0": (0, 1)}
    kernels = trace.device_events.to_pylist()
    described = [row for row in kernels if row["collective"] is not None]
    assert len(described) == sum(row["name"].startswith("nccl") for row in kernels) == 21
    assert {row["collective"] for row in described} == {"allreduce", "broadcast"}
    assert {(row["group_size"], row["group_ranks"]) for row in described} == {(2, "[0, 1]")}
    assert max(row["in_elements"] for row in described) == 7_875_584


def test_eight_ranks_of_a_real_job(shared_data: Path, tmp_path: Path) -> None:
    """The clocks of one host agree: each collective ends on all ranks within 10 us."""
    with tarfile.open(shared_data / "traces/param/dlrm_kineto.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    traces = read_kineto_folder(folder)
    assert list(traces.traces) == list(range(8))
    assert (traces.world_size, traces.missing_ranks) == (8, ())
    ends = []
    for rank, trace in traces.traces.items():
        assert trace.base_ns == traces.base_ns
        assert trace.header.rank_source == "distributedInfo"
        assert set(trace.device_events.column("rank").to_pylist()) == {rank}
        ends.append(
            [
                row["start_ns"] + row["duration_ns"]
                for row in trace.device_events.to_pylist()
                if row["name"].startswith("nccl")
            ]
        )
    spreads = [max(each) - min(each) for each in zip(*ends, strict=True)]
    assert len(spreads) == 8
    assert max(spreads) <= 10_000


def test_memory_does_not_grow_with_what_is_not_kept(tmp_path: Path) -> None:
    """100 MB of Python frames around a few kernels are read in less than half of that."""
    text = (DATA / "kineto_plain" / "rank-0.json").read_bytes()
    frame = (
        b'  {\n    "ph": "X", "cat": "python_function", "name": "torch/nn/modules/module.py(1739):'
        b' _call_impl", "pid": 100, "tid": 101,\n    "ts": 1712195495519030.125, "dur": 4.000,\n'
        b'    "args": {\n      "Python parent id": 1, "Python id": 2, "Ev Idx": 3\n    }\n  },\n'
    )
    head, tail = text.split(b'"traceEvents": [\n')
    path = tmp_path / "rank-0.json"
    with path.open("wb") as file:
        file.write(head + b'"traceEvents": [\n')
        for _ in range(100):
            file.write(frame * (1_000_000 // len(frame)))
        file.write(tail)
    program = f"""
import resource
from pathlib import Path
from understudy.traces.kineto import read_kineto
read_kineto(Path({str(DATA / "kineto_plain" / "rank-0.json")!r}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace = read_kineto(Path({str(path)!r}))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(trace.device_events))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    grown_kib, events = map(int, done.stdout.split())
    assert events == 2
    assert grown_kib < 50_000
