"""Real PyTorch on the interceptor built with AddressSanitizer and UBSan.

`make test` runs one program per family of libraries; `make test-asan`, which sets
$SANITIZED_SCRIPTS to "all", runs every script case and every program of tests/interceptor.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import sanitizer
from tests.e2e.script_case import ScriptCase
from understudy import jobs
from understudy.emulation import emulate
from understudy.errors import UnderstudyError
from understudy.jobs import Launch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("script_home")]

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "interceptor"

#: By family of libraries, in `make test`.
SCRIPTS_OF_FAMILIES = {
    "convolutions": "unet_diffusion.py",
    "recurrent networks": "lstm.py",
    "collectives": "fsdp2.py",
}
PROGRAMS_OF_FAMILIES = {
    "runtime and memory": "torch_calls.py",
    "cuBLAS": "library_calls.py",
    "cuSOLVER": "linear_algebra_calls.py",
    "cuFFT, cuSPARSE, NVRTC": "science_calls.py",
    "NVML and driver": "device_answers.py",
}
_ALL = os.environ.get("SANITIZED_SCRIPTS") == "all"


def script_cases() -> list[ScriptCase]:
    cases = [
        case
        for path in sorted(HERE.glob("test_scripts_*.py"))
        for case in importlib.import_module(f"tests.e2e.{path.stem}").CASES
    ]
    return [case for case in cases if _ALL or case.name in SCRIPTS_OF_FAMILIES.values()]


def programs() -> list[str]:
    everything = [path.name for path in sorted(PROGRAMS.glob("*_calls.py"))]
    return [*everything, "device_answers.py"] if _ALL else list(PROGRAMS_OF_FAMILIES.values())


@pytest.fixture(scope="module")
def library() -> Path:
    return sanitizer.build()


@pytest.fixture
def sanitized_launches(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What $UNDERSTUDY_INTERCEPTOR_BUILD does, which is read when a process starts."""
    monkeypatch.setattr("understudy.emulation.environment.INTERCEPTOR", library)
    monkeypatch.setattr("understudy.emulation.environment.SHADOWS", library.parent / "shadow")


@pytest.mark.usefixtures("sanitized_launches")
@pytest.mark.parametrize("case", script_cases(), ids=lambda case: case.name)
def test_script(case: ScriptCase, library: Path, tmp_path: Path) -> None:
    launch = Launch(nproc_per_node=case.nproc_per_node)
    spec = jobs.ad_hoc_job(str(case.path), case.args, launch=launch, working_dir=tmp_path)
    spec = dataclasses.replace(spec, warmup=1, iterations=1, env=sanitizer.environment(library))
    log = tmp_path / "log"
    failure = None
    try:
        emulate(spec, case.device, log_path=log, traces_dir=tmp_path / "traces")
    except UnderstudyError as error:
        failure = error
    report = sanitizer.reports(log.read_text(errors="replace"))
    assert not report, f"{case.name}:\n{report}"
    if failure:
        raise failure


def run_program(library: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program on the emulated device, standard error in its output."""
    environment = sanitizer.environment(library)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UNDERSTUDY_", "PYTORCH_"))}
    return subprocess.run(
        [sys.executable, *arguments],
        env={
            **kept,
            **environment,
            "LD_PRELOAD": f"{environment['LD_PRELOAD']}:{library}",
            "LD_LIBRARY_PATH": f"{library.parent / 'shadow'}:{environment['LD_LIBRARY_PATH']}",
            "UNDERSTUDY_LIBRARY": str(library),
            "UNDERSTUDY_TRACE": str(folder / "trace"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", programs())
def test_program(name: str, library: Path, tmp_path: Path) -> None:
    # Programs without PyTorch load the library themselves.
    arguments = [str(library)] if name == "device_answers.py" else []
    done = run_program(library, tmp_path, str(PROGRAMS / name), *arguments)
    assert not sanitizer.reports(done.stdout), done.stdout
    assert done.returncode == 0, done.stdout


def test_what_the_sanitizer_would_find(library: Path, tmp_path: Path) -> None:
    """A copy by the interceptor from beyond a block of memory that Python took."""
    too_far = (
        "import ctypes\n"
        f"library = ctypes.CDLL({str(library)!r})\n"
        "allocate = ctypes.CDLL(None).malloc\n"
        "allocate.restype = ctypes.c_void_p\n"
        "source, target = (ctypes.c_void_p(allocate(size)) for size in (16, 64))\n"
        "library.cudaMemcpy(target, source, ctypes.c_size_t(64), 0)\n"
    )
    done = run_program(library, tmp_path, "-c", too_far)
    assert "heap-buffer-overflow" in sanitizer.reports(done.stdout)
