"""Makes the engine's programs from the merged tables, a host and durations by signature."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from understudy.catalog import Host
from understudy.errors import UnderstudyError
from understudy.jobs import JobSpec
from understudy.simulation.world import (
    DEVICE,
    HOST,
    HOST_WAIT,
    JOIN,
    NONE,
    STREAM_WAIT,
    Part,
    Placement,
    Program,
    World,
)

_KINDS = {
    "host": HOST,
    "device": DEVICE,
    "stream_wait": STREAM_WAIT,
    "join": JOIN,
    "host_wait": HOST_WAIT,
}
#: Kinds of calls in the catalog's `api_cost_ns`, by what an op is.
_CALL_OF_FAMILY = {"copy": "memcpy", "memset": "memset"}
_CALL_OF_KIND = {STREAM_WAIT: "event", JOIN: "collective", HOST_WAIT: "sync"}

Durations = NDArray[np.int64]


class Programs:
    """The job's programs, ready to be replayed with several sets of durations.

    `events`, `host_gaps`, `signatures` and `collective_parts` are merging's tables. `kinds`,
    `streams` and `signatures` hold the columns of each program as arrays (-1: no signature).
    """

    def __init__(self, job: JobSpec, host: Host, tables: Mapping[str, pa.Table]) -> None:
        self._job = job
        self._host = host
        families = tables["signatures"].column("family").to_pylist()
        events = tables["events"].sort_by([("program", "ascending"), ("op", "ascending")])
        gaps = tables["host_gaps"].sort_by([("program", "ascending"), ("op", "ascending")])
        program = events.column("program").to_numpy()
        same_ops = np.array_equal(program, gaps.column("program").to_numpy()) and np.array_equal(
            events.column("op").to_numpy(), gaps.column("op").to_numpy()
        )
        if not same_ops:
            raise UnderstudyError("events and host_gaps do not have the same ops; merge again")
        kind = np.array([_KINDS[k] for k in events.column("kind").to_pylist()], np.int64)
        stream = events.column("stream").to_numpy().astype(np.int64)
        signature = events.column("signature").fill_null(-1).to_numpy().astype(np.int64)
        depends_on = events.column("depends_on").fill_null(NONE).to_numpy().astype(np.int64)
        in_graph = events.column("graph").is_valid().to_numpy()
        gap = gaps.column("gap_ns").to_numpy().astype(np.int64)
        count = int(program.max()) + 1 if len(program) else 0
        ranges = [slice(*np.searchsorted(program, [p, p + 1])) for p in range(count)]
        self.kinds = [kind[r] for r in ranges]
        self.streams = [stream[r] for r in ranges]
        self.signatures = [signature[r] for r in ranges]
        self._depends_on = [depends_on[r] for r in ranges]
        self._gaps = [gap[r] for r in ranges]
        costs = np.array(
            [
                self._cost(k, families[s] if s >= 0 else None, g)
                for k, s, g in zip(
                    kind.tolist(), signature.tolist(), in_graph.tolist(), strict=True
                )
            ],
            np.int64,
        )
        self._costs = [costs[r] for r in ranges]
        self._parts = _parts(tables["collective_parts"], count)
        self._ranks = tables["ranks"].sort_by("rank").to_pylist()
        self._members = {
            row["communicator"]: tuple(row["members"])
            for row in tables["communicators"].to_pylist()
        }

    def world(self, durations: Durations, host_factor: float, repetitions: int) -> World:
        """The job with `durations` (ns, by signature) and host gaps multiplied by `host_factor`."""
        # The last entry answers for ops without signature, which order others and take no time.
        by_signature = np.append(durations, 0)
        programs = [
            Program(
                kind=self.kinds[p],
                stream=self.streams[p],
                depends_on=self._depends_on[p],
                gap_ns=np.rint(self._gaps[p] * host_factor).astype(np.int64),
                cost_ns=self._costs[p],
                latency_ns=np.full(len(self.kinds[p]), self._host.launch_latency_ns, np.int64),
                duration_ns=by_signature[self.signatures[p]],
                parts=self._parts[p],
            )
            for p in range(len(self.kinds))
        ]
        placements = [self._placement(row) for row in self._ranks]
        return World(programs, placements, self._members, repetitions)

    def launch_counts(self, signatures: int) -> NDArray[np.int64]:
        """Launches of each signature in one span of all ranks."""
        counts = np.zeros(signatures, np.int64)
        for row in self._ranks:
            used = self.signatures[row["program"]]
            counts += np.bincount(used[used >= 0], minlength=signatures)
        return counts

    def _cost(self, kind: int, family: str | None, in_graph: bool) -> int:
        """The nodes of a graph make no calls; its launch is a host op."""
        if in_graph != (kind == HOST):
            return 0
        if kind == HOST:
            call = "graph_launch"
        elif kind == DEVICE:
            call = "event" if family is None else _CALL_OF_FAMILY.get(family, "launch")
        else:
            call = _CALL_OF_KIND[kind]
        try:
            return int(self._host.api_cost_ns[call])
        except KeyError:
            raise UnderstudyError(
                f"host {self._host.name} of the catalog has no api_cost_ns for {call}; add it"
            ) from None

    def _placement(self, row: Mapping[str, Any]) -> Placement:
        """A rank's place. Its network card is the node's nearest: cards are spread evenly."""
        cluster, launch = self._job.cluster, self._job.launch
        card = row["local_rank"] * cluster.nics_per_node // launch.nproc_per_node
        return Placement(
            program=row["program"],
            communicators=dict(row["communicator_map"]),
            node=row["node"],
            network_card=row["node"] * max(cluster.nics_per_node, 1) + card,
        )


def _parts(table: pa.Table, programs: int) -> list[dict[int, tuple[Part, ...]]]:
    """The parts of each join of each program, with the number of like calls in a repetition."""
    rows = table.sort_by(
        [("program", "ascending"), ("group", "ascending"), ("part", "ascending")]
    ).to_pylist()
    calls = Counter(_like(row) for row in rows)
    parts: list[dict[int, tuple[Part, ...]]] = [{} for _ in range(programs)]
    for row in rows:
        part = Part(
            row["kind"],
            row["communicator_local"],
            row["peer"],
            row["sequence"],
            calls[_like(row)],
        )
        of_program = parts[row["program"]]
        of_program[row["group"]] = (*of_program.get(row["group"], ()), part)
    return parts


def _like(row: Mapping[str, Any]) -> Sequence[Any]:
    """What counts `sequence`: the collectives of a communicator, or its sends to one peer."""
    direction = row["kind"] if row["peer"] >= 0 else ""
    return (row["program"], row["communicator_local"], row["peer"], direction)
