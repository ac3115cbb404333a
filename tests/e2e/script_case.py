"""Script cases: plain training scripts that are emulated twice and explained by arithmetic.

A test module declares its cases (script, launch, how to check what was recorded) and calls
`run_case` on each. What every case has to fulfil is asserted here: both emulations agree, nothing
unsupported was called, PyTorch's own memory figures are those of the timeline. What the model
explains (kernels, GEMMs, collectives, bytes) is the business of the case's `check`.

Each case has a row in the README's table, see tests/e2e/scripts_table.py.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.e2e import scripts_table
from understudy import jobs
from understudy.emulation import Emulation, emulate
from understudy.jobs import Launch
from understudy.reporting.labels import short_name
from understudy.traces.interceptor import Api, RankTrace, read_trace

REPOSITORY = Path(__file__).resolve().parents[2]
_SCRIPTS = Path(__file__).resolve().parent / "scripts"
_TORCH_MEMORY = Path(__file__).resolve().parent / "torch_memory"


@dataclass(frozen=True)
class ScriptCase:
    """A script, how it is launched and how its trace is explained.

    `script` is a file of tests/e2e/scripts, or a path in the repository (examples/...).
    `parallelism` is the README's word for it. `check` asserts what the model explains; it gets the
    case's run. DistributedDataParallel waits on its own timing events in its first ten iterations:
    such a case needs `warmup` 12.
    """

    script: str
    parallelism: str
    check: Callable[[ScriptRun], None]
    args: tuple[str, ...] = ()
    nproc_per_node: int = 1
    device: str = "h100-sxm-80gb"
    warmup: int = 3
    iterations: int = 2
    title: str = ""
    python: Path | None = None  # None: the interpreter of the tests

    @property
    def path(self) -> Path:
        path = REPOSITORY / self.script
        return path if path.is_file() else _SCRIPTS / self.script

    @property
    def name(self) -> str:
        """What tells cases apart: script and arguments, unless there is a title."""
        return self.title or " ".join((self.script, *self.args))


@dataclass(frozen=True)
class Operation:
    """A device operation of a rank's iteration, with what its signature says."""

    stream: int
    api: str
    name: str
    family: str
    dtype: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    features: dict[str, float]
    tensor_bytes: int


@dataclass(frozen=True)
class Transfer:
    """What a rank does on a communicator: a collective, a send or a receive.

    `members` are the communicator's global ranks, `peer` is the global rank at the other end of a
    send or receive (None for collectives). `size_bytes` is that of the count argument: the whole
    buffer of an all-reduce or broadcast, one rank's share of an all-gather or reduce-scatter.
    """

    kind: str
    members: tuple[int, ...]
    peer: int | None
    size_bytes: int
    dtype: str
    reduce_op: str


#: A matrix product (m, n, k, batch): y[m,n] = x[m,k] W[k,n], row-major.
Gemm = tuple[int, int, int, int]


def linear(tokens: int, inputs: int, outputs: int) -> Counter[Gemm]:
    """GEMMs of a linear layer: forward, gradient of its input, gradient of its weight."""
    return Counter([(tokens, outputs, inputs, 1), (outputs, inputs, tokens, 1)]) + input_gradient(
        tokens, inputs, outputs
    )


def input_gradient(tokens: int, inputs: int, outputs: int) -> Counter[Gemm]:
    """The gradient of a linear layer's input, which data does not need."""
    return Counter([(tokens, inputs, outputs, 1)])


def times(count: int, *parts: Counter[Gemm]) -> Counter[Gemm]:
    """`count` times the sum of the parts."""
    return Counter({gemm: count * n for gemm, n in sum(parts, Counter[Gemm]()).items()})


