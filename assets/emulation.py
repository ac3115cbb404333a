"""emulation: what would the job ask of its GPUs?"""

import sys
from collections.abc import Iterator
from typing import Any

import dagster as dg

from assets import tables
from assets.emulation_process import raise_reported
from assets.partitions import device_and_job_of
from understudy.emulation.environment import INTERCEPTOR
from understudy.home import REPOSITORY, job_dir
from understudy.traces.cubin import open_library


def _code_version() -> str:
    """The interceptor's build id, which also stands in each trace's header."""
    build_id = open_library(INTERCEPTOR).build_id if INTERCEPTOR.is_file() else None
    return build_id or "not built"


class EmulationConfig(dg.Config):
    """`remeasure_host`: take the new host gaps although the job's structure did not change."""

    remeasure_host: bool = False


@dg.multi_asset(
    name="emulation",
    specs=tables.specs("emulation", deps=[], code_version=_code_version(), kinds={"pytorch", "c"}),
    check_specs=tables.schema_checks("emulation"),
)
def emulation(
    context: dg.AssetExecutionContext, config: EmulationConfig, pipes: dg.PipesSubprocessClient
) -> Iterator[dg.MaterializeResult[Any]]:
    """One trace per rank of the unmodified script on fake GPUs."""
    device, job = device_and_job_of(context)
    run = pipes.run(
        context=context,
        command=[sys.executable, "-m", "assets.emulation_process"],
        cwd=str(REPOSITORY),
        extras={"remeasure_host": config.remeasure_host},
    )
    raise_reported(run.get_custom_messages())
    folder = job_dir(job.job) / device.id
    paths = {name: dg.MetadataValue.path(folder / name) for name in ("emulation.log", "traces")}
    yield from tables.results("emulation", device.id, job.job, metadata={"ranks": paths})
