"""Joins the ranks' views of their NCCL communicators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy.errors import UnderstudyError
from understudy.traces.interceptor import CommunicatorDefinition, RankTrace

_UniqueId = tuple[int, int]


@dataclass(frozen=True)
class Communicator:
    """A communicator of the job. `members` are global ranks in the communicator's order."""

    number: int
    parent: int | None
    description: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class CommunicatorMap:
    """All communicators by number, and per rank: number in the rank -> number in the job."""

    communicators: tuple[Communicator, ...]
    of_rank: Mapping[int, Mapping[int, int]]

    def members(self, rank: int, local: int) -> tuple[int, ...]:
        """Global ranks of the communicator that `rank` calls `local`."""
        return self.communicators[self.of_rank[rank][local]].members


@dataclass(frozen=True)
class _Resolver:
    """`seen`: unique id -> global rank -> that rank's definition; `ids`: rank -> local -> id."""

    seen: Mapping[_UniqueId, Mapping[int, CommunicatorDefinition]]
    ids: Mapping[int, Mapping[int, _UniqueId]]
    complete: bool

    def parent(self, unique_id: _UniqueId) -> _UniqueId | None:
        lowest = min(self.seen[unique_id])
        return self.ids[lowest].get(self.seen[unique_id][lowest].parent)

    def members(self, unique_id: _UniqueId) -> tuple[int, ...]:
        definitions = self.seen[unique_id]
        size = max(d.size for d in definitions.values())
        if size < 0:
            # A split orders its members by key, ties by their rank in the parent.
            parent = self.parent(unique_id)
            above = self.members(parent) if parent is not None else tuple(sorted(definitions))
            place = {rank: i for i, rank in enumerate(above)}
            key = lambda rank: (definitions[rank].key, place.get(rank, rank))  # noqa: E731
            return tuple(sorted(definitions, key=key))
        by_rank = {d.rank: rank for rank, d in definitions.items()}
        missing = [r for r in range(size) if r not in by_rank]
        if missing and self.complete:
            raise UnderstudyError(
                f"a communicator of {size} ranks that rank {min(definitions)} uses has no member "
                f"with communicator rank {', '.join(map(str, missing))}: that process never "
                "joined it; see the job's log"
            )
        return tuple(by_rank[r] for r in sorted(by_rank))


def resolve_communicators(traces: Sequence[RankTrace], complete: bool = True) -> CommunicatorMap:
    """Numbers the communicators of a job by lowest member and that member's order of creation.

    `complete` False: ranks ended early, members may be missing. Raises UnderstudyError when a
    communicator lacks members although all ranks ran to their end.
    """
    seen: dict[_UniqueId, dict[int, CommunicatorDefinition]] = {}
    for trace in traces:
        for definition in trace.communicators.values():
            seen.setdefault(definition.unique_id, {})[trace.rank] = definition
    ids = {t.rank: {d.id: d.unique_id for d in t.communicators.values()} for t in traces}
    resolver = _Resolver(seen, ids, complete)

    def order(unique_id: _UniqueId) -> tuple[int, int]:
        lowest = min(seen[unique_id])
        return lowest, seen[unique_id][lowest].id

    numbers = {unique_id: i for i, unique_id in enumerate(sorted(seen, key=order))}
    communicators = []
    for unique_id, number in numbers.items():
        parent = resolver.parent(unique_id)
        communicators.append(
            Communicator(
                number,
                None if parent is None else numbers[parent],
                seen[unique_id][min(seen[unique_id])].description,
                resolver.members(unique_id),
            )
        )
    of_rank = {
        rank: {local: numbers[unique_id] for local, unique_id in sorted(known.items())}
        for rank, known in ids.items()
    }
    return CommunicatorMap(tuple(communicators), of_rank)