@dataclass(frozen=True)
class ScriptRun:
    """What the emulation of a case recorded. Per-rank figures are those of one iteration."""

    case: ScriptCase
    emulation: Emulation
    traces: list[RankTrace]
    log: str

    @property
    def ranks(self) -> range:
        return range(self.case.nproc_per_node)

    def table(self, name: str) -> pa.Table:
        return self.emulation.tables[name]

    @cached_property
    def _signatures(self) -> list[dict[str, Any]]:
        return self.table("signatures").to_pylist()

    @cached_property
    def _ranks(self) -> list[dict[str, Any]]:
        return self.table("ranks").to_pylist()

    def events(self, rank: int) -> list[dict[str, Any]]:
        """Rows of `events` of the rank's last recorded iteration, in program order."""
        row = self._ranks[rank]
        last = row["span_iterations"] - 1
        events = self.table("events")
        chosen = (events["program"].to_numpy() == row["program"]) & (
            events["iteration"].to_numpy() == last
        )
        return events.filter(pa.array(chosen)).to_pylist()

    def operations(self, rank: int) -> list[Operation]:
        """Kernels, library calls, copies and joins of an iteration, in program order."""
        operations = []
        for event in self.events(rank):
            if event["signature"] is None:
                continue
            s = self._signatures[event["signature"]]
            operations.append(
                Operation(
                    event["stream"],
                    s["api"],
                    s["name"],
                    s["family"],
                    s["dtype"],
                    None if s["grid"] is None else tuple(s["grid"]),
                    None if s["block"] is None else tuple(s["block"]),
                    dict(s["features"]),
                    s["tensor_bytes"],
                )
            )
        return operations

    def families(self, rank: int) -> Counter[str]:
        """Operations of an iteration by family."""
        return Counter(operation.family for operation in self.operations(rank))

    def kernels(self, rank: int) -> Counter[str]:
        """Kernel launches of an iteration by short name (what PyTorch's generic kernels apply)."""
        return Counter(short_name(o.name) for o in self.operations(rank) if o.grid is not None)

    def gemms(self, rank: int) -> Counter[Gemm]:
        """GEMMs of an iteration."""
        return Counter(
            (int(f["m"]), int(f["n"]), int(f["k"]), int(f["batch"]))
            for f in (o.features for o in self.operations(rank) if o.family == "gemm")
        )

    def transfers(self, rank: int) -> list[Transfer]:
        """Collectives, sends and receives of an iteration, in program order."""
        row = self._ranks[rank]
        numbers = dict(row["communicator_map"])
        members = [tuple(c["members"]) for c in self.table("communicators").to_pylist()]
        inside = {event["op"] for event in self.events(rank)}
        transfers = []
        for part in self.table("collective_parts").to_pylist():
            if part["program"] != row["program"] or part["group"] not in inside:
                continue
            group = members[numbers[part["communicator_local"]]]
            transfers.append(
                Transfer(
                    part["kind"],
                    group,
                    group[part["peer"]] if part["peer"] >= 0 else None,
                    part["size_bytes"],
                    part["dtype"],
                    part["reduce_op"],
                )
            )
        return transfers

    def transfers_of(self, rank: int, kind: str) -> list[Transfer]:
        """The transfers of an iteration of one kind, e.g. "all_reduce"."""
        return [t for t in self.transfers(rank) if t.kind == kind]


def run_case(case: ScriptCase, folder: Path) -> ScriptRun:
    """Emulates a case twice in `folder`, asserts what holds for every case, then the case's own
    check, then that the README's row of it is true."""
    run, peaks = checked_run(case, folder)
    second, peaks_again = _emulated(case, folder)
    assert _differences(run.emulation, second) == []
    assert run.emulation.versions["events"] == second.versions["events"]
    assert second.warnings == ()
    assert peaks_again == peaks
    scripts_table.check(_row(run, peaks, _unsupported_calls(run.traces)))
    return run


def checked_run(case: ScriptCase, folder: Path) -> tuple[ScriptRun, list[dict[str, Any]]]:
    """Emulates a case once, asserts what holds for every case, then the case's own check. Also
    returns PyTorch's own memory peaks by rank."""
    first, peaks = _emulated(case, folder)
    traces = [read_trace(folder / "traces" / f"rank-{rank}") for rank in range(case.nproc_per_node)]
    run = ScriptRun(case, first, traces, (folder / "log").read_text(errors="replace"))
    unsupported = _unsupported_calls(traces)
    assert not unsupported, f"not supported calls: {unsupported}"
    assert first.warnings == ()
    for rank in run.ranks:
        found = _timeline_figures(run, rank)
        assert found == peaks[rank], f"rank {rank}: {found}, PyTorch says {peaks[rank]}"
    case.check(run)
    return run, peaks


