"""One rank of a measured run: its host calls, the work of its device and its steps.

Times are integer nanoseconds from one base for all ranks of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

WorkKind = Literal["kernel", "copy", "memset"]


@dataclass(eq=False, slots=True)
class Work:
    """A kernel, copy or memset. `call` made it; None where the trace does not say which."""

    stream: int
    kind: WorkKind
    name: str
    start_ns: int
    end_ns: int
    call: Call | None = None
    collective: str = ""  #: e.g. all_reduce; empty: not a collective, or not known which
    communicator: str = ""  #: name of the process group; empty: not known
    members: tuple[int, ...] = ()  #: global ranks of the process group; empty: not known
    size_bytes: int | None = None
    grid: tuple[int, ...] | None = None

    @property
    def is_collective(self) -> bool:
        return self.kind == "kernel" and self.name.startswith(("nccl", "rccl"))


@dataclass(eq=False, slots=True)
class Call:
    """A call of the CUDA or HIP runtime or driver, `name` without its prefix (`LaunchKernel`)."""

    thread: str
    name: str
    start_ns: int
    end_ns: int
    correlation: int = -1
    work: list[Work] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wait:
    """What a waiting call waits for, where the profiler recorded it (Kineto's `cuda_sync`).

    The calls that `source` (None: every stream) had got before the call with correlation
    `recorded_by` (None: before the wait itself).
    """

    source: int | None
    recorded_by: int | None


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class MeasuredRank:
    """`calls` and `work` are ordered by start; `waits` is keyed by the correlation of the call."""

    rank: int
    calls: Sequence[Call]
    work: Sequence[Work]
    steps: Sequence[Step]
    waits: dict[int, Wait] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredRun:
    """The ranks of one run that have a trace, by rank; `world_size` counts those without too."""

    ranks: Sequence[MeasuredRank]
    world_size: int
