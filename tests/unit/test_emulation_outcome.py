"""What the launcher makes of the ways in which a job can end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from understudy import jobs
from understudy.emulation import launcher
from understudy.emulation.collection import OutOfMemory
from understudy.emulation.environment import (
    SITE,
    TargetPython,
    job_environment,
    probe_python,
    recording_slots,
)
from understudy.emulation.results import load_emulation, save_emulation, save_error
from understudy.errors import UnderstudyError, UsageError
from understudy.jobs import JobSpec

OOM = {"iteration": 1, "requested_bytes": 77, "message": "out of memory"}


def error(rank: int, time_ns: int, message: str = "bad") -> dict[str, Any]:
    return {
        "rank": rank,
        "time_ns": time_ns,
        "type": "ValueError",
        "message": message,
        "traceback": f"Traceback\nValueError: {message}\n",
    }


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    (tmp_path / "train.py").touch()
    return jobs.ad_hoc_job("train.py", working_dir=tmp_path)


def outcome(
    job: JobSpec, folder: Path, code: int, files: dict[str, dict[str, Any]], log: str = ""
) -> dict[int, OutOfMemory]:
    control = folder / "control"
    control.mkdir()
    for name, content in files.items():
        (control / name).write_text(json.dumps(content))
    (folder / "log").write_text(log)
    return launcher._outcome(job, code, control, folder / "log", folder)


def test_memory_that_ran_out_is_a_result(job: JobSpec, tmp_path: Path) -> None:
    files = {
        "oom-1.json": {**OOM, "rank": 1, "time_ns": 10},
        # Rank 0 waited for rank 1 and lost it.
        "error-0.json": error(0, 20, "connection reset by peer"),
    }
    assert outcome(job, tmp_path, 1, files) == {1: OutOfMemory(1, 77)}


def test_an_error_before_memory_ran_out_is_the_cause(job: JobSpec, tmp_path: Path) -> None:
    files = {"oom-1.json": {**OOM, "rank": 1, "time_ns": 10}, "error-0.json": error(0, 5)}
    with pytest.raises(UnderstudyError, match="failed on rank 0"):
        outcome(job, tmp_path, 1, files)


def test_the_first_error_is_shown_and_who_shares_it(job: JobSpec, tmp_path: Path) -> None:
    files = {
        "error-0.json": error(0, 30, "connection reset"),
        "error-1.json": error(1, 20),
        "error-2.json": error(2, 10),
    }
    with pytest.raises(UnderstudyError, match=r"train\.py failed on rank 1, 2;") as caught:
        outcome(job, tmp_path, 1, files)
    assert str(caught.value).count("ValueError: bad") == 1


def test_an_exit_code_comes_from_torchrun_s_summary(job: JobSpec, tmp_path: Path) -> None:
    log = """hello
E1130 19:53:00.1 42 torch/distributed/elastic/multiprocessing/api.py:900] failed (exitcode: -9)
Root Cause (first observed failure):
[0]:
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 4321)
"""
    with pytest.raises(UnderstudyError, match=r"rank 5 of .* was ended by SIGKILL") as caught:
        outcome(job, tmp_path, 1, {}, log)
    assert "hello" in str(caught.value)
    assert "elastic" not in str(caught.value)


def test_an_agent_that_fails_shows_the_end_of_the_log(job: JobSpec, tmp_path: Path) -> None:
    with pytest.raises(UnderstudyError, match="exited with code 2") as caught:
        outcome(job, tmp_path, 2, {}, "usage: torchrun\nwrong option\n")
    assert "wrong option" in str(caught.value)


def test_a_python_without_torch_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\nexec /usr/bin/env python3 -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(UnderstudyError, match="has no PyTorch"):
        probe_python(bare)
    with pytest.raises(UnderstudyError, match="no such Python"):
        probe_python(tmp_path / "absent")
    bare.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    with pytest.raises(UnderstudyError, match="does not run: broken"):
        probe_python(bare)


def test_a_missing_script_is_a_usage_error(job: JobSpec, tmp_path: Path) -> None:
    (tmp_path / "train.py").unlink()
    with pytest.raises(UsageError, match=r"train\.py"):
        launcher.emulate(job, "h100-sxm-80gb", log_path=tmp_path / "l", traces_dir=tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_an_interceptor_that_is_not_built(
    job: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.emulation.environment.INTERCEPTOR", tmp_path / "absent.so")
    with pytest.raises(UnderstudyError, match="make setup"):
        launcher.emulate(job, "h100-sxm-80gb", log_path=tmp_path / "l", traces_dir=tmp_path / "t")


@pytest.mark.usefixtures("interceptor")
@pytest.mark.parametrize("wheels", [False, True])
def test_the_environment_of_the_ranks(job: JobSpec, tmp_path: Path, wheels: bool) -> None:
    python = TargetPython(Path("python"), "3.11.7", "2.14.1", tmp_path, wheels)
    env = job_environment(
        job,
        python,
        device_file=tmp_path / "device",
        kernel_tables=[tmp_path / "a.ktab", tmp_path / "b.ktab"],
        traces_dir=tmp_path / "traces",
        control_dir=tmp_path,
        base={
            "PATH": "/bin",
            "RANK": "3",
            "DAGSTER_PIPES_CONTEXT": "x",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": "/own",
            "LD_LIBRARY_PATH": "/lib",
        },
    )
    assert env["PATH"] == "/bin"
    assert env["PYTHONPATH"] == f"{SITE}:/own"
    assert env["LD_LIBRARY_PATH"].endswith(":/lib")
    assert env["UNDERSTUDY_KERNEL_TABLES"] == f"{tmp_path}/a.ktab:{tmp_path}/b.ktab"
    assert not {"RANK", "DAGSTER_PIPES_CONTEXT", "CUDA_VISIBLE_DEVICES"} & set(env)
    assert ("libcudart.so" in env["LD_PRELOAD"]) == wheels
    assert ".map" not in env["LD_PRELOAD"]


def test_ranks_record_side_by_side_only_where_cores_suffice() -> None:
    assert [recording_slots(cores) for cores in (1, 2, 4, 16)] == [1, 1, 2, 8]


def test_an_emulation_is_kept_in_a_folder(tmp_path: Path) -> None:
    from warehouse import schemas

    tables = {t.name: t.schema.empty_table() for t in schemas.stage_tables("emulation")}
    emulation = launcher.Emulation(tables, {"torch": "2.14.1"}, ("careful",))
    save_emulation(emulation, tmp_path / "out")
    assert load_emulation(tmp_path / "out") == emulation
    save_error(UsageError("wrong"), tmp_path / "out")
    with pytest.raises(UsageError, match="wrong"):
        load_emulation(tmp_path / "out")
    with pytest.raises(UnderstudyError, match="interrupted"):
        load_emulation(tmp_path / "none")