def _emulated(case: ScriptCase, folder: Path) -> tuple[Emulation, list[dict[str, Any]]]:
    """The emulation and, by rank, PyTorch's own figures (torch_memory/sitecustomize.py)."""
    peaks = folder / "peaks"
    peaks.mkdir(exist_ok=True)
    launch = Launch(nproc_per_node=case.nproc_per_node)
    spec = jobs.ad_hoc_job(str(case.path), case.args, launch=launch, working_dir=folder)
    spec = dataclasses.replace(
        spec,
        warmup=case.warmup,
        iterations=case.iterations,
        python=case.python,
        env={"PYTHONPATH": str(_TORCH_MEMORY), "SCRIPT_CASE_PEAKS": str(peaks)},
    )
    emulation = emulate(spec, case.device, log_path=folder / "log", traces_dir=folder / "traces")
    own = []
    for rank in range(case.nproc_per_node):
        path = peaks / f"peaks-{rank}.json"
        own.append(json.loads(path.read_text()))
        path.unlink()
    return emulation, own


def _differences(first: Emulation, second: Emulation) -> list[str]:
    """Where the second emulation differs: per table its lengths or first differing rows. Host gaps
    are measured."""
    found = []
    for name, table in first.tables.items():
        other = second.tables[name]
        if name == "host_gaps" or table.equals(other):
            continue
        rows, others = table.to_pylist(), other.to_pylist()
        pairs = [pair for pair in zip(rows, others, strict=False) if pair[0] != pair[1]]
        found.append(f"{name}: {len(rows)} and {len(others)} rows, first {pairs[:1]}")
    return found


def _unsupported_calls(traces: list[RankTrace]) -> list[str]:
    called = set()
    for trace in traces:
        numbers = trace.records["definition"][trace.records["api"] == Api.UNSUPPORTED]
        called |= {trace.texts[number] for number in np.unique(numbers).tolist()}
    return sorted(called)


def _timeline_figures(run: ScriptRun, rank: int) -> dict[str, Any]:
    """What the rank's memory timeline says of PyTorch's figures: peaks, and at its end the bytes of
    what optimizers know."""
    timeline = run.table("memory_timeline")
    mine = timeline.filter(pa.array(timeline["rank"].to_numpy() == rank))
    category, change = np.array(mine["category"].to_pylist()), mine["change_bytes"].to_numpy()
    reserved = np.cumsum(np.where(category == "segment", change, 0))
    held = ("parameters", "gradients", "optimizer_state")
    return {
        "held": {name: int(change[category == name].sum()) for name in held},
        "max_memory_allocated": int(mine["allocated_bytes"].to_numpy().max(initial=0)),
        "max_memory_reserved": int(reserved.max(initial=0)),
    }


def _row(run: ScriptRun, peaks: list[dict[str, Any]], unsupported: list[str]) -> scripts_table.Row:
    events = [len(run.events(rank)) for rank in run.ranks]
    gaps = run.table("host_gaps").to_pylist()
    host_ns: Counter[int] = Counter()
    for gap in gaps:
        host_ns[gap["program"]] += gap["gap_ns"]
    rows = run.table("ranks").to_pylist()
    return scripts_table.Row(
        script=run.case.name,
        parallelism=run.case.parallelism,
        ranks=run.case.nproc_per_node,
        events=(min(events), max(events)),
        peak_bytes=max(p["max_memory_allocated"] for p in peaks),
        reserved_bytes=max(p["max_memory_reserved"] for p in peaks),
        unsupported=tuple(unsupported),
        host_ns=int(statistics.median(host_ns[r["program"]] / r["span_iterations"] for r in rows)),
    )
