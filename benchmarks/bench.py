"""`make bench`: what interception costs on this machine.

Four questions: what a launch costs in the interceptor, how long the tables of PyTorch's kernels
take, what a training step costs under the interceptor against plain host dispatch, and what an
event takes on disk.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from understudy import catalog
from understudy.emulation.environment import TargetPython, job_environment, probe_python
from understudy.home import cache_dir
from understudy.jobs import ad_hoc_job
from understudy.traces.interceptor import RankTrace, read_trace
from understudy.traces.kernel_table import kernel_tables

REPOSITORY = Path(__file__).resolve().parent.parent
HOST_STEP = REPOSITORY / "benchmarks" / "host_step.py"
STEPS = 60
#: The first steps allocate and fill caches.
SKIPPED_STEPS = 10
#: Runs of each variant, taken in turn; the best median is the one that nothing else disturbed.
REPEATS = 3


def main() -> None:
    """Prints all figures."""
    python = probe_python(None)
    print(describe_machine(python))
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        bench_launch(Path(folder))
        bench_kernel_tables(python, Path(folder))
        trace = bench_steps(python, Path(folder))
        bench_disk(trace, Path(folder))


def describe_machine(python: TargetPython) -> str:
    """One line: processor, cores, memory, Python, PyTorch."""
    info = Path("/proc/cpuinfo").read_text()
    models = [
        line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")
    ]
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return (
        f"{models[0] if models else platform.machine()}, {cores} cores, {memory_gib:.0f} GiB, "
        f"Python {python.version}, PyTorch {python.torch_version}"
    )


def bench_launch(folder: Path) -> None:
    """Prints what one kernel launch costs its caller, against an empty shared-library call."""
    interceptor = REPOSITORY / "interceptor_c"
    make = ["make", "--silent", "--no-print-directory", "-C", str(interceptor), "tests"]
    subprocess.run([*make, f"PYTHON={sys.executable}"], check=True)
    done = subprocess.run(
        [str(interceptor / "build" / "tests" / "bench_launch"), str(folder)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures = {name: float(ns) for name, ns in map(str.split, done.stdout.splitlines())}
    print("\nOne kernel launch, 5 arguments: in a loop, best of 20; timed singly, median")
    for name, ns in figures.items():
        print(f"  {name.removesuffix('_ns').replace('_', ' '):<42}{ns:8.1f} ns")
    ratio = figures["launch_traced_timed_singly_ns"] / figures["empty_call_timed_singly_ns"]
    print(f"  {'traced against empty, timed singly':<42}{ratio:8.1f} x (to stay below 6)")


def bench_kernel_tables(python: TargetPython, folder: Path) -> None:
    """Prints how long the tables of PyTorch's kernels take: made anew, and found in the cache."""
    print("\nTables of PyTorch's kernels (names, parameters, registers), compute capability 9.0")
    for name in ("made from the libraries, cold", "found in the cache, warm"):
        start = time.perf_counter()
        kernel_tables(python.torch_lib, 90, folder / "kernel_tables", lambda *_: None)
        limit = " (to stay below 0.5)" if name.endswith("warm") else ""
        print(f"  {name:<42}{time.perf_counter() - start:8.2f} s{limit}")


def bench_steps(python: TargetPython, folder: Path) -> RankTrace:
    """Compares steps on the CPU, emulated and emulated with a trace; returns the last trace."""
    device = catalog.device("h100-sxm-80gb")
    device_file = folder / "device"
    device_file.write_text(device.attributes_file())
    traces_dir, control_dir = folder / "traces", folder / "control"
    traces_dir.mkdir()
    control_dir.mkdir()
    capability = 10 * device.compute_capability_major + device.compute_capability_minor
    emulated = job_environment(
        ad_hoc_job(str(HOST_STEP)),
        python,
        device_file=device_file,
        kernel_tables=kernel_tables(
            python.torch_lib, capability, cache_dir() / "kernel_tables", lambda *_: None
        ),
        traces_dir=traces_dir,
        control_dir=control_dir,
    )
    # The ranks' end is the script's: as many iterations as it has steps are never recorded.
    emulated["UNDERSTUDY_ITERATIONS"] = str(STEPS + 1)
    traced = {**emulated, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    variants = {
        "plain dispatch, tiny tensors on the CPU": ("cpu", emulated),
        "emulated, no trace": ("cuda", emulated),
        "emulated, traced": ("cuda", traced),
    }
    best: dict[str, float] = {}
    for _ in range(REPEATS):
        for name, (where, environment) in variants.items():
            median_ns = _median_step_ns(python, where, environment)
            best[name] = min(best.get(name, median_ns), median_ns)
    plain_ns = next(iter(best.values()))
    print(f"\nProcessor time of a 12-layer GPT's training step, median of {STEPS - SKIPPED_STEPS}")
    for name, step_ns in best.items():
        print(f"  {name:<42}{step_ns / 1e6:8.2f} ms{step_ns / plain_ns:8.2f} x")
    return read_trace(traces_dir / "rank-0")


def _median_step_ns(python: TargetPython, where: str, environment: dict[str, str]) -> float:
    done = subprocess.run(
        [str(python.executable), str(HOST_STEP), where, str(STEPS)],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    durations_ns = json.loads(done.stdout.splitlines()[-1])
    return statistics.median(durations_ns[SKIPPED_STEPS:])


def bench_disk(trace: RankTrace, folder: Path) -> None:
    """Prints the bytes per recorded event of a trace."""
    events = len(trace.records)
    print(f"\nOn disk, {events:,} recorded events of that script")
    for suffix in ("records", "definitions"):
        size_bytes = (folder / "traces" / f"rank-0.{suffix}").stat().st_size
        print(f"  {suffix:<42}{size_bytes / events:8.1f} bytes per event")


if __name__ == "__main__":
    main()
