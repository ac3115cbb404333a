"""What is watched: job files in `scenarios/`, so that the web page knows their jobs."""

from __future__ import annotations

import dagster as dg

from assets.partitions import JOBS
from pipelines.automation import AUTOMATION
from understudy import jobs
from understudy.errors import UsageError
from understudy.home import REPOSITORY, job_dir


@dg.sensor(default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=30, target=None)
def scenarios(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Makes every job file of `scenarios/` a partition; nothing is run for it."""
    found: list[str] = []
    for path in sorted((REPOSITORY / "scenarios").glob("*.yaml")):
        try:
            spec = jobs.load_job(path)
        except UsageError as error:
            context.log.error(str(error))
            continue
        resolved = job_dir(spec.job) / "job.json"
        # The command line resolves jobs too, with choices of its own: only newer files count.
        if not resolved.exists() or resolved.stat().st_mtime < path.stat().st_mtime:
            jobs.save(spec)
        found.append(spec.job)
    new = sorted(set(found) - set(context.instance.get_dynamic_partitions(JOBS.name or "")))
    if not new:
        return dg.SkipReason("no new job file in scenarios/")
    return dg.SensorResult(dynamic_partitions_requests=[JOBS.build_add_request(new)])


SENSORS = (AUTOMATION, scenarios)
