"""NCCL durations: interpolated in one node, by law between nodes.

Within a node, log time is interpolated over log size per (kind, ranks), and over log ranks between
measured rank counts. Beyond the largest measured size the last bandwidth is kept; below the
smallest the time is the smallest's. Never transferred between devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from understudy.catalog import Device, interconnect
from understudy.errors import UsageError

#: Payload share of a network adapter's line rate that NCCL reaches between nodes; the rate at
#: which 64 to 512 A100s were predicted within 5 % (median) by such a ring.
NETWORK_EFFICIENCY = 0.85
#: Share of an in-node link's data-sheet bandwidth where nothing was measured.
LINK_EFFICIENCY = 0.75
#: Time of the smallest operation in one node where nothing was measured.
BASE_LATENCY_NS = 12_000.0
#: Latency that one more node adds to one pass of a ring or tree, adapters and switch included.
NODE_HOP_NS = 8_000.0
#: An operation of one rank copies its buffer, or does nothing.
_SINGLE_RANK_NS = 2_000.0

#: Operations that no table holds -> the measured one they are taken from, and the factor on the
#: size that makes both put as many bytes on a link.
_STAND_INS = {
    "broadcast": ("all_gather", lambda p: p / (p - 1)),
    "reduce": ("reduce_scatter", lambda p: p / (p - 1)),
    "gather": ("all_gather", lambda p: 1.0),
    "scatter": ("all_gather", lambda p: 1.0),
    "send_recv": ("all_to_all", lambda p: 2.0),
    "send": ("all_to_all", lambda p: 2.0),
    "recv": ("all_to_all", lambda p: 2.0),
}


class Cluster(Protocol):
    """What a job says of its machines."""

    @property
    def interconnect(self) -> str | None: ...
    @property
    def nic_gbps(self) -> float: ...
    @property
    def nics_per_node(self) -> int: ...


@dataclass(frozen=True)
class Estimate:
    """A collective's duration, with the relative half-width of its 90 % interval."""

    duration_ns: float
    spread: float
    source: str
    extrapolated: bool


@dataclass(frozen=True)
class CollectiveTable:
    """Measured points of one device: (kind, ranks) -> sizes in bytes, ascending, and times in ns.

    `spread` is the relative half-width of the 90 % interval of an interpolation.
    """

    points: Mapping[tuple[str, int], tuple[np.ndarray, np.ndarray]]
    spread: float

    def ranks_of(self, kind: str) -> list[int]:
        """Measured rank counts of `kind`, ascending."""
        return sorted(ranks for k, ranks in self.points if k == kind)

    def interpolate(self, kind: str, ranks: int, size_bytes: float) -> tuple[float, bool]:
        """Time in ns and whether it is extrapolated, for measured `ranks`."""
        sizes, times = self.points[kind, ranks]
        if size_bytes > sizes[-1]:
            return float(times[-1] * size_bytes / sizes[-1]), True
        at = math.log(max(size_bytes, 1.0))
        log_time = np.interp(at, np.log(sizes), np.log(times))
        return float(np.exp(log_time)), False


def table_of(profiles: pa.Table, spread: float) -> CollectiveTable:
    """Medians over element types of the in-node rows of `collective_profiles`."""
    groups: dict[tuple[str, int], dict[int, list[int]]] = {}
    for row in profiles.select(["kind", "ranks", "nodes", "size_bytes", "duration_ns"]).to_pylist():
        if row["nodes"] == 1:
            sizes = groups.setdefault((row["kind"], row["ranks"]), {})
            sizes.setdefault(row["size_bytes"], []).append(row["duration_ns"])
    points = {}
    for key in sorted(groups):
        sizes = sorted(groups[key])
        points[key] = (
            np.array(sizes, dtype=np.float64),
            np.array([np.median(groups[key][s]) for s in sizes], dtype=np.float64),
        )
    return CollectiveTable(points, spread)


