"""What NCCL calls do: groups, joins of several ranks, the making and ending of communicators.

* Calls between the outermost ncclGroupStart and ncclGroupEnd of a thread are issued at its end, in
  the order of the calls. The sends and receives of one communicator become one op, collectives one
  each (NCCL, "Group Calls").
* A group over several streams waits for all of them and blocks all of them (same page, "Mixing
  multiple streams within the same ncclGroupStart/End() group"). The ops of one communicator run on
  the first stream that the group gave it.
* A communicator of one member does nothing in place and copies otherwise.
* ncclCommInitRank, ncclCommSplit, ncclCommFinalize and ncclCommDestroy block the host until every
  member has called: a join on a stream of their own, for which the host waits. A split joins the
  parent's members, a shrink those that stay. Ending a communicator waits for its operations first;
  ncclCommDestroy after ncclCommFinalize and ncclCommAbort wait for nobody.
* Empty sends and receives are messages like others (PyTorch's uneven all-to-all makes them); empty
  collectives do nothing and are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from understudy import kernels
from understudy.emulation.lowering.ops import Part
from understudy.emulation.lowering.order import Order, Queue
from understudy.emulation.lowering.signing import Signatures
from understudy.traces.interceptor import (
    COLLECTIVE_KINDS,
    NCCL_DTYPES,
    REDUCE_OPS,
    Api,
    CommunicatorDefinition,
    CopyKind,
)

_NO_ROOT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_REDUCES = ("all_reduce", "reduce", "reduce_scatter")
#: Collectives whose nccl-tests size is the count argument times the number of ranks.
_SIZE_PER_RANK = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")

_HOST_JOIN_OF_API = {
    Api.COMMUNICATOR_INIT: "communicator_init",
    Api.COMMUNICATOR_SPLIT: "communicator_split",
    Api.COMMUNICATOR_FINALIZE: "communicator_finalize",
    Api.COMMUNICATOR_DESTROY: "communicator_destroy",
}
#: Key of the stream on which host joins meet.
_HOST_JOINS = "host joins"


class Place(NamedTuple):
    """Where a communicator's members are: the node of each, and which of them this rank is."""

    nodes: tuple[int, ...]
    rank: int


class _Call(NamedTuple):
    part: Part
    stream: int


