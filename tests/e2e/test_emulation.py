"""Emulation of real scripts with real PyTorch, under torchrun, without a GPU."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.machine import eventually, processes_of, small_disk
from understudy import jobs
from understudy.emulation import Emulation, emulate, load_emulation
from understudy.emulation.iterations import Mark
from understudy.errors import UnderstudyError
from understudy.jobs import JobSpec, Launch
from understudy.traces.interceptor import Api, read_trace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor")]

DEVICE = "h100-sxm-80gb"


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path, None, None]:
    """One state folder for all tests here, so that the kernel table is made once."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNDERSTUDY_HOME", str(folder))
        yield folder


def job_of(folder: Path, text: str, nproc_per_node: int = 1, **more: object) -> JobSpec:
    """The job of a script with this text."""
    script = folder / "train.py"
    script.write_text(textwrap.dedent(text))
    spec = jobs.ad_hoc_job(str(script), ("--flag", "a b"), working_dir=folder)
    more.setdefault("launch", Launch(nproc_per_node=nproc_per_node))
    return dataclasses.replace(spec, **more)  # pyright: ignore[reportArgumentType]


def emulated(spec: JobSpec, folder: Path) -> Emulation:
    return emulate(spec, DEVICE, log_path=folder / "log", traces_dir=folder / "traces")


DDP = """
    import os, sys
    import torch
    import torch.distributed as dist
    from torch import nn

    assert sys.argv[1:] == ["--flag", "a b"] and __name__ == "__main__"
    assert not any("understudy" in (m or "") for m in sys.modules if m.startswith("understudy"))
    assert not any("understudy" in p and "site" in p for p in sys.path), sys.path
    assert "PYTHONPATH" not in os.environ or "understudy/emulation" not in os.environ["PYTHONPATH"]
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    assert dist.get_backend() == "nccl"
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, f"rank {rank}")
    assert names == ["rank 0", "rank 1"], names
    dist.barrier()
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1_000_000):
        x = torch.randn(64, 256).pin_memory().cuda(non_blocking=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            print(f"rank {rank}: loss {loss.item()}")
"""


def test_data_parallel_training_is_the_same_every_time(tmp_path: Path) -> None:
    spec = job_of(tmp_path, DDP, nproc_per_node=2, warmup=12, iterations=4)
    seen: list[tuple[str, int, int]] = []
    first = emulate(
        spec,
        DEVICE,
        log_path=tmp_path / "log",
        traces_dir=tmp_path / "traces",
        progress=lambda *p: seen.append(p),
    )
    assert processes_of(tmp_path) == []
    assert (tmp_path / "log").read_text().count("loss") == 2
    assert [d for what, d, total in seen if "iterations" in what][-1] == 32
    assert first.warnings == ()
    ranks = first.tables["ranks"]
    assert ranks["iterations"].to_pylist() == [4, 4]
    assert ranks["span_iterations"].to_pylist() == [1, 1]
    assert first.tables["communicators"]["members"].to_pylist() == [[0, 1]]
    families = set(first.tables["signatures"]["family"].to_pylist())
    assert {"gemm", "copy", "collective", "elementwise"} <= families
    # All gradients, in buckets, on each of two ranks.
    sizes = first.tables["collective_parts"]["size_bytes"].to_pylist()
    assert sum(sizes) == 2 * 4 * (256 * 1024 + 1024 + 1024 * 256 + 256)
    assert first.tables["events"]["kind"].to_pylist().count("join") == len(sizes)
    for name in ("torch", "python", "interceptor", "events", "host_gaps", "understudy"):
        assert first.versions[name]

    second = emulated(spec, tmp_path)
    different = [n for n in first.tables if not first.tables[n].equals(second.tables[n])]
    assert different == ["host_gaps"]
    assert first.versions["events"] == second.versions["events"]
    for rank in range(2):
        trace = read_trace(tmp_path / "traces" / f"rank-{rank}")
        assert trace.closed
        assert trace.world_size == 2
        marks = trace.records["flags"][trace.records["api"] == Api.ITERATION]
        assert int((marks == Mark.STEP).sum()) == 16


def test_a_script_that_ends_by_itself(tmp_path: Path) -> None:
    text = """
        import torch
        weight = torch.nn.Parameter(torch.ones(8, 8, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            (weight @ weight).sum().backward()
            optimizer.step()
        print("the end is reached")
    """
    result = emulated(job_of(tmp_path, text, warmup=2, iterations=8), tmp_path)
    assert "the end is reached" in (tmp_path / "log").read_text()
    assert result.tables["ranks"]["iterations"].to_pylist() == [2]
    assert "ended after 3 iterations" in result.warnings[0]


