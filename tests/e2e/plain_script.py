"""Emulates a script, or the text of one, and says which GEMMs each of its iterations has."""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from pathlib import Path

from tests.e2e.script_case import Gemm
from understudy import jobs
from understudy.emulation import Emulation, emulate
from understudy.jobs import Launch

DEVICE = "h100-sxm-80gb"


def emulated(
    folder: Path,
    script: Path | str,
    *args: str,
    ranks: int = 1,
    warmup: int = 1,
    iterations: int = 2,
    marker: str | None = None,
) -> Emulation:
    """Emulates a script, or its text, in `folder`, which gets the log and the traces."""
    path = folder / "train.py" if isinstance(script, str) else script
    if isinstance(script, str):
        path.write_text(textwrap.dedent(script))
    launch = Launch(nproc_per_node=ranks)
    spec = jobs.ad_hoc_job(str(path), args, launch=launch, working_dir=folder)
    spec = dataclasses.replace(spec, warmup=warmup, iterations=iterations, marker=marker)
    return emulate(spec, DEVICE, log_path=folder / "log", traces_dir=folder / "traces")


def gemms(emulation: Emulation, rank: int = 0) -> list[Counter[Gemm]]:
    """(m, n, k, batch) of the GEMMs of each iteration that the rank's program keeps; one when all
    recorded iterations are alike."""
    row = emulation.tables["ranks"].to_pylist()[rank]
    signatures = emulation.tables["signatures"].to_pylist()
    found = [Counter[Gemm]() for _ in range(row["span_iterations"])]
    for event in emulation.tables["events"].to_pylist():
        if event["program"] != row["program"] or event["signature"] is None:
            continue
        signature = signatures[event["signature"]]
        if signature["family"] == "gemm":
            size = dict(signature["features"])
            m, n, k, batch = (int(size[name]) for name in ("m", "n", "k", "batch"))
            found[event["iteration"]][m, n, k, batch] += 1
    return found
