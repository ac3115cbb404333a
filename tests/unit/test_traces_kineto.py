"""Kineto traces: the tables of a clean one, and what becomes of each kind of odd one.

The odd ones are tests/data/kineto_*, each a small file of the same three-operator step with one
thing wrong; tests/data/README.md lists them.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from understudy.errors import UnderstudyError
from understudy.traces.kineto import (
    Dropped,
    KinetoTrace,
    Note,
    load_trace,
    read_kineto,
    read_kineto_folder,
    write_trace,
)

DATA = Path(__file__).parents[1] / "data"
#: 3 April 2024, in nanoseconds: where the traces of the odd cases begin.
BEGIN_NS = 1_712_195_495_519_000_000
CLEAN_STARTS = [30_125, 85_000]


def folder(case: str) -> Path:
    return DATA / f"kineto_{case}"


def only_file(case: str) -> Path:
    (path,) = folder(case).iterdir()
    return path


def read(case: str) -> KinetoTrace:
    return read_kineto(only_file(case))


def rows(trace: KinetoTrace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    data = trace.tables()[table].select(columns).to_pydict()
    return list(zip(*data.values(), strict=True))


def dropped(trace: KinetoTrace) -> dict[str, tuple[int, tuple[int, ...]]]:
    return {
        problem.reason: (problem.count, problem.byte_offsets)
        for problem in trace.problems
        if isinstance(problem, Dropped)
    }


def notes(trace: KinetoTrace) -> dict[str, int]:
    return {
        problem.message: problem.count for problem in trace.problems if isinstance(problem, Note)
    }


def event_at(case: str, offset: int) -> str:
    """The text of the event at a position of the file, up to its arguments."""
    path = only_file(case)
    text = path.read_bytes()
    return text[offset : offset + 200].decode("utf-8", "replace")


def test_clean_trace() -> None:
    trace = read("plain")
    assert trace.problems == ()
    assert trace.base_ns == BEGIN_NS
    assert (trace.rank, trace.header.rank_source) == (0, "distributedInfo")
    assert (trace.header.world_size, trace.header.backend) == (1, "nccl")
    (device,) = trace.header.devices
    assert (device.name, device.compute_capability) == ("NVIDIA A100-SXM4-80GB", (8, 0))
    assert (device.memory_bytes, device.multiprocessors) == (85_520_809_984, 108)
    assert trace.device_events.to_pylist()[0] == {
        **dict.fromkeys(trace.device_events.column_names),
        "rank": 0,
        "kind": "kernel",
        "name": "gemm_kernel",
        "device": 0,
        "stream": 7,
        "start_ns": 30_125,
        "duration_ns": 50_375,
        "correlation": 11,
        "external_id": 11,
        "grid": [108, 1, 1],
        "block": [128, 1, 1],
        "shared_memory_bytes": 1024,
        "registers": 32,
    }
    assert rows(trace, "host_calls", "process", "thread", "api", "name", "start_ns") == [
        (100, 101, "runtime", "cudaLaunchKernel", 20_000),
        (100, 101, "runtime", "cudaLaunchKernel", 48_000),
    ]
    assert rows(trace, "annotations", "side", "name", "duration_ns", "step") == [
        ("host", "ProfilerStep#3", 200_000, 3)
    ]
    assert rows(trace, "host_ops", "name", "external_id", "input_dims", "input_types")[0] == (
        "aten::mm",
        11,
        "[[16, 512], [512, 8]]",
        '["float", "float"]',
    )


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("text_times", set()),
        ("base_time_at_end", set()),
        ("base_time_in_head", set()),
        ("trailing_comma", set()),
        ("several_steps", set()),
        ("syncs", set()),
        ("bare_array", {"no distributedInfo: rank 0 was taken from the file's name"}),
        ("concatenated", {"the file holds 2 JSON documents"}),
        ("gzip_checksum", {"the gzip checksum differs: the file was damaged"}),
        ("not_utf8", {"names hold bytes that are not text"}),
        ("several_processes", {"host calls of several processes: 100, 900"}),
        ("damaged_metadata", {"the text around traceEvents is damaged: read key by key"}),
        (
            "stray_bracket",
            {
                "events were found without the opening of their array",
                "the text around traceEvents is damaged: read key by key",
            },
        ),
        ("control_characters", {"text that is not JSON was repaired"}),
    ],
)
def test_nothing_is_lost(case: str, expected: set[str]) -> None:
    trace = read(case)
    assert rows(trace, "device_events", "start_ns") == [(start,) for start in CLEAN_STARTS]
    assert trace.base_ns == BEGIN_NS
    assert dropped(trace) == {}
    assert set(notes(trace)) == expected


@pytest.mark.parametrize(
    ("case", "reason", "names"),
    [
        (
            "negative_duration",
            "kernel event with a negative duration",
            ["wrapped", "split", "tiny"],
        ),
        ("absurd_duration", "kernel event longer than a day", ["corrupted"]),
        (
            "zero_time",
            "device_events: more than a day from the rest of the trace",
            ["untimed", "untimed"],
        ),
        ("not_a_number", "kernel event whose time is not a number", ["lost"]),
        ("unescaped_quotes", "unreadable event", ['{"device"']),
        ("duplicates", "device_events: repeats another event", ["gemm"]),
        ("duplicates", "host_calls: repeats another event", ["cudaLaunchKernel"]),
        ("duplicates", "host_ops: repeats another event", ["aten::mm"]),
        ("missing_fields", "kernel event without a duration", ["no_dur"]),
        ("missing_fields", "kernel event without a time stamp", ["no_ts"]),
        ("missing_fields", "event without a category", ["no_cat"]),
        ("missing_fields", "kernel event of phase 'B', not 'X'", ["begin"]),
        ("missing_fields", "kernel event whose time is not a number", ["text_time"]),
    ],
)
def test_what_cannot_be_kept_is_reported_where_it_is(
    case: str, reason: str, names: list[str]
) -> None:
    trace = read(case)
    count, offsets = dropped(trace)[reason]
    assert count == len(offsets) == len(names)
    for offset, name in zip(offsets, names, strict=True):
        assert event_at(case, offset).startswith("{")
        assert name in event_at(case, offset)
    if case != "missing_fields":
        assert rows(trace, "device_events", "start_ns") == [(start,) for start in CLEAN_STARTS]


def test_times_of_today_are_exact_to_the_nanosecond() -> None:
    for case in ("plain", "text_times", "base_time_at_end", "base_time_in_head"):
        trace = read(case)
        absolute = [trace.base_ns + start for (start,) in rows(trace, "device_events", "start_ns")]
        assert absolute == [1_712_195_495_519_030_125, 1_712_195_495_519_085_000], case
        assert float(absolute[0]) != absolute[0], "a float64 cannot hold it"


def test_times_in_nanoseconds() -> None:
    trace = read("nanosecond_times")
    assert trace.base_ns == BEGIN_NS + 20_007
    assert rows(trace, "device_events", "start_ns", "duration_ns") == [(9_994, 50_375)]
    assert notes(trace)["times are in nanoseconds"] == 2


def test_names_of_before_2022() -> None:
    trace = read("old_names")
    assert (trace.rank, trace.header.rank_source) == (3, "file name")
    columns = ("kind", "stream", "correlation", "external_id", "size_bytes", "registers")
    assert rows(trace, "device_events", *columns) == [
        ("memcpy", 7, 21, 5, 19_267_584, None),
        ("memset", 7, 22, 6, 512, None),
        ("kernel", 9, 23, 6, None, 38),
    ]
    assert rows(trace, "host_calls", "thread", "api", "external_id") == [(101, "runtime", 5)]
    assert rows(trace, "annotations", "name", "step") == [("ProfilerStep#5", 5)]
    assert rows(trace, "host_ops", "name") == [("aten::copy_",)]
    assert trace.ignored == {("M", ""): 1}


def test_rocm() -> None:
    """ROCm's profiler gives bytes and geometry with the call; its old versions no correlation."""
    trace = read("rocm")
    columns = ("kind", "device", "correlation", "size_bytes", "grid", "shared_memory_bytes")
    assert rows(trace, "device_events", *columns) == [
        ("memcpy", 2, 117, 2560, None, None),
        ("kernel", 2, 118, None, [1, 40, 1], 2048),
        ("memcpy", 2, None, None, None, None),
    ]
    assert notes(trace) == {"device events without a correlation": 1}


