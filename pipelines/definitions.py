"""The code location: everything that Dagster loads."""

from __future__ import annotations

import dagster as dg

from assets import comparison, emulation, forests, merging, profiling, simulation
from pipelines.jobs import JOBS
from pipelines.progress import LOGGERS
from pipelines.resources import RESOURCES
from pipelines.schedules import SCHEDULES
from pipelines.sensors import SENSORS

defs = dg.Definitions(
    assets=dg.load_assets_from_modules(
        [profiling, forests, emulation, merging, simulation, comparison]
    ),
    jobs=JOBS,
    schedules=SCHEDULES,
    sensors=SENSORS,
    resources=RESOURCES,
    loggers=LOGGERS,
    # Parallelism comes from several runs and from inside a step.
    executor=dg.in_process_executor,
)
