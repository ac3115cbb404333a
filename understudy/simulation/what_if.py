"""What a slower rank costs: a job replayed with stragglers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from understudy import catalog
from understudy.errors import UnderstudyError, UsageError
from understudy.jobs import JobSpec
from understudy.simulation.engine import replay
from understudy.simulation.programs import Programs
from understudy.simulation.simulate import iteration_times, repetitions
from understudy.simulation.world import Delay


@dataclass(frozen=True)
class Stragglers:
    """By rank: factors of the durations of its kernels and of its host's times, and how long its
    host is held up at the begin of each repetition of its program. Collectives keep their
    durations: a late member makes the others wait."""

    compute: Mapping[int, float] = field(default_factory=dict)
    host: Mapping[int, float] = field(default_factory=dict)
    delay_ns: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WhatIf:
    """Iteration times by rank, without and with the stragglers."""

    predicted_ns: list[int]
    what_if_ns: list[int]


def what_if(
    job: JobSpec, tables: Mapping[str, pa.Table], durations: pa.Table, stragglers: Stragglers
) -> WhatIf:
    """Replays a job with the durations of `predicted_kernels`, without and with `stragglers`.

    `tables` are merging's. Raises UsageError for ranks that the job does not have, UnderstudyError
    for a job that was predicted not to fit and for factors or delays that make no sense.
    """
    ranks = tables["ranks"].sort_by("rank").to_pylist()
    named = {*stragglers.compute, *stragglers.host, *stragglers.delay_ns}
    unknown = sorted(named - set(range(len(ranks))))
    if unknown:
        raise UsageError(f"the job has ranks 0 to {len(ranks) - 1}, not {unknown[0]}")
    if durations.num_rows != tables["signatures"].num_rows:
        raise UnderstudyError(f"job {job.job} has no predicted durations: it does not fit")
    host = catalog.host(job.cluster.host)
    repeated = repetitions(ranks)
    by_signature = durations.sort_by("signature")["duration_ns"].to_numpy().astype(np.int64)
    world = Programs(job, host, tables).world(by_signature, host.cpu_factor, repeated)
    slowed = replace(
        world,
        compute_scale=[stragglers.compute.get(r, 1.0) for r in range(len(ranks))],
        host_scale=[stragglers.host.get(r, 1.0) for r in range(len(ranks))],
        delays=[
            Delay(rank, delay_ns, repetition=repetition)
            for rank, delay_ns in sorted(stragglers.delay_ns.items())
            for repetition in range(repeated)
        ],
    )
    span = ranks[0]["span_iterations"]
    return WhatIf(iteration_times(replay(world), span), iteration_times(replay(slowed), span))