def test_fields_of_the_wrong_type_become_null() -> None:
    trace = read("missing_fields")
    columns = ("name", "stream", "correlation", "grid", "block", "registers")
    assert rows(trace, "device_events", *columns) == [
        ("no_correlation", 7, None, [108, 1, 1], [128, 1, 1], 32),
        ("no_args", 20, None, None, None, None),
        ("odd_types", 7, 17, None, [128, 1, 1], None),
    ]


def test_overlaps_are_kept_and_counted() -> None:
    trace = read("overlap")
    assert len(trace.device_events) == 3
    assert notes(trace) == {
        "device events that start before the one ahead on their stream has ended": 1,
        "device events that start before the host call that launched them": 1,
    }


def test_two_ranks_in_one_file() -> None:
    trace = read("two_ranks_in_a_file")
    assert trace.rank == 0
    assert len(trace.device_events) == len(trace.host_calls) == 2
    count, (offset,) = dropped(trace)["device_events: of rank 1 in a file of rank 0"]
    assert count == 2
    assert event_at("two_ranks_in_a_file", offset).lstrip().startswith('{\n    "ph"')


def test_interleaved_writers() -> None:
    """Two processes wrote to one name at once: whole events are kept, torn ones reported."""
    trace = read("interleaved")
    assert len(trace.device_events) == 2
    count, offsets = dropped(trace)["unreadable event"]
    assert count == len(offsets) == 2