def estimate(
    table: CollectiveTable,
    device: Device,
    cluster: Cluster | None,
    kind: str,
    size_bytes: float,
    ranks: int,
    nodes: int,
) -> Estimate:
    """Duration of one collective. `size_bytes` as in nccl-tests; raises UsageError when ranks on
    several nodes are joined by no network."""
    if ranks <= 1:
        copied = 2 * size_bytes / device.memory_bandwidth_bytes_per_s * 1e9
        return Estimate(max(_SINGLE_RANK_NS, copied), 0.5, "law", False)
    if nodes <= 1:
        return _in_node(table, device, cluster, kind, size_bytes, ranks)
    return _between_nodes(table, device, cluster, kind, size_bytes, ranks, nodes)


def _in_node(
    table: CollectiveTable,
    device: Device,
    cluster: Cluster | None,
    kind: str,
    size_bytes: float,
    ranks: int,
) -> Estimate:
    fabric = _fabric(device, cluster)
    measured, factor = kind, 1.0
    if kind in _STAND_INS:
        measured, scale = _STAND_INS[kind]
        ranks = 2 if measured == "all_to_all" else ranks
        factor = scale(ranks)
    known = table.ranks_of(measured)
    if fabric != device.interconnect or not known or ranks > known[-1]:
        return _ring_law(fabric, kind, size_bytes, ranks)
    low = max(r for r in known if r <= ranks)
    high = min(r for r in known if r >= ranks)
    time, extrapolated = table.interpolate(measured, low, size_bytes * factor)
    if low != high:
        other, _ = table.interpolate(measured, high, size_bytes * factor)
        share = math.log(ranks / low) / math.log(high / low)
        time = math.exp((1 - share) * math.log(time) + share * math.log(other))
    exact = measured == kind and low == high
    return Estimate(
        time,
        table.spread if exact else table.spread + 0.1,
        "measured" if exact else "transferred",
        extrapolated,
    )


def _fabric(device: Device, cluster: Cluster | None) -> str:
    """Name of the fabric between the GPUs of a node; plain "nvlink" is the device's own."""
    wanted = cluster.interconnect if cluster else None
    if wanted is None or (wanted == "nvlink" and device.interconnect.startswith("nvlink")):
        return device.interconnect
    return interconnect(wanted).name


def _wire_factor(kind: str, ranks: int) -> float:
    """Bytes on each link of a ring, per byte of the nccl-tests size."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


def _ring_law(fabric: str, kind: str, size_bytes: float, ranks: int) -> Estimate:
    bandwidth = interconnect(fabric).bandwidth_bytes_per_s * LINK_EFFICIENCY
    moved = size_bytes * _wire_factor(kind, ranks) / bandwidth * 1e9
    return Estimate(BASE_LATENCY_NS + moved, 0.5, "law", False)


def _between_nodes(
    table: CollectiveTable,
    device: Device,
    cluster: Cluster | None,
    kind: str,
    size_bytes: float,
    ranks: int,
    nodes: int,
) -> Estimate:
    """The slower of the part in the nodes and of a ring through the adapters, plus latency.

    A communicator uses at most one adapter per rank that it has in a node. An all-to-all sends
    what leaves the node through them; a pair of ranks uses one.
    """
    if cluster is None or cluster.nic_gbps <= 0 or cluster.nics_per_node <= 0:
        raise UsageError(
            f"A {kind} joins {ranks} ranks on {nodes} nodes, but the job states no network: "
            "set cluster.nic_gbps and cluster.nics_per_node."
        )
    per_node = max(1, math.ceil(ranks / nodes))
    adapters = min(cluster.nics_per_node, per_node)
    pairwise = kind in ("send", "recv", "send_recv")
    adapters = 1 if pairwise else adapters
    network = adapters * cluster.nic_gbps / 8 * 1e9 * NETWORK_EFFICIENCY
    if kind == "all_to_all":
        leaving = size_bytes * per_node * (nodes - 1) / nodes
    else:
        leaving = size_bytes * _wire_factor(kind, ranks)
    through = leaving / network * 1e9
    inside = 0.0
    if per_node > 1 and not pairwise:
        inside = _in_node(table, device, cluster, kind, size_bytes, per_node).duration_ns
    passes = 2 if kind == "all_reduce" else 1
    latency = NODE_HOP_NS if pairwise else passes * math.ceil(math.log2(nodes)) * NODE_HOP_NS
    return Estimate(BASE_LATENCY_NS + latency + max(inside, through), 0.4, "law", False)
