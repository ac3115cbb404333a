"""Runs of the command line: the assets of the web page, materialized in this process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterPipesExecutionError

from assets import tables
from assets.partitions import JOBS, partition_key
from pipelines.definitions import defs
from pipelines.instance import PROCESS_TAG, process_tag
from pipelines.jobs import COMPARE, PREDICT, PREPARE
from pipelines.progress import LOGGER_NAME
from understudy import jobs
from understudy.errors import UnderstudyError
from understudy.home import forests_dir, job_dir
from understudy.jobs import JobSpec
from warehouse import store

Listener = logging.Handler


def predict(
    instance: dg.DagsterInstance,
    spec: JobSpec,
    device: str,
    *,
    remeasure_host: bool = False,
    listener: Listener | None = None,
) -> None:
    """Materializes everything that the prediction of `spec` on `device` (an id) needs.

    Measured data and forests are kept when their versions are current. Raises UnderstudyError;
    after a failure or an interrupt, nothing of a job that was not predicted before is left in the
    warehouse.
    """
    jobs.save(spec)
    instance.add_dynamic_partitions(JOBS.name or "", [spec.job])
    predicted_before = store.has_partition("simulation", device, spec.job)
    try:
        config = {"emulation": {"config": {"remeasure_host": remeasure_host}}}
        partition = partition_key(device, spec.job)
        if is_prepared(instance, device):
            _materialize(instance, PREDICT.name, partition, config, listener)
            return
        # The script first: an error in it is told before forests are trained for it.
        stages = {stage: tables.keys(stage) for stage in ("emulation", "merging", "simulation")}
        emulated, rest = stages["emulation"], stages["merging"] + stages["simulation"]
        _materialize(instance, PREDICT.name, partition, config, listener, emulated)
        prepare(instance, device, listener=listener)
        _materialize(instance, PREDICT.name, partition, {}, listener, rest)
    except DagsterPipesExecutionError as error:
        log = job_dir(spec.job) / device / "emulation.log"
        raise UnderstudyError(
            f"the emulation ended without a result ({error}); see {log}"
        ) from error
    finally:
        if not predicted_before and not store.has_partition("simulation", device, spec.job):
            store.remove_job(spec.job, device)


def prepare(instance: dg.DagsterInstance, device: str, *, listener: Listener | None = None) -> None:
    """Materializes measured data and forests of `device`, unless they are current."""
    if not is_prepared(instance, device):
        _materialize(instance, PREPARE.name, device, {}, listener)


def compare(
    instance: dg.DagsterInstance, job: str, device: str, *, listener: Listener | None = None
) -> None:
    """Materializes the comparison of a job with what was measured on `device` (an id)."""
    instance.add_dynamic_partitions(JOBS.name or "", [job])
    _materialize(instance, COMPARE.name, partition_key(device, job), {}, listener)


def is_prepared(instance: dg.DagsterInstance, device: str) -> bool:
    """Whether profiles and forests of `device` are those that the present code would make."""
    stored = store.stored_hashes("profiling", device)
    profiles: dict[str, str] = {}
    for asset in tables.keys("profiling"):
        record = _current_record(instance, asset, device)
        if record is None or _tags(record)[_DATA_VERSION] != stored.get(asset.path[-1]):
            return False
        profiles[asset.to_user_string()] = str(record.storage_id)
    if not forests_dir(device).is_dir() or not store.has_partition("forests", device):
        return False
    for asset in tables.keys("forests"):
        record = _current_record(instance, asset, device)
        if record is None:
            return False
        trained_on = {name: _tags(record).get(_INPUT_EVENT + name) for name in profiles}
        if trained_on != profiles:
            return False
    return True


_CODE_VERSION = "dagster/code_version"
_DATA_VERSION = "dagster/data_version"
_INPUT_EVENT = "dagster/input_event_pointer/"


def _current_record(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str
) -> dg.EventLogRecord | None:
    """The latest materialization of a partition; None if there is none or other code made it."""
    wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition])
    records = instance.fetch_materializations(wanted, limit=1).records
    code_version = defs.resolve_asset_graph().get(asset).code_version
    return records[0] if records and _tags(records[0])[_CODE_VERSION] == code_version else None


def _tags(record: dg.EventLogRecord) -> Mapping[str, str]:
    materialization = record.asset_materialization
    return {} if materialization is None else materialization.tags or {}


def _materialize(
    instance: dg.DagsterInstance,
    job: str,
    partition: str,
    op_config: dict[str, Any],
    listener: Listener | None,
    selection: Sequence[dg.AssetKey] | None = None,
) -> None:
    """One run of `job`, or of some of its assets. The error of a step is raised as it is."""
    with _listening(listener):
        defs.resolve_job_def(job).execute_in_process(
            instance=instance,
            partition_key=partition,
            run_config={"ops": op_config, "loggers": {"progress": {}}},
            tags={PROCESS_TAG: process_tag()},
            asset_selection=selection,
        )


@contextlib.contextmanager
def _listening(listener: Listener | None) -> Iterator[None]:
    if listener is None:
        yield
        return
    logger = logging.getLogger(LOGGER_NAME)
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)