def test_cuda_graph() -> None:
    trace = read("cuda_graph")
    assert rows(trace, "device_events", "correlation", "graph_node") == [
        (50, node) for node in (1, 2, 3, 4)
    ]
    assert trace.problems == ()


def test_syncs() -> None:
    columns = ("kind", "stream", "correlation", "event", "wait_on_stream", "wait_on_correlation")
    assert rows(read("syncs"), "syncs", *columns) == [
        ("event_record", 7, 61, 9, None, None),
        ("stream_wait_event", 24, 62, 9, 7, 61),
        ("event_sync", None, 63, 9, None, None),
        ("stream_sync", 7, 64, None, None, None),
        ("context_sync", None, 65, None, None, None),
        ("unknown", 7, 66, None, None, None),
    ]


def test_collectives() -> None:
    trace = read("collectives")
    assert (trace.rank, trace.header.rank_source) == (3, "events")
    assert trace.header.process_groups == {"5": (3, 7), "6": (3, 11)}, "lists that are not cut"
    columns = ("collective", "in_elements", "out_elements", "dtype", "group_size", "group_name")
    described = [row for row in rows(trace, "device_events", *columns) if row[0] is not None]
    assert described == [
        ("allreduce", 4096, 4096, "BFloat16", 64, "0"),
        ("all_to_allv", 300, 500, "BFloat16", 2, "5"),
        ("send", 64, 64, "BFloat16", 2, "6"),
    ]
    columns = ("group_ranks", "in_splits", "out_splits", "destination_rank", "sequence")
    assert rows(trace, "device_events", *columns)[2:] == [
        ("[0, 1, 2, 3, ..., 63]", "[]", "[]", None, 5),
        ("[3, 7]", "[100, 200]", "[250, 250]", None, None),
        ("[3, 11]", "[]", "[]", 11, 1),
    ]
    assert rows(trace, "collective_calls", "name", "external_id", "collective", "sequence") == [
        ("record_param_comms", 70, "allreduce", 5)
    ]


