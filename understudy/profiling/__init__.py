"""Measured kernel and collective durations of a device."""

from importlib.metadata import version

from understudy.profiling.packaged import SYSTEMS, packaged_profiles

#: Changes with this package's readers and with the data that they read.
CODE_VERSION = f"1+aiconfigurator-core-{version('aiconfigurator-core')}"

__all__ = ["CODE_VERSION", "SYSTEMS", "packaged_profiles"]
