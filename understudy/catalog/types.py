"""What the catalog knows about a GPU, a host and an interconnect. Units stand in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

#: Groups of a device's fields that have one source; other fields have one of their own.
SOURCE_GROUPS: Mapping[str, tuple[str, ...]] = {
    "attributes": (
        "compute_capability",
        "multiprocessors",
        "memory_bus_bits",
        "memory_clock_hz",
        "l2_bytes",
        "clock_hz",
        "copy_engines",
        "ecc",
    ),
    "pci": ("pci_device_id", "pci_subsystem_id"),
    "links": (
        "interconnect",
        "nvlink_links",
        "nvlink_generation",
        "nvlink_switched",
        "gpu_direct",
        "host_coherent",
    ),
}


@dataclass(frozen=True)
class ComputeCapability:
    """What every GPU of one compute capability has; see compute_capabilities.yaml for the sources.

    `_per_clock`: results of one multiprocessor in one clock; `half_tensor_flops_per_clock` counts a
    multiply-add as two operations. `persisting_l2_fraction`: of the L2 cache.
    """

    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_memory_per_multiprocessor_bytes: int
    shared_memory_per_block_optin_bytes: int
    reserved_shared_memory_per_block_bytes: int
    float32_per_clock: int
    float64_per_clock: int
    half_tensor_flops_per_clock: int
    persisting_l2_fraction: float
    access_policy_window_bytes: int
    memory_sync_domains: int
    cluster_launch: bool
    tensor_maps: bool


@dataclass(frozen=True)
class Device:
    """One GPU model. `sources` says where each field, or group of fields, is from.

    `memory_bytes` is what CUDA and PyTorch call total; NVML's total is larger by the
    `driver_memory_bytes` that the driver keeps. `context_bytes`: what a process takes besides its
    allocations and NCCL's buffers: the CUDA context and the code that was loaded (lazily, the
    default since CUDA 11.7). cuBLAS has its workspaces from PyTorch's allocator. `gpu_direct`:
    devices read each other's memory (P2P), and network adapters theirs (RDMA). `host_coherent`: the
    GPU reaches all host memory through the host's page tables. PCI ids are device << 16 | vendor.
    `nvlink_switched`: the links end at switches, not at other devices. `nccl_channels`: of an NCCL
    communicator in one node; each has buffers of its own.
    """

    id: str
    name: str
    aliases: tuple[str, ...]
    compute_capability: str
    multiprocessors: int
    memory_bytes: int
    driver_memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    memory_bus_bits: int
    memory_clock_hz: int
    peak_flops: Mapping[str, float]
    l2_bytes: int
    clock_hz: int
    copy_engines: int
    ecc: bool
    context_bytes: int
    interconnect: str
    nccl_channels: int
    nvlink_links: int
    nvlink_generation: int
    nvlink_switched: bool
    gpu_direct: bool
    host_coherent: bool
    pci_device_id: int
    pci_subsystem_id: int
    host_bandwidth_bytes_per_s: float
    price_usd_per_hour: float | None
    sources: Mapping[str, str]
    architecture: ComputeCapability

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

    @property
    def persisting_l2_bytes(self) -> int:
        """The part of the L2 cache that persisting accesses may set aside."""
        return int(self.l2_bytes * self.architecture.persisting_l2_fraction)

    def attributes_file(self) -> str:
        """The text that the interceptor reads: one `key=value` line per attribute."""
        values: dict[str, object] = {"id": self.id, "name": self.name}
        values["compute_capability_major"] = self.compute_capability_major
        values["compute_capability_minor"] = self.compute_capability_minor
        for part in (self, self.architecture):
            for field in fields(part):
                value = getattr(part, field.name)
                if isinstance(value, int | float) and field.name not in _NOT_EMULATED:
                    values[field.name] = round(value)
        ratio = self.architecture.float32_per_clock // self.architecture.float64_per_clock
        values["float32_to_float64_ratio"] = ratio
        values["persisting_l2_bytes"] = self.persisting_l2_bytes
        return "".join(f"{key}={value}\n" for key, value in values.items())


#: Figures that only predictions use.
_NOT_EMULATED = {
    "host_bandwidth_bytes_per_s",
    "price_usd_per_hour",
    "float32_per_clock",
    "float64_per_clock",
    "half_tensor_flops_per_clock",
    "persisting_l2_fraction",
}


@dataclass(frozen=True)
class Host:
    """The CPU side of a node.

    `launch_latency_ns`: from the begin of a launch call to the begin of its kernel on an idle
    stream. `api_cost_ns`: CPU time that the real driver spends inside one call of a kind (launch,
    memcpy, memset, event, sync, collective, graph_launch, malloc, free); an emulated call does not
    pay it. `cpu_factor` multiplies measured host gaps (1: the emulating machine's own speed).
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