def test_copy_between_devices() -> None:
    trace = read("peer_copy")
    assert rows(trace, "device_events", "name", "device", "size_bytes")[-1] == (
        "Memcpy PtoP (Device -> Device)",
        1,
        4096,
    )


def test_steps_and_annotations() -> None:
    assert "no ProfilerStep annotation: steps are unknown" in notes(read("no_steps"))
    assert rows(read("several_steps"), "annotations", "side", "name", "step") == [
        ("host", "ProfilerStep#3", 3),
        ("host", "## forward ##", None),
        ("device", "## forward ##", None),
        ("host", "ProfilerStep#4", 4),
        ("host", "ProfilerStep#5", 5),
    ]


def test_repaired_names() -> None:
    names = [name for (name,) in rows(read("control_characters"), "host_ops", "name")]
    assert names[2:] == ["torch/cuda/__init__.py(219): _lazy_init", "two lines "]
    assert rows(read("not_utf8"), "device_events", "name")[1] == ("caf?_€_?_kernel",)
    assert rows(read("not_a_number"), "device_events", "name")[1] == ("is_nan_kernel: nan",)


@pytest.mark.parametrize("case", ["truncated", "truncated_gzip"])
def test_killed_profiler(case: str) -> None:
    """All complete events are kept, and the head of the file still names the rank."""
    trace = read(case)
    assert rows(trace, "device_events", "name")[0] == ("gemm_kernel",)
    assert (trace.rank, trace.header.rank_source) == (0, "distributedInfo")
    assert "the file ends within traceEvents: it was cut off" in notes(trace)
    assert dropped(trace)["unreadable text at the end of the events"][0] == 1


def test_damaged_metadata_still_names_rank_and_clock() -> None:
    trace = read("damaged_metadata")
    assert (trace.rank, trace.header.world_size, trace.base_ns) == (3, 8, BEGIN_NS)


def test_empty_trace_says_so() -> None:
    trace = read("empty")
    assert sum(len(table) for table in trace.tables().values()) == 0
    assert "no kernel, copy or memset in it" in notes(trace)


@pytest.mark.parametrize(
    "path", sorted(folder("not_a_trace").iterdir()), ids=lambda path: path.name
)
def test_not_a_trace(path: Path) -> None:
    with pytest.raises(UnderstudyError, match=f"{path.name}: holds no traceEvents"):
        read_kineto(path)


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(UnderstudyError, match="No such file"):
        read_kineto(tmp_path / "rank-0.json")
    with pytest.raises(UnderstudyError, match="no such folder"):
        read_kineto_folder(tmp_path / "traces")
    with pytest.raises(UnderstudyError, match=r"holds no \.json"):
        read_kineto_folder(tmp_path)
    with pytest.raises(UnderstudyError, match="no file holds a trace"):
        read_kineto_folder(folder("not_a_trace"))


def test_folder_with_missing_ranks() -> None:
    traces = read_kineto_folder(folder("missing_ranks"))
    assert (list(traces.traces), traces.missing_ranks, traces.world_size) == ([0, 2], (1, 3), 4)
    assert [str(problem).split(": ", 1)[1] for problem in traces.problems] == [
        "2 of 4 ranks have no trace: 1, 3"
    ]


def test_folder_with_other_files() -> None:
    traces = read_kineto_folder(folder("mixed_folder"))
    assert list(traces.traces) == [0, 1]
    (problem,) = traces.problems
    assert problem.path.name == "execution_trace_0.json"


