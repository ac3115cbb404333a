"""Scripts of users, above all those that fail: one clear message, no row, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.command import GPT2, UNDERSTUDY, Cli
from tests.e2e.machine import eventually, processes_of, small_disk

DEVICE = "a100-sxm-80gb"

pytestmark = pytest.mark.slow


def _assert_nothing_left(cli: Cli, job: str) -> None:
    query = f"select count(*) as n from simulated_runtimes where job like '{job}%'"
    assert cli.rows(query) == [{"n": 0}]
    assert eventually(lambda: processes_of(cli.home) == [], 10), processes_of(cli.home)


def test_script_outside_the_repository_with_relative_path(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(4096, 4096, device='cuda', dtype=torch.bfloat16)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "while True:\n"
        "    x = torch.randn(8192, 4096, device='cuda', dtype=torch.bfloat16)\n"
        "    model(x).float().square().mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    done = cli.run("predict", "--device", DEVICE, "--json", "--", "train.py", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.json["job"].startswith("train-")
    shown = cli.run("show", done.json["job"], "--json")
    assert shown.json["iteration_time_ns"] == done.json["iteration_time_ns"]


def test_missing_script(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("predict", "--device", DEVICE, "--", tmp_path / "absent.py")
    assert done.code == 2
    assert "absent.py" in done.err
    _assert_nothing_left(cli, "absent")


def test_script_that_raises_shows_its_traceback_once(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import torch\ntorch.zeros(1, device='cuda')\nraise ValueError('my bug')\n")
    done = cli.run("predict", "--device", DEVICE, "--nproc-per-node", 4, "--", script)
    assert done.code == 1
    assert done.err.count("ValueError: my bug") == 1
    assert done.err.count("Traceback") == 1
    _assert_nothing_left(cli, "broken")


def test_script_without_kernels(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("print('nothing to do')\n")
    done = cli.run("predict", "--device", DEVICE, "--", script)
    assert done.code == 1
    assert "idle.py" in done.err and "kernel" in done.err
    assert "Traceback" not in done.err
    _assert_nothing_left(cli, "idle")


def test_unknown_device_and_unknown_key(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("predict", "--device", "h100-smx-80gb", "--", GPT2)
    assert done.code == 2
    assert "h100-sxm-80gb" in done.err
    (tmp_path / "job.yaml").write_text(
        f"job: job\nscript: {GPT2}\nlaunch: {{nproc_per_nod: 2}}\ndevices: [h100-sxm-80gb]\n"
    )
    done = cli.run("predict", tmp_path / "job.yaml")
    assert done.code == 2
    assert "nproc_per_nod" in done.err and "nproc_per_node" in done.err


def test_interrupt_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        "import time, torch\n"
        "x = torch.zeros(8, device='cuda')\n"
        "print('started', flush=True)\n"
        "while True:\n"
        "    x.add_(1)\n"
        "    time.sleep(0.05)\n"
    )
    running = subprocess.Popen(
        [str(UNDERSTUDY), "predict", "--device", DEVICE, "--nproc-per-node", "2", "--",
         str(script)],
        env=cli.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        logs = list(cli.home.glob("jobs/endless-*/*/emulation.log"))
        if logs and "started" in logs[0].read_text():
            break
        time.sleep(0.3)
    else:
        running.kill()
        pytest.fail("the script did not start")
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 1
    assert "interrupted" in err.lower()
    assert "Traceback" not in err
    _assert_nothing_left(cli, "endless")


def test_full_disk(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(
        "import torch\nx = torch.zeros(8, device='cuda')\nfor _ in range(200_000):\n    x.add_(1)\n"
    )
    with small_disk(cli.home / "jobs", "1M"):
        done = cli.run("predict", "--device", DEVICE, "--", script)
    assert done.code == 1
    assert "disk" in done.err.lower() or "space" in done.err.lower()
    assert "Traceback" not in done.err
    _assert_nothing_left(cli, "full")