class _Group:
    """The calls of a thread's open group."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.host_joins: list[Part] = []


def _name(names: tuple[str, ...], number: int, other: str) -> str:
    return names[number] if number < len(names) else other


class Communication:
    """The NCCL calls of a rank. `queue_of` says what takes the work of a stream."""

    def __init__(
        self,
        order: Order,
        signatures: Signatures,
        queue_of: Callable[[int], Queue],
        places: Mapping[int, Place],
        communicators: Mapping[int, CommunicatorDefinition],
    ) -> None:
        self._order = order
        self._signatures = signatures
        self._queue_of = queue_of
        self._places = places
        self._communicators = communicators
        self._groups: dict[int, _Group] = {}  # by thread
        self._finalized: set[int] = set()
        self._last: dict[
            int, tuple[int, int]
        ] = {}  # communicator -> stream and op of its last work

    # --- calls ---

    def collective(
        self, stream: int, communicator: int, a: int, size_bytes: int, dtype: int, in_place: bool
    ) -> None:
        """A collective; `a` and `dtype` as in its record."""
        kind = COLLECTIVE_KINDS[a & 0xFF]
        if self._alone(communicator):
            if not in_place:
                self._copy(stream, size_bytes)
            return
        part = Part(
            kind,
            communicator,
            -1,
            size_bytes,
            _name(NCCL_DTYPES, dtype, "uint8"),
            _name(REDUCE_OPS, a >> 40, "user") if kind in _REDUCES else "",
            -1 if kind in _NO_ROOT else (a >> 8) & 0xFFFFFFFF,
        )
        self._issue(stream, part)

    def message(
        self, kind: str, stream: int, communicator: int, peer: int, size_bytes: int, dtype: int
    ) -> None:
        """A send or recv."""
        if self._alone(communicator):
            if kind == "send" and size_bytes:
                self._copy(stream, size_bytes)
            return
        part = Part(
            kind, communicator, peer, size_bytes, _name(NCCL_DTYPES, dtype, "uint8"), "", -1
        )
        self._issue(stream, part)

    def host_join(self, api: int, communicator: int, parent: int) -> None:
        """The making or ending of a communicator; `communicator` 0: a split that leaves this rank
        without one."""
        joined = communicator
        if api == Api.COMMUNICATOR_SPLIT:
            # The size of a split's child is not known before the ranks are joined, a shrink's is.
            definition = self._communicators.get(communicator)
            shrunk = definition is not None and definition.size >= 0
            joined = communicator if shrunk else parent
        if joined not in self._places or self._alone(joined) or joined in self._finalized:
            return
        if api == Api.COMMUNICATOR_FINALIZE:
            self._finalized.add(joined)
        part = Part(_HOST_JOIN_OF_API[Api(api)], joined, -1, 0, "", "", -1)
        group = self._groups.get(self._order.thread)
        if group is not None:
            group.host_joins.append(part)
        else:
            self._wait_for_members(part)

    def start_group(self) -> None:
        """The outermost ncclGroupStart of the current thread."""
        self._groups.setdefault(self._order.thread, _Group())

    def end_group(self) -> None:
        """The outermost ncclGroupEnd of the current thread."""
        group = self._groups.pop(self._order.thread, None)
        if group is None:
            return
        for part in group.host_joins:
            self._wait_for_members(part)
        streams = list(dict.fromkeys(call.stream for call in group.calls))
        if not streams:
            return
        queue = self._queue_of(streams[0])
        if len(streams) > 1:
            queue.meet(streams)
        for stream, parts in _joins(group.calls):
            self._join(queue, stream, parts)
        if len(streams) > 1:
            queue.meet(streams)

    # --- ops ---

    def _alone(self, communicator: int) -> bool:
        return len(self._places[communicator].nodes) == 1

    def _copy(self, stream: int, size_bytes: int) -> None:
        number = self._signatures.copy(CopyKind.D2D, size_bytes, pinned=False)
        self._queue_of(stream).device(stream, number)

    def _issue(self, stream: int, part: Part) -> None:
        group = self._groups.get(self._order.thread)
        if group is not None:
            group.calls.append(_Call(part, stream))
        else:
            self._join(self._queue_of(stream), stream, [part])

    def _join(self, queue: Queue, stream: int, parts: Sequence[Part]) -> None:
        op = queue.join(stream, self._signature(parts), parts)
        if queue is self._order:
            self._last[parts[0].communicator] = (stream, op)

    def _wait_for_members(self, part: Part) -> None:
        ends = part.kind in ("communicator_finalize", "communicator_destroy")
        if ends and part.communicator in self._last:
            self._order.host_wait(*self._last[part.communicator])
        stream = self._order.private_stream(_HOST_JOINS)
        op = self._order.on_stream("join", stream, parts=[part])
        self._order.host_wait(stream, op)

    def _signature(self, parts: Sequence[Part]) -> int:
        first = parts[0]
        nodes, own = self._places[first.communicator]
        if first.kind in COLLECTIVE_KINDS:
            scale = len(nodes) if first.kind in _SIZE_PER_RANK else 1
            size_bytes = first.size_bytes * scale
            key = (first.kind, first.dtype, size_bytes, len(nodes), len(set(nodes)))
        else:
            # What a rank sends to itself is copied in the same kernel; the wire is slower.
            others = [p for p in parts if p.peer != own] or list(parts)
            sent = sum(p.size_bytes for p in others if p.kind == "send")
            received = sum(p.size_bytes for p in others if p.kind == "recv")
            members = {own, *(p.peer for p in others)}
            # Merging reports a peer that does not exist.
            spanned = len({nodes[member] for member in members if member < len(nodes)})
            key = ("send_recv", first.dtype, max(sent, received), len(members), spanned)
        return self._signatures.memoized(key, lambda: kernels.signature_of_collective(*key))


def _joins(calls: Sequence[_Call]) -> list[tuple[int, list[Part]]]:
    """(stream, parts) of each op of a group."""
    stream_of: dict[int, int] = {}
    messages: dict[int, list[Part]] = {}
    joins: list[tuple[int, list[Part]]] = []
    for part, given in calls:
        stream = stream_of.setdefault(part.communicator, given)
        if part.peer < 0:
            joins.append((stream, [part]))
        elif part.communicator in messages:
            messages[part.communicator].append(part)
        else:
            messages[part.communicator] = [part]
            joins.append((stream, messages[part.communicator]))
    return joins
