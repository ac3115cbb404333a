"""comparison: how far from reality?"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from assets import tables
from assets.partitions import device_and_job_of
from understudy import comparison as stage
from warehouse import store


@dg.multi_asset(
    name="comparison",
    specs=tables.specs(
        "comparison",
        deps=[*tables.keys("merging"), *tables.keys("simulation")],
        code_version=stage.CODE_VERSION,
        kinds={"python"},
        # Only what was compared before is compared anew: most jobs were never measured.
        automation_condition=dg.AutomationCondition.eager() & ~dg.AutomationCondition.missing(),
    ),
    check_specs=tables.schema_checks("comparison"),
)
def comparison(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
    """The prediction against what the user measured: an iteration's time, or a trace of it."""
    device, job = device_and_job_of(context)
    with store.partition_lock("comparison", device.id, job.job):
        measured = stage.load_measured(job.job, device.id)
        compared = tables.read("simulation", device.id, job.job)
        if measured.kernels:
            compared |= tables.read("merging", device.id, job.job)
        errors = stage.compare(measured, compared)
        store.write_tables("comparison", errors, device.id, job.job)
        yield from tables.results("comparison", device.id, job.job)
