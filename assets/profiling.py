"""profiling: what was measured on which device?"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from assets import tables
from assets.partitions import device_of
from understudy import profiling as stage
from warehouse import store


@dg.multi_asset(
    name="profiling",
    specs=tables.specs("profiling", deps=[], code_version=stage.CODE_VERSION, kinds=set()),
    check_specs=tables.schema_checks("profiling"),
)
def profiling(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
    """Measured kernels and collectives of one device."""
    device = device_of(context)
    with store.partition_lock("profiling", device.id):
        store.write_tables("profiling", stage.packaged_profiles(device), device.id)
        yield from tables.results("profiling", device.id)
