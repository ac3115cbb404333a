"""Prints, as JSON, what PyTorch says of the emulated devices."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys

import torch

FIELDS = (
    *("name", "major", "minor", "total_memory", "multi_processor_count", "L2_cache_size"),
    *("max_threads_per_multi_processor", "regs_per_multiprocessor", "warp_size", "is_integrated"),
    *("shared_memory_per_block", "shared_memory_per_block_optin", "pci_bus_id", "pci_domain_id"),
    *("shared_memory_per_multiprocessor", "clock_rate", "memory_clock_rate", "memory_bus_width"),
)


def by_nvml(device: int) -> dict | None:
    """torch.cuda's questions to NVML; None without the package that asks them."""
    if importlib.util.find_spec("pynvml") is None:
        return None
    pynvml = importlib.import_module("pynvml")
    try:
        torch.cuda.power_draw(device)
    except pynvml.NVMLError_NotSupported:
        power = "not supported"
    else:
        power = "answered"
    return {
        "used": torch.cuda.device_memory_used(device),
        "clock": torch.cuda.clock_rate(device),
        "utilization": torch.cuda.utilization(device),
        "power": power,
    }


def main() -> None:
    """One line of JSON."""
    count = torch.cuda.device_count()
    devices = []
    for i in range(count):
        properties = torch.cuda.get_device_properties(i)
        devices.append(
            {
                **{name: getattr(properties, name) for name in FIELDS if hasattr(properties, name)},
                "uuid": str(properties.uuid),
                "get_name": torch.cuda.get_device_name(i),
                "capability": torch.cuda.get_device_capability(i),
                "mem_get_info": torch.cuda.mem_get_info(i),
                "bfloat16": torch.cuda.is_bf16_supported(including_emulation=False),
                "peers": [torch.cuda.can_device_access_peer(i, j) for j in range(count) if j != i],
                "nvml": by_nvml(i),
            }
        )
    sys.stdout.write(json.dumps(devices) + "\n")


if __name__ == "__main__":
    main()
