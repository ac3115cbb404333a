"""Replays the programs of all ranks with given durations: the engine, in C.

`native/replay.c` does the work; world.py has the rules and reference.py the same in Python. Here a
world becomes the arrays that the C code reads, and everything that it relies on is checked.

`replay` gives every start and end. `sweep` replays one world with many sets of durations, scales
and delays, gives the ends of repetitions only, and needs memory for the programs and for what is
under way, not for every op: a point of 4,096 ranks and 10^9 ops fits into a fraction of a gigabyte.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from understudy.errors import UnderstudyError
from understudy.simulation.channels import calls_of, cards_of, channel_of, members_of
from understudy.simulation.deadlock import Stuck, describe_deadlock
from understudy.simulation.world import (
    Point,
    Program,
    Timeline,
    World,
    check,
    check_point,
)

LIBRARY = Path(__file__).resolve().parent / "native" / "build" / "libreplay.so"

_DONE, _DEADLOCK = range(2)
_MAX_STREAMS = 2**15


class _Structure(ctypes.Structure):
    """A struct of replay.c; the arrays that it points to live as long as it does."""

    _keeps: tuple[object, ...]


def _pointers(*names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, ctypes.c_void_p) for name in names)


def _integers(*names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, ctypes.c_int64) for name in names)


class _Columns(_Structure):
    _fields_ = (
        *_integers("length", "stream_count", "first_duration"),
        *_pointers("kind", "stream", "depends_on", "gap_ns", "cost_ns", "latency_ns"),
        *_pointers("duration", "first_part", "parts"),
    )


class _World(_Structure):
    _fields_ = (
        *_integers("programs", "ranks", "streams", "channels", "card_numbers"),
        *_integers("repetitions", "queue_depth"),
        *_pointers("columns", "rank", "channel_of", "channel", "cards"),
    )


class _Run(_Structure):
    _fields_ = _pointers(
        "durations",
        "host_scale",
        "compute_scale",
        "delays",
        "start",
        "end",
        "repetition_end",
        "host_position",
        "stream_ended",
    )


_PART = np.dtype(
    [("channel", "i4"), ("sequence", "i4"), ("calls", "i4"), ("last", "?"), ("host", "?")],
    align=True,
)
_RANK = np.dtype(
    [("program", "i4"), ("first_op", "i8"), ("first_stream", "i8"), ("first_channel", "i8")],
    align=True,
)
_CHANNEL = np.dtype([("members", "i4"), ("card_count", "i4"), ("first_card", "i8")], align=True)


class _Program:
    """A program as the C code reads it. `channels` are the local channels of its parts."""

    def __init__(self, program: Program) -> None:
        self.length = len(program.kind)
        stream, self.stream_count = _numbered(program.stream)
        if self.stream_count > _MAX_STREAMS:
            raise UnderstudyError(
                f"a program has {self.stream_count} streams; the engine takes {_MAX_STREAMS}"
            )
        calls = calls_of(program)
        self.channels = calls.channels
        self.first_part = calls.first_part.astype(np.int32)
        self.parts = np.zeros(len(calls.parts), _PART)
        self.parts["channel"] = calls.channel
        self.parts["sequence"] = calls.sequence
        self.parts["calls"] = np.bincount(calls.channel, minlength=1)[calls.channel]
        self.parts["host"] = calls.is_host
        self.parts["last"][self.first_part[1:] - 1] = True
        self.columns = {
            name: np.ascontiguousarray(getattr(program, name), np.int64)
            for name in ("kind", "depends_on", "gap_ns", "cost_ns", "latency_ns")
        } | {"stream": stream}

    def structure(self, first_duration: int, duration: NDArray[np.int32] | None) -> _Columns:
        return _Columns(
            length=self.length,
            stream_count=self.stream_count,
            first_duration=first_duration,
            duration=None if duration is None else duration.ctypes.data,
            first_part=self.first_part.ctypes.data,
            parts=self.parts.ctypes.data,
            **{name: column.ctypes.data for name, column in self.columns.items()},
        )


def _numbered(stream: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Streams numbered from 0 in the order of their own numbers, and how many there are."""
    numbers = np.unique(stream[stream >= 0])
    if np.array_equal(numbers, np.arange(len(numbers))):
        return np.maximum(stream, -1), len(numbers)
    return np.where(stream < 0, -1, np.searchsorted(numbers, stream)), len(numbers)


