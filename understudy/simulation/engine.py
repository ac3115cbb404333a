"""Replays the programs of all ranks with given durations: the engine, in C.

`native/replay.c` does the work; world.py has the rules and reference.py the same in Python. Here a
world becomes the arrays that the C code reads, and everything that it relies on is checked.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from understudy.errors import UnderstudyError
from understudy.simulation import reference
from understudy.simulation.world import ON_STREAM, Placement, Program, Timeline, World, check

LIBRARY = Path(__file__).resolve().parent / "native" / "build" / "libreplay.so"

_DONE, _DEADLOCK = range(2)

#: (communicator, source, destination) of the job; the latter two are -1 for collectives.
Channel = tuple[int, int, int]
#: The same as the rank's program has it: (communicator, peer, kind).
LocalChannel = tuple[int, int, str]


class _Program(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_int64),
        ("stream_count", ctypes.c_int32),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "ops",
                "stream_start",
                "stream_ops",
                "part_start",
                "part_channel",
                "part_sequence",
                "part_calls",
            )
        ),
    )


class _World(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("ranks", "repetitions", "queue_depth", "joins", "card_numbers")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "programs",
                "rank",
                "channel_of",
                "channels",
                "cards",
                "start",
                "end",
            )
        ),
    )


#: struct op, struct rank and struct channel of replay.c.
_OP = np.dtype(
    [
        ("gap_ns", "i8"),
        ("duration_ns", "i8"),
        ("cost_ns", "i4"),
        ("latency_ns", "i4"),
        ("depends_on", "i4"),
        ("stream", "i2"),
        ("kind", "u1"),
    ],
    align=True,
)
_RANK = np.dtype(
    [("program", "i4"), ("first_op", "i8"), ("first_stream", "i8"), ("first_channel", "i8")],
    align=True,
)
_CHANNEL = np.dtype(
    [("members", "i4"), ("card_count", "i4"), ("first_join", "i8"), ("first_card", "i8")],
    align=True,
)


class _Arrays:
    """A program as the C code reads it. `channels` are the local channels of its parts and
    `joins[i]` how many joins the calls on channel i reach through all repetitions."""

    def __init__(self, program: Program, repetitions: int) -> None:
        check(program)
        self.length = len(program.kind)
        on_stream = np.isin(program.kind, sorted(ON_STREAM))
        numbers = np.unique(program.stream[program.stream >= 0])
        self.stream_count = len(numbers)
        stream = np.where(program.stream < 0, -1, np.searchsorted(numbers, program.stream))
        of_stream = [np.flatnonzero(on_stream & (stream == s)) for s in range(len(numbers))]
        joins = sorted(program.parts)
        flat = [part for op in joins for part in program.parts[op]]
        local = [(p.communicator, p.peer, p.kind if p.peer >= 0 else "") for p in flat]
        self.channels: list[LocalChannel] = sorted(set(local))
        number = {channel: i for i, channel in enumerate(self.channels)}
        sequence = np.array([p.sequence for p in flat], np.int64)
        calls = np.array([p.calls for p in flat], np.int64)
        channel = np.array([number[c] for c in local], np.int32)
        self.joins = np.zeros(len(self.channels), np.int64)
        np.maximum.at(self.joins, channel, sequence + (repetitions - 1) * calls + 1)
        part_counts = np.zeros(self.length, np.int64)
        part_counts[joins] = [len(program.parts[op]) for op in joins]
        ops = np.zeros(self.length, _OP)
        ops["stream"] = stream
        for name in ("kind", "depends_on", "gap_ns", "duration_ns", "cost_ns", "latency_ns"):
            ops[name] = getattr(program, name)
        self._arrays: dict[str, NDArray] = {
            "ops": ops,
            "stream_start": _starts([len(of) for of in of_stream]),
            "stream_ops": np.concatenate([*of_stream, np.empty(0, int)]).astype(np.int32),
            "part_start": _starts(part_counts).astype(np.int32),
            "part_channel": channel,
            "part_sequence": sequence,
            "part_calls": calls,
        }

    def structure(self) -> _Program:
        pointers = {name: array.ctypes.data for name, array in self._arrays.items()}
        return _Program(self.length, self.stream_count, **pointers)


def replay(world: World) -> list[Timeline]:
    """Start and end of every op of every rank, by rank.

    Raises UnderstudyError, with who waits for whom, when ranks wait for each other for ever, and
    when the engine is not built.
    """
    programs = [_Arrays(program, world.repetitions) for program in world.programs]
    ranks, channel_of, channels, cards = _connect(world, programs)
    ops = np.array([programs[p.program].length * world.repetitions for p in world.placements])
    ranks["first_op"] = _starts(ops)[:-1]
    start, end = np.empty(int(ops.sum()), np.int64), np.empty(int(ops.sum()), np.int64)
    structures = (_Program * len(programs))(*(program.structure() for program in programs))
    code = _library().understudy_replay(
        ctypes.byref(
            _World(
                ranks=len(ranks),
                repetitions=world.repetitions,
                queue_depth=world.queue_depth,
                joins=int(channels["first_join"][-1]),
                card_numbers=int(cards.max(initial=-1)) + 1,
                programs=ctypes.addressof(structures),
                rank=ranks.ctypes.data,
                channel_of=channel_of.ctypes.data,
                channels=channels.ctypes.data,
                cards=cards.ctypes.data,
                start=start.ctypes.data,
                end=end.ctypes.data,
            )
        )
    )
    if code == _DEADLOCK:
        reference.replay(world)
        raise UnderstudyError("the engines disagree on a deadlock; please report this job")
    if code != _DONE:
        raise UnderstudyError(
            f"there is not enough memory to replay {len(ranks)} ranks with {len(start):,} ops"
        )
    shape = (world.repetitions, -1)
    bounds = _starts(ops).tolist()
    return [
        Timeline(start[a:b].reshape(shape), end[a:b].reshape(shape))
        for a, b in itertools.pairwise(bounds)
    ]


def _starts(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of several runs of these lengths starts, and the end of the last."""
    return np.concatenate(([0], np.cumsum(np.asarray(counts, np.int64)))).astype(np.int64)


