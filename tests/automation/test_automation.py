"""What follows by itself, and what does not."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import dagster as dg
import pytest

from assets import tables
from assets.partitions import JOBS, partition_key
from pipelines.definitions import defs
from pipelines.schedules import retrain_forests
from pipelines.sensors import scenarios
from understudy import catalog, jobs
from warehouse import schemas

DEVICE = "h100-sxm-80gb"
OTHER = "h200-sxm-141gb"
JOB = "some-job"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(JOBS.name or "", [JOB])
        yield instance


def report(instance: dg.DagsterInstance, stage: schemas.Stage, partition: str) -> None:
    """Says that a partition of every table of the stage was materialized just now."""
    for key in tables.keys(stage):
        event = dg.AssetMaterialization(key, partition=partition)
        instance.report_runless_asset_event(event)


class Ticks:
    """Evaluates the automation again and again, as the daemon does."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance, self.cursor = instance, None
        self.requested()

    def requested(self) -> dict[str, set[str]]:
        """Partitions requested by this tick, by stage."""
        result = dg.evaluate_automation_conditions(
            defs=defs, instance=self.instance, cursor=self.cursor
        )
        self.cursor = result.cursor
        found: dict[str, set[str]] = {}
        for stage in schemas.STAGES:
            for key in tables.keys(stage):
                partitions = result.get_requested_partitions(key)
                if partitions:
                    found.setdefault(stage, set()).update(p for p in partitions if p)
        return found


def test_new_profiles_train_forests_of_that_device_only(instance: dg.DagsterInstance) -> None:
    ticks = Ticks(instance)
    report(instance, "profiling", DEVICE)
    assert ticks.requested() == {"forests": {DEVICE}}


def test_new_forests_simulate_the_jobs_that_have_traces(instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions(JOBS.name or "", ["untraced"])
    report(instance, "profiling", DEVICE)
    report(instance, "forests", DEVICE)
    for stage in ("emulation", "merging", "simulation"):
        report(instance, stage, partition_key(DEVICE, JOB))
    ticks = Ticks(instance)
    assert ticks.requested() == {}
    report(instance, "forests", DEVICE)
    assert ticks.requested() == {"simulation": {partition_key(DEVICE, JOB)}}


def test_a_new_job_is_emulated_nowhere(instance: dg.DagsterInstance) -> None:
    for device in (DEVICE, OTHER):
        report(instance, "profiling", device)
        report(instance, "forests", device)
    ticks = Ticks(instance)
    instance.add_dynamic_partitions(JOBS.name or "", ["new-job"])
    assert ticks.requested() == {}
    report(instance, "emulation", partition_key(DEVICE, "new-job"))
    assert ticks.requested() == {}
    report(instance, "merging", partition_key(DEVICE, "new-job"))
    assert ticks.requested() == {"simulation": {partition_key(DEVICE, "new-job")}}


def test_only_what_was_compared_is_compared_again(instance: dg.DagsterInstance) -> None:
    for device in (DEVICE, OTHER):
        report(instance, "merging", partition_key(device, JOB))
        report(instance, "simulation", partition_key(device, JOB))
    report(instance, "comparison", partition_key(DEVICE, JOB))
    ticks = Ticks(instance)
    for device in (DEVICE, OTHER):
        report(instance, "simulation", partition_key(device, JOB))
    assert ticks.requested() == {"comparison": {partition_key(DEVICE, JOB)}}


def test_schedule_retrains_every_device_once_a_date() -> None:
    at = datetime.datetime(2026, 11, 29, 3, tzinfo=datetime.UTC)
    with dg.build_schedule_context(
        scheduled_execution_time=at, repository_def=defs.get_repository_def()
    ) as context:
        result = retrain_forests.evaluate_tick(context)
    requests = result.run_requests or []
    assert [r.partition_key for r in requests] == [d.id for d in catalog.devices()]
    assert all("2026-11-29" in (r.run_key or "") for r in requests)


@pytest.mark.usefixtures("understudy_home")
def test_job_files_become_partitions(instance: dg.DagsterInstance) -> None:
    def tick() -> dg.SensorResult | dg.SkipReason:
        with dg.build_sensor_context(instance=instance) as context:
            result = scenarios(context)
        assert isinstance(result, dg.SensorResult | dg.SkipReason)
        return result

    result = tick()
    assert isinstance(result, dg.SensorResult)
    assert not result.run_requests
    (request,) = result.dynamic_partitions_requests or []
    assert "gpt2-124m_ddp8" in request.partition_keys
    assert "gpt2-124m_ddp8" in jobs.known_jobs()
    instance.add_dynamic_partitions(JOBS.name or "", list(request.partition_keys))
    assert isinstance(tick(), dg.SkipReason)
