"""Which assets follow their upstreams by themselves, and who looks after it.

The conditions stand on the assets: profiling -> forests -> simulation -> comparison are eager.
Emulation and merging have none, since a new job must not be emulated on every device.
"""

from __future__ import annotations

import dagster as dg

AUTOMATION = dg.AutomationConditionSensorDefinition(
    "automation",
    target=dg.AssetSelection.all(),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=10,
)
