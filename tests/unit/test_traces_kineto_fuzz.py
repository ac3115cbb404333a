"""Damaged Kineto traces: no damage ends in an unexpected exception, a hang or a silent loss."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.errors import UnderstudyError
from understudy.traces.kineto import Dropped, KinetoTrace, read_kineto
from understudy.traces.kineto.repair import repaired
from understudy.traces.kineto.times import nanoseconds

DATA = Path(__file__).parents[1] / "data"
PLAIN = (DATA / "kineto_plain" / "rank-0.json").read_bytes()
#: Rows and other events of the clean trace.
EVENTS = 7

fuzz = settings(
    max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def kept(trace: KinetoTrace) -> int:
    return sum(len(table) for table in trace.tables().values())


def read_or_error(path: Path, content: bytes) -> KinetoTrace | None:
    """The trace, or None where reading ends in the error that users see."""
    path.write_bytes(content)
    try:
        return read_kineto(path)
    except UnderstudyError as error:
        assert path.name in str(error)
        return None


def check_nothing_silent(trace: KinetoTrace | None) -> None:
    if trace is None:
        return
    lost = sum(problem.count for problem in trace.problems if isinstance(problem, Dropped))
    ignored = sum(trace.ignored.values())
    assert kept(trace) + lost + ignored >= EVENTS or trace.problems


@fuzz
@given(flips=st.lists(st.integers(0, 8 * len(PLAIN) - 1), min_size=1, max_size=8, unique=True))
def test_flipped_bits(flips: list[int], tmp_path: Path) -> None:
    content = bytearray(PLAIN)
    for bit in flips:
        content[bit // 8] ^= 1 << bit % 8
    trace = read_or_error(tmp_path / "rank-0.json", bytes(content))
    check_nothing_silent(trace)
    # A flipped bit costs at most the event it is in and, through the array's bounds, its neighbour.
    if trace is not None and len(flips) == 1:
        assert kept(trace) >= EVENTS - 2


@fuzz
@given(length=st.integers(0, len(PLAIN)))
def test_cut_off(length: int, tmp_path: Path) -> None:
    check_nothing_silent(trace := read_or_error(tmp_path / "rank-0.json", PLAIN[:length]))
    complete = PLAIN[:length].count(b'"ph": "X"')
    if trace is not None:
        assert complete - 1 <= kept(trace) <= complete


@fuzz
@given(length=st.integers(0, 700), flips=st.lists(st.integers(0, 8 * 700), max_size=4))
def test_damaged_gzip(length: int, flips: list[int], tmp_path: Path) -> None:
    content = bytearray(gzip.compress(PLAIN, mtime=0))
    for bit in flips:
        content[bit // 8 % len(content)] ^= 1 << bit % 8
    check_nothing_silent(read_or_error(tmp_path / "rank-0.json.gz", bytes(content[:length])))


@fuzz
@given(
    splices=st.lists(st.tuples(st.integers(0, len(PLAIN)), st.integers(0, len(PLAIN))), max_size=4)
)
def test_torn_text(splices: list[tuple[int, int]], tmp_path: Path) -> None:
    """Pieces of a trace put together in any order, as concurrent writers do."""
    content = PLAIN + b"".join(PLAIN[min(pair) : max(pair)] for pair in splices)
    check_nothing_silent(read_or_error(tmp_path / "rank-0.json", content))


@fuzz
@given(
    content=st.binary(max_size=300),
    prefix=st.sampled_from([b"", b'{"traceEvents": [', b"[", b"\x1f\x8b"]),
)
def test_any_bytes(content: bytes, prefix: bytes, tmp_path: Path) -> None:
    check_nothing_silent(read_or_error(tmp_path / "rank-0.json", prefix + content))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGUMENTS = ("stream", "correlation", "grid", "device", "External id", "Collective name", "bytes")


@fuzz
@given(
    fields=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4),
    arguments=st.dictionaries(st.sampled_from(ARGUMENTS), JSON, max_size=4),
    category=st.sampled_from(["kernel", "cuda_runtime", "cuda_sync", "cpu_op", "user_annotation"]),
)
def test_values_of_any_type(
    fields: dict[str, object], arguments: dict[str, object], category: str, tmp_path: Path
) -> None:
    event = {"ph": "X", "cat": category, "name": "n", "pid": 0, "tid": 7, "ts": 5, "dur": 1}
    events = [event, {**event, "args": arguments, **fields}]
    content = json.dumps({"traceEvents": events, "distributedInfo": arguments}).encode()
    trace = read_or_error(tmp_path / "rank-0.json", content)
    assert trace is not None
    lost = sum(problem.count for problem in trace.problems if isinstance(problem, Dropped))
    found = kept(trace) - len(trace.collective_calls)
    assert found + lost + sum(trace.ignored.values()) == 2


@fuzz
@given(seed=st.integers(0, 2**32), repeats=st.integers(0, 3))
def test_order_and_repetition_change_nothing(seed: int, repeats: int, tmp_path: Path) -> None:
    document = json.loads(PLAIN, parse_float=Decimal)
    events = document["traceEvents"]
    randomness = random.Random(seed)
    events += randomness.choices(events, k=repeats)
    randomness.shuffle(events)
    content = json.dumps(document, default=str).encode()
    trace = read_or_error(tmp_path / "rank-0.json", content)
    assert trace is not None
    clean = read_or_error(tmp_path / "rank-0.json", PLAIN)
    assert clean is not None
    assert trace.tables() == clean.tables()
    lost = sum(problem.count for problem in trace.problems if isinstance(problem, Dropped))
    assert lost == repeats


@given(value=st.decimals(-(10**15), 10**15, places=6), text=st.booleans())
def test_times_are_rounded_from_the_text(value: Decimal, text: bool) -> None:
    written = f'"{value}"' if text else str(value)
    assert nanoseconds(written.encode()) == round(value * 1000)


@pytest.mark.parametrize("text", ["", "-", "nan", "1e999", "1_0", "0x10", "12 34", "--5", "1.2.3"])
def test_no_times(text: str) -> None:
    with pytest.raises(ValueError, match="not a time stamp"):
        nanoseconds(text.encode())


@fuzz
@given(text=st.binary(max_size=200) | st.text('"\\{}[]nafiu0.-12 :', max_size=60).map(str.encode))
def test_repair_moves_no_byte(text: bytes) -> None:
    once = repaired(text)
    assert len(once) == len(text)
    once.decode()
    assert repaired(once) == once


@given(value=JSON)
def test_repair_leaves_json_alone(value: object) -> None:
    text = json.dumps(value, allow_nan=False, default=str).encode() if finite(value) else b"[]"
    assert repaired(text) == text


def finite(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def test_compression_bomb(tmp_path: Path) -> None:
    """A small file that inflates to 200 MB of one string costs time, not memory."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b"a" * (1 << 20)
    content = packer.compress(b'{"traceEvents": [{"name": "')
    content += b"".join(packer.compress(block) for _ in range(200)) + packer.flush()
    trace = read_or_error(tmp_path / "rank-0.json.gz", content)
    assert trace is not None
    assert any(isinstance(problem, Dropped) for problem in trace.problems)
