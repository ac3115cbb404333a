"""A job as the replay engines see it, and the rules by which they replay it.

The rules are those of CUDA streams and NCCL:

* A rank has one host queue. Each op waits `gap_ns` of host time, acts, and costs the host
  `cost_ns` in the driver.
* A stream runs its ops in issue order, one at a time (CUDA programming guide, "Streams"). An op
  starts `latency_ns` after its call at the earliest.
* `depends_on` names the op that an event captured when it was recorded, so recording an event again
  does not move earlier waits (cudaEventRecord, cudaStreamWaitEvent).
* A `stream_wait` holds its stream, never the host; a `host_wait` holds the host.
* A `join` starts on its stream and holds it until every member has arrived: an NCCL kernel spins.
  Its parts are matched by (communicator, sequence), sends and receives by direction as well; a
  part lasts as long as the longest op that takes part in it, an op until its last part has ended.
* A stream takes `queue_depth` pending ops; the next call waits for the oldest of them.

All times are integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from understudy.errors import UnderstudyError

HOST, DEVICE, STREAM_WAIT, JOIN, HOST_WAIT = range(5)
ON_STREAM = frozenset({DEVICE, STREAM_WAIT, JOIN})

#: `depends_on` of an op that names none.
NONE = -(2**31)

#: Pending launches that one stream takes before a launch blocks. Not documented by NVIDIA; about
#: 1000 was measured (forums.developer.nvidia.com topic 68937, stackoverflow.com question 53970187).
QUEUE_DEPTH = 1024


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


@dataclass(frozen=True)
class Placement:
    """One rank: its program, its communicators (own number -> the job's) and where it runs."""

    program: int
    communicators: Mapping[int, int]
    node: int = 0
    network_card: int = 0  #: number in the job


@dataclass(frozen=True)
class World:
    """A job as the engine sees it. `members` has the ranks of each communicator, in its order."""

    programs: Sequence[Program]
    placements: Sequence[Placement]  #: by rank
    members: Mapping[int, Sequence[int]]
    repetitions: int = 1
    queue_depth: int = QUEUE_DEPTH


@dataclass(frozen=True)
class Timeline:
    """Times of one rank, shape [repetitions, ops]; a host op starts and ends when it is called."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]


def check(program: Program) -> None:
    """Raises UnderstudyError where a program breaks what the engines rely on."""
    length, kind, depends_on = len(program.kind), program.kind, program.depends_on
    on_stream = np.isin(kind, sorted(ON_STREAM))
    depends = depends_on != NONE
    joins = np.isin(np.arange(length), list(program.parts))
    for wrong, what in (
        (on_stream & (program.stream < 0), "runs on no stream"),
        (
            depends & ((depends_on < -length) | (depends_on >= np.arange(length))),
            "depends on an op that is not before it",
        ),
        (
            depends & ~np.isin(kind, [STREAM_WAIT, HOST_WAIT]),
            "depends on another but is no wait",
        ),
        ((kind == JOIN) & ~joins, "is a join without collective parts"),
        (
            np.maximum(program.cost_ns, program.latency_ns) >= 2**31,
            "has a driver cost or launch latency of more than two seconds",
        ),
    ):
        if wrong.any():
            raise UnderstudyError(
                f"op {int(np.argmax(wrong))} of a program {what}; emulate the job again"
            )
