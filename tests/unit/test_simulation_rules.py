"""One hand-computed job per rule of CUDA and NCCL that the replay follows.

Each case names the document that its rule is from and gives the start and end of every op as worked
out by hand; both engines have to give them. A case that fails says which document it contradicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.replay_worlds import Op, host, host_wait, join, kernel, program, stream_wait
from understudy.errors import UnderstudyError
from understudy.simulation import engine, reference
from understudy.simulation.world import Delay, Placement, Timeline, World

_RUNTIME = "https://docs.nvidia.com/cuda/cuda-runtime-api/"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"

GUIDE = ("CUDA C++ Programming Guide", "https://docs.nvidia.com/cuda/cuda-c-programming-guide/")
EVENTS = ("CUDA Runtime API, Event Management", _RUNTIME + "group__CUDART__EVENT.html")
STREAMS = ("CUDA Runtime API, Stream Management", _RUNTIME + "group__CUDART__STREAM.html")
DEVICES = ("CUDA Runtime API, Device Management", _RUNTIME + "group__CUDART__DEVICE.html")
DEFAULT_STREAM = (
    "CUDA Runtime API, Stream synchronization behavior",
    _RUNTIME + "stream-sync-behavior.html",
)
COPIES = ("CUDA Runtime API, API synchronization behavior", _RUNTIME + "api-sync-behavior.html")
DEPTH = (
    "NVIDIA developer forum, pending launches of a stream",
    "https://forums.developer.nvidia.com/t/68937",
)
COLLECTIVES = ("NCCL, Collective Operations", _NCCL + "usage/collectives.html")
P2P = ("NCCL, Point-to-point communication", _NCCL + "usage/p2p.html")
GROUPS = ("NCCL, Group Calls", _NCCL + "usage/groups.html")
NCCL_STREAMS = ("NCCL, CUDA Stream Semantics", _NCCL + "usage/streams.html")
COMMUNICATORS = ("NCCL, Creating a Communicator", _NCCL + "usage/communicators.html")
#: Choices of the replay itself, described in understudy/simulation/world.py.
OWN = ("understudy.simulation.world", "understudy/simulation/world.py")

#: (start, end) of each op through all repetitions, by rank.
Times = Sequence[Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Case:
    rule: str
    document: tuple[str, str]
    ranks: Sequence[Sequence[Op]]
    times: Times
    nodes: Sequence[int] = ()  #: by rank; each node has one network card
    world: Mapping[str, Any] = field(default_factory=dict)

    def job(self) -> World:
        return job(self.ranks, self.nodes, **self.world)


def job(ranks: Sequence[Sequence[Op]], nodes: Sequence[int] = (), **other: Any) -> World:
    """All ranks are in communicators 0 and 1."""
    placements = [
        Placement(rank, {0: 0, 1: 1}, node, network_card=node)
        for rank, node in enumerate(nodes or [0] * len(ranks))
    ]
    everyone = list(range(len(ranks)))
    return World([program(r) for r in ranks], placements, {0: everyone, 1: everyone}, **other)


def times(timelines: Sequence[Timeline]) -> Times:
    return [
        list(zip(t.start_ns.ravel().tolist(), t.end_ns.ravel().tolist(), strict=True))
        for t in timelines
    ]


# --- one rank ----------------------------------------------------------------------------------

ONE_RANK = [
    Case(
        "a stream runs its ops in order, one at a time; streams do not wait for each other",
        GUIDE,
        [[kernel(0, 10), kernel(0, 5), kernel(1, 7)]],
        [[(0, 10), (10, 15), (0, 7)]],
    ),
    Case(
        # Called at 3, in the driver until 7; called at 10.
        "a launch returns before its kernel runs",
        GUIDE,
        [
            [
                kernel(0, 10, gap=3, cost=4, latency=20),
                kernel(1, 10, gap=3, cost=4, latency=20),
            ]
        ],
        [[(23, 33), (30, 40)]],
    ),
    Case(
        "time of the host alone delays what it calls later",
        GUIDE,
        [[host(100), kernel(0, 1)]],
        [[(100, 100), (100, 101)]],
    ),
    Case(
        "cudaStreamWaitEvent holds later work of its stream, neither the host nor other streams",
        STREAMS,
        [[kernel(0, 50), stream_wait(1, 0), kernel(1, 5), kernel(2, 5, gap=1)]],
        [[(0, 50), (0, 50), (50, 55), (1, 6)]],
    ),
    Case(
        # The event is recorded after op 0 and again after op 2.
        "recording an event again does not move the waits before",
        EVENTS,
        [
            [
                kernel(0, 10),
                stream_wait(1, 0),
                kernel(0, 100),
                kernel(1, 1),
                stream_wait(1, 2),
                kernel(1, 1),
            ]
        ],
        [[(0, 10), (0, 10), (10, 110), (10, 11), (11, 110), (110, 111)]],
    ),
    Case(
        "waiting for an event that was never recorded does nothing",
        STREAMS,
        [[stream_wait(1), kernel(1, 3), kernel(0, 2)]],
        [[(0, 0), (0, 3), (0, 2)]],
    ),
    Case(
        # In the second repetition the event is that of op 2, which ends at 12 and 22.
        "an event of the repetition before holds, and in the first there is none",
        EVENTS,
        [[stream_wait(0, -1), kernel(0, 1, gap=2), kernel(1, 10)]],
        [[(0, 0), (2, 3), (2, 12), (3, 12), (12, 13), (12, 22)]],
        world={"repetitions": 2},
    ),
    Case(
        # The wait of each repetition is for the event before the one that was just recorded.
        "two events of the same op are told apart when they are waited for one repetition later",
        EVENTS,
        [[kernel(0, 10), stream_wait(1, -3), kernel(1, 1)]],
        [[(0, 10), (0, 0), (0, 1), (10, 20), (1, 10), (10, 11), (20, 30), (11, 20), (20, 21)]],
        world={"repetitions": 3},
    ),
    Case(
        "cudaEventSynchronize blocks the host until the work before the record is done",
        EVENTS,
        [[kernel(0, 50), kernel(0, 50), host_wait(0, gap=5), kernel(1, 1, gap=2)]],
        [[(0, 50), (50, 100), (5, 50), (52, 53)]],
    ),
    Case(
        "the host pays for waking up after it has waited, and for a wait that is over too",
        EVENTS,
        [[kernel(0, 50), host_wait(0, cost=6), kernel(1, 1), host_wait(0, cost=6), kernel(1, 1)]],
        [[(0, 50), (0, 50), (56, 57), (56, 56), (62, 63)]],
    ),
    Case(
        "cudaStreamSynchronize waits for one stream",
        STREAMS,
        [[kernel(0, 50), kernel(1, 80), host_wait(stream=0), kernel(2, 1)]],
        [[(0, 50), (0, 80), (0, 50), (50, 51)]],
    ),
    Case(
        "cudaDeviceSynchronize waits for all streams",
        DEVICES,
        [[kernel(0, 50), kernel(1, 80), host_wait(), kernel(2, 1)]],
        [[(0, 50), (0, 80), (0, 80), (80, 81)]],
    ),
    Case(
        "cudaStreamQuery and cudaEventQuery wait for nothing",
        STREAMS,
        [[kernel(0, 50), host(2), kernel(1, 1)]],
        [[(0, 50), (2, 2), (2, 3)]],
    ),
    Case(
        # Stream 0 is the legacy default stream, 1 and 2 are blocking streams, 3 is not: an op of
        # stream 0 waits for the last of 1 and 2, an op of 1 for the last of 0.
        "the legacy default stream waits for blocking streams and they for it, others do not",
        DEFAULT_STREAM,
        [
            [
                kernel(1, 10),
                kernel(2, 20),
                kernel(3, 99),
                stream_wait(0, 0),
                stream_wait(0, 1),
                kernel(0, 5),
                stream_wait(1, 5),
                kernel(1, 1),
                kernel(3, 1),
            ]
        ],
        [
            [
                (0, 10),
                (0, 20),
                (0, 99),
                (0, 10),
                (10, 20),
                (20, 25),
                (10, 25),
                (25, 26),
                (99, 100),
            ]
        ],
    ),
    Case(
        "a copy from the device to pageable memory returns when it is complete",
        COPIES,
        [[kernel(0, 30), kernel(0, 10), host_wait(1), kernel(1, 1)]],
        [[(0, 30), (30, 40), (0, 40), (40, 41)]],
    ),
    Case(
        # The host waits for the stream, stages 15 ns, returns at 45; the copy ends after that.
        "a copy from pageable memory to the device returns once it is staged",
        COPIES,
        [[kernel(0, 30), host_wait(stream=0), host(15), kernel(0, 10), kernel(1, 1, gap=2)]],
        [[(0, 30), (0, 30), (45, 45), (45, 55), (47, 48)]],
    ),
    Case(
        "a copy from device to device does not block the host",
        COPIES,
        [[kernel(0, 30), kernel(0, 10), kernel(1, 1, gap=2)]],
        [[(0, 30), (30, 40), (2, 3)]],
    ),
    Case(
        # One host op launches the graph at 7; its nodes make no calls.
        "a graph is launched by one call and its nodes follow each other on the launch stream",
        GUIDE,
        [[kernel(0, 20), host(7), kernel(0, 5), kernel(0, 5), kernel(0, 5), kernel(1, 1)]],
        [[(0, 20), (7, 7), (20, 25), (25, 30), (30, 35), (7, 8)]],
    ),
    Case(
        # Streams 8 and 9 are those of the graph's branches.
        "branches of a graph run side by side, from the launch stream and back to it",
        GUIDE,
        [
            [
                kernel(0, 20),
                stream_wait(8, 0),
                stream_wait(9, 0),
                kernel(8, 5),
                kernel(9, 30),
                stream_wait(0, 3),
                stream_wait(0, 4),
                kernel(0, 1),
            ]
        ],
        [[(0, 20), (0, 20), (0, 20), (20, 25), (20, 50), (20, 25), (25, 50), (50, 51)]],
    ),
    Case(
        # The third launch waits for the first kernel, the fourth for the second.
        "a launch waits for room in its stream's queue",
        DEPTH,
        [[kernel(0, 10), kernel(0, 10), kernel(0, 10), kernel(0, 10), kernel(1, 1)]],
        [[(0, 10), (10, 20), (20, 30), (30, 40), (20, 21)]],
        world={"queue_depth": 2},
    ),
    Case(
        "other streams' pending launches take no room",
        DEPTH,
        [[kernel(0, 10), kernel(1, 10), kernel(2, 10), kernel(0, 10), kernel(3, 1)]],
        [[(0, 10), (0, 10), (0, 10), (10, 20), (0, 1)]],
        world={"queue_depth": 2},
    ),
]

# --- several ranks -----------------------------------------------------------------------------

ALL_REDUCE = ("all_reduce", 0)
#: Rank 1 sends to rank 3 at 0, rank 0 to rank 2 at 3.
TWO_TRANSFERS = [
    [join(0, 10, ("send", 0, 2))],
    [join(0, 10, ("send", 0, 3))],
    [kernel(0, 3), join(0, 10, ("recv", 0, 0))],
    [join(0, 10, ("recv", 0, 1))],
]

SEVERAL_RANKS = [
    Case(
        "a collective starts where its rank arrives and ends for all together",
        COLLECTIVES,
        [[join(0, 10, ALL_REDUCE)], [kernel(0, 30), join(0, 10, ALL_REDUCE)]],
        [[(0, 40)], [(0, 30), (30, 40)]],
    ),
    Case(
        "a collective holds the stream it is on and no other",
        NCCL_STREAMS,
        [
            [join(0, 10, ALL_REDUCE), kernel(0, 1), kernel(1, 1)],
            [join(0, 10, ALL_REDUCE, gap=30)],
        ],
        [[(0, 40), (40, 41), (0, 1)], [(30, 40)]],
    ),
    Case(
        "members may give a collective different durations: it takes the longest",
        OWN,
        [[join(0, 10, ALL_REDUCE)], [join(0, 12, ALL_REDUCE)]],
        [[(0, 12)], [(0, 12)]],
    ),
    Case(
        # The second of rank 0 is ready at 35, but rank 1 calls it at 40.
        "collectives of a communicator match in the order of their calls, whatever their kind",
        COLLECTIVES,
        [
            [join(0, 10, ALL_REDUCE, gap=5), join(0, 20, ("broadcast", 0))],
            [join(0, 10, ALL_REDUCE, gap=20), join(1, 20, ("broadcast", 0), gap=20)],
        ],
        [[(5, 30), (30, 60)], [(20, 30), (40, 60)]],
    ),
    Case(
        "the order of calls goes on from one repetition to the next",
        COLLECTIVES,
        [[join(0, 10, ALL_REDUCE, gap=5)], [join(0, 10, ALL_REDUCE, gap=20)]],
        [[(5, 30), (30, 50)], [(20, 30), (40, 50)]],
        world={"repetitions": 2},
    ),
    Case(
        "a send and its receive wait for each other",
        P2P,
        [
            [join(0, 10, ("send", 0, 1)), kernel(0, 1)],
            [kernel(0, 25), join(0, 10, ("recv", 0, 0))],
        ],
        [[(0, 35), (35, 36)], [(0, 25), (25, 35)]],
    ),
    Case(
        # Each link takes 5 ns from when its later end arrives: 0-1 at 10, 1-2 at 20, 2-0 at 20.
        "sends and receives of a group start together, progress apart and end with the last",
        GROUPS,
        [
            [
                kernel(0, 10 * rank),
                join(0, 5, ("send", 0, (rank + 1) % 3), ("recv", 0, (rank - 1) % 3)),
            ]
            for rank in range(3)
        ],
        [[(0, 0), (0, 25)], [(0, 10), (10, 25)], [(0, 20), (20, 25)]],
    ),
    Case(
        "a rank may send to itself within a group",
        P2P,
        [[join(0, 7, ("send", 0, 0), ("recv", 0, 0))]],
        [[(0, 7)]],
    ),
    Case(
        # Lowered to waits of each stream for the other before and after the calls.
        "a group over several streams waits for all of them and blocks all of them",
        NCCL_STREAMS,
        [
            [
                kernel(0, 30),
                kernel(1, 5),
                stream_wait(0, 1),
                stream_wait(1, 0),
                join(0, 10, ALL_REDUCE),
                join(1, 20, ("all_reduce", 1)),
                stream_wait(0, 5),
                stream_wait(1, 4),
                kernel(0, 1),
                kernel(1, 1),
            ]
        ]
        * 2,
        [
            [
                (0, 30),
                (0, 5),
                (30, 30),
                (5, 30),
                (30, 40),
                (30, 50),
                (40, 50),
                (50, 50),
                (50, 51),
                (50, 51),
            ]
        ]
        * 2,
    ),
    Case(
        # On two nodes, but hosts do not meet over the network cards.
        "making a communicator holds the host of every member until all have called",
        COMMUNICATORS,
        [
            [join(9, 5, ("communicator_init", 0)), host_wait(0), kernel(0, 1)],
            [host(40), join(9, 5, ("communicator_init", 0)), host_wait(1), kernel(0, 1)],
        ],
        [
            [(0, 45), (0, 45), (45, 46)],
            [(40, 40), (40, 45), (40, 45), (45, 46)],
        ],
        nodes=[0, 1],
    ),
    Case(
        "a network card serves one join after the other, the one that is ready first before",
        OWN,
        TWO_TRANSFERS,
        [[(0, 20)], [(0, 10)], [(0, 3), (3, 20)], [(0, 10)]],
        nodes=[0, 0, 1, 1],
    ),
    Case(
        "a card serves joins that are ready at once in the order of their communicators",
        OWN,
        [[join(1, 15, ("all_reduce", 1)), join(0, 10, ALL_REDUCE)]] * 2,
        [[(0, 25), (0, 10)]] * 2,
        nodes=[0, 1],
    ),
    Case(
        "joins within a node use no network card",
        OWN,
        [[join(1, 15, ("all_reduce", 1)), join(0, 10, ALL_REDUCE)]] * 2,
        [[(0, 15), (0, 10)]] * 2,
        nodes=[1, 1],
    ),
    Case(
        "with network_cards off joins between nodes do not queue",
        OWN,
        TWO_TRANSFERS,
        [[(0, 13)], [(0, 10)], [(0, 3), (3, 13)], [(0, 10)]],
        nodes=[0, 0, 1, 1],
        world={"network_cards": False},
    ),
    Case(
        # 15 and 5 ns of kernels become 22.5 -> 22 and 7.5 -> 8; the collective stays 10 ns.
        "compute_scale makes device ops of a rank longer, rounded to even, and no joins",
        OWN,
        [[kernel(0, 15), kernel(0, 5), join(0, 10, ALL_REDUCE)]] * 2,
        [[(0, 15), (15, 20), (20, 40)], [(0, 22), (22, 30), (30, 40)]],
        world={"compute_scale": [1.0, 1.5]},
    ),
    Case(
        "host_scale makes the gaps of a rank longer and not the driver's cost",
        OWN,
        [[kernel(0, 1, gap=10, cost=4), kernel(0, 1, gap=3)]] * 2,
        [[(10, 11), (17, 18)], [(20, 21), (30, 31)]],
        world={"host_scale": [1.0, 2.0]},
    ),
    Case(
        # Held up by 4 ns at its start, by 20 ns before the second kernel of the second repetition.
        "a delay holds up the host of one rank before one op of one repetition",
        OWN,
        [[kernel(0, 1), kernel(0, 1, gap=10)]],
        [[(4, 5), (14, 15), (15, 16), (44, 45)]],
        world={"repetitions": 2, "delays": [Delay(0, 4), Delay(0, 20, op=1, repetition=1)]},
    ),
]


@pytest.mark.parametrize("case", ONE_RANK + SEVERAL_RANKS, ids=lambda case: case.rule)
def test_times_by_hand(case: Case) -> None:
    title, url = case.document
    for name, replay in (("C", engine.replay), ("Python", reference.replay)):
        assert times(replay(case.job())) == case.times, (
            f'the {name} engine breaks the rule "{case.rule}" ({title}, {url})'
        )


# --- deadlocks ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deadlock:
    rule: str
    document: tuple[str, str]
    ranks: Sequence[Sequence[Op]]
    says: Sequence[str]  #: parts of the message
    world: Mapping[str, Any] = field(default_factory=dict)


OTHER = ("all_reduce", 1)

DEADLOCKS = [
    Deadlock(
        "collectives that two ranks call in different orders wait for each other",
        COMMUNICATORS,
        [
            [join(0, 1, ALL_REDUCE), join(0, 1, OTHER)],
            [join(0, 1, OTHER), join(0, 1, ALL_REDUCE)],
        ],
        [
            "ranks that cannot go on: 0, 1.",
            "rank 0 stream 0 at op 0 (repetition 0) is in all_reduce 0 of communicator 0: "
            "1 of 2 arrived, missing ranks 1",
            "rank 1 stream 0 at op 0 (repetition 0) is in all_reduce 0 of communicator 1: "
            "1 of 2 arrived, missing ranks 0",
            "a cycle through rank 0 stream 0",
        ],
    ),
    Deadlock(
        "a collective that a rank does not call never ends",
        COLLECTIVES,
        [[join(0, 1, ALL_REDUCE)], [kernel(0, 1)]],
        ["missing ranks 1", "rank 1 never calls it", "the program of rank 1 has ended"],
    ),
    Deadlock(
        "a rank that calls a collective less often is missing from the second repetition on",
        COLLECTIVES,
        [[join(0, 1, ALL_REDUCE), join(0, 1, ALL_REDUCE)], [join(0, 1, ALL_REDUCE)]],
        ["at op 0 (repetition 1) is in all_reduce 2", "the program of rank 1 has ended"],
        world={"repetitions": 2},
    ),
    Deadlock(
        "a send without its receive never ends",
        P2P,
        [[join(0, 1, ("send", 0, 1))], [join(0, 1, ("send", 0, 0))]],
        ["rank 0 stream 0 at op 0 (repetition 0) is in send 0 of communicator 0"],
    ),
    Deadlock(
        "a host that waits for a collective does not call the one that its peer waits for",
        EVENTS,
        [
            [join(0, 1, ALL_REDUCE), host_wait(0), join(1, 1, OTHER)],
            [join(0, 1, OTHER), host_wait(0), join(1, 1, ALL_REDUCE)],
        ],
        [
            "rank 1 host at op 1 (repetition 0) waits for op 0",
            "rank 0 host at op 1 (repetition 0) waits for op 0",
            "a cycle through rank 0 stream 0",
        ],
    ),
    Deadlock(
        "a stream behind an unfinished collective takes only so many launches",
        DEPTH,
        [
            [join(0, 1, ALL_REDUCE), kernel(0, 1), join(1, 1, OTHER)],
            [join(1, 1, OTHER), host_wait(0), join(0, 1, ALL_REDUCE)],
        ],
        ["rank 0 host at op 1 (repetition 0) waits for room in stream 0"],
        world={"queue_depth": 1},
    ),
    Deadlock(
        "a stream that waits for an event behind an unfinished collective is stuck with it",
        STREAMS,
        [
            [kernel(0, 1), join(1, 1, ALL_REDUCE), stream_wait(0, 1), join(0, 1, OTHER)],
            [join(0, 1, OTHER), join(0, 1, ALL_REDUCE)],
        ],
        [
            "rank 0 stream 0 at op 2 (repetition 0) waits for op 1",
            "rank 1 stream 0 at op 0 (repetition 0) is in all_reduce 0 of communicator 1",
        ],
    ),
]


@pytest.mark.parametrize("case", DEADLOCKS, ids=lambda case: case.rule)
def test_deadlocks_say_who_waits_for_whom(case: Deadlock) -> None:
    title, url = case.document
    for name, replay in (("C", engine.replay), ("Python", reference.replay)):
        with pytest.raises(UnderstudyError, match="the replay is deadlocked") as caught:
            replay(job(case.ranks, **case.world))
        for part in case.says:
            assert part in str(caught.value), (
                f'the {name} engine breaks the rule "{case.rule}" ({title}, {url})'
            )
