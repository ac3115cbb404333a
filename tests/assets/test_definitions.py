"""The lineage graph: what it holds, how its parts hang together, what each asset says of itself."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import dagster as dg
import pytest

import assets
from assets import comparison, emulation, forests, merging, profiling, simulation, tables
from pipelines.definitions import defs
from warehouse import schemas

GRAPH = defs.resolve_asset_graph()

#: Every asset and the stages right above it. A change of the graph shows here.
SNAPSHOT = {
    "comparison/runtime_errors": {"merging", "simulation"},
    "emulation/collective_parts": set(),
    "emulation/communicators": set(),
    "emulation/events": set(),
    "emulation/host_gaps": set(),
    "emulation/memory_timeline": set(),
    "emulation/ranks": set(),
    "emulation/signatures": set(),
    "forests/forest_errors": {"profiling"},
    "merging/collective_parts": {"emulation"},
    "merging/communicators": {"emulation"},
    "merging/events": {"emulation"},
    "merging/host_gaps": {"emulation"},
    "merging/memory_timeline": {"emulation"},
    "merging/ranks": {"emulation"},
    "merging/signatures": {"emulation"},
    "profiling/collective_profiles": set(),
    "profiling/kernel_profiles": set(),
    "simulation/predicted_kernels": {"forests", "merging"},
    "simulation/simulated_events": {"forests", "merging"},
    "simulation/simulated_runtimes": {"forests", "merging"},
}


def test_definitions_load() -> None:
    dg.Definitions.validate_loadable(defs)


def test_graph() -> None:
    found = {
        key.to_user_string(): {parent.path[0] for parent in GRAPH.get(key).parent_keys}
        for key in GRAPH.get_all_asset_keys()
    }
    assert found == SNAPSHOT


def test_groups_are_the_stages() -> None:
    for key in GRAPH.get_all_asset_keys():
        assert GRAPH.get(key).group_name == key.path[0]
    assert {key.path[0] for key in GRAPH.get_all_asset_keys()} == set(schemas.STAGES)


@pytest.mark.parametrize("stage", schemas.STAGES)
def test_every_asset_says_what_it_is(stage: schemas.Stage) -> None:
    for table in schemas.stage_tables(stage):
        node = GRAPH.get(tables.key(stage, table))
        columns = node.metadata["dagster/column_schema"].columns
        assert [c.name for c in columns] == table.schema.names
        assert all(c.description for c in columns)
        assert node.description == table.meaning
        assert node.code_version
        assert node.owners
        assert "parquet" in node.kinds
        partitions = {"device": {"device"}, "device_job": {"device", "job"}}[table.partition]
        names = (
            {d.name for d in node.partitions_def.partitions_defs}
            if isinstance(node.partitions_def, dg.MultiPartitionsDefinition)
            else {"device"}
        )
        assert names == partitions
        check = dg.AssetCheckKey(tables.key(stage, table), "schema")
        assert check in GRAPH.asset_check_keys


def test_jobs_schedule_and_sensors() -> None:
    repository = defs.get_repository_def()
    assert {"prepare_device", "predict", "compare"} <= set(repository.job_names)
    assert repository.has_schedule_def("retrain_forests")
    # Stopped by default, "follows its upstreams" would be untrue out of the box.
    for name in ("automation", "scenarios"):
        sensor = repository.get_sensor_def(name)
        assert sensor.default_status == dg.DefaultSensorStatus.RUNNING


def test_modules_are_thin() -> None:
    """The assets hold no domain: at most 15 lines in the body of each."""
    for module in (profiling, forests, emulation, merging, simulation, comparison):
        tree = ast.parse(inspect.getsource(module))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                first = node.body[1] if ast.get_docstring(node) else node.body[0]
                assert (node.end_lineno or 0) - first.lineno < 15, f"{module.__name__}.{node.name}"


def test_one_module_per_stage() -> None:
    assert assets.__file__ is not None
    modules = {path.stem for path in Path(assets.__file__).parent.glob("*.py")}
    assert set(schemas.STAGES) <= modules
