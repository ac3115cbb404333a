"""Merging: equal ranks share a program, and collectives that do not agree are found."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.job_tables import (
    ADD,
    ALL_REDUCE,
    GEMM,
    collective,
    device,
    emulated,
    exchange,
    host_wait,
    signature,
    wait,
)
from understudy.errors import UnderstudyError
from understudy.merging import merge
from warehouse import schemas, store


def step(gap_ns: int = 10) -> list[dict[str, Any]]:
    """One data-parallel step."""
    return [
        device(0, GEMM, gap_ns),
        wait(1, 0),
        collective(),
        collective(size_bytes=2048),
        device(0, ADD),
        wait(0, 3),
        host_wait(0, 4),
    ]


def test_equal_ranks_share_one_program() -> None:
    merged = merge(emulated([step() for _ in range(4)]))
    assert merged["ranks"].column("program").to_pylist() == [0, 0, 0, 0]
    assert merged["events"].num_rows == merged["host_gaps"].num_rows == 7
    assert merged["collective_parts"].column("sequence").to_pylist() == [0, 1]
    assert merged["signatures"].column("name").to_pylist() == ["gemm", "all_reduce", "add"]
    assert merged["events"].column("signature").to_pylist() == [0, None, 1, 1, 2, None, None]


def test_merged_tables_fit_their_schemas() -> None:
    merged = merge(emulated([step(), step()]))
    assert sorted(merged) == sorted(t.name for t in schemas.stage_tables("merging"))
    for name, table in merged.items():
        assert store.conform(table, schemas.table(name)).num_rows == table.num_rows


def test_host_gaps_of_a_shared_program_are_medians_over_its_ranks() -> None:
    merged = merge(emulated([step(gap) for gap in (10, 90, 20)]))
    assert merged["host_gaps"].column("gap_ns").to_pylist()[0] == 20


def test_ranks_that_differ_keep_their_programs() -> None:
    logging = [*step(), device(0, ADD)]
    merged = merge(emulated([logging, step(), step()]))
    assert merged["ranks"].column("program").to_pylist() == [0, 1, 1]
    assert merged["events"].column("program").to_pylist() == [0] * 8 + [1] * 7


def test_pipeline_stages_share_a_program_only_when_their_peers_are_the_same() -> None:
    """Ranks 0 and 2 are first, 1 and 3 second in their pairs: two programs for four ranks."""
    first, second = [exchange(("send", 1))], [exchange(("recv", 0))]
    merged = merge(emulated([first, second, first, second], members=[[0, 1], [2, 3]]))
    assert merged["ranks"].column("program").to_pylist() == [0, 1, 0, 1]


def test_signatures_used_by_nobody_are_dropped() -> None:
    tables = emulated([[device(0, ADD), device(0, GEMM), device(0, ADD)]])
    used = tables["events"].column("signature").to_pylist()
    assert used == [0, 1, 2]
    unused = pa.Table.from_pylist(
        [signature("warm-up only") | {"signature": 3}], schema=schemas.SIGNATURES.schema
    )
    tables["signatures"] = pa.concat_tables([tables["signatures"], unused])
    merged = merge(tables)
    assert merged["signatures"].column("name").to_pylist() == ["add", "gemm"]
    assert merged["events"].column("signature").to_pylist() == [0, 1, 0]


def test_merging_does_not_depend_on_the_order_of_rows() -> None:
    tables = emulated([step(), [*step(), device(0, ADD)]])
    expected = {name: store.content_hash(t) for name, t in merge(tables).items()}
    for name in ("events", "host_gaps", "collective_parts", "ranks"):
        rows = np.random.default_rng(1).permutation(tables[name].num_rows)
        tables[name] = tables[name].take(pa.array(rows))
    assert {name: store.content_hash(t) for name, t in merge(tables).items()} == expected


# --- collectives that do not agree -------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"size_bytes": 4096}, "size_bytes"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"reduce_op": "avg"}, "reduce_op"),
        ({"kind": "broadcast", "reduce_op": "", "root": 0}, "kind"),
    ],
)
def test_first_difference_of_a_collective_is_reported(change: dict[str, Any], column: str) -> None:
    other = step()
    other[3]["parts"] = [other[3]["parts"][0] | change]
    with pytest.raises(UnderstudyError) as caught:
        merge(emulated([step(), step(), other]))
    message = str(caught.value)
    assert f"call 1 on communicator 0 (group 0) differs in {column}" in message
    call = "rank 0 at op 3 of iteration 0 calls all_reduce of 2048 bytes float32 sum"
    assert call in message
    assert "but rank 2 at op 3 of iteration 0 calls" in message


def test_roots_must_agree() -> None:
    ranks = [[collective(kind="broadcast", root=r)] for r in (0, 1)]
    with pytest.raises(UnderstudyError, match="differs in root"):
        merge(emulated(ranks))


def test_swapped_collectives_are_reported_as_a_difference() -> None:
    one = [collective(size_bytes=8), collective(kind="all_gather", size_bytes=8)]
    with pytest.raises(UnderstudyError, match="differs in kind"):
        merge(emulated([one, one[::-1]]))


def test_missing_call_names_the_call_without_partner() -> None:
    short = step()
    del short[3], short[4]
    with pytest.raises(
        UnderstudyError,
        match=r"rank 0 makes 2 calls on communicator 0 \(group 0\), rank 1 makes 1: the first "
        r"without a partner is call 1, rank 0 at op 3 of iteration 0 calls all_reduce of 2048",
    ):
        merge(emulated([step(), short]))


def test_rank_that_never_calls_is_found() -> None:
    with pytest.raises(UnderstudyError, match="rank 1 makes 0"):
        merge(emulated([step(), [device(0, ADD)]]))


def test_earliest_difference_of_all_communicators_is_reported() -> None:
    one = [collective(communicator=2), collective(communicator=1)]
    two = [collective(communicator=2, size_bytes=8), collective(communicator=1, size_bytes=8)]
    with pytest.raises(UnderstudyError, match="on communicator 1 "):
        merge(emulated([one, two], members=[[0, 1], [0, 1]]))


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        ([exchange(("send", 1))], [device(0, ADD)], "calls send 0 of 64 bytes .*without a partner"),
        ([device(0, ADD)], [exchange(("recv", 0))], "calls recv 0 of 64 bytes .*without a partner"),
        (
            [exchange(("send", 1)), exchange(("send", 1))],
            [exchange(("recv", 0))],
            "rank 0 at op 1 of iteration 0 calls send 1 of",
        ),
        ([exchange(("send", 1))], [exchange(("send", 0))], "without a partner"),
        ([exchange(("send", 1))], [exchange(("recv", 0), size_bytes=8)], "a send and its receive"),
        ([exchange(("send", 5))], [device(0, ADD)], "has 2 ranks"),
    ],
)
def test_sends_and_receives_must_pair(
    one: list[dict[str, Any]], two: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(UnderstudyError, match=message):
        merge(emulated([one, two]))


def test_sends_pair_by_direction_whatever_their_order() -> None:
    one = [exchange(("send", 1)), exchange(("recv", 1), size_bytes=8)]
    two = [exchange(("send", 0), size_bytes=8), exchange(("recv", 0))]
    parts = merge(emulated([one, two]))["collective_parts"]
    assert parts.column("sequence").to_pylist() == [0, 0, 0, 0]


def test_traces_of_a_job_out_of_memory_are_not_compared() -> None:
    tables = emulated(
        [step(), step()[:2]],
        oom_iteration=[None, 0],
        oom_requested_bytes=[None, 5_000_000_000],
        span_iterations=[2, 1],
    )
    merged = merge(tables)
    assert merged["ranks"].column("oom_requested_bytes").to_pylist() == [None, 5_000_000_000]


def test_traces_of_a_job_out_of_memory_may_be_empty() -> None:
    tables = emulated([[], []], oom_iteration=[0, 0], oom_requested_bytes=[1, 1])
    merged = merge(tables)
    assert merged["events"].num_rows == merged["signatures"].num_rows == 0
    for name, table in merged.items():
        store.conform(table, schemas.table(name))


# --- tables that do not fit each other ---------------------------------------------------------


def test_missing_rank_is_an_error() -> None:
    tables = emulated([step(), step()])
    tables["ranks"] = tables["ranks"].slice(1)
    with pytest.raises(UnderstudyError, match=r"ranks \[1\]"):
        merge(tables)


def test_host_gaps_of_another_structure_are_an_error() -> None:
    tables = emulated([step()])
    tables["host_gaps"] = tables["host_gaps"].slice(1)
    with pytest.raises(UnderstudyError, match="--remeasure-host"):
        merge(tables)


def test_missing_op_is_an_error() -> None:
    tables = emulated([step()])
    for name in ("events", "host_gaps"):
        tables[name] = tables[name].slice(1)
    with pytest.raises(UnderstudyError, match="missing or double"):
        merge(tables)


def test_joins_and_their_parts_belong_together() -> None:
    tables = emulated([step()])
    tables["collective_parts"] = tables["collective_parts"].slice(1)
    with pytest.raises(UnderstudyError, match="same joins"):
        merge(tables)


def test_positions_say_the_iteration() -> None:
    tables = emulated([step(), step()], span_iterations=[2, 2])
    iteration = [0, 0, 0, 1, 1, 1, 1] * 2
    column = tables["events"].schema.get_field_index("iteration")
    tables["events"] = tables["events"].set_column(
        column, tables["events"].schema.field(column), pa.array(iteration, pa.int32())
    )
    sizes = tables["collective_parts"]["size_bytes"].to_pylist()
    column = tables["collective_parts"].schema.get_field_index("size_bytes")
    tables["collective_parts"] = tables["collective_parts"].set_column(
        column,
        tables["collective_parts"].schema.field(column),
        pa.array([*sizes[:3], 8], pa.int64()),
    )
    with pytest.raises(
        UnderstudyError, match="rank 1 at op 3 of iteration 1 calls all_reduce of 8"
    ):
        merge(tables)


def test_making_communicators_counts_as_a_call() -> None:
    """A rank that splits before a collective does not match one that splits after it."""
    split = collective(kind="communicator_split", size_bytes=0, dtype="", reduce_op="")
    split["what"] = None
    one, two = [split, collective()], [collective(), split]
    assert merge(emulated([one, one]))["events"].num_rows == 2
    with pytest.raises(UnderstudyError, match="differs in kind"):
        merge(emulated([one, two]))


def test_spans_must_agree() -> None:
    with pytest.raises(UnderstudyError, match="spans of 1 and of 8"):
        merge(emulated([step(), step()], span_iterations=[1, 8]))


def test_merged_tables_are_refused() -> None:
    with pytest.raises(UnderstudyError, match="merged already"):
        merge(merge(emulated([step(), step()])))


def test_communicator_that_no_rank_knows_is_an_error() -> None:
    with pytest.raises(UnderstudyError, match="rank 0 calls communicator 7"):
        merge(emulated([[collective(communicator=7)]]))


# --- at size -----------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=8),
    st.integers(2, 4),
    st.data(),
)
def test_any_single_change_of_a_size_is_found(
    sizes: list[int], ranks: int, data: st.DataObject
) -> None:
    jobs = [[collective(size_bytes=s) for s in sizes] for _ in range(ranks)]
    merge(emulated(jobs))
    call = data.draw(st.integers(0, len(sizes) - 1))
    rank = data.draw(st.integers(0, ranks - 1))
    jobs[rank][call]["parts"][0]["size_bytes"] += 1
    with pytest.raises(UnderstudyError, match=f"call {call} on communicator 0 .* differs in size"):
        merge(emulated(jobs))


def test_64_ranks_of_20000_ops_merge_in_seconds() -> None:
    ranks, ops = 64, 20_000
    join = np.arange(ops) % 50 == 49
    kinds = pa.DictionaryArray.from_arrays(pa.array(join.astype(np.int8)), ["device", "join"])
    n = ranks * ops
    program = np.repeat(np.arange(ranks), ops)
    op = np.tile(np.arange(ops), ranks)
    small = emulated([[device(0, GEMM), collective()] for _ in range(ranks)])
    tables = dict(small)
    tables["signatures"] = pa.Table.from_pylist(
        [GEMM | {"signature": 0}, ALL_REDUCE | {"signature": 1}], schema=schemas.SIGNATURES.schema
    )
    tables["events"] = pa.table(
        {
            "program": program,
            "op": op,
            "iteration": np.zeros(n, np.int64),
            "kind": pa.array(kinds.dictionary_decode().to_pylist() * ranks),
            "stream": np.tile(join.astype(np.int64), ranks),
            "signature": np.tile(join.astype(np.int64), ranks),
            "depends_on": pa.nulls(n, pa.int32()),
            "thread": np.zeros(n, np.int64),
            "graph": pa.nulls(n, pa.int32()),
        }
    ).cast(schemas.EVENTS.schema)
    tables["host_gaps"] = pa.table(
        {
            "program": program,
            "op": op,
            "gap_ns": np.random.default_rng(0).integers(0, 9, n),
            "spread_ns": np.zeros(n, np.int64),
        }
    ).cast(schemas.HOST_GAPS.schema)
    calls = int(join.sum())
    one = {c: [v] * (ranks * calls) for c, v in small["collective_parts"].to_pylist()[0].items()}
    tables["collective_parts"] = pa.table(
        one
        | {
            "program": np.repeat(np.arange(ranks), calls),
            "group": np.tile(np.flatnonzero(join), ranks),
        },
        schema=schemas.COLLECTIVE_PARTS.schema,
    )
    begin = time.process_time()
    merged = merge(tables)
    assert merged["events"].num_rows == ops
    assert time.process_time() - begin < 15
