"""What a lowered rank consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from understudy.kernels import Signature

NO_SIGNATURE = -1
NO_DEPENDENCY = -1
NO_GRAPH = -1

#: Streams from here on are none of the program's: see `Order.private_stream`.
FIRST_PRIVATE_STREAM = 1 << 16

#: Kinds of parts that the host waits for: what all members of a communicator do together to make
#: or end communicators. They have no size, dtype or root.
HOST_JOINS = (
    "communicator_init",
    "communicator_split",
    "communicator_finalize",
    "communicator_destroy",
)


class Part(NamedTuple):
    """What a join does on one communicator; `communicator` is its number in the rank, `peer` the
    rank in the communicator of a send's or receive's other end (-1: a collective)."""

    kind: str
    communicator: int
    peer: int
    size_bytes: int
    dtype: str
    reduce_op: str
    root: int


@dataclass
class LoweredRank:
    """The ops of one rank; lists of equal length, indexed by op.

    `signature` indexes `signatures` (NO_SIGNATURE: none), `depends_on` is an op (NO_DEPENDENCY:
    none), `iteration` counts the marks before the op, `graph` is the capture whose graph a host op
    launches or another op is a node of (NO_GRAPH: none), `position` is the trace's record that
    issued the op. `iterations` is the number of marks.
    """

    rank: int
    kind: list[str] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    signature: list[int] = field(default_factory=list)
    depends_on: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    gap_ns: list[int] = field(default_factory=list)
    iteration: list[int] = field(default_factory=list)
    graph: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    parts: dict[int, tuple[Part, ...]] = field(default_factory=dict)
    signatures: list[Signature] = field(default_factory=list)
    iterations: int = 0
    warnings: list[str] = field(default_factory=list)