def _connect(
    world: World, programs: Sequence[_Arrays]
) -> tuple[NDArray, NDArray[np.int64], NDArray, NDArray[np.int32]]:
    """Ranks (without first_op), their channels in the job's numbers, the channels, their cards.

    Channels, and so joins, are numbered by communicator, source, destination: ties between joins
    that ask for a network card at the same time do not depend on the order of ranks. A last entry
    of the channels holds the number of all joins.
    """
    of_rank = [
        [_channel(world, rank, place, local) for local in programs[place.program].channels]
        for rank, place in enumerate(world.placements)
    ]
    known = sorted({channel for channels in of_rank for channel in channels})
    number = {channel: i for i, channel in enumerate(known)}
    channel_of = np.array([number[c] for channels in of_rank for c in channels], np.int64)
    joins = np.zeros(len(known), np.int64)
    if len(channel_of):
        np.maximum.at(
            joins,
            channel_of,
            np.concatenate([programs[place.program].joins for place in world.placements]),
        )
    members = [
        world.members[communicator] if source < 0 else (source, destination)
        for communicator, source, destination in known
    ]
    cards = [_cards(world, ranks) for ranks in members]
    channels = np.zeros(len(known) + 1, _CHANNEL)
    channels["members"][:-1] = [len(ranks) for ranks in members]
    channels["card_count"][:-1] = [len(of_channel) for of_channel in cards]
    channels["first_join"] = _starts(joins)
    channels["first_card"] = _starts([len(of_channel) for of_channel in cards])
    ranks = np.zeros(len(world.placements), _RANK)
    ranks["program"] = [place.program for place in world.placements]
    used = [programs[place.program] for place in world.placements]
    ranks["first_stream"] = _starts([program.stream_count for program in used])[:-1]
    ranks["first_channel"] = _starts([len(program.channels) for program in used])[:-1]
    flat = [card for of_channel in cards for card in of_channel]
    return ranks, channel_of, channels, np.array(flat, np.int32)


def _channel(world: World, rank: int, place: Placement, local: LocalChannel) -> Channel:
    communicator = place.communicators[local[0]]
    if local[1] < 0:
        return (communicator, -1, -1)
    peer = world.members[communicator][local[1]]
    return (communicator, rank, peer) if local[2] == "send" else (communicator, peer, rank)


def _cards(world: World, ranks: Sequence[int]) -> tuple[int, ...]:
    """The network cards that these ranks use among themselves: none on one node."""
    placements = [world.placements[rank] for rank in ranks]
    if len({p.node for p in placements}) == 1:
        return ()
    return tuple(sorted({p.network_card for p in placements}))


@cache
def _library() -> ctypes.CDLL:
    if not LIBRARY.is_file():
        raise UnderstudyError(f"{LIBRARY}: the replay engine is not built; run `make build`")
    library = ctypes.CDLL(str(LIBRARY))
    library.understudy_replay.argtypes = [ctypes.c_void_p]
    library.understudy_replay.restype = ctypes.c_int
    return library