def test_ranks_from_file_names() -> None:
    traces = read_kineto_folder(folder("rank_in_name"))
    assert {rank: trace.path.name[:16] for rank, trace in traces.traces.items()} == {
        0: "dp0_pp0_tp0_dcp0",
        1: "dp0_pp0_tp1_dcp0",
    }
    assert "left out: its rank is unknown" in {
        problem.message for problem in traces.problems if isinstance(problem, Note)
    }


def test_two_files_of_one_rank() -> None:
    """The later one is taken, and the other is reported."""
    traces = read_kineto_folder(folder("two_files_of_a_rank"))
    assert traces.base_ns == BEGIN_NS + 2_000_000_000
    assert [problem.path.name for problem in traces.problems] == ["host_1.1712195495.pt.trace.json"]


def test_ranks_share_one_time_base(tmp_path: Path) -> None:
    text = (folder("plain") / "rank-0.json").read_text()
    (tmp_path / "b.json").write_text(text)
    later = text.replace("1712195495519", "1712195495520").replace('"rank": 0', '"rank": 1')
    (tmp_path / "a.json").write_text(later)
    traces = read_kineto_folder(tmp_path)
    assert traces.base_ns == BEGIN_NS
    starts = [trace.device_events.column("start_ns")[0].as_py() for trace in traces.traces.values()]
    assert starts == [30_125, 1_030_125]
    (note,) = traces.problems
    assert "no moment in common (by 940124 ns)" in str(note)


def test_single_trace_without_a_rank_is_rank_0(tmp_path: Path) -> None:
    text = (folder("plain") / "rank-0.json").read_text().replace("distributedInfo", "other")
    (tmp_path / "trace.json").write_text(text)
    traces = read_kineto_folder(tmp_path)
    assert list(traces.traces) == [0]
    assert traces.traces[0].device_events.column("rank").to_pylist() == [0, 0]
    assert "the only trace of the folder: taken as rank 0" in {
        problem.message for problem in traces.problems if isinstance(problem, Note)
    }


def test_huge_arguments(tmp_path: Path) -> None:
    """An event larger than any block, with what looks like events inside."""
    text = (folder("plain") / "rank-0.json").read_text()
    inner = ", ".join(['{"ph": "X", "name": "inner"}, {"name": "x"}'] * 30_000)
    huge = text.replace('"External id": 12,', f'"External id": 12, "Frames": [{inner}],', 1)
    path = tmp_path / "rank-0.json"
    path.write_text(huge)
    trace = read_kineto(path)
    assert trace.problems == ()
    assert [len(table) for table in trace.tables().values()] == [2, 2, 0, 1, 2, 0]


def test_padded_and_chained_gzip(tmp_path: Path) -> None:
    text = (folder("plain") / "rank-0.json").read_bytes()
    path = tmp_path / "rank-0.json"  # by content, not by name
    path.write_bytes(gzip.compress(text[:1000]) + gzip.compress(text[1000:]) + bytes(512))
    assert read_kineto(path).problems == ()
    path.write_bytes(gzip.compress(text) + b"rubbish")
    (note,) = read_kineto(path).problems
    assert isinstance(note, Note)
    assert "is not gzip" in note.message


def test_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(b"\xef\xbb\xbf" + (folder("plain") / "rank-0.json").read_bytes())
    assert read_kineto(path).problems == ()


@pytest.mark.parametrize("case", ["collectives", "syncs", "missing_fields", "empty", "rocm"])
def test_parquet_round_trip(case: str, tmp_path: Path) -> None:
    trace = read(case)
    write_trace(trace, tmp_path / "stored")
    assert load_trace(tmp_path / "stored") == trace
    (tmp_path / "stored" / "syncs.parquet").write_bytes(b"")
    with pytest.raises(UnderstudyError, match="convert the trace again"):
        load_trace(tmp_path / "stored")


def test_every_case_is_listed() -> None:
    listed = (DATA / "README.md").read_text()
    for path in DATA.glob("kineto_*"):
        assert f"`{path.name}`" in listed
