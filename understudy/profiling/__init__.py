"""Measured kernel and collective durations of a device."""

from understudy.profiling.packaged import (
    CODE_VERSION,
    SYSTEMS,
    measured_families,
    packaged_profiles,
)

__all__ = ["CODE_VERSION", "SYSTEMS", "measured_families", "packaged_profiles"]
