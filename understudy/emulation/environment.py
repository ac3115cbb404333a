"""The Python environment that a job runs in, and what its ranks find in their environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from understudy import home
from understudy.errors import UnderstudyError
from understudy.home import REPOSITORY
from understudy.jobs import JobSpec

#: Where the interceptor was built. Contributors name another build, such as one with sanitizers.
_BUILD = Path(os.environ.get("UNDERSTUDY_INTERCEPTOR_BUILD") or REPOSITORY / "interceptor_c/build")
INTERCEPTOR = _BUILD / "libunderstudy.so"
SHADOWS = _BUILD / "shadow"
SITE = Path(__file__).resolve().parent / "site"

#: Of the launching process's environment, what would make a rank of an agent or hide the devices.
_DROPPED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "UNDERSTUDY_RANK_PID",
    "UNDERSTUDY_NODE",
    "UNDERSTUDY_NODES",
)
_DROPPED_PREFIXES = ("DAGSTER_PIPES_", "TORCHELASTIC_")

_PROBE = """
import importlib.metadata, importlib.util, json, pathlib, platform
torch = importlib.util.find_spec("torch")
nvidia = importlib.util.find_spec("nvidia")
folders = list(nvidia.submodule_search_locations or []) if nvidia else []
print(json.dumps({
    "python": platform.python_version(),
    "torch": importlib.metadata.version("torch") if torch else None,
    "torch_lib": str(pathlib.Path(torch.origin).parent / "lib") if torch else None,
    "nvidia_wheels": any(any(pathlib.Path(f).glob("*/lib/*.so*")) for f in folders),
}))
"""


@dataclass(frozen=True)
class TargetPython:
    """The interpreter that runs the script. `nvidia_wheels`: NVIDIA's own libraries are installed
    there, so they have to be displaced by preloading ours."""

    executable: Path
    version: str
    torch_version: str
    torch_lib: Path
    nvidia_wheels: bool


def probe_python(executable: Path | None) -> TargetPython:
    """Looks into a Python environment without importing PyTorch.

    Raises UnderstudyError when it does not run, or has no PyTorch built for CUDA.
    """
    path = executable or Path(sys.executable)
    try:
        answer = subprocess.run(
            [str(path), "-c", _PROBE], capture_output=True, text=True, check=True, timeout=60
        )
        found = json.loads(answer.stdout.splitlines()[-1])
    except FileNotFoundError as error:
        raise UnderstudyError(f"{path}: there is no such Python interpreter") from error
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        raise UnderstudyError(f"{path}: this Python does not run: {detail.strip()}") from error
    if found["torch"] is None:
        raise UnderstudyError(
            f"{path}: has no PyTorch; install torch there, or name another Python with --python"
        )
    torch_lib = Path(found["torch_lib"])
    if not (torch_lib / "libtorch_cuda.so").is_file():
        raise UnderstudyError(
            f"{path}: its PyTorch {found['torch']} is built without CUDA; install a CUDA build of "
            "torch there, or name another interpreter with --python"
        )
    return TargetPython(path, found["python"], found["torch"], torch_lib, found["nvidia_wheels"])


def check_interceptor() -> None:
    """Raises UnderstudyError unless the interceptor is built."""
    if not INTERCEPTOR.is_file() or not any(SHADOWS.glob("*.so*")):
        raise UnderstudyError(
            f"{INTERCEPTOR}: the interceptor is not built; run `make setup` in {REPOSITORY}"
        )


def _prepend(first: str, rest: str | None, separator: str = ":") -> str:
    return f"{first}{separator}{rest}" if rest else first


def recording_slots(cores: int) -> int:
    """How many ranks may record at a time: a rank needs its main and its autograd thread."""
    return max(1, cores // 2)


def job_environment(
    job: JobSpec,
    python: TargetPython,
    *,
    device_file: Path,
    kernel_tables: list[Path],
    traces_dir: Path,
    control_dir: Path,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of the torchrun agents; the ranks inherit it. `base`: default os.environ."""
    env = {
        key: value
        for key, value in (os.environ if base is None else base).items()
        if key not in _DROPPED and not key.startswith(_DROPPED_PREFIXES)
    }
    env.update(job.env)
    # For the same reason as the supervisor's fixed addresses: sets of strings.
    env.setdefault("PYTHONHASHSEED", "0")
    preload = str(INTERCEPTOR)
    if python.nvidia_wheels:
        # PyTorch's DT_RPATH finds the wheels before LD_LIBRARY_PATH: only a preload comes earlier.
        shadows = sorted(p for p in SHADOWS.glob("*.so.*") if p.suffix != ".map")
        preload = ":".join([preload, *map(str, shadows)])
    env["LD_PRELOAD"] = _prepend(preload, env.get("LD_PRELOAD"))
    env["LD_LIBRARY_PATH"] = _prepend(str(SHADOWS), env.get("LD_LIBRARY_PATH"))
    env["PYTHONPATH"] = _prepend(str(SITE), env.get("PYTHONPATH"), os.pathsep)
    env["TRITON_LIBCUDA_PATH"] = str(SHADOWS)
    env["UNDERSTUDY_DEVICE_FILE"] = str(device_file)
    env["UNDERSTUDY_DEVICE_COUNT"] = str(job.launch.nproc_per_node)
    env["UNDERSTUDY_KERNEL_TABLES"] = ":".join(map(str, kernel_tables))
    env["UNDERSTUDY_TABLE_MAKER"] = sys.executable
    env["UNDERSTUDY_TABLE_CACHE"] = str(home.cache_dir() / "kernel_tables")
    env["UNDERSTUDY_LIBRARY"] = str(INTERCEPTOR)
    env["UNDERSTUDY_TRACES"] = str(traces_dir)
    env["UNDERSTUDY_CONTROL"] = str(control_dir)
    env["UNDERSTUDY_WARMUP"] = str(job.warmup)
    env["UNDERSTUDY_ITERATIONS"] = str(job.iterations)
    # A profiler of the user's own may want to stand there.
    env.setdefault("NVTX_INJECTION64_PATH", str(INTERCEPTOR))
    if job.marker is not None:
        env["UNDERSTUDY_MARKER"] = job.marker
    env["UNDERSTUDY_SLOTS"] = str(recording_slots(os.cpu_count() or 1))
    return env
