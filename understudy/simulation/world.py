"""A job as the replay engines see it, and the rules by which they replay it.

The rules are those of CUDA streams and NCCL:

* A rank has one host queue. Each op waits `gap_ns` of host time, acts, and costs the host
  `cost_ns` in the driver.
* A stream runs its ops in issue order, one at a time (CUDA programming guide, "Streams"). An op
  starts `latency_ns` after its call at the earliest.
* `depends_on` names the op that an event captured when it was recorded, so recording an event again
  does not move earlier waits (cudaEventRecord, cudaStreamWaitEvent).
* A `stream_wait` holds its stream, never the host; a `host_wait` holds the host, which pays
  `cost_ns` from when it wakes up.
* A `join` starts on its stream and holds it until every member has arrived: an NCCL kernel spins.
  Its parts are matched by (communicator, sequence), sends and receives by direction as well; a
  part lasts as long as the longest op that takes part in it, an op until its last part has ended.
* A join that spans nodes has the network cards of its members for itself from when all have
  arrived: cards serve joins in the order of their readiness. With `network_cards` off they do
  not queue, which is right where a duration was measured with that traffic beside it.
* Making or ending a communicator holds the hosts of all members (`HOST_JOINS`): a join on a stream
  that nothing else uses, and a `host_wait` for it. Such joins use no network cards.
* A stream takes `queue_depth` pending ops; the next call waits for the oldest of them.

All times are integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from understudy.errors import UnderstudyError

HOST, DEVICE, STREAM_WAIT, JOIN, HOST_WAIT = range(5)
ON_STREAM = frozenset({DEVICE, STREAM_WAIT, JOIN})

#: `depends_on` of an op that names none.
NONE = -(2**31)

#: Kinds of parts that hosts meet in, as lowering names them.
HOST_JOINS = frozenset(
    {
        "communicator_init",
        "communicator_split",
        "communicator_finalize",
        "communicator_destroy",
    }
)

#: Pending launches that one stream takes before a launch blocks. Not documented by NVIDIA; about
#: 1000 was measured (forums.developer.nvidia.com topic 68937, stackoverflow.com question 53970187).
QUEUE_DEPTH = 1024

#: No op takes longer, and nothing is scaled by more: eleven days, far from where times overflow and
#: from where a double rounds to more than a nanosecond.
MAX_OP_NS = 10**15
MAX_SCALE = 1e6
_MAX_TIME_NS = 2**62


@dataclass(frozen=True)
class Part:
    """What a join does on one communicator. `calls` of its like fill one repetition."""

    kind: str  #: all_reduce, ..., send, recv
    communicator: int  #: as numbered in the rank
    peer: int  #: rank in the communicator; -1 for collectives
    sequence: int  #: calls of its like before it in the program
    calls: int


@dataclass(frozen=True, eq=False)
class Program:
    """What one rank does in one repetition: arrays of one length, one entry per op."""

    kind: NDArray[np.int64]
    stream: NDArray[np.int64]  #: -1: no stream; a `host_wait` without dependency then waits for all
    depends_on: NDArray[np.int64]  #: op, -k: k-th last op of the previous repetition, or NONE
    gap_ns: NDArray[np.int64]
    cost_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    parts: dict[int, tuple[Part, ...]]  #: by op
    #: Row of a Point's durations that each op takes its own from; -1: it keeps `duration_ns`.
    signature: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Placement:
    """One rank: its program, its communicators (own number -> the job's) and where it runs."""

    program: int
    communicators: Mapping[int, int]
    node: int = 0
    network_card: int = 0  #: number in the job


@dataclass(frozen=True)
class Delay:
    """The host of a rank is held up before it calls `op` in one repetition."""

    rank: int
    delay_ns: int
    op: int = 0
    repetition: int = 0


@dataclass(frozen=True)
class World:
    """A job as the engine sees it. `members` has the ranks of each communicator, in its order.

    `host_scale` multiplies the `gap_ns` of a rank and `compute_scale` the durations of its device
    ops, not of its joins; each product is rounded to the nearest nanosecond, halves to even. Both
    are by rank; empty: 1 for all.
    """

    programs: Sequence[Program]
    placements: Sequence[Placement]  #: by rank
    members: Mapping[int, Sequence[int]]
    repetitions: int = 1
    queue_depth: int = QUEUE_DEPTH
    network_cards: bool = True  #: whether joins that span nodes queue for them
    host_scale: Sequence[float] = ()
    compute_scale: Sequence[float] = ()
    delays: Sequence[Delay] = ()


@dataclass(frozen=True, eq=False)
class Point:
    """One point of a sweep over a world: what differs from it.

    `durations_ns` are by signature; an empty `host_scale`, `compute_scale` or `delays` is none,
    whatever the world has.
    """

    durations_ns: NDArray[np.int64]
    host_scale: Sequence[float] = ()
    compute_scale: Sequence[float] = ()
    delays: Sequence[Delay] = ()


@dataclass(frozen=True)
class Timeline:
    """Times of one rank, shape [repetitions, ops]; a host op starts and ends when it is called."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]


def at_point(world: World, point: Point) -> World:
    """The world that a point of a sweep stands for."""
    check_point(world, point)
    return replace(
        world,
        programs=[
            replace(program, duration_ns=_durations_at(program, point.durations_ns))
            for program in world.programs
        ],
        host_scale=point.host_scale,
        compute_scale=point.compute_scale,
        delays=point.delays,
    )


def _durations_at(program: Program, durations_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    if program.signature is None:
        return program.duration_ns
    signed = program.signature >= 0
    result = program.duration_ns.copy()
    result[signed] = durations_ns[program.signature[signed]]
    return result


def scaled(times_ns: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Times multiplied and rounded once."""
    return np.rint(times_ns * scale).astype(np.int64)


def scale_of(scales: Sequence[float], rank: int) -> float:
    return scales[rank] if len(scales) else 1.0


def is_host_join(part: Part) -> bool:
    return part.kind in HOST_JOINS


# --- what the engines rely on ------------------------------------------------------------------


def check(world: World) -> None:
    """Raises UnderstudyError where a world breaks what the engines rely on."""
    if not world.placements or not any(len(p.kind) for p in world.programs):
        raise UnderstudyError("there is nothing to replay: the job has no ranks or no ops")
    if world.repetitions < 1 or world.queue_depth < 1:
        raise UnderstudyError(
            f"{world.repetitions} repetitions with queues of {world.queue_depth} ops cannot be "
            "replayed; both must be at least 1"
        )
    for number, program in enumerate(world.programs):
        _check_program(number, program)
    for rank, placement in enumerate(world.placements):
        _check_placement(world, rank, placement)
    _check_variation(world, world)
    _check_span(world, world, [program.duration_ns for program in world.programs])


def check_point(world: World, point: Point) -> None:
    """Raises UnderstudyError where a point of a sweep over a checked world breaks it."""
    durations = point.durations_ns
    used = max(
        (int(p.signature.max(initial=-1)) for p in world.programs if p.signature is not None),
        default=-1,
    )
    if len(durations) <= used:
        raise UnderstudyError(
            f"the durations are of {len(durations)} signatures, but signature {used} is used"
        )
    wrong = (durations < 0) | (durations > MAX_OP_NS)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise UnderstudyError(
            f"the duration of signature {first} is {durations[first]} ns; it must be from 0 to "
            f"{MAX_OP_NS}"
        )
    _check_variation(world, point)
    _check_span(world, point, [_durations_at(p, durations) for p in world.programs])


def _check_variation(world: World, varied: World | Point) -> None:
    """The scales and delays of a world, or of a point of a sweep over it."""
    ranks = len(world.placements)
    for name in ("host_scale", "compute_scale"):
        scales = getattr(varied, name)
        if len(scales) and len(scales) != ranks:
            raise UnderstudyError(f"{name} has {len(scales)} entries for {ranks} ranks")
        for rank, scale in enumerate(scales):
            if not 0 < scale <= MAX_SCALE:  # nor NaN
                raise UnderstudyError(
                    f"{name} {scale} of rank {rank} must be above 0 and at most {MAX_SCALE:g}"
                )
    for delay in varied.delays:
        if not 0 <= delay.rank < ranks:
            raise UnderstudyError(f"{delay}: the job has ranks 0 to {ranks - 1}")
        ops = len(world.programs[world.placements[delay.rank].program].kind)
        if not (0 <= delay.op < ops and 0 <= delay.repetition < world.repetitions):
            raise UnderstudyError(
                f"{delay}: the rank has ops 0 to {ops - 1} in repetitions 0 to "
                f"{world.repetitions - 1}"
            )
        if not 0 <= delay.delay_ns <= MAX_OP_NS:
            raise UnderstudyError(f"{delay}: delay_ns must be from 0 to {MAX_OP_NS}")


def _check_span(
    world: World, varied: World | Point, durations_ns: Sequence[NDArray[np.int64]]
) -> None:
    """No time may overflow: nothing ends later than all ops one after the other."""
    host_scale = max(varied.host_scale, default=1.0)
    compute_scale = max(varied.compute_scale, default=1.0)
    program_ns = []
    for program, durations in zip(world.programs, durations_ns, strict=True):
        for times, scale in ((program.gap_ns, host_scale), (durations, compute_scale)):
            if times.max(initial=0) * scale > MAX_OP_NS:
                raise UnderstudyError(f"scaled by {scale:g}, an op takes longer than eleven days")
        host = program.gap_ns.sum(dtype=float) * max(1.0, host_scale)
        device = durations.sum(dtype=float) * max(1.0, compute_scale)
        program_ns.append(host + device + (program.cost_ns + program.latency_ns).sum(dtype=float))
    span_ns = sum(program_ns[p.program] for p in world.placements) * world.repetitions
    span_ns += sum(delay.delay_ns for delay in varied.delays)
    if span_ns > _MAX_TIME_NS:
        raise UnderstudyError(
            f"the ops of the job take {span_ns / 1e9:.3g} s one after the other: more than can be "
            "counted in nanoseconds"
        )


def _check_program(number: int, program: Program) -> None:
    length, kind, depends_on = len(program.kind), program.kind, program.depends_on
    columns = {
        name: getattr(program, name)
        for name in ("stream", "depends_on", "gap_ns", "cost_ns", "latency_ns", "duration_ns")
    }
    if program.signature is not None:
        columns["signature"] = program.signature
    for name, column in columns.items():
        if len(column) != length:
            raise UnderstudyError(f"program {number} has {length} kinds but {len(column)} {name}")
    on_stream = (kind != HOST) & (kind != HOST_WAIT)
    depends = depends_on != NONE
    joins = np.zeros(length, bool)
    ops = np.fromiter(program.parts, np.int64, len(program.parts))
    if len(ops) and not 0 <= ops.min() <= ops.max() < length:
        raise UnderstudyError(f"program {number} has collective parts of ops that it does not have")
    joins[ops] = True
    for wrong, what in (
        ((kind < HOST) | (kind > HOST_WAIT), "is of a kind that the engine does not have"),
        (on_stream & (program.stream < 0), "runs on no stream"),
        (
            depends & ((depends_on < -length) | (depends_on >= np.arange(length))),
            "depends on an op that is not before it",
        ),
        (
            depends & (kind != STREAM_WAIT) & (kind != HOST_WAIT),
            "depends on another but is no wait",
        ),
        ((kind == JOIN) & ~joins, "is a join without collective parts"),
        ((kind != JOIN) & joins, "has collective parts but is no join"),
        (
            (program.gap_ns | program.cost_ns | program.latency_ns | program.duration_ns) < 0,
            "has a negative time",
        ),
        (
            np.maximum(program.cost_ns, program.latency_ns) >= 2**31,
            "has a driver cost or launch latency of more than two seconds",
        ),
        (
            np.maximum(program.gap_ns, program.duration_ns) > MAX_OP_NS,
            "takes longer than eleven days",
        ),
    ):
        if wrong.any():
            raise UnderstudyError(
                f"op {int(np.argmax(wrong))} of a program {what}; emulate the job again"
            )


def _check_placement(world: World, rank: int, placement: Placement) -> None:
    if not 0 <= placement.program < len(world.programs):
        raise UnderstudyError(f"rank {rank} runs program {placement.program}, which is missing")
    if placement.network_card < 0:
        raise UnderstudyError(f"rank {rank} has network card {placement.network_card}")
    for communicator in placement.communicators.values():
        if rank not in world.members.get(communicator, ()):
            raise UnderstudyError(
                f"rank {rank} uses communicator {communicator} but is not a member of it"
            )
