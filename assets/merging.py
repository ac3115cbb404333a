"""merging: what does the whole job do?"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from assets import tables
from assets.partitions import device_and_job_of
from understudy import merging as stage
from warehouse import store


@dg.multi_asset(
    name="merging",
    specs=tables.specs(
        "merging",
        deps=tables.keys("emulation"),
        code_version=stage.CODE_VERSION,
        kinds={"python"},
    ),
    check_specs=tables.schema_checks("merging"),
)
def merging(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
    """The traces of all ranks joined: programs stored once, collectives matched."""
    device, job = device_and_job_of(context)
    with store.partition_lock("merging", device.id, job.job):
        emulated = tables.read("emulation", device.id, job.job)
        store.write_tables("merging", stage.merge(emulated), device.id, job.job)
        yield from tables.results("merging", device.id, job.job)
