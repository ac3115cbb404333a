"""forests: how long does kernel X with shape Y take on device D?"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from assets import tables
from assets.partitions import device_of
from understudy import forests as stage
from understudy.home import forests_dir
from warehouse import store


@dg.multi_asset(
    name="forests",
    specs=tables.specs(
        "forests",
        deps=tables.keys("profiling"),
        code_version=stage.CODE_VERSION,
        kinds={"scikitlearn"},
        automation_condition=dg.AutomationCondition.eager(),
    ),
    check_specs=tables.schema_checks("forests"),
)
def forests(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
    """Forests of one device, trained and saved, and their held-out error."""
    device = device_of(context)
    with store.partition_lock("forests", device.id):
        profiles = tables.read("profiling", device.id)
        trained = stage.train(device, profiles, context.log.info)
        store.write_tables("forests", trained.tables, device.id)
        # The models are what the simulation depends on, so their hash is the data version.
        yield from tables.results(
            "forests",
            device.id,
            metadata={"forest_errors": {"models": dg.MetadataValue.path(forests_dir(device.id))}},
            versions={"forest_errors": trained.content_hash},
        )
