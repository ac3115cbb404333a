"""Runs a plain PyTorch program on the interceptor and reads its trace by case."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from understudy.kernels import signature_of_dnn, signature_of_launch
from understudy.traces.interceptor import Api, LibraryDefinition, RankTrace, read_trace

HERE = Path(__file__).resolve().parent


class Cases:
    """The records of a program by the annotation before them."""

    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace
        self._records: dict[str, np.ndarray] = {}
        marks = np.flatnonzero(trace.records["api"] == Api.ANNOTATION)
        for start, end in pairwise(marks):
            name = trace.texts[int(trace.records["definition"][start])]
            self._records[name] = trace.records[start + 1 : end]

    def names(self) -> list[str]:
        return list(self._records)

    def _definitions(self, case: str, api: Api) -> list[int]:
        records = self._records[case]
        return [int(number) for number in records["definition"][records["api"] == api]]

    def calls(self, case: str) -> list[LibraryDefinition]:
        return [self.trace.libraries[number] for number in self._definitions(case, Api.LIBRARY)]

    def graphs(self, case: str) -> list[tuple[str, str, dict[str, float]]]:
        """(family, dtype, features) of each cuDNN operation graph."""
        graphs = [self.trace.dnns[number] for number in self._definitions(case, Api.DNN)]
        found = [signature_of_dnn(graph) for graph in graphs]
        return [(s.family, s.dtype, dict(s.features)) for s in found]

    def compiled(self, case: str) -> list[tuple[str, tuple[int, ...], int, str]]:
        """(name, parameter sizes, first argument, family) of kernels without a mangled name."""
        found = []
        for number in self._definitions(case, Api.LAUNCH_KERNEL):
            launch = self.trace.launches[number]
            kernel = self.trace.kernels[launch.kernel]
            if kernel.name.startswith("_Z"):
                continue
            sizes = tuple(size for _, size in kernel.parameters)
            first = int.from_bytes(launch.arguments[:4], "little")
            signature = signature_of_launch(
                "cuLaunchKernel",
                kernel.name,
                launch.grid,
                launch.block,
                launch.dynamic_shared_bytes,
                kernel.registers,
                launch.arguments,
                kernel.parameters,
                lambda _: None,
            )
            found.append((kernel.name, sizes, first, signature.family))
        return found


def run_program(program: str, interceptor: Path, stem: Path) -> str:
    """Runs a program of this folder with its trace at `stem` and returns what it prints."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{interceptor.parent / 'shadow'}:{interceptor.parent}",
        "OMP_NUM_THREADS": "1",
        "UNDERSTUDY_LIBRARY": str(interceptor),
        "UNDERSTUDY_TRACE": str(stem),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error:The CUDA Graph is empty", str(HERE / program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_cases(program: str, interceptor: Path, folder: Path) -> Cases:
    """Runs a program of this folder, which must meet no call that is not supported."""
    stem = folder / "calls"
    run_program(program, interceptor, stem)
    trace = read_trace(stem)
    unsupported = trace.records["definition"][trace.records["api"] == Api.UNSUPPORTED]
    assert [trace.texts[int(number)] for number in unsupported] == []
    return Cases(trace)
