"""Scripts with processes, threads and signals of their own: workers, producers, other programs."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.machine import processes_of
from tests.e2e.plain_script import emulated, gemms
from tests.e2e.script_case import input_gradient, linear, times
from understudy.emulation import launcher
from understudy.errors import UnderstudyError
from understudy.traces.interceptor import Api, CopyKind, RankTrace, read_trace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor", "script_home")]

TRAINING = Path(__file__).resolve().parent / "processes" / "training.py"


def of_children(folder: Path) -> list[RankTrace]:
    """Traces of the processes that rank 0 started."""
    return [read_trace(p.with_suffix("")) for p in (folder / "traces").glob("rank-0-*.records")]


def copies(trace: RankTrace, kind: CopyKind) -> list[int]:
    """Sizes (bytes) of a trace's copies of one kind."""
    records = trace.records
    return records["c"][(records["api"] == Api.MEMCPY) & (records["d"] == kind)].tolist()


@pytest.mark.timeout(180)
def test_workers_producers_programs_and_threads(tmp_path: Path) -> None:
    batch, width, classes, steps = 64, 256, 32, 12
    batch_bytes = batch * width * 4
    result = emulated(tmp_path, TRAINING, iterations=100)
    assert "all steps done" in (tmp_path / "log").read_text()
    assert processes_of(tmp_path) == []

    ranks = result.tables["ranks"].to_pylist()
    assert [(r["iterations_seen"], r["iteration_source"]) for r in ranks] == [
        (steps, "optimizer steps")
    ]
    trace = read_trace(tmp_path / "traces" / "rank-0")
    # Two batches of loaders and two of producers; the thread's product.
    of_model = linear(batch, width, classes) - input_gradient(batch, width, classes)
    of_iteration = times(4, of_model) + Counter([(classes, classes, classes, 1)])
    assert gemms(result) == (steps - 1) * [of_iteration]
    assert [size for size in copies(trace, CopyKind.H2D) if size == batch_bytes] == (
        2 * steps * [batch_bytes]
    )
    # The main thread, autograd's and the script's own, a new one in each step.
    assert len(set(result.tables["events"]["thread"].to_pylist())) == 2 + (steps - 1)

    # Two producers, and the program of another Python; loaders' workers use no GPU.
    (of_processes,) = [w for w in result.warnings if "other processes" in w]
    assert of_processes.startswith("rank 0 started 3 other processes that used a GPU")
    children = of_children(tmp_path)
    assert sorted(copies(child, CopyKind.D2D) for child in children) == [
        [],
        *2 * [steps * [batch_bytes]],
    ]
    reserved = [
        child.records[child.records["api"] == Api.MALLOC]["a"].tolist() for child in children
    ]
    assert sorted(starts == [0] for starts in reserved) == [False, False, True]  # cuMemCreate
    assert sorted(int((child.records["api"] == Api.GEMM).sum()) for child in children) == [0, 0, 1]


KILLED = """
    import os, signal, subprocess, sys, time
    import torch

    if os.environ["RANK"] == "1":
        x = torch.ones(8, 8, device="cuda")
        y = x @ x
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", os.getcwd()],
                         start_new_session=True)
        print("my last words", flush=True)
        os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_rank_that_a_signal_ends(tmp_path: Path, number: signal.Signals) -> None:
    with pytest.raises(UnderstudyError) as caught:
        emulated(tmp_path, KILLED, str(int(number)), ranks=2)
    message = str(caught.value)
    assert message.startswith(f"rank 1 of {tmp_path}/train.py was ended by {number.name}; the log")
    assert message.endswith("my last words")
    assert "Traceback" not in message
    assert processes_of(tmp_path) == []
    # What was recorded up to then can be read.
    trace = read_trace(tmp_path / "traces" / "rank-1")
    assert not trace.closed
    assert int((trace.records["api"] == Api.GEMM).sum()) == 1


def test_a_failed_rank_that_waits_for_its_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python joins the processes of multiprocessing at its end, after the traceback."""
    monkeypatch.setattr(launcher, "_FAILED_S", 1.0)
    text = """
        import multiprocessing, os, time
        if os.environ["RANK"] == "1":
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
            raise ValueError("bad shard")
        time.sleep(600)
    """
    start = time.monotonic()
    with pytest.raises(UnderstudyError, match=r"train\.py failed on rank 1;") as caught:
        emulated(tmp_path, text, ranks=2)
    assert str(caught.value).endswith("ValueError: bad shard")
    assert time.monotonic() - start < 60
    assert processes_of(tmp_path) == []


def test_a_rank_that_leaves_early_and_one_that_starts_anew(tmp_path: Path) -> None:
    """The former is not waited for, the latter is a rank still."""
    text = """
        import os, sys
        rank = int(os.environ["RANK"])
        if rank == 1 and "AGAIN" not in os.environ:
            os.environ["AGAIN"] = "yes"
            os.execvp(sys.executable, [sys.executable, *sys.argv])
        import torch
        weight = torch.nn.Parameter(torch.ones(8, 8, device=f"cuda:{rank}"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(4 if rank == 0 else 1_000_000):
            (weight @ weight).sum().backward()
            optimizer.step()
        os._exit(0)
    """
    result = emulated(tmp_path, text, ranks=2, iterations=5)
    assert result.tables["ranks"]["iterations_seen"].to_pylist() == [4, 6]
    assert result.tables["ranks"]["iterations"].to_pylist() == [3, 3]
    assert any("the script ended after 4 iterations" in warning for warning in result.warnings)


def test_ranks_that_the_script_spawns_itself(tmp_path: Path) -> None:
    text = """
        import torch
        def train(rank):
            torch.ones(8, device=f"cuda:{rank}")
        if __name__ == "__main__":
            torch.multiprocessing.spawn(train, nprocs=1)
    """
    with pytest.raises(UnderstudyError, match="no rank launched a kernel") as caught:
        emulated(tmp_path, text)
    assert "rank 0 started 1 other process that used a GPU" in str(caught.value)
