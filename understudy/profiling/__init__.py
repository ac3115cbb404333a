"""Measured kernel and collective durations of a device."""

from understudy.profiling.packaged import SYSTEMS, packaged_profiles

__all__ = ["SYSTEMS", "packaged_profiles"]
