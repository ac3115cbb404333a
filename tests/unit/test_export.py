"""`understudy export`: what the files hold, read back, against the tables of the simulation."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from pipelines import cli
from pipelines.export_command import parse_ranks, parse_window
from tests.unit.exported_job import DEVICE, JOB, MEMORY_OPS, write_job
from tests.unit.replay_worlds import random_world
from understudy.errors import UnderstudyError, UsageError
from understudy.simulation import engine
from understudy.simulation.breakdown import occupancy
from understudy.simulation.timeline import host_times
from understudy.simulation.world import DEVICE as DEVICE_OP
from understudy.simulation.world import HOST_WAIT, JOIN
from understudy.traces.kineto import read_kineto_folder
from warehouse import store


@pytest.fixture
def tables(understudy_home: Path) -> dict[str, pa.Table]:
    assert understudy_home.is_dir()
    return write_job()


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.run(cli.cli, ["export", JOB, *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def exported(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


# --- Perfetto ----------------------------------------------------------------------------------


@dataclass
class Track:
    name: str
    parent: int
    slices: list[tuple[int, int, str, str, dict[str, Any]]] = field(default_factory=list)
    values: list[tuple[int, int]] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)  #: flow -> time
    ends: dict[int, int] = field(default_factory=dict)


def read_perfetto(path: Path) -> dict[int, Track]:
    """Tracks by uuid: slices as (begin, end, category, name, args). Asserts that slices of a track
    close what was opened last and that times never run back."""
    trace = protos.Trace()
    trace.ParseFromString(path.read_bytes())
    tracks: dict[int, Track] = {}
    interned: dict[str, dict[int, str]] = defaultdict(dict)
    open_slices: defaultdict[int, list[Any]] = defaultdict(list)
    latest: defaultdict[int, int] = defaultdict(int)
    assert trace.packet[0].sequence_flags & 1
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            name = described.name or described.process.process_name or described.thread.thread_name
            assert described.uuid not in tracks
            tracks[described.uuid] = Track(name, described.parent_uuid)
        for table in ("event_names", "event_categories", "debug_annotation_names"):
            for entry in getattr(packet.interned_data, table):
                interned[table][entry.iid] = entry.name
        for entry in packet.interned_data.debug_annotation_string_values:
            interned["values"][entry.iid] = entry.str.decode()
        if not packet.HasField("track_event"):
            continue
        event, time = packet.track_event, packet.timestamp
        track = tracks[event.track_uuid]
        assert time >= latest[event.track_uuid]
        latest[event.track_uuid] = time
        if event.type == protos.TrackEvent.TYPE_COUNTER:
            track.values.append((time, event.counter_value))
        elif event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
            args = {}
            for arg in event.debug_annotations:
                kind = arg.WhichOneof("value")
                value = getattr(arg, kind)
                key = interned["debug_annotation_names"][arg.name_iid]
                args[key] = interned["values"][value] if kind == "string_value_iid" else value
            assert not open_slices[event.track_uuid]
            (category,) = (interned["event_categories"][iid] for iid in event.category_iids)
            name = interned["event_names"][event.name_iid]
            open_slices[event.track_uuid].append((time, category, name, args))
            track.starts |= dict.fromkeys(event.flow_ids, time)
            track.ends |= dict.fromkeys(event.terminating_flow_ids, time)
        else:
            begin, category, name, args = open_slices[event.track_uuid].pop()
            track.slices.append((begin, time, category, name, args))
    assert not any(open_slices.values())
    return tracks


def test_perfetto_slices_are_the_simulated_events(
    tables: dict[str, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = exported(capsys, "--out", tmp_path / "out")
    (path,) = map(Path, summary["files"])
    tracks = read_perfetto(path)
    processes = {uuid: t.name for uuid, t in tracks.items() if t.parent == 0}
    assert [name.split(" (")[0] for name in processes.values()] == ["rank 0", "rank 1"]
    for (process, _), rank in zip(processes.items(), (0, 1), strict=True):
        own = {t.name: t for t in tracks.values() if t.parent == process}
        assert list(own) == [
            "iterations of the host",
            "host",
            "stream 0: compute",
            "stream 1: communication",
            "communication in flight",
            "memory allocated",
            "memory reserved",
        ]
        stored = [row for row in tables["simulated_events"].to_pylist() if row["rank"] == rank]
        for stream, track in ((0, own["stream 0: compute"]), (1, own["stream 1: communication"])):
            found = [(b, e) for b, e, category, _, _ in track.slices if category != "wait"]
            assert found == [
                (row["start_ns"] + summary["origin_ns"], row["end_ns"] + summary["origin_ns"])
                for row in stored
                if row["stream"] == stream
            ]
        names = [name for _, _, _, name, _ in own["host"].slices]
        assert names.count("ncclAllReduce") == names.count("cudaStreamSynchronize") == 1
        assert names.count("cudaStreamWaitEvent") == 5
        # An arrow from each call to what it launched, which starts later.
        reached = own["stream 0: compute"].ends | own["stream 1: communication"].ends
        assert own["host"].starts.keys() == reached.keys()
        assert len(reached) == len(stored)
        assert all(reached[flow] > time for flow, time in own["host"].starts.items())
    assert sum(len(t.slices) for t in tracks.values()) == summary["slices"]


def test_perfetto_args_and_counters(
    tables: dict[str, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = exported(capsys, "--out", tmp_path, "--ranks", "1")
    tracks = {t.name: t for t in read_perfetto(Path(summary["files"][0])).values()}
    gemm = next(s for s in tracks["stream 0: compute"].slices if s[3].startswith("gemm"))
    assert gemm[2:4] == ("compute", "gemm 64 x 64 x 64")
    assert gemm[4] == {
        "kernel": "gemm", "family": "gemm", "dtype": "bfloat16", "shape.k": 64, "shape.m": 64,
        "shape.n": 64, "bytes": 64, "grid": "1 x 1 x 1", "block": "128 x 1 x 1",
        "flops": 10**9, "estimate_source": "measured", "extrapolated": False,
        "low_ns": 1_500_000, "high_ns": 6_000_002, "roofline_ns": 1_000_000,
    }  # fmt: skip
    reduced = next(
        s[4] for s in tracks["stream 1: communication"].slices if s[4].get("reduce_op") == "sum"
    )
    assert reduced["collective"] == "all_reduce"
    assert (reduced["bytes"], reduced["ranks"], reduced["communicator"]) == (1024, "0, 1", "0")
    exchanged = next(s[4] for s in tracks["stream 1: communication"].slices if "sends_to" in s[4])
    assert (exchanged["sends_to"], exchanged["receives_from"]) == ("0", "0")
    in_flight = tracks["communication in flight"].values
    assert {value for _, value in in_flight} == {0, 1024, 2048, 128}
    assert in_flight[-1][1] == 0
    # Of the changes inside the program, by the calls they precede; of two at once the last.
    assert [value for _, value in tracks["memory allocated"].values] == [
        512 * (step + 1) for step in (2, 3, 4)
    ]
    calls = [slice_[0] for slice_ in tracks["host"].slices]
    ops = sorted({op for op in MEMORY_OPS if op is not None})
    assert [time for time, _ in tracks["memory allocated"].values] == [calls[op] for op in ops]


# --- Kineto ------------------------------------------------------------------------------------


def test_kineto_is_read_back(
    tables: dict[str, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = exported(capsys, "--out", tmp_path, "--format", "kineto")
    assert [Path(file).name for file in summary["files"]] == [
        f"{JOB}_{DEVICE}_rank{rank}.json.gz" for rank in (0, 1)
    ]
    first_lines = gzip.decompress(Path(summary["files"][1]).read_bytes()).splitlines()[:2]
    assert first_lines[1].startswith(b'"distributedInfo": {"backend": "nccl", "rank": 1, ')
    traces = read_kineto_folder(tmp_path)
    assert traces.problems == ()
    assert traces.world_size == 2
    for rank, trace in traces.traces.items():
        rows = trace.device_events.sort_by([("stream", "ascending"), ("start_ns", "ascending")])
        stored = tables["simulated_events"].filter(pc.field("rank") == rank)
        stored = stored.sort_by([("stream", "ascending"), ("start_ns", "ascending")])
        shift_ns = summary["origin_ns"] - traces.base_ns
        np.testing.assert_array_equal(
            rows["start_ns"].to_numpy(), stored["start_ns"].to_numpy() + shift_ns
        )
        duration_ns = stored["end_ns"].to_numpy() - stored["start_ns"].to_numpy()
        np.testing.assert_array_equal(rows["duration_ns"].to_numpy(), duration_ns)
        names = rows["name"].to_pylist()
        assert "ncclDevKernel_AllReduce_Sum_float32" in names
        assert {"ncclDevKernel_AllGather", "ncclDevKernel_SendRecv"} <= set(names)
        assert "Memcpy HtoD (Pinned -> Device)" in names
        called = set(trace.host_calls["correlation"].to_pylist())
        assert set(rows["correlation"].to_pylist()) <= called
        assert trace.syncs["kind"].to_pylist().count("stream_wait_event") == 5
        assert trace.syncs["kind"].to_pylist().count("stream_sync") == 1
        gathered = rows.filter(pc.field("collective") == "_allgather_base").to_pylist()
        assert [(g["in_elements"], g["out_elements"]) for g in gathered] == [(512, 1024)]


# --- selections, determinism, errors -------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["perfetto", "kineto"])
def test_exports_are_the_same_byte_for_byte(
    tables: dict[str, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str], wanted: str
) -> None:
    contents = []
    for name in ("one", "two"):
        summary = exported(capsys, "--out", tmp_path / name, "--format", wanted)
        contents.append([Path(file).read_bytes() for file in summary["files"]])
        assert summary["size_bytes"] == sum(map(len, contents[-1]))
        assert {p.name for p in (tmp_path / name).iterdir()} == {
            Path(file).name for file in summary["files"]
        }
    assert contents[0] == contents[1]
    if wanted == "kineto":  # bytes 4 to 8 of gzip's header: when it was written
        assert {content[4:8] for content in contents[0]} == {bytes(4)}


def test_window_shows_what_runs_in_it_and_its_calls(
    tables: dict[str, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = exported(capsys, "--out", tmp_path, "--window", "1ms:3.5ms", "--ranks", "0")
    tracks = {t.name: t for t in read_perfetto(Path(summary["files"][0])).values()}
    shown = [
        row
        for row in tables["simulated_events"].to_pylist()
        if row["rank"] == 0 and row["start_ns"] < 3_500_000 and row["end_ns"] > 1_000_000
    ]
    work = [
        s for t in tracks.values() for s in t.slices if s[2] in ("compute", "communication", "copy")
    ]
    assert 0 < len(work) == len(shown) < tables["simulated_events"].num_rows / 2
    assert len(tracks["host"].starts) == len(shown)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--ranks", "2"], ["no rank 2", "0 to 1"]),
        (["--ranks", "3-1"], ["0-7"]),
        (["--ranks", "x"], ["0-7"]),
        (["--window", "1s:2s"], ["nothing runs from 1.00 s to 2.00 s", "lasts"]),
        (["--window", "5ms:1ms"], ["10ms:25ms"]),
        (["--window", "5:6"], ["10ms:25ms"]),
        (["--device", "h200"], ["h200-sxm-141gb", "predict"]),
        (["--format", "svg"], ["perfetto"]),
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(
    tables: dict[str, pa.Table],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    parts: list[str],
) -> None:
    code, out, err = run(capsys, "--out", tmp_path / "out", *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for part in parts:
        assert part in err
    assert not (tmp_path / "out").exists()


def test_unknown_job_is_told_with_the_known_ones(
    tables: dict[str, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(cli.cli, ["export", "zzz", "--out", str(tmp_path)]) == 2
    assert f"unknown job zzz; known: {JOB}" in capsys.readouterr().err


def test_times_of_another_simulator_are_refused(
    tables: dict[str, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tables["simulated_events"]
    later = pa.array(stored["end_ns"].to_numpy() + 1)
    position = stored.schema.get_field_index("end_ns")
    simulated = {
        "predicted_kernels": tables["predicted_kernels"],
        "simulated_runtimes": tables["simulated_runtimes"],
        "simulated_events": stored.set_column(position, stored.schema.field("end_ns"), later),
    }
    store.write_tables("simulation", simulated, DEVICE, JOB)
    code, _, err = run(capsys, "--out", tmp_path / "out")
    assert code == 1
    assert "predict the job again" in err
    assert not (tmp_path / "out").exists()


def test_failed_write_leaves_the_older_file(
    tables: dict[str, pa.Table],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (path,) = map(Path, exported(capsys, "--out", tmp_path / "out")["files"])
    before = path.read_bytes()
    monkeypatch.setattr(
        "understudy.reporting.to_perfetto.PerfettoWriter.values",
        lambda *_: (_ for _ in ()).throw(UnderstudyError("no")),
    )
    assert run(capsys, "--out", tmp_path / "out")[0] == 1
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_ranks_and_windows() -> None:
    assert parse_ranks("0-2, 8,16-17") == {0, 1, 2, 8, 16, 17}
    assert parse_window("10ms:25ms") == (10_000_000, 25_000_000)
    assert parse_window("1.5s : 2000000us") == (1_500_000_000, 2_000_000_000)
    for text in ("", "1-", "-1", "1,,2"):
        with pytest.raises(UsageError):
            parse_ranks(text)


# --- what the exports rest on --------------------------------------------------------------------


def test_host_times_explain_every_start() -> None:
    """A device op or join starts when its stream is free and its launch has arrived, exactly."""
    checked = 0
    for seed in range(150):
        world = random_world(seed)
        if world.host_scale or world.compute_scale or world.delays:
            continue
        try:
            timelines = engine.replay(world)
        except UnderstudyError:
            continue
        for place, timeline in zip(world.placements, timelines, strict=True):
            program = world.programs[place.program]
            called, returned = host_times(program, timeline, world.queue_depth)
            assert (returned >= called + program.cost_ns).all()
            arrival = (returned - program.cost_ns + program.latency_ns).ravel()
            kind, stream = (np.tile(a, len(called)) for a in (program.kind, program.stream))
            start, end = timeline.start_ns.ravel(), timeline.end_ns.ravel()
            for number in np.unique(stream[np.isin(kind, (DEVICE_OP, JOIN))]).tolist():
                ops = np.flatnonzero((stream == number) & (kind != HOST_WAIT) & (kind != 0))
                free = np.concatenate(([0], end[ops[:-1]]))
                np.testing.assert_array_equal(start[ops], np.maximum(arrival[ops], free))
                checked += len(ops)
    assert checked > 1000


def test_occupancy_by_hand() -> None:
    """compute 0-10 and 20-30, communication 5-25, a copy 24-40, nothing until a kernel at 50-60."""
    start = np.array([0, 20, 5, 24, 50])
    end = np.array([10, 30, 25, 40, 60])
    found = occupancy(start, end, np.arange(5) == 2, np.arange(5) == 3)
    assert vars(found) == {
        "span": 60,
        "compute": 30,
        "communication": 20,
        "copy": 16,
        "overlap": 10,
        "exposed_communication": 10,
        "idle": 10,
    }
