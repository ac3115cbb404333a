"""Assets materialized as the command line does it, on real measured data and real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from assets import tables
from assets.emulation_process import raise_reported, store_emulation
from pipelines import running
from pipelines.instance import PROCESS_TAG, open_instance, process_tag
from understudy import profiling
from understudy.catalog import Device
from understudy.errors import UnderstudyError, UsageError
from understudy.jobs import JobSpec
from warehouse import schemas, store

DEVICE = "h100-sxm-80gb"
JOB = "some-job"


@pytest.fixture
def instance(understudy_home: Path) -> Iterator[dg.DagsterInstance]:
    with open_instance() as instance:
        yield instance


@pytest.fixture
def few_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 20th measured row: training takes a moment."""
    read = profiling.packaged_profiles

    def thinned(device: Device) -> dict[str, pa.Table]:
        return {
            name: table.take(pa.array(range(0, table.num_rows, 20 if "kernel" in name else 1)))
            for name, table in read(device).items()
        }

    monkeypatch.setattr(profiling, "packaged_profiles", thinned)


@pytest.mark.usefixtures("few_profiles")
def test_profiling_and_forests_once(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.prepare(instance, DEVICE)
    for stage in ("profiling", "forests"):
        for key in tables.keys(stage):
            wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[DEVICE])
            (record,) = instance.fetch_materializations(wanted, limit=2).records
            event = record.asset_materialization
            assert event is not None
            stored = store.read_table(stage, key.path[-1], DEVICE)
            assert event.metadata["dagster/partition_row_count"].value == stored.num_rows > 0
            assert Path(str(event.metadata["path"].value)).is_file()
            assert event.tags is not None and len(event.tags["dagster/data_version"]) == 64
    assert running.is_prepared(instance, DEVICE)

    runs = instance.get_runs_count()
    running.prepare(instance, DEVICE)
    assert instance.get_runs_count() == runs

    # Other data in the warehouse than the forests were trained on: train again.
    profile = store.read_table("profiling", "kernel_profiles", DEVICE)
    collectives = store.read_table("profiling", "collective_profiles", DEVICE)
    changed = {"kernel_profiles": profile.slice(1), "collective_profiles": collectives}
    store.write_tables("profiling", changed, DEVICE)
    assert not running.is_prepared(instance, DEVICE)


def test_error_of_the_emulation_process_reaches_the_run_before_forests_are_trained(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    spec = JobSpec(JOB, tmp_path / "vanished.py", None, working_dir=tmp_path)
    with pytest.raises(UsageError, match=r"vanished\.py"):
        running.predict(instance, spec, DEVICE)
    (run,) = instance.get_runs()
    assert run.status == dg.DagsterRunStatus.FAILURE
    for stage in schemas.STAGES:
        assert (DEVICE, JOB) not in store.list_partitions(stage)


def test_orphaned_runs_are_closed(instance: dg.DagsterInstance) -> None:
    def started(tag: str) -> str:
        run = instance.create_run_for_job(running.defs.resolve_job_def("compare"))
        instance.add_run_tags(run.run_id, {PROCESS_TAG: tag})
        instance.handle_new_event(
            dg.EventLogEntry(
                error_info=None,
                level="debug",
                user_message="",
                run_id=run.run_id,
                timestamp=0.0,
                job_name="compare",
                dagster_event=dg.DagsterEvent("PIPELINE_START", "compare"),
            )
        )
        return run.run_id

    alive, dead = started(process_tag()), started("4194999-1")
    with open_instance() as again:
        assert again.get_run_by_id(alive).status == dg.DagsterRunStatus.STARTED  # pyright: ignore
        assert again.get_run_by_id(dead).status == dg.DagsterRunStatus.FAILURE  # pyright: ignore


def test_reported_errors_keep_their_kind() -> None:
    raise_reported([])
    with pytest.raises(UsageError, match="x"):
        raise_reported([{"error": "x", "exit_code": 2}])
    with pytest.raises(UnderstudyError, match="y") as caught:
        raise_reported([{"error": "y", "exit_code": 1}])
    assert not isinstance(caught.value, UsageError)


@pytest.mark.usefixtures("understudy_home")
def test_host_gaps_outlive_an_emulation_of_the_same_structure() -> None:
    def emulated(ops: int, gap_ns: int) -> dict[str, pa.Table]:
        result = {t.name: t.schema.empty_table() for t in schemas.stage_tables("emulation")}
        event = {"program": 0, "iteration": 0, "kind": "host", "stream": -1, "thread": 0}
        result["events"] = pa.Table.from_pylist(
            [{**event, "op": op} for op in range(ops)], schema=schemas.EVENTS.schema
        )
        gap = {"program": 0, "gap_ns": gap_ns, "spread_ns": 0}
        result["host_gaps"] = pa.Table.from_pylist(
            [{**gap, "op": op} for op in range(ops)], schema=schemas.HOST_GAPS.schema
        )
        return result

    def gap() -> int:
        return store.read_table("emulation", "host_gaps", DEVICE, JOB)["gap_ns"][0].as_py()

    store_emulation(emulated(2, 100), DEVICE, JOB, remeasure_host=False)
    assert gap() == 100
    store_emulation(emulated(2, 200), DEVICE, JOB, remeasure_host=False)
    assert gap() == 100
    store_emulation(emulated(2, 300), DEVICE, JOB, remeasure_host=True)
    assert gap() == 300
    store_emulation(emulated(3, 400), DEVICE, JOB, remeasure_host=False)
    assert gap() == 400


@pytest.mark.usefixtures("understudy_home")
def test_processes_may_make_the_instance_at_once() -> None:
    script = "from pipelines.instance import open_instance\nwith open_instance(): pass\n"
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
