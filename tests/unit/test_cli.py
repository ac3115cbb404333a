"""The command line's words: usage errors, exit codes, tables. Nothing is emulated here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest

from pipelines import cli, display
from tests.predictions import DEVICE, write_prediction
from understudy import jobs
from understudy.errors import UnderstudyError
from warehouse import schemas, store


@pytest.fixture(autouse=True)
def home(understudy_home: Path) -> Path:
    return understudy_home


@pytest.fixture
def understudy(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: exit code, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.run(cli.cli, [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("")
    return path


def test_version_and_help_are_quick() -> None:
    command = [sys.executable, "-c", "from pipelines.cli import main; main()", "--version"]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("understudy 0.")
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["FILE.yaml"]),
        (["absent.yaml"], ["absent.yaml", "no such job file"]),
        (["--device", DEVICE, "--", "absent.py"], ["absent.py", "no such script"]),
        (["--", "SCRIPT"], ["--device", "understudy devices"]),
        (["--device", "h100-smx-80gb", "--", "SCRIPT"], ["h100-sxm-80gb"]),
        (["--device", DEVICE, "--host", "defualt", "--", "SCRIPT"], ["default"]),
        (["--device", DEVICE, "--set", "memori=1GiB", "--", "SCRIPT"], ["did you mean memory"]),
        (["--device", DEVICE, "--set", "memory=big", "--", "SCRIPT"], ["40GiB"]),
        (["--device", DEVICE, "--set", "memory", "--", "SCRIPT"], ["memory=VALUE"]),
        (["--device", DEVICE, "--python", "/absent/python", "--", "SCRIPT"], ["/absent/python"]),
        (["--device", DEVICE, "--nproc-per-node", "0", "--", "SCRIPT"], ["nproc-per-node"]),
        (["--device", DEVICE, "SCRIPT", "--lr", "3"], ["--lr"]),
        (["JOB", "extra"], ["extra", "args"]),
        (["JOB", "--nnodes", "2"], ["launch"]),
        (["JOB", "--device", DEVICE, "--device", "h200", "--html", "x.html"], ["--html"]),
        (["JOB", "--device", DEVICE, "--html", "absent/x.html"], ["no folder absent"]),
    ],
)
def test_predict_refuses(
    understudy: Call, script: Path, arguments: list[str], parts: list[str]
) -> None:
    job = script.with_suffix(".yaml")
    job.write_text("script: train.py\n")
    words = {"SCRIPT": str(script), "JOB": str(job)}
    code, out, err = understudy("predict", *(words.get(a, a) for a in arguments))
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    for part in parts:
        assert part in err
    assert jobs.known_jobs() == []


@pytest.mark.parametrize(
    "arguments", [["shwo"], ["show"], ["--jsn"], ["compare", "x"], ["ui", "--port", "0"]]
)
def test_other_usage_errors(understudy: Call, arguments: list[str]) -> None:
    code, out, err = understudy(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("understudy: ")
    assert len(err.splitlines()) == 1


def test_devices(understudy: Call) -> None:
    code, out, _ = understudy("devices")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows[DEVICE].endswith("gemm, attention, collectives")
    assert rows["t4-pcie-16gb"].endswith("  -")
    code, out, _ = understudy("devices", "--json")
    found = {device["id"]: device for device in json.loads(out)}
    assert list(found) == sorted(found)
    assert found[DEVICE]["compute_capability"] == "9.0"
    assert found[DEVICE]["architecture"]["max_blocks_per_multiprocessor"] == 32
    assert found[DEVICE]["measured"] == ["gemm", "attention", "collectives"]


def test_forests(understudy: Call) -> None:
    code, out, _ = understudy("forests")
    assert (code, out) == (0, "no forests are trained yet: name a device with --device\n")
    row = {
        "family": "gemm",
        "dtype": "bfloat16",
        "split": "shapes",
        "rows": 900,
        "mape": 0.035,
        "median": 0.025,
        "p90": 0.08,
        "bias": -0.004,
        "coverage90": 0.91,
    }
    schema = schemas.FOREST_ERRORS.schema
    store.write_tables(
        "forests", {"forest_errors": pa.Table.from_pylist([row], schema=schema)}, DEVICE
    )
    code, out, _ = understudy("forests")
    assert out.splitlines()[-1].split() == [
        DEVICE, "gemm", "bfloat16", "shapes", "900", "3.5%", "2.5%", "8.0%", "-0.4%", "91%",
    ]  # fmt: skip
    code, out, _ = understudy("forests", "--json")
    assert json.loads(out) == [{"device": DEVICE, **row}]


def test_sql(understudy: Call) -> None:
    code, out, _ = understudy("sql", "--json", "select job, fits from simulated_runtimes")
    assert (code, json.loads(out)) == (0, [])
    code, out, _ = understudy(
        "sql", "--json", "select sum(x::bigint) s, 1.5::decimal(4, 2) d, 'nan'::double n, "
        "[1, 2] l, map {'a': 1} m, null z, 1 as s from range(3) t(x)",
    )  # fmt: skip
    assert json.loads(out) == [
        {"s": 3, "d": 1.5, "n": None, "l": [1, 2], "m": {"a": 1}, "z": None, "s_2": 1}
    ]
    code, out, _ = understudy("sql", "select 'a[b]' as name, 12 as count")
    assert out.splitlines() == ["name  count", "----  -----", "a[b]     12"]


def test_sql_error_is_one_line(understudy: Call) -> None:
    code, out, err = understudy("sql", "select nothing\nfrom nowhere")
    assert (code, out) == (2, "")
    assert "nowhere" in err
    assert len(err.splitlines()) == 1


def test_jobs_show_and_rm(understudy: Call, script: Path, home: Path) -> None:
    code, out, _ = understudy("jobs", "--json")
    assert (code, json.loads(out)) == (0, [])
    job = jobs.ad_hoc_job(str(script), devices=[DEVICE])
    jobs.save(job)
    write_prediction(job.job, 12_500_000)
    code, out, _ = understudy("jobs", "--json")
    assert json.loads(out) == [
        {"job": job.job, "device": DEVICE, "fits": True, "iteration_time_ns": 12_500_000}
    ]
    code, out, _ = understudy("jobs")
    assert out.splitlines()[-1].split() == [job.job, DEVICE, "yes", "12.5"]
    code, _, err = understudy("show", job.job, "--device", "h200")
    assert code == 2
    assert "h200-sxm-141gb" in err
    code, _, err = understudy("rm", job.job[:-1])
    assert code == 2
    assert job.job in err
    assert understudy("rm", job.job)[0] == 0
    assert not (home / "jobs" / job.job).exists()
    assert store.list_partitions("simulation") == []
    assert understudy("show", job.job)[0] == 2


def test_compare(understudy: Call, script: Path) -> None:
    job = jobs.ad_hoc_job(str(script), devices=[DEVICE])
    jobs.save(job)
    write_prediction(job.job, 12_000_000)
    arguments = ("compare", job.job, "--device", "h100", "--json", "--measured-ms")
    code, out, err = understudy(*arguments, 10)
    assert code == 0, err
    assert json.loads(out) == {
        "job": job.job,
        "device": DEVICE,
        "measured_ns": 10_000_000,
        "simulated_ns": 12_000_000,
        "error": pytest.approx(0.2),
    }
    code, out, err = understudy(*arguments, -1)
    assert (code, out) == (2, "")


def test_simulate_a_measured_run(understudy: Call) -> None:
    folder = Path(__file__).parents[1] / "data" / "kineto_absurd_duration"
    code, out, err = understudy("simulate", "--kineto", folder, "--json")
    assert code == 0, err
    found = json.loads(out)
    (step,) = found["steps"]
    assert (step["rank"], step["step"], step["measured_ns"]) == (0, "ProfilerStep#3", 90_001)
    assert step["error"] == step["simulated_ns"] / step["measured_ns"] - 1
    assert found["step_error_max"] == abs(step["error"])
    (dropped,) = found["dropped"]
    assert dropped["file"].endswith("rank-0.json")
    assert (dropped["count"], dropped["byte_offsets"]) == (1, [2101])
    code, out, _ = understudy("simulate", "--kineto", folder)
    assert "ProfilerStep#3" in out
    assert "1 x kernel event longer than a day, first at byte 2101" in out


def test_compare_wants_one_measurement(understudy: Call, script: Path) -> None:
    job = jobs.ad_hoc_job(str(script), devices=[DEVICE])
    jobs.save(job)
    write_prediction(job.job, 12_000_000)
    code, out, err = understudy("compare", job.job, "--device", DEVICE)
    assert (code, out) == (2, "")
    assert "either --measured-ms or --kineto" in err


def test_unfit_job_was_measured(understudy: Call, script: Path) -> None:
    job = jobs.ad_hoc_job(str(script), devices=[DEVICE])
    jobs.save(job)
    write_prediction(job.job, None)
    code, _, err = understudy("compare", job.job, "--device", DEVICE, "--measured-ms", 10)
    assert code == 1
    assert "not to fit" in err
    assert store.list_partitions("comparison") == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UnderstudyError("rank 3 failed"), 1, "rank 3 failed"),
        (KeyboardInterrupt(), 1, "interrupted"),
        (OSError(28, "No space left on device", "/x"), 1, "/x: the disk is full"),
        (OSError(13, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (ValueError("odd"), 1, "internal error: ValueError('odd'); details in "),
    ],
)
def test_every_failure_is_one_message(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    @click.command()
    def fail() -> None:
        raise error

    assert cli.run(fail, []) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_table_aligns_numbers_to_the_right() -> None:
    rows: list[list[Any]] = [["a", 1, 2.5], ["long name", 100, None]]
    assert display.table(["name", "n", "x"], rows).splitlines() == [
        "name         n    x",
        "---------  ---  ---",
        "a            1  2.5",
        "long name  100    -",
    ]
