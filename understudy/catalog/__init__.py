"""GPUs, hosts and interconnects: one YAML file each, every figure with its source."""

from understudy.catalog.loader import device, devices, host, hosts, interconnect, interconnects
from understudy.catalog.types import Device, Host, Interconnect

__all__ = [
    "Device",
    "Host",
    "Interconnect",
    "device",
    "devices",
    "host",
    "hosts",
    "interconnect",
    "interconnects",
]
