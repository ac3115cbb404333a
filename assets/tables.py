"""Asset specifications and materialization results, generated from the warehouse's schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

from assets.partitions import DEVICE_JOBS, DEVICES
from warehouse import schemas, store


def key(stage: schemas.Stage, table: schemas.Table) -> dg.AssetKey:
    """Asset key of one table of a stage: [stage, table]."""
    return dg.AssetKey([stage, table.name])


def keys(stage: schemas.Stage) -> list[dg.AssetKey]:
    """Asset keys of all tables of a stage."""
    return [key(stage, table) for table in schemas.stage_tables(stage)]


def specs(
    stage: schemas.Stage,
    *,
    deps: list[dg.AssetKey],
    code_version: str,
    kinds: set[str],
    automation_condition: dg.AutomationCondition[Any] | None = None,
) -> list[dg.AssetSpec]:
    """One specification per table of `stage`, all of which depend on `deps`."""
    return [
        dg.AssetSpec(
            key(stage, table),
            deps=deps,
            description=table.meaning,
            group_name=stage,
            owners=["team:performance"],
            kinds=kinds | {"parquet"},
            code_version=code_version,
            automation_condition=automation_condition,
            partitions_def=DEVICES if table.partition == "device" else DEVICE_JOBS,
            metadata={
                "dagster/column_schema": column_schema(table),
                "dagster/table_name": f"{stage}.{table.name}",
            },
        )
        for table in schemas.stage_tables(stage)
    ]


def schema_checks(stage: schemas.Stage) -> list[dg.AssetCheckSpec]:
    """A blocking check per table: its file has the columns and types of warehouse/schemas.py."""
    return [
        dg.AssetCheckSpec("schema", asset=asset, blocking=True, description="columns and types")
        for asset in keys(stage)
    ]


def column_schema(table: schemas.Table) -> dg.TableSchema:
    """The columns as Dagster shows them."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name,
                type=str(column.type),
                description=column.meaning,
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in table.columns
        ]
    )


def read(stage: schemas.Stage, device: str, job: str | None = None) -> dict[str, pa.Table]:
    """All tables of a stage and partition by name, as they lie in the warehouse."""
    return {
        table.name: store.read_table(stage, table.name, device, job)
        for table in schemas.stage_tables(stage)
    }


def results(
    stage: schemas.Stage,
    device: str,
    job: str | None = None,
    *,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    versions: Mapping[str, str] | None = None,
) -> Iterator[dg.MaterializeResult[Any]]:
    """One result per table of the stage, as it lies in the warehouse.

    `metadata` adds entries by table; `versions` replaces the content hash as data version, where
    the table is not all that the stage made.
    """
    for table in schemas.stage_tables(stage):
        path = store.table_path(stage, table.name, device, job)
        hashes = store.stored_hashes(store.folder_of(stage, table.name), device, job)
        content_hash = hashes[table.name]
        found = pq.read_schema(path)
        passed = found.equals(table.schema, check_metadata=False)
        yield dg.MaterializeResult(
            asset_key=key(stage, table),
            data_version=dg.DataVersion((versions or {}).get(table.name, content_hash)),
            metadata={
                "dagster/partition_row_count": pq.read_metadata(path).num_rows,
                "dagster/uri": path.as_uri(),
                "path": dg.MetadataValue.path(path),
                "content_hash": content_hash,
                **(metadata or {}).get(table.name, {}),
            },
            check_results=[
                dg.AssetCheckResult(
                    passed=passed,
                    check_name="schema",
                    asset_key=key(stage, table),
                    metadata={} if passed else {"found": str(found)},
                )
            ],
        )