def test_a_script_without_optimizer(tmp_path: Path) -> None:
    text = """
        import torch
        x = torch.ones(64, 64, device="cuda")
        y = (x @ x).cpu()
    """
    result = emulated(job_of(tmp_path, text), tmp_path)
    families = result.tables["signatures"]["family"].to_pylist()
    assert "gemm" in families
    assert "copy" in families
    assert result.tables["events"]["kind"].to_pylist()[-1] == "host_wait"
    assert "no optimizer step" in result.warnings[0]


def test_out_of_memory_is_a_result(tmp_path: Path) -> None:
    text = """
        import os, torch
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        weight = torch.nn.Parameter(torch.zeros(10, device=device))
        optimizer = torch.optim.SGD([weight], lr=1)
        kept = []
        while True:
            kept.append(torch.empty(300 << 20, dtype=torch.uint8, device=device))
            weight.grad = torch.zeros_like(weight)
            optimizer.step()
    """
    spec = job_of(tmp_path, text, nproc_per_node=2, memory_bytes=2 << 30, iterations=50)
    result = emulated(spec, tmp_path)
    ranks = result.tables["ranks"].to_pylist()
    assert [r["oom_iteration"] for r in ranks] == [4, 4]
    assert [r["oom_requested_bytes"] for r in ranks] == [300 << 20] * 2
    assert all(r["peak_device_bytes"] <= 2 << 30 for r in ranks)
    assert result.tables["events"].num_rows == 0
    assert result.tables["memory_timeline"].num_rows > 0
    assert processes_of(tmp_path) == []


def test_a_failing_script_shows_its_traceback_once(tmp_path: Path) -> None:
    text = """
        def read_shard():
            raise ValueError("bad shard")
        read_shard()
    """
    with pytest.raises(UnderstudyError) as caught:
        emulated(job_of(tmp_path, text, nproc_per_node=4), tmp_path)
    message = str(caught.value)
    assert message.count("ValueError: bad shard") == 1
    assert message.count("Traceback") == 1
    assert "in read_shard" in message
    assert "understudy/emulation" not in message
    assert processes_of(tmp_path) == []


def test_one_failing_rank_ends_the_others(tmp_path: Path) -> None:
    text = """
        import os, sys, time
        if os.environ["RANK"] == "1":
            print("my last words", flush=True)
            sys.exit(3)
        time.sleep(600)
    """
    with pytest.raises(
        UnderstudyError, match=r"rank 1 of .*train\.py exited with code 3"
    ) as caught:
        # On two nodes: each has a torchrun of its own.
        emulated(job_of(tmp_path, text, launch=Launch(nnodes=2)), tmp_path)
    assert "my last words" in str(caught.value)
    assert processes_of(tmp_path) == []


def test_a_script_that_uses_no_gpu_and_a_sitecustomize_of_the_user(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins; builtins.own = __name__")
    text = "import sys; assert own == 'sitecustomize' and not sys.gettrace(); print('own site ran')"
    spec = job_of(tmp_path, text, env={"PYTHONPATH": str(site)})
    with pytest.raises(UnderstudyError, match="no rank launched a kernel"):
        emulated(spec, tmp_path)
    assert "own site ran" in (tmp_path / "log").read_text()


SLEEPER = """
    import os, subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", os.getcwd()],
                     start_new_session=True)
    open(f"started-{os.environ['RANK']}", "w").close()
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_an_interrupted_emulation_leaves_nothing(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    spec = job_of(tmp_path, SLEEPER, nproc_per_node=2)
    job_file = tmp_path / "job.json"
    job_file.write_text(jobs.to_json(spec))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "understudy.emulation", "--job", str(job_file)]
    process = subprocess.Popen(
        [*command, "--device", DEVICE, "--out", str(out), "--progress"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert eventually(lambda: len(list(tmp_path.glob("started-*"))) == 2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert json.loads(output.splitlines()[-1])["total"] > 0
    assert eventually(lambda: processes_of(tmp_path) == [], 10), processes_of(tmp_path)
    with pytest.raises(UnderstudyError, match="interrupted"):
        load_emulation(out)


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    text = """
        import torch
        x = torch.ones(8, device="cuda")
        for _ in range(100_000):
            x.add_(1)
    """
    spec = job_of(tmp_path, text)
    with (
        small_disk(tmp_path / "disk", "2M") as disk,
        pytest.raises(UnderstudyError, match=r"disk is full") as caught,
    ):
        emulate(spec, DEVICE, log_path=disk / "log", traces_dir=disk / "traces")
    assert str(disk) in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert processes_of(tmp_path) == []
