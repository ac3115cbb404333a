"""Small jobs for the tests of the replay engines: written op by op, or random from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from understudy.simulation.world import (
    DEVICE,
    HOST,
    HOST_WAIT,
    JOIN,
    NONE,
    STREAM_WAIT,
    Delay,
    Part,
    Placement,
    Point,
    Program,
    World,
)


@dataclass
class Op:
    """One op of a test program; latency 0 and cost 0 unless given. Times in ns."""

    kind: int
    stream: int = -1
    duration: int = 0
    gap: int = 0
    depends_on: int = NONE
    cost: int = 0
    latency: int = 0
    parts: tuple[Part, ...] = field(default=())


def host(gap: int) -> Op:
    return Op(HOST, gap=gap)


def kernel(
    stream: int,
    duration: int,
    gap: int = 0,
    depends_on: int = NONE,
    cost: int = 0,
    latency: int = 0,
) -> Op:
    return Op(DEVICE, stream, duration, gap, depends_on, cost, latency)


def stream_wait(stream: int, depends_on: int = NONE, gap: int = 0) -> Op:
    return Op(STREAM_WAIT, stream, gap=gap, depends_on=depends_on)


def host_wait(depends_on: int = NONE, stream: int = -1, gap: int = 0, cost: int = 0) -> Op:
    return Op(HOST_WAIT, stream, gap=gap, depends_on=depends_on, cost=cost)


#: (kind, communicator), or (send or recv, communicator, peer).
Call = tuple[str, int] | tuple[str, int, int]


def join(stream: int, duration: int, *parts: Call, gap: int = 0) -> Op:
    return Op(
        JOIN,
        stream,
        duration,
        gap,
        parts=tuple(
            Part(part[0], part[1], part[2] if len(part) == 3 else -1, 0, 0) for part in parts
        ),
    )


def program(ops: Sequence[Op]) -> Program:
    """The program of these ops; calls of a like are numbered here."""
    likes = Counter(_like(part) for op in ops for part in op.parts)
    so_far: Counter[tuple[int, int, str]] = Counter()
    parts = {}
    for number, op in enumerate(ops):
        numbered = []
        for part in op.parts:
            like = _like(part)
            numbered.append(replace(part, sequence=so_far[like], calls=likes[like]))
            so_far[like] += 1
        if numbered:
            parts[number] = tuple(numbered)
    return Program(
        kind=np.array([o.kind for o in ops], np.int64),
        stream=np.array([o.stream for o in ops], np.int64),
        depends_on=np.array([o.depends_on for o in ops], np.int64),
        gap_ns=np.array([o.gap for o in ops], np.int64),
        cost_ns=np.array([o.cost for o in ops], np.int64),
        latency_ns=np.array([o.latency for o in ops], np.int64),
        duration_ns=np.array([o.duration for o in ops], np.int64),
        parts=parts,
    )


def _like(part: Part) -> tuple[int, int, str]:
    return (part.communicator, part.peer, part.kind if part.peer >= 0 else "")


# --- random jobs -------------------------------------------------------------------------------

#: A call that the members of a communicator make together: kind, communicator, stream.
_Step = tuple[str, int, int]
_STREAMS = 3
_SIGNATURES = 5


def random_world(seed: int) -> World:
    """A job of up to five ranks with everything that a world can have; about a third deadlock."""
    random = Random(seed)
    ranks = random.randint(1, 5)
    members = _communicators(random, ranks)
    steps = [
        (random.choice(_KINDS), random.choice(list(members)), random.randrange(_STREAMS))
        for _ in range(random.randint(0, 14))
    ]
    of_rank = [[s for s in steps if rank in members[s[1]]] for rank in range(ranks)]
    for _ in range(random.choice([0, 1, 2, 4])):
        _disturb(random, of_rank)
    # Own numbers of the job's communicators, in another order on every rank.
    own = []
    for rank in range(ranks):
        mine = [c for c in members if rank in members[c]]
        random.shuffle(mine)
        own.append(dict(enumerate(mine)))
    programs = [
        _random_program(random, members, rank, of_rank[rank], own[rank]) for rank in range(ranks)
    ]
    nodes, cards = random.randint(1, 3), random.randint(1, 2)
    placements = [
        Placement(
            rank, own[rank], node=rank % nodes, network_card=rank % nodes * cards + rank % cards
        )
        for rank in range(ranks)
    ]
    if not any(len(p.kind) for p in programs):
        programs[0] = program([kernel(0, 1)])
    return World(
        programs,
        placements,
        members,
        repetitions=random.randint(1, 4),
        queue_depth=random.choice([1, 2, 3, 5, 8, 1024]),
        network_cards=random.random() < 0.8,
        host_scale=_scales(random, ranks),
        compute_scale=_scales(random, ranks),
        delays=_delays(random, [len(p.kind) for p in programs]),
    )


def random_point(seed: int, world: World) -> Point:
    """Something to sweep over a random world, whose ops have `_SIGNATURES` signatures."""
    random = Random(seed)
    return Point(
        np.array([random.randint(0, 30) for _ in range(_SIGNATURES)], np.int64),
        host_scale=_scales(random, len(world.placements)),
        compute_scale=_scales(random, len(world.placements)),
        delays=_delays(random, [len(p.kind) for p in world.programs]),
    )


_KINDS = ("all_reduce", "all_reduce", "pair", "ring", "exchange", "communicator_init")


def _communicators(random: Random, ranks: int) -> dict[int, list[int]]:
    """Communicator 0 of all ranks and up to two others, numbered with gaps."""
    members = {0: list(range(ranks))}
    for number in range(random.randint(0, 2)):
        some = random.sample(range(ranks), random.randint(1, ranks))
        members[7 + 3 * number] = some
    return members


def _disturb(random: Random, of_rank: list[list[_Step]]) -> None:
    """One rank swaps two calls, leaves one out, or makes one on another stream."""
    steps = random.choice(of_rank)
    if not steps:
        return
    at, other = random.randrange(len(steps)), random.randrange(len(steps))
    how = random.randrange(4)
    if how < 2:
        steps[at], steps[other] = steps[other], steps[at]
    elif how == 2:
        del steps[at]
    else:
        steps[at] = (*steps[at][:2], random.randrange(_STREAMS))


def _random_program(
    random: Random,
    members: dict[int, list[int]],
    rank: int,
    steps: Sequence[_Step],
    own: dict[int, int],
) -> Program:
    number = {job: mine for mine, job in own.items()}
    ops: list[Op] = []
    for kind, communicator, stream in steps:
        _fill(random, ops)
        order = members[communicator]
        parts = _parts(kind, number[communicator], order.index(rank), len(order))
        if not parts:
            continue
        if kind == "communicator_init":
            ops.append(join(_STREAMS, random.randint(0, 9), *parts))
            ops.append(host_wait(len(ops) - 1))
        else:
            op = join(stream, random.randint(0, 20), *parts, gap=random.randint(0, 9))
            ops.append(replace(op, latency=random.choice([0, 5]), cost=random.randint(0, 3)))
    _fill(random, ops)
    result = program(ops)
    signature = np.array([random.randrange(-1, _SIGNATURES) for _ in ops], np.int64)
    return replace(result, signature=signature)


def _parts(kind: str, communicator: int, own: int, size: int) -> list[Call]:
    """What member `own` of `size` does in a step."""
    if kind == "pair":
        if size < 2 or own > 1:
            return []
        return [("recv" if own else "send", communicator, 1 - own)]
    if kind == "ring":
        return [
            ("send", communicator, (own + 1) % size),
            ("recv", communicator, (own - 1) % size),
        ]
    if kind == "exchange":
        peers = range(size)
        return [(way, communicator, peer) for peer in peers for way in ("send", "recv")]
    return [(kind, communicator)]


def _fill(random: Random, ops: list[Op]) -> None:
    """Some ops of one rank alone."""
    for _ in range(random.choice([0, 1, 2, 3, 6])):
        kind = random.choice([HOST, DEVICE, DEVICE, DEVICE, STREAM_WAIT, STREAM_WAIT, HOST_WAIT])
        stream = random.randrange(_STREAMS)
        depends_on = NONE
        if kind in (STREAM_WAIT, HOST_WAIT) and ops and random.random() < 0.8:
            # -k is of the repetition before; the program will be as long as it is now at least.
            depends_on = random.randrange(-len(ops), len(ops))
        if kind == HOST or (kind == HOST_WAIT and random.random() < 0.5):
            stream = -1
        ops.append(
            Op(
                kind,
                stream,
                random.randint(0, 20),
                random.choice([0, 0, 3, random.randint(0, 40)]),
                depends_on,
                random.randint(0, 3),
                random.choice([0, 5]),
            )
        )


def _scales(random: Random, ranks: int) -> list[float]:
    if random.random() < 0.7:
        return []
    return [random.choice([1.0, 0.5, 1.3, 2.0, 1.0 + random.random()]) for _ in range(ranks)]


def _delays(random: Random, lengths: Sequence[int]) -> list[Delay]:
    if random.random() < 0.7:
        return []
    ranks = [rank for rank, length in enumerate(lengths) if length]
    return [
        Delay(rank, random.randint(0, 50), random.randrange(lengths[rank]))
        for rank in random.choices(ranks, k=random.randint(1, 3))
    ]
