"""The runs that are started as a whole, by the command line and from the web page."""

from __future__ import annotations

import dagster as dg

from assets.partitions import DEVICE_JOBS, DEVICES

PREPARE = dg.define_asset_job(
    "prepare_device",
    selection=dg.AssetSelection.groups("profiling", "forests"),
    partitions_def=DEVICES,
    description="Measured data and forests of one device.",
)
PREDICT = dg.define_asset_job(
    "predict",
    selection=dg.AssetSelection.groups("emulation", "merging", "simulation"),
    partitions_def=DEVICE_JOBS,
    description="Emulates, merges and simulates one job on one device.",
)
COMPARE = dg.define_asset_job(
    "compare",
    selection=dg.AssetSelection.groups("comparison"),
    partitions_def=DEVICE_JOBS,
    description="Predicted against measured time of one job on one device.",
)
JOBS = (PREPARE, PREDICT, COMPARE)
