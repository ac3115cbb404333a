"""The main job, end to end: real scripts through the `understudy` command, real torch, no mocks.

Each prediction runs in a process of its own against one warehouse that the module shares, so the
forests are trained once. Jobs are small in ranks and iterations; sizes are those of real training.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
GPT2 = REPOSITORY / "examples" / "gpt2.py"
UNDERSTUDY = Path(sys.executable).with_name("understudy")

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Outcome:
    """What one run of the command left: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    """The `understudy` command with a state folder of its own."""

    home: Path

    def environment(self) -> dict[str, str]:
        return {**os.environ, "UNDERSTUDY_HOME": str(self.home)}

    def run(self, *arguments: object, cwd: Path | None = None) -> Outcome:
        done = subprocess.run(
            [str(UNDERSTUDY), *map(str, arguments)],
            env=self.environment(),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def predict(
        self, script: Path, *arguments: object, switches: Sequence[str] = (), **options: object
    ) -> dict[str, Any]:
        """Predicts on one device and returns the report; options are flags of the command."""
        flags: list[object] = list(switches)
        for name, value in {"device": "h100-sxm-80gb", **options}.items():
            flags += [f"--{name.replace('_', '-')}", value]
        done = self.run("predict", *flags, "--json", "--", script, *arguments)
        assert done.code == 0, done.err + done.out
        return done.json

    def rows(self, query: str) -> list[dict[str, Any]]:
        done = self.run("sql", "--json", query)
        assert done.code == 0, done.err
        return json.loads(done.out)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def gpt2(cli: Cli) -> dict[int, dict[str, Any]]:
    """GPT-2 of 12, 24 and 36 layers on one H100."""
    return {layers: cli.predict(GPT2, "--n-layer", layers) for layers in (12, 24, 36)}


@pytest.fixture(scope="module")
def two_ranks(cli: Cli) -> dict[str, Any]:
    return cli.predict(GPT2, nproc_per_node=2)


def _living_processes(home: Path) -> list[str]:
    """Command lines of processes that carry this state folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
        if f"UNDERSTUDY_HOME={home}".encode() in environment.split(b"\0") and command:
            found.append(command)
    return found


def _assert_nothing_left(cli: Cli, job: str) -> None:
    query = f"select count(*) as n from simulated_runtimes where job like '{job}%'"
    assert cli.rows(query) == [{"n": 0}]
    deadline = time.monotonic() + 10
    while _living_processes(cli.home) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _living_processes(cli.home) == []


def test_report_has_every_key_and_adds_up(gpt2: dict[int, dict[str, Any]]) -> None:
    report = gpt2[12]
    assert {
        "job", "device", "world_size", "fits", "iteration_time_ns", "low_ns", "high_ns",
        "iterations", "breakdown_ns", "ranks", "peak_memory_bytes", "hfu", "mfu", "coverage",
        "trace_events", "versions", "warnings",
    } <= set(report)  # fmt: skip
    breakdown = report["breakdown_ns"]
    assert (
        breakdown["compute"] + breakdown["exposed_communication"] + breakdown["host_idle"]
        == report["iteration_time_ns"]
    )
    assert breakdown["communication"] == 0
    assert sum(report["coverage"].values()) == pytest.approx(1.0)
    assert report["low_ns"] < report["iteration_time_ns"] < report["high_ns"]
    assert report["mfu"] is None
    assert 0.1 < report["hfu"] < 0.9


def test_time_grows_by_the_same_amount_per_layer(gpt2: dict[int, dict[str, Any]]) -> None:
    first = gpt2[24]["iteration_time_ns"] - gpt2[12]["iteration_time_ns"]
    second = gpt2[36]["iteration_time_ns"] - gpt2[24]["iteration_time_ns"]
    assert first > 0
    assert second == pytest.approx(first, rel=0.03)


def test_h200_helps_memory_bound_jobs_only(cli: Cli) -> None:
    def ratio(script: str) -> float:
        path = REPOSITORY / "examples" / script
        h100 = cli.predict(path, device="h100-sxm-80gb")["iteration_time_ns"]
        return h100 / cli.predict(path, device="h200-sxm-141gb")["iteration_time_ns"]

    assert ratio("memory_bound.py") >= 1.2
    assert ratio("mlp.py") == pytest.approx(1.0, abs=0.05)


def test_eight_ranks_expose_more_communication_than_two(
    cli: Cli, two_ranks: dict[str, Any]
) -> None:
    eight = cli.predict(GPT2, nproc_per_node=8)
    assert eight["world_size"] == 8
    assert len(eight["ranks"]) == len(eight["peak_memory_bytes"]) == 8
    assert (
        eight["breakdown_ns"]["exposed_communication"]
        > two_ranks["breakdown_ns"]["exposed_communication"]
        > 0
    )


def test_all_reduced_bytes_are_the_gradients(cli: Cli, two_ranks: dict[str, Any]) -> None:
    parts = cli.rows(
        "select sum(size_bytes) as n from collective_parts where kind = 'all_reduce' "
        f"and job = '{two_ranks['job']}'"
    )
    parameters = (50304 + 1024) * 768 + 12 * (12 * 768 * 768 + 13 * 768) + 2 * 768
    assert parts[0]["n"] == pytest.approx(4 * parameters, rel=1e-3)


def test_two_emulations_have_equal_content(cli: Cli, two_ranks: dict[str, Any]) -> None:
    def content() -> dict[str, list[dict[str, Any]]]:
        tables = ("events", "signatures", "collective_parts", "communicators", "ranks")
        where = f"where job = '{two_ranks['job']}'"
        return {name: cli.rows(f"select * from emulation.{name} {where}") for name in tables}

    first = content()
    repeated = cli.predict(GPT2, nproc_per_node=2, switches=["--remeasure-host"])
    assert repeated["job"] == two_ranks["job"]
    assert repeated["versions"]["events"] == two_ranks["versions"]["events"]
    assert repeated["versions"]["host_gaps"] != two_ranks["versions"]["host_gaps"]
    assert content() == first
    assert repeated["iteration_time_ns"] == pytest.approx(two_ranks["iteration_time_ns"], rel=0.03)


def test_gemm_total_equals_the_estimator_and_is_near_peak(cli: Cli) -> None:
    from understudy import catalog, forests
    from warehouse import store

    report = cli.predict(REPOSITORY / "examples" / "mlp.py")
    job, device = report["job"], catalog.device("h100-sxm-80gb")
    os.environ["UNDERSTUDY_HOME"] = str(cli.home)
    try:
        signatures = store.read_table("merging", "signatures", device.id, job)
        predicted = store.read_table("simulation", "predicted_kernels", device.id, job)
        gemms = signatures.filter(pc.field("family") == "gemm")
        estimates = forests.predict(gemms, device)
    finally:
        del os.environ["UNDERSTUDY_HOME"]
    launches = dict(
        zip(predicted["signature"].to_pylist(), predicted["launch_count"].to_pylist(), strict=True)
    )
    expected = sum(
        int(duration) * launches[signature]
        for signature, duration in zip(
            gemms["signature"].to_pylist(), estimates["duration_ns"].to_pylist(), strict=True
        )
    )
    total = cli.rows(
        "select sum(duration_ns * launch_count)::bigint as ns, "
        "sum(flops * launch_count) as flops "
        f"from predicted_kernels where family = 'gemm' and job = '{job}' "
        f"and device = '{device.id}'"
    )[0]
    assert total["ns"] == expected
    assert 0.4 < total["flops"] / (total["ns"] / 1e9) / report["peak_flops"] < 0.9


def test_ten_billion_parameters_do_not_fit(cli: Cli) -> None:
    done = cli.run("predict", REPOSITORY / "scenarios" / "gpt-10b.yaml", "--json")
    assert done.code == 3, done.err
    report = done.json
    assert report["fits"] is False
    assert report["iteration_time_ns"] is None
    assert report["oom"]["rank"] == 0
    assert report["oom"]["iteration"] >= 0
    assert report["oom"]["requested_bytes"] > 0
    assert report["oom"]["capacity_bytes"] == pytest.approx(85e9, rel=0.03)
    rows = cli.rows("select fits from simulated_runtimes where job = 'gpt-10b'")
    assert rows == [{"fits": False}]


def test_query_answers_while_a_materialization_runs(
    cli: Cli, gpt2: dict[int, dict[str, Any]]
) -> None:
    running = subprocess.Popen(
        [str(UNDERSTUDY), "predict", "--device", "h100-sxm-80gb", "--json", "--", str(GPT2)],
        env=cli.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    query = "select family, sum(duration_ns * launch_count) as ns from predicted_kernels group by 1"
    answers = 0
    while running.poll() is None:
        families = {row["family"] for row in cli.rows(query)}
        assert {"gemm", "optimizer"} <= families
        answers += 1
    assert running.returncode == 0
    assert answers >= 2


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
    done = cli.run("predict", "--device", "a100-sxm-80gb", "--json", "--", "train.py", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.json["job"].startswith("train-")
    shown = cli.run("show", done.json["job"], "--json")
    assert shown.json["iteration_time_ns"] == done.json["iteration_time_ns"]


def test_missing_script(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("predict", "--device", "h100-sxm-80gb", "--", tmp_path / "absent.py")
    assert done.code == 2
    assert "absent.py" in done.err
    _assert_nothing_left(cli, "absent")


def test_script_that_raises_shows_its_traceback_once(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import torch\ntorch.zeros(1, device='cuda')\nraise ValueError('my bug')\n")
    done = cli.run("predict", "--device", "h100-sxm-80gb", "--nproc-per-node", 4, "--", script)
    assert done.code == 1
    assert done.err.count("ValueError: my bug") == 1
    assert done.err.count("Traceback") == 1
    _assert_nothing_left(cli, "broken")


def test_script_without_kernels(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("print('nothing to do')\n")
    done = cli.run("predict", "--device", "h100-sxm-80gb", "--", script)
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
        [str(UNDERSTUDY), "predict", "--device", "h100-sxm-80gb", "--nproc-per-node", "2", "--",
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


@pytest.fixture
def small_disk(cli: Cli, request: pytest.FixtureRequest):
    """A tmpfs of 1 MB in place of one folder of the state."""
    folder = cli.home / request.param
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(folder)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small tmpfs needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("small_disk", ["jobs"], indirect=True)
def test_full_disk(cli: Cli, small_disk: Path, tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(
        "import torch\nx = torch.zeros(8, device='cuda')\nfor _ in range(200_000):\n    x.add_(1)\n"
    )
    done = cli.run("predict", "--device", "h100-sxm-80gb", "--", script)
    assert done.code == 1
    assert "disk" in done.err.lower() or "space" in done.err.lower()
    assert "Traceback" not in done.err
    subprocess.run(["umount", "-l", str(small_disk)], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(small_disk)], check=True)
    _assert_nothing_left(cli, "full")
