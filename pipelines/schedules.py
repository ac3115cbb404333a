"""Runs by the clock."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from assets.partitions import DEVICES
from pipelines.jobs import PREPARE


@dg.schedule(job=PREPARE, cron_schedule="0 3 * * 0", execution_timezone="UTC")
def retrain_forests(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
    """Trains the forests of every device anew, weekly: the net under the automation, which misses
    an update that lands while its own request is still running."""
    date = context.scheduled_execution_time.date()
    for device in DEVICES.get_partition_keys():
        yield dg.RunRequest(run_key=f"{device} {date}", partition_key=device)


SCHEDULES = (retrain_forests,)
