"""simulation: when does everything happen?"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from assets import tables
from assets.partitions import device_and_job_of
from assets.provenance import gather
from assets.report import report_metadata
from understudy import forests
from understudy import simulation as stage
from warehouse import store


@dg.multi_asset(
    name="simulation",
    specs=tables.specs(
        "simulation",
        deps=[*tables.keys("forests"), *tables.keys("merging")],
        code_version=stage.CODE_VERSION,
        kinds={"python"},
        automation_condition=dg.AutomationCondition.eager(),
    ),
    check_specs=tables.schema_checks("simulation"),
)
def simulation(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
    """Predicted durations, their replay and the job's iteration time."""
    device, job = device_and_job_of(context)
    with store.partition_lock("simulation", device.id, job.job):
        merged = tables.read("merging", device.id, job.job)
        predicted = forests.predict(merged["signatures"], device, job.cluster)
        versions, warnings = gather(device, job)
        simulated = stage.simulate(
            job, device, merged, predicted, versions=versions, warnings=warnings
        )
        store.write_tables("simulation", simulated, device.id, job.job)
        metadata = {"simulated_runtimes": report_metadata(device, job)}
        yield from tables.results("simulation", device.id, job.job, metadata=metadata)
