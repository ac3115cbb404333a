"""Host joins (making and ending of communicators) that not every member has in its program.

A program is a window of a run. It may begin between the calls by which two ranks make a
communicator, and a rank need not end what others end. Such calls order nothing between the ranks
that are replayed, so they are left as the host time that they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Calls that come at the end of a communicator: where some lack, the later ones do.
_ENDS = ("communicator_finalize", "communicator_destroy")


def unmatched(
    calls: Sequence[Mapping[int, tuple[int, str]]], members: Mapping[int, Sequence[int]]
) -> list[frozenset[int]]:
    """For each rank the ops of its host joins that have no partner on some member.

    `calls`: by rank, op -> (communicator of the job, kind), in program order; `members`: ranks of
    each communicator.
    """
    by_call: dict[tuple[int, str], dict[int, list[int]]] = {}
    for rank, of_rank in enumerate(calls):
        for op, call in of_rank.items():
            by_call.setdefault(call, {}).setdefault(rank, []).append(op)
    dropped: list[set[int]] = [set() for _ in calls]
    for (communicator, kind), ops in by_call.items():
        common = min(len(ops.get(rank, ())) for rank in members[communicator])
        for rank, of_rank in ops.items():
            surplus = len(of_rank) - common
            dropped[rank].update(of_rank[common:] if kind in _ENDS else of_rank[:surplus])
    return [frozenset(ops) for ops in dropped]
