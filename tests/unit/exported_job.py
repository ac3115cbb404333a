"""A small simulated job in the warehouse, for tests of exports."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.unit.job_tables import (
    ADD,
    GEMM,
    collective,
    device,
    emulated,
    exchange,
    host_wait,
    signature,
    wait,
)
from understudy import catalog, jobs
from understudy.jobs import Cluster, JobSpec, Launch
from understudy.merging import merge
from understudy.simulation import simulate
from warehouse import schemas, store

DEVICE = "h100-sxm-80gb"
JOB = "small"
_DURATIONS = {"gemm": 3_000_001, "add": 1_000_003, "all_reduce": 2_000_005, "send_recv": 700_001}

COPY = signature("memcpy h2d pinned", "copy", "uint8", bytes=4096.0, from_host=1.0, pinned=1.0) | {
    "api": "cudaMemcpyAsync",
    "grid": None,
    "block": None,
}
MEMORY_OPS = (None, 0, 0, 3, 5, None)


def step(peer: int) -> list[dict[str, Any]]:
    """A copy, two layers whose gradients are reduced beside compute, an exchange, and a host that
    reads a result and then thinks for 4 ms."""
    return [
        device(0, COPY),
        device(0, GEMM),
        wait(1, 1),
        collective(),
        device(0, ADD),
        wait(1, 4),
        collective(kind="all_gather", size_bytes=2048),
        wait(0, 6),
        device(0, ADD),
        host_wait(0, 8),
        device(0, GEMM, gap_ns=4_000_000),
        wait(1, 10),
        exchange(("send", peer), ("recv", peer)),
        wait(0, 12),
        device(0, ADD),
    ]


def write_job(ranks: int = 2) -> dict[str, pa.Table]:
    """Saves and simulates the job in the state folder in force; returns its tables."""
    spec = JobSpec(
        JOB, None, "train", launch=Launch(1, ranks), cluster=Cluster(), devices=(DEVICE,)
    )
    jobs.save(spec)
    tables = merge(emulated([step(rank ^ 1) for rank in range(ranks)]))
    tables["memory_timeline"] = _memory(ranks)
    predicted = _predicted(tables["signatures"])
    simulated = simulate(spec, catalog.device(DEVICE), tables, predicted)
    store.write_tables("merging", tables, DEVICE, JOB)
    store.write_tables("simulation", simulated, DEVICE, JOB)
    return tables | simulated


def _memory(ranks: int) -> pa.Table:
    rows = [
        {
            "rank": rank,
            "step": step,
            "iteration": 1,
            "op": op,
            "category": "activations",
            "change_bytes": 512,
            "allocated_bytes": 512 * (step + 1),
            "reserved_bytes": 8192,
            "device_bytes": 1 << 20,
        }
        for rank in range(ranks)
        for step, op in enumerate(MEMORY_OPS)
    ]
    return pa.Table.from_pylist(rows, schema=schemas.MEMORY_TIMELINE.schema)


def _predicted(signatures: pa.Table) -> pa.Table:
    rows = []
    for name in signatures["name"].to_pylist():
        duration_ns = _DURATIONS.get(name, 50_001)
        rows.append(
            {
                "duration_ns": duration_ns,
                "low_ns": duration_ns // 2,
                "high_ns": duration_ns * 2,
                "roofline_ns": duration_ns // 3,
                "flops": 1e9 if name == "gemm" else 0.0,
                "estimate_source": "measured" if name == "gemm" else "law",
                "extrapolated": name == "add",
            }
        )
    names = list(rows[0])
    schema = pa.schema([schemas.PREDICTED_KERNELS.schema.field(name) for name in names])
    return pa.Table.from_pylist(rows, schema=schema)