class _Job:
    """A world as the C code has loaded it, to be replayed any number of times.

    `by_signature`: the durations of a replay are by signature, otherwise the world's own.
    """

    def __init__(self, world: World, *, by_signature: bool) -> None:
        check(world)
        self.world = world
        self._programs = [_Program(program) for program in world.programs]
        ranks, channel_numbers, channels, cards = _connect(world, self._programs)
        used = [self._programs[place.program] for place in world.placements]
        self.bounds = _starts([program.length * world.repetitions for program in used])
        ranks["first_op"] = self.bounds[:-1]
        self.streams = int(sum(program.stream_count for program in used))
        first_durations, indices = _own_durations(world.programs)
        if by_signature:
            indices, self.signatures, self.constants_ns = _by_signature(world.programs)
        columns = (_Columns * len(self._programs))(
            *map(_Program.structure, self._programs, first_durations, indices)
        )
        self._structure = _World(
            programs=len(self._programs),
            ranks=len(ranks),
            streams=self.streams,
            channels=len(channels),
            card_numbers=int(cards.max(initial=-1)) + 1,
            repetitions=world.repetitions,
            queue_depth=world.queue_depth,
            columns=ctypes.addressof(columns),
            rank=ranks.ctypes.data,
            channel_of=channel_numbers.ctypes.data,
            channel=channels.ctypes.data,
            cards=cards.ctypes.data,
        )
        self._structure._keeps = (columns, indices, ranks, channel_numbers, channels, cards)
        self._handle = _library().understudy_load(ctypes.byref(self._structure))
        if not self._handle:
            raise _no_memory(world)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            _library().understudy_unload(self._handle)

    def ends(self, varied: World | Point, durations_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The end of each repetition of each rank. `durations_ns` as the programs index them."""
        return self._run(_library().understudy_sweep, varied, durations_ns)

    def timelines(self) -> list[Timeline]:
        """Start and end of every op, with the world's own durations."""
        durations_ns = np.concatenate([[0], *(p.duration_ns for p in self.world.programs)])
        start, end = (np.empty(int(self.bounds[-1]), np.int64) for _ in range(2))
        self._run(_library().understudy_replay, self.world, durations_ns, start, end)
        shape = (self.world.repetitions, -1)
        return [
            Timeline(start[a:b].reshape(shape), end[a:b].reshape(shape))
            for a, b in itertools.pairwise(self.bounds.tolist())
        ]

    def _run(
        self,
        function: ctypes._NamedFuncPointer,
        varied: World | Point,
        durations_ns: NDArray[np.int64],
        start: NDArray[np.int64] | None = None,
        end: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        ranks = len(self.world.placements)
        durations_ns = np.ascontiguousarray(durations_ns, np.int64)
        scales = [
            np.asarray(scale, float) if len(scale) else np.ones(ranks)
            for scale in (varied.host_scale, varied.compute_scale)
        ]
        delays = sorted((d.rank, d.repetition, d.op, d.delay_ns) for d in varied.delays)
        delay_rows = np.array([*delays, (-1, 0, 0, 0)], np.int64)
        repetition_end = np.zeros((ranks, self.world.repetitions), np.int64)
        host_position, stream_ended = np.zeros(ranks, np.int64), np.zeros(self.streams, np.int64)
        code = function(
            self._handle,
            ctypes.byref(
                _Run(
                    durations=durations_ns.ctypes.data,
                    host_scale=scales[0].ctypes.data,
                    compute_scale=scales[1].ctypes.data,
                    delays=delay_rows.ctypes.data,
                    start=None if start is None else start.ctypes.data,
                    end=None if end is None else end.ctypes.data,
                    repetition_end=repetition_end.ctypes.data,
                    host_position=host_position.ctypes.data,
                    stream_ended=stream_ended.ctypes.data,
                )
            ),
        )
        if code == _DEADLOCK:
            counts = [self._programs[p.program].stream_count for p in self.world.placements]
            ended = np.split(stream_ended, np.cumsum(counts)[:-1])
            stuck = Stuck(host_position.tolist(), [of_rank.tolist() for of_rank in ended])
            raise UnderstudyError(describe_deadlock(self.world, stuck))
        if code != _DONE:
            raise _no_memory(self.world)
        return repetition_end


def replay(world: World) -> list[Timeline]:
    """Start and end of every op of every rank, by rank.

    Raises UnderstudyError, with who waits for whom, when ranks wait for each other for ever, when
    the world breaks a rule of world.py, and when the engine is not built.
    """
    return _Job(world, by_signature=False).timelines()


def sweep(world: World, points: Sequence[Point], processes: int = 1) -> NDArray[np.int64]:
    """The end of each repetition: [points, ranks, repetitions], ns, the latest of all its ops.

    Each point replays `world` with its own durations, scales and delays. With several `processes`
    the points are shared out to forks of this one. Raises as `replay` does; a deadlock names its
    point.
    """
    job = _Job(world, by_signature=True)
    for point in points:
        check_point(world, point)
    if processes > 1 and len(points) > 1:
        ends = _in_processes(job, points, min(processes, len(points)))
    else:
        ends = [_point_ends(job, number, point) for number, point in enumerate(points)]
    return np.array(ends, np.int64).reshape(len(points), len(world.placements), world.repetitions)


def _point_ends(job: _Job, number: int, point: Point) -> NDArray[np.int64]:
    signatures = job.signatures
    durations_ns = np.concatenate([[0], point.durations_ns[:signatures], job.constants_ns])
    try:
        return job.ends(point, durations_ns)
    except UnderstudyError as error:
        raise UnderstudyError(f"point {number} of the sweep: {error}") from None


class _Shared:
    """What the forks of a sweep have from their parent."""

    job: _Job
    points: Sequence[Point]


def _share(job: _Job, points: Sequence[Point]) -> None:
    _Shared.job, _Shared.points = job, points


def _shared_point_ends(number: int) -> NDArray[np.int64]:
    return _point_ends(_Shared.job, number, _Shared.points[number])


def _in_processes(job: _Job, points: Sequence[Point], processes: int) -> list[NDArray[np.int64]]:
    # Forked, so that the programs are there without being copied.
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(processes, context, _share, (job, points)) as pool:
            return list(pool.map(_shared_point_ends, range(len(points))))
    except BrokenProcessPool:
        raise UnderstudyError(
            "a process of the sweep was ended from outside, likely for want of memory; sweep with "
            "fewer processes"
        ) from None


# --- what the C code reads ---------------------------------------------------------------------


def _own_durations(
    programs: Sequence[Program],
) -> tuple[list[int], list[NDArray[np.int32] | None]]:
    """Where each program's durations start when they follow each other after a zero."""
    starts = 1 + _starts([len(program.kind) for program in programs])
    return starts[:-1].tolist(), [None] * len(programs)


def _by_signature(
    programs: Sequence[Program],
) -> tuple[list[NDArray[np.int32] | None], int, NDArray[np.int64]]:
    """Index of each op's duration into: a zero, those by signature, those of ops without one.

    Also the number of signatures, and the durations of ops without one.
    """
    signature = [np.full(len(p.kind), -1) if p.signature is None else p.signature for p in programs]
    signatures = 1 + max((int(s.max(initial=-1)) for s in signature), default=-1)
    constants, number = np.unique(
        np.concatenate([p.duration_ns[s < 0] for p, s in zip(programs, signature, strict=True)]),
        return_inverse=True,
    )
    indices: list[NDArray[np.int32] | None] = []
    taken = 0
    for of_program in signature:
        index = 1 + of_program
        unsigned = np.flatnonzero(of_program < 0)
        index[unsigned] = 1 + signatures + number[taken : taken + len(unsigned)]
        taken += len(unsigned)
        indices.append(index.astype(np.int32))
    return indices, signatures, constants


def _starts(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of several runs of these lengths starts, and the end of the last."""
    return np.concatenate(([0], np.cumsum(np.asarray(counts, np.int64)))).astype(np.int64)


def _connect(
    world: World, programs: Sequence[_Program]
) -> tuple[NDArray, NDArray[np.int64], NDArray, NDArray[np.int32]]:
    """Ranks (without first_op), their channels in the job's numbers, the channels, their cards.

    Channels are numbered by communicator, source, destination: ties between joins that ask for a
    network card at the same time do not depend on the order of ranks.
    """
    of_rank = [
        [channel_of(world, rank, local) for local in programs[place.program].channels]
        for rank, place in enumerate(world.placements)
    ]
    known = sorted({channel for channels in of_rank for channel in channels})
    number = {channel: i for i, channel in enumerate(known)}
    channel_numbers = np.array([number[c] for channels in of_rank for c in channels], np.int64)
    members = [members_of(world, channel) for channel in known]
    cards = [cards_of(world, ranks) for ranks in members]
    channels = np.zeros(len(known), _CHANNEL)
    channels["members"] = [len(ranks) for ranks in members]
    channels["card_count"] = [len(of_channel) for of_channel in cards]
    channels["first_card"] = _starts([len(of_channel) for of_channel in cards])[:-1]
    ranks = np.zeros(len(world.placements), _RANK)
    ranks["program"] = [place.program for place in world.placements]
    used = [programs[place.program] for place in world.placements]
    ranks["first_stream"] = _starts([program.stream_count for program in used])[:-1]
    ranks["first_channel"] = _starts([len(program.channels) for program in used])[:-1]
    flat = [card for of_channel in cards for card in of_channel]
    return ranks, channel_numbers, channels, np.array(flat, np.int32)


def _no_memory(world: World) -> UnderstudyError:
    ops = sum(len(world.programs[p.program].kind) for p in world.placements) * world.repetitions
    return UnderstudyError(
        f"there is not enough memory to replay {len(world.placements)} ranks with {ops:,} ops"
    )


@cache
def _library() -> ctypes.CDLL:
    if not LIBRARY.is_file():
        raise UnderstudyError(f"{LIBRARY}: the replay engine is not built; run `make build`")
    library = ctypes.CDLL(str(LIBRARY))
    library.understudy_load.argtypes = [ctypes.c_void_p]
    library.understudy_load.restype = ctypes.c_void_p
    library.understudy_unload.argtypes = [ctypes.c_void_p]
    library.understudy_unload.restype = None
    for function in (library.understudy_replay, library.understudy_sweep):
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        function.restype = ctypes.c_int
    return library
