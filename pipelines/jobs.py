"""The runs that are started as a whole, by the command line and from the web page."""

from __future__ import annotations

import dagster as dg

PREPARE = dg.define_asset_job(
    "prepare_device",
    selection=dg.AssetSelection.groups("profiling", "forests"),
    description="Measured data and forests of one device.",
)
PREDICT = dg.define_asset_job(
    "predict",
    selection=dg.AssetSelection.groups("emulation", "merging", "simulation"),
    description="Emulates, merges and simulates one job on one device.",
)
COMPARE = dg.define_asset_job(
    "compare",
    selection=dg.AssetSelection.groups("comparison"),
    description="Predicted against measured time of one job on one device.",
)
JOBS = (PREPARE, PREDICT, COMPARE)
