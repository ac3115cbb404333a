"""Which calls of NCCL meet: those with one sequence number on one channel.

A channel is the collectives of one communicator, or what one of its ranks sends to another.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from understudy.errors import UnderstudyError
from understudy.simulation.world import HOST_JOINS, Part, Program, World

#: (communicator, source, destination) of the job; the latter two are -1 for collectives.
Channel = tuple[int, int, int]
#: The same as a rank's program has it: (communicator, peer, kind).
LocalChannel = tuple[int, int, str]
#: A channel and a sequence number, over all repetitions.
JoinKey = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class Calls:
    """The parts of a program in the order of its joins; arrays by part, but `joins` are ops and
    `first_part[i]` is where the parts of join i start (its last entry: their number)."""

    joins: Sequence[int]
    first_part: NDArray[np.int64]
    parts: Sequence[Part]
    channels: Sequence[LocalChannel]
    channel: NDArray[np.int64]  #: into `channels`
    sequence: NDArray[np.int64]
    is_host: NDArray[np.bool_]  #: hosts meet, not streams


_LOCAL_CHANNEL = attrgetter("communicator", "peer", "kind")
_SEQUENCE, _CALLS = attrgetter("sequence"), attrgetter("calls")


def calls_of(program: Program) -> Calls:
    """Raises UnderstudyError unless the calls on each channel are numbered 0, 1, ... calls - 1."""
    joins = sorted(program.parts)
    of_joins = [program.parts[op] for op in joins]
    parts = list(itertools.chain.from_iterable(of_joins))
    # Much of the time that a replay takes to prepare goes here: what a call is like is asked once
    # for all of its like.
    like = list(map(_LOCAL_CHANNEL, parts))
    number: dict[LocalChannel, int] = {}
    number_of = {
        (communicator, peer, kind): number.setdefault(
            (communicator, peer, kind if peer >= 0 else ""), len(number)
        )
        for communicator, peer, kind in dict.fromkeys(like)
    }
    channel = np.fromiter(map(number_of.__getitem__, like), np.int64, len(parts))
    sequence = np.fromiter(map(_SEQUENCE, parts), np.int64, len(parts))
    calls = np.fromiter(map(_CALLS, parts), np.int64, len(parts))
    channels = list(number)
    counts = np.bincount(channel, minlength=len(channels))
    order = np.lexsort((sequence, channel))
    expected = np.arange(len(parts)) - np.repeat(np.cumsum(counts) - counts, counts)
    wrong = (sequence[order] != expected) | (calls != counts[channel])[order]
    if wrong.any():
        communicator, peer, kind = channels[channel[order][np.argmax(wrong)]]
        what = f"{kind}s with rank {peer}" if peer >= 0 else "collectives"
        raise UnderstudyError(
            f"the {what} of communicator {communicator} of a program are not numbered from 0 to "
            "one less than their count; merge the job again"
        )
    lengths = np.fromiter(map(len, of_joins), np.int64, len(joins))
    first_part = np.concatenate(([0], np.cumsum(lengths)))
    host_kinds = {kind: kind in HOST_JOINS for _, _, kind in number_of}
    is_host = np.fromiter((host_kinds[kind] for _, _, kind in like), bool, len(parts))
    return Calls(joins, first_part, parts, channels, channel, sequence, is_host)


def channel_of(world: World, rank: int, local: LocalChannel) -> Channel:
    """The job's channel. Raises UnderstudyError when the job does not have it."""
    communicator, peer, kind = local
    try:
        of_job = world.placements[rank].communicators[communicator]
        other = world.members[of_job][peer] if peer >= 0 else -1
    except (KeyError, IndexError):
        with_rank = f" with rank {peer} of it" if peer >= 0 else ""
        raise UnderstudyError(
            f"rank {rank} calls NCCL on its communicator {communicator}{with_rank}, which the job "
            "does not have; merge it again"
        ) from None
    if peer < 0:
        return (of_job, -1, -1)
    return (of_job, rank, other) if kind == "send" else (of_job, other, rank)


def members_of(world: World, channel: Channel) -> tuple[int, ...]:
    """The ranks of a channel; one that sends to itself is in it twice."""
    communicator, source, destination = channel
    return tuple(world.members[communicator]) if source < 0 else (source, destination)


def cards_of(world: World, ranks: Sequence[int]) -> tuple[int, ...]:
    """The network cards that these ranks use among themselves: none on one node."""
    placements = [world.placements[rank] for rank in ranks]
    if not world.network_cards or len({p.node for p in placements}) == 1:
        return ()
    return tuple(sorted({p.network_card for p in placements}))


def join_keys(world: World, rank: int, position: int) -> list[JoinKey]:
    """Of each part of the join at `position`, counted over all repetitions."""
    program = world.programs[world.placements[rank].program]
    repetition, op = divmod(position, len(program.kind))
    return [
        (
            *channel_of(world, rank, (part.communicator, part.peer, part.kind)),
            part.sequence + repetition * part.calls,
        )
        for part in program.parts[op]
    ]
