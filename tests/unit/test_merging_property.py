"""Merging of random jobs: whatever agrees passes, any one change is found where it was made."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.job_tables import ADD, collective, device, emulated, exchange
from understudy.errors import UnderstudyError
from understudy.merging import merge

_ROOTED = ("broadcast", "reduce")
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_KINDS = (*_ROOTED, "all_reduce", "reduce_scatter", "all_gather", "communicator_split")


@dataclass(frozen=True)
class Job:
    """`ops` by rank, `members` by communicator."""

    members: list[list[int]]
    ops: list[list[dict[str, Any]]]

    def local(self, rank: int, communicator: int) -> int:
        """The number by which a rank knows a communicator."""
        known = [c for c, members in enumerate(self.members) if rank in members]
        return known.index(communicator) + 1

    def tables(self) -> dict[str, Any]:
        return emulated(self.ops, members=self.members)


@st.composite
def consistent_jobs(draw: st.DrawFn) -> Job:
    """Ranks that make the calls of one global order, each those that it takes part in."""
    ranks = draw(st.integers(2, 4))
    group = st.lists(st.integers(0, ranks - 1), min_size=2, max_size=ranks, unique=True)
    members = draw(st.lists(group, min_size=1, max_size=3))
    job = Job(members, [[device(0, ADD)] for _ in range(ranks)])
    for _ in range(draw(st.integers(1, 8))):
        communicator = draw(st.integers(0, len(members) - 1))
        if draw(st.booleans()):
            _add_collective(draw, job, communicator)
        else:
            _add_exchange(draw, job, communicator)
        job.ops[draw(st.integers(0, ranks - 1))].append(device(0, ADD))
    return job


def _add_collective(draw: st.DrawFn, job: Job, communicator: int) -> None:
    kind = draw(st.sampled_from(_KINDS))
    part = {
        "kind": kind,
        "size_bytes": draw(st.sampled_from([8, 16])),
        "dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "reduce_op": draw(st.sampled_from(["sum", "max"])) if kind in _REDUCING else "",
        "root": draw(st.integers(0, 1)) if kind in _ROOTED else -1,
    }
    for rank in job.members[communicator]:
        job.ops[rank].append(collective(communicator=job.local(rank, communicator), **part))


def _add_exchange(draw: st.DrawFn, job: Job, communicator: int) -> None:
    """Some messages between members, as one group on each of them."""
    members = job.members[communicator]
    rank_in = st.integers(0, len(members) - 1)
    messages = draw(st.lists(st.tuples(rank_in, rank_in), min_size=1, max_size=3))
    size_bytes = draw(st.sampled_from([0, 64]))
    for own, rank in enumerate(members):
        calls = [("send", there) for here, there in messages if here == own]
        calls += [("recv", here) for here, there in messages if there == own]
        if calls:
            number = job.local(rank, communicator)
            job.ops[rank].append(exchange(*calls, size_bytes=size_bytes, communicator=number))


def _sequence(job: Job, rank: int, op: int, part: int) -> int:
    """Calls like this one before it: collectives of the communicator, or messages that way."""

    def like(row: dict[str, Any]) -> tuple[Any, ...]:
        direction = row["kind"] if row["peer"] >= 0 else ""
        return row["communicator_local"], row["peer"], direction

    rows = [row for given in job.ops[rank][:op] for row in given.get("parts", ())]
    rows += job.ops[rank][op]["parts"][:part]
    return sum(like(row) == like(job.ops[rank][op]["parts"][part]) for row in rows)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(consistent_jobs())
def test_jobs_that_agree_pass(job: Job) -> None:
    merged = merge(job.tables())
    assert merged["ranks"].num_rows == len(job.ops)


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(consistent_jobs(), st.data())
def test_any_one_change_is_reported_where_it_was_made(job: Job, data: st.DataObject) -> None:
    job = copy.deepcopy(job)
    joins = [
        (rank, op, part)
        for rank, ops in enumerate(job.ops)
        for op, given in enumerate(ops)
        for part in range(len(given.get("parts", ())))
    ]
    rank, op, position = data.draw(st.sampled_from(joins))
    part = job.ops[rank][op]["parts"][position]
    known = [c for c, members in enumerate(job.members) if rank in members]
    communicator = known[part["communicator_local"] - 1]
    number = _sequence(job, rank, op, position)
    changes = ["size_bytes", "dtype", "missing"] + ["kind", "reduce_op"] * (part["peer"] < 0)
    change = data.draw(st.sampled_from(changes))
    exact = True
    if change == "missing":
        parts = job.ops[rank][op]["parts"]
        job.ops[rank][op]["parts"] = parts[:position] + parts[position + 1 :]
        if not job.ops[rank][op]["parts"]:
            job.ops[rank][op] = device(0, ADD)
        exact = False  # of equal calls in a row the last one lacks its partner
    else:
        changed = {
            "size_bytes": part["size_bytes"] + 1,
            "dtype": "int64",
            "kind": "all_to_all",
            "reduce_op": part["reduce_op"] + "x",
        }
        job.ops[rank][op]["parts"][position] = part | {change: changed[change]}
    with pytest.raises(UnderstudyError) as caught:
        merge(job.tables())
    message = str(caught.value)
    assert f"on communicator {communicator} " in message
    assert f"rank {rank} " in message or "without" in message
    reported = re.search(r"\bcall (\d+)|calls (?:send|recv) (\d+)", message)
    assert reported is not None
    found = int(reported[1] or reported[2])
    assert found == number if exact else found >= number
