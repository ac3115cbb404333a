"""What the catalog knows about a GPU, a host and an interconnect. Units stand in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One GPU model. `sources` says where each field, or group of fields, is from."""

    id: str
    name: str
    aliases: tuple[str, ...]
    compute_capability: str
    multiprocessors: int
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    memory_bus_bits: int
    memory_clock_hz: int
    peak_flops: Mapping[str, float]
    l2_bytes: int
    clock_hz: int
    max_threads_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_memory_per_multiprocessor_bytes: int
    shared_memory_per_block_optin_bytes: int
    warp_size: int
    context_bytes: int
    interconnect: str
    host_bandwidth_bytes_per_s: float
    price_usd_per_hour: float | None
    sources: Mapping[str, str]

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def compute_capability_major(self) -> int:
        """9 of 9.0."""
        return int(self.compute_capability.split(".")[0])

    @property
    def compute_capability_minor(self) -> int:
        """0 of 9.0."""
        return int(self.compute_capability.split(".")[1])

    def attributes_file(self) -> str:
        """The text that the interceptor reads: one `key=value` line per attribute."""
        values = {
            "id": self.id,
            "name": self.name,
            "compute_capability_major": self.compute_capability_major,
            "compute_capability_minor": self.compute_capability_minor,
            "multiprocessors": self.multiprocessors,
            "memory_bytes": self.memory_bytes,
            "memory_bandwidth_bytes_per_s": round(self.memory_bandwidth_bytes_per_s),
            "memory_bus_bits": self.memory_bus_bits,
            "memory_clock_hz": self.memory_clock_hz,
            "l2_bytes": self.l2_bytes,
            "clock_hz": self.clock_hz,
            "max_threads_per_multiprocessor": self.max_threads_per_multiprocessor,
            "registers_per_multiprocessor": self.registers_per_multiprocessor,
            "shared_memory_per_multiprocessor_bytes": self.shared_memory_per_multiprocessor_bytes,
            "shared_memory_per_block_optin_bytes": self.shared_memory_per_block_optin_bytes,
            "context_bytes": self.context_bytes,
        }
        return "".join(f"{key}={value}\n" for key, value in values.items())


@dataclass(frozen=True)
class Host:
    """The CPU side of a node.

    `launch_latency_ns`: from the begin of a launch call to the begin of its kernel on an idle
    stream. `api_cost_ns`: CPU time that the real driver spends inside one call of a kind (launch,
    memcpy, memset, event, sync, collective, malloc, free); an emulated call does not pay it.
    `cpu_factor` multiplies measured host gaps (1: the emulating machine's own speed).
    """

    name: str
    launch_latency_ns: int
    api_cost_ns: Mapping[str, int]
    cpu_factor: float
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Interconnect:
    """A fabric between GPUs: bandwidth per GPU in one direction, and the latency of one hop."""

    name: str
    aliases: tuple[str, ...]
    bandwidth_bytes_per_s: float
    latency_ns: int
    sources: Mapping[str, str]
