"""Numbers the calls on each communicator and compares them across its members.

NCCL matches collectives by the order of the calls on a communicator, whatever they are, and sends
with receives by their order from one rank to another. Calls that do not agree hang or corrupt
memory on real GPUs, so the first difference is an error here, before anything is simulated. What
members do together on the host (making and ending communicators) counts as a collective.

Communicators are those of the job: emulation has joined the ranks' views of them by NCCL's unique
id, or for a split by its parent's, the number of the split and its color; never by handle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from understudy.errors import UnderstudyError
from understudy.merging.codes import Codes, integers, positions_in_group, text_codes

#: Members must agree on these; the first differing one is reported.
_COMPARED = ("kind", "size_bytes", "dtype", "reduce_op", "root")


@dataclass(frozen=True)
class _Difference:
    op: int
    message: str


def number_calls(parts: pa.Table) -> pa.Table:
    """`collective_parts` with `sequence` as matching needs it, whatever the capture counted.

    Collectives are numbered per program and communicator over all kinds, sends and receives per
    program, communicator, direction and peer. Rows must be ordered by (program, group, part).
    """
    peer = integers(parts, "peer")
    kinds, names = text_codes(parts, "kind")
    direction = np.where(peer < 0, -1, kinds)
    for_collectives = {n for n in names if n not in ("send", "recv")}
    is_collective = np.isin(kinds, [i for i, n in enumerate(names) if n in for_collectives])
    if not np.array_equal(is_collective, peer < 0):
        raise UnderstudyError(
            "collective_parts names a peer for a collective or none for a send; emulate again"
        )
    sequence = positions_in_group(
        integers(parts, "program"), integers(parts, "communicator_local"), peer, direction
    )
    column = parts.schema.get_field_index("sequence")
    return parts.set_column(column, parts.schema.field("sequence"), pa.array(sequence))


def check_collectives(
    parts: pa.Table, events: pa.Table, communicators: pa.Table, ranks: pa.Table
) -> None:
    """Raise UnderstudyError at the first call that does not agree between two ranks, with where
    each of the two makes it.

    Compared are kind, size, dtype, reduction, root and the number of calls of each member, and for
    sends and receives that each has its partner, of the same size and dtype. `parts` must be
    numbered by `number_calls`, `events` sorted by (program, op), with one program per rank.
    """
    if parts.num_rows == 0:
        return
    calls = _Calls(parts, events, communicators, ranks)
    differences = [
        difference
        for communicator in np.unique(calls.communicator).tolist()
        for difference in (
            calls.collective_difference(communicator),
            calls.pair_difference(communicator),
        )
        if difference is not None
    ]
    if differences:
        raise UnderstudyError(min(differences, key=lambda d: d.op).message)


class _Calls:
    """All parts of a job as integer columns, with ranks and communicators of the job."""

    def __init__(
        self, parts: pa.Table, events: pa.Table, communicators: pa.Table, ranks: pa.Table
    ) -> None:
        self.members: dict[int, list[int]] = {
            row["communicator"]: row["members"] for row in communicators.to_pylist()
        }
        self.labels = {
            row["communicator"]: row["name"] or row["description"]
            for row in communicators.to_pylist()
        }
        rank_of, communicator_of = {}, {}
        for row in ranks.to_pylist():
            rank_of[row["program"]] = row["rank"]
            communicator_of[row["rank"]] = dict(row["communicator_map"])
        program = integers(parts, "program")
        local = integers(parts, "communicator_local")
        self.rank = _mapped(program, rank_of)
        self.communicator = np.zeros(parts.num_rows, np.int64)
        for rank in np.unique(self.rank).tolist():
            rows = self.rank == rank
            known: Mapping[int, int] = communicator_of[rank]
            for number in np.unique(local[rows]).tolist():
                communicator = known.get(number)
                if communicator is None or rank not in self.members.get(communicator, ()):
                    raise UnderstudyError(
                        f"rank {rank} calls communicator {number} (its own number), of which it "
                        "is no known member; emulate the job again"
                    )
                self.communicator[rows & (local == number)] = communicator
        self.op = integers(parts, "group")
        starts = np.searchsorted(integers(events, "program"), program)
        self.iteration = integers(events, "iteration")[starts + self.op]
        self.peer = integers(parts, "peer")
        self.sequence = integers(parts, "sequence")
        kind, self.kinds = text_codes(parts, "kind")
        dtype, self.dtypes = text_codes(parts, "dtype")
        reduce_op, self.reduce_ops = text_codes(parts, "reduce_op")
        self.compared = np.stack(
            [kind, integers(parts, "size_bytes"), dtype, reduce_op, integers(parts, "root")], axis=1
        )

    def collective_difference(self, communicator: int) -> _Difference | None:
        """The first collective that two members of the communicator do not agree on."""
        members = self.members[communicator]
        rows = np.flatnonzero((self.communicator == communicator) & (self.peer < 0))
        rows = rows[np.lexsort((self.sequence[rows], self.rank[rows]))]
        per_member = [rows[self.rank[rows] == m] for m in members]
        common = min(len(r) for r in per_member)
        first = np.stack([r[:common] for r in per_member])  # [members, calls]
        values = self.compared[first]  # [members, calls, compared]
        differs = (values != values[0]).any(axis=2)
        if differs.any():
            call = int(np.flatnonzero(differs.any(axis=0))[0])
            member = int(np.flatnonzero(differs[:, call])[0])
            one, other = int(first[0, call]), int(first[member, call])
            column = int(np.flatnonzero(self.compared[one] != self.compared[other])[0])
            return _Difference(
                int(self.op[one]),
                f"call {call} on {self._name(communicator)} differs in {_COMPARED[column]}: "
                f"{self._call(one)}, but {self._call(other)}. {_ADVICE}",
            )
        longest = max(range(len(members)), key=lambda i: len(per_member[i]))
        shortest = min(range(len(members)), key=lambda i: len(per_member[i]))
        if len(per_member[longest]) > common:
            extra = int(per_member[longest][common])
            return _Difference(
                int(self.op[extra]),
                f"rank {members[longest]} makes {len(per_member[longest])} calls on "
                f"{self._name(communicator)}, rank {members[shortest]} makes {common}: the first "
                f"without a partner is call {common}, {self._call(extra)}. {_ADVICE}",
            )
        return None

    def pair_difference(self, communicator: int) -> _Difference | None:
        """The first send or receive of the communicator without a partner that agrees."""
        members = np.array(self.members[communicator], np.int64)
        rows = np.flatnonzero((self.communicator == communicator) & (self.peer >= 0))
        if len(rows) == 0:
            return None
        if self.peer[rows].max() >= len(members):
            row = int(rows[np.argmax(self.peer[rows])])
            return _Difference(
                int(self.op[row]),
                f"{self._call(row)}, but {self._name(communicator)} has {len(members)} ranks.",
            )
        sends = self.compared[rows, 0] == (self.kinds.index("send") if "send" in self.kinds else -1)
        peers = members[self.peer[rows]]
        source = np.where(sends, self.rank[rows], peers)
        target = np.where(sends, peers, self.rank[rows])
        key = np.stack([source, target, self.sequence[rows]], axis=1)
        order = np.lexsort((~sends, key[:, 2], key[:, 1], key[:, 0]))
        key, rows, sends = key[order], rows[order], sends[order]
        pairs = len(rows) // 2
        one, two = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        matched = (key[one] == key[two]).all(axis=1) & sends[one] & ~sends[two]
        if not matched.all() or len(rows) % 2:
            row = int(rows[2 * (int(np.argmin(matched)) if not matched.all() else pairs)])
            return _Difference(
                int(self.op[row]),
                f"{self._call(row)} on {self._name(communicator)}, without a partner there. "
                f"{_ADVICE}",
            )
        sizes, dtypes = self.compared[:, 1], self.compared[:, 2]
        differs = (sizes[rows[one]] != sizes[rows[two]]) | (dtypes[rows[one]] != dtypes[rows[two]])
        if differs.any():
            pair = int(np.flatnonzero(differs)[0])
            send, receive = int(rows[2 * pair]), int(rows[2 * pair + 1])
            return _Difference(
                int(self.op[send]),
                f"a send and its receive on {self._name(communicator)} differ: "
                f"{self._call(send)}, but {self._call(receive)}. {_ADVICE}",
            )
        return None

    def _call(self, row: int) -> str:
        kind, size, dtype, reduce_op, root = self.compared[row].tolist()
        name = self.kinds[kind]
        if self.peer[row] >= 0:
            name += f" {self.sequence[row]}"
        what = f"{name} of {size} bytes {self.dtypes[dtype]}".rstrip()
        if self.reduce_ops[reduce_op]:
            what += f" {self.reduce_ops[reduce_op]}"
        if root >= 0:
            what += f" root {root}"
        if self.peer[row] >= 0:
            peer = int(self.peer[row])
            what += f" {'to' if self.kinds[kind] == 'send' else 'from'} its rank {peer}"
        where = f"op {self.op[row]} of iteration {self.iteration[row]}"
        return f"rank {self.rank[row]} at {where} calls {what}"

    def _name(self, communicator: int) -> str:
        label = self.labels[communicator]
        return f"communicator {communicator}" + (f" ({label})" if label else "")


_ADVICE = "All ranks must make the same calls in the same order."


def _mapped(values: Codes, mapping: Mapping[int, int]) -> Codes:
    unique, inverse = np.unique(values, return_inverse=True)
    unknown: Sequence[int] = [v for v in unique.tolist() if v not in mapping]
    if unknown:
        raise UnderstudyError(f"collective_parts names programs of no rank: {unknown}")
    return np.array([mapping[v] for v in unique.tolist()], np.int64)[inverse]
