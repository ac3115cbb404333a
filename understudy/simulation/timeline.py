"""The last simulated repetition op by op, with the host's calls, which `simulated_events` leaves
out: a job's tables and the durations of its kernels decide it, so it is replayed when asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from understudy import catalog
from understudy.errors import UnderstudyError
from understudy.jobs import JobSpec
from understudy.simulation.engine import replay
from understudy.simulation.programs import Programs
from understudy.simulation.simulate import repetitions
from understudy.simulation.world import DEVICE, HOST_WAIT, JOIN, ON_STREAM, Program, Timeline

Times = NDArray[np.int64]

#: Before every time of a replay.
_NEVER = np.iinfo(np.int64).min // 2


@dataclass(frozen=True, eq=False)
class RankTimeline:
    """One rank's last repetition: int64 arrays [ops of its program], ns from the start of the first
    device op of all ranks in it.

    The host is inside the call of an op from `called_ns` to `returned_ns`. An op on a stream runs
    there from `start_ns` to `end_ns`; for others the two are the wait without the call's own cost.
    """

    rank: int
    program: int
    called_ns: Times
    returned_ns: Times
    start_ns: Times
    end_ns: Times


def last_repetition(
    job: JobSpec, tables: Mapping[str, pa.Table], ranks: Collection[int]
) -> Iterator[RankTimeline]:
    """The timelines of `ranks`, in rank order.

    `tables` are merging's, with `predicted_kernels` and `simulated_events`. Raises UnderstudyError
    when the replay does not give the times that are stored: the job was predicted by another
    version of the simulator or of the catalog's host.
    """
    rows = tables["ranks"].sort_by("rank").to_pylist()
    host = catalog.host(job.cluster.host)
    programs = Programs(job, host, tables)
    predicted = tables["predicted_kernels"].sort_by("signature")
    durations = predicted.column("duration_ns").to_numpy().astype(np.int64)
    world = programs.world(durations, host.cpu_factor, repetitions(rows))
    timelines = replay(world)
    kinds = programs.kinds
    on_device = [np.flatnonzero(np.isin(of_program, (DEVICE, JOIN))) for of_program in kinds]
    origin_ns = min(
        int(timeline.start_ns[-1, on_device[row["program"]]].min())
        for row, timeline in zip(rows, timelines, strict=True)
        if len(on_device[row["program"]])
    )
    for row, timeline in zip(rows, timelines, strict=True):
        if row["rank"] not in ranks:
            continue
        program = row["program"]
        called, returned = host_times(world.programs[program], timeline, world.queue_depth)
        last = RankTimeline(
            row["rank"],
            program,
            called[-1] - origin_ns,
            returned[-1] - origin_ns,
            timeline.start_ns[-1] - origin_ns,
            timeline.end_ns[-1] - origin_ns,
        )
        _check(job, last, on_device[program], tables["simulated_events"])
        yield last


def host_times(program: Program, timeline: Timeline, queue_depth: int) -> tuple[Times, Times]:
    """When the host calls each op and when the call returns, arrays [repetitions, ops].

    A call returns after its cost, which begins when it may act: at once, when its stream takes one
    more op, or when what a `host_wait` waits for has ended (see world.py).
    """
    count, length = timeline.start_ns.shape
    end_ns = timeline.end_ns.ravel()
    gap_ns, cost_ns = np.tile(program.gap_ns, count), np.tile(program.cost_ns, count)
    kind, stream = np.tile(program.kind, count), np.tile(program.stream, count)
    free_ns = np.where(kind == HOST_WAIT, end_ns, _NEVER)
    for number in np.unique(program.stream[np.isin(program.kind, sorted(ON_STREAM))]):
        issued = np.flatnonzero((stream == number) & np.isin(kind, sorted(ON_STREAM)))
        free_ns[issued[queue_depth:]] = end_ns[issued[:-queue_depth]]
    # returned[i] = max(returned[i - 1] + gap[i], free[i]) + cost[i], from 0, without the loop.
    busy_ns = np.cumsum(gap_ns + cost_ns)
    waited_ns = np.maximum.accumulate(np.maximum(free_ns + cost_ns - busy_ns, 0))
    returned_ns = busy_ns + waited_ns
    called_ns = np.concatenate(([0], returned_ns[:-1])) + gap_ns
    return called_ns.reshape(count, length), returned_ns.reshape(count, length)


def _check(
    job: JobSpec, timeline: RankTimeline, on_device: NDArray[np.int64], stored: pa.Table
) -> None:
    of_rank = stored.filter(pc.field("rank") == timeline.rank).sort_by("op")
    replayed = {
        "op": on_device,
        "start_ns": timeline.start_ns[on_device],
        "end_ns": timeline.end_ns[on_device],
    }
    for name, values in replayed.items():
        if not np.array_equal(of_rank.column(name).to_numpy(), values):
            raise UnderstudyError(
                f"the stored times of rank {timeline.rank} of job {job.job} were simulated by "
                "another version of the simulator or of the catalog; predict the job again"
            )
