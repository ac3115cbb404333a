"""A timeline as a Perfetto trace: a process per rank with its threads, streams and counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from understudy.home import staged
from understudy.reporting.operations import Operation, activity_of_stream
from understudy.reporting.timeline import (
    JOIN,
    STREAM_WAIT,
    JobView,
    RankView,
    call_names,
    iterations,
    streams,
    threads,
)
from understudy.traces.perfetto import PerfettoWriter, Slice, Value

#: Process id of rank 0, the others follow; Perfetto takes small ones for the system's own.
_FIRST_PID = 10_000


def write(
    path: Path,
    view: JobView,
    tables: Mapping[str, pa.Table],
    device_name: str,
    advance: Callable[[], None],
) -> int:
    """Writes the ranks of `view` into one file; returns its number of slices. `advance` is called
    after each rank."""
    with staged(path) as temporary, temporary.open("wb") as file:
        writer = _Writer(PerfettoWriter(file), view, tables, device_name)
        for of_rank in view.ranks:
            writer.rank(of_rank)
            advance()
    return writer.slices


class _Writer:
    def __init__(
        self,
        out: PerfettoWriter,
        view: JobView,
        tables: Mapping[str, pa.Table],
        device_name: str,
    ) -> None:
        self._out = out
        self._view = view
        self._memory = tables["memory_timeline"]
        self._device_name = device_name
        self._kinds = [_slice(operation) for operation in view.operations]
        #: Slices of what is no operation, and where among the kinds they are.
        self._others: dict[Slice, int] = {}
        self.slices = 0

    def rank(self, of_rank: RankView) -> None:
        row, times = of_rank.row, of_rank.times
        process = self._out.process(
            _FIRST_PID + row["rank"],
            f"rank {row['rank']} (node {row['node']}, GPU {row['local_rank']}: "
            f"{self._device_name})",
        )
        of_iterations = iterations(of_rank)
        if of_iterations:
            track = self._out.track(process, "iterations of the host")
            names = [
                self._other(f"iteration {number}", "iteration") for number, _, _ in of_iterations
            ]
            bounds = np.array([(begin, end) for _, begin, end in of_iterations], np.int64)
            self._slices(track, bounds[:, 0], bounds[:, 1], np.array(names))
        flow = _flows(of_rank)
        named = dict(
            zip(of_rank.calls.tolist(), call_names(of_rank, self._view.operations), strict=True)
        )
        for thread, ops in threads(of_rank):
            name = "host" if thread == 0 else f"host, thread {thread}"
            track = self._out.thread(process, _FIRST_PID + row["rank"] + thread, name)
            kinds = np.array([self._other(named[op], "host") for op in ops.tolist()])
            self._slices(
                track, times.called_ns[ops], times.returned_ns[ops], kinds, starts=flow[ops]
            )
        for stream, ops in streams(of_rank):
            self._stream(process, of_rank, stream, ops, flow)
        self._communication(process, of_rank)
        self._memory_counters(process, of_rank)

    def _stream(
        self,
        process: int,
        of_rank: RankView,
        stream: int,
        ops: NDArray[np.int64],
        flow: NDArray[np.int64],
    ) -> None:
        times, operation = of_rank.times, of_rank.operation[ops]
        start_ns, end_ns = times.start_ns[ops], times.end_ns[ops]
        activity = activity_of_stream(self._view.operations, operation, end_ns - start_ns)
        track = self._out.track(process, f"stream {stream}: {activity}")
        kinds = operation.copy()
        for position in np.flatnonzero(operation < 0).tolist():
            kinds[position] = self._waiting(of_rank, int(ops[position]))
        # One arrow for a call, to the first of what it launches.
        first = np.zeros(len(ops), bool)
        first[np.unique(of_rank.program.call[ops], return_index=True)[1]] = True
        reached = np.where(first & (operation >= 0), flow[of_rank.program.call[ops]], 0)
        self._slices(track, start_ns, end_ns, kinds, ends=reached)

    def _waiting(self, of_rank: RankView, op: int) -> int:
        program = of_rank.program
        if program.kind[op] == STREAM_WAIT and program.depends_on[op] >= 0:
            stream = int(program.stream[program.depends_on[op]])
            return self._other(f"waits for stream {stream}", "wait")
        if program.kind[op] == JOIN:
            return self._other("waits for the other ranks", "wait")
        return self._other("waits for an event", "wait")

    def _communication(self, process: int, of_rank: RankView) -> None:
        """Bytes of the communication under way."""
        ops = of_rank.on_stream[of_rank.program.kind[of_rank.on_stream] == JOIN]
        ops = ops[of_rank.operation[ops] >= 0]
        if len(ops) == 0:
            return
        sizes = [self._view.operations[i].size_bytes for i in of_rank.operation[ops].tolist()]
        moments = np.concatenate((of_rank.times.start_ns[ops], of_rank.times.end_ns[ops]))
        changes = np.concatenate((sizes, np.negative(sizes)))
        self._counter(process, "communication in flight", moments, changes)

    def _memory_counters(self, process: int, of_rank: RankView) -> None:
        """PyTorch's memory by the host's time: of a change when the next op is called."""
        changes = self._memory.filter(
            (pc.field("rank") == of_rank.rank) & pc.field("op").is_valid()
        ).sort_by("step")
        called_ns = of_rank.times.called_ns
        time_ns = called_ns[changes["op"].to_numpy()]
        first_ns, last_ns = called_ns[of_rank.calls[[0, -1]]]
        shown = (time_ns >= first_ns) & (time_ns <= last_ns)
        time_ns = time_ns[shown]
        for column in ("allocated_bytes", "reserved_bytes"):
            if not shown.any():
                break
            value = changes[column].to_numpy()[shown]
            # Of several changes at one moment the last counts.
            last = np.append(np.diff(time_ns) > 0, True)
            name = f"memory {column.removesuffix('_bytes')}"
            track = self._out.counter(process, name)
            self._out.values(track, time_ns[last] - self._view.base_ns, value[last])

    def _counter(
        self,
        process: int,
        name: str,
        moment_ns: NDArray[np.int64],
        change: NDArray[np.int64],
    ) -> None:
        """A counter that begins at 0 and changes at these moments."""
        times, which = np.unique(moment_ns, return_inverse=True)
        value = np.zeros(len(times), np.int64)
        np.add.at(value, which, change)
        track = self._out.counter(process, name)
        self._out.values(track, times - self._view.base_ns, np.cumsum(value))

    def _other(self, name: str, category: str) -> int:
        wanted = Slice(name, category)
        if wanted not in self._others:
            self._others[wanted] = len(self._kinds)
            self._kinds.append(wanted)
        return self._others[wanted]

    def _slices(
        self,
        track: int,
        begin_ns: NDArray[np.int64],
        end_ns: NDArray[np.int64],
        kinds: NDArray[np.int64],
        starts: NDArray[np.int64] | None = None,
        ends: NDArray[np.int64] | None = None,
    ) -> None:
        base_ns = self._view.base_ns
        self._out.slices(
            track,
            begin_ns - base_ns,
            end_ns - base_ns,
            kinds,
            self._kinds,
            starts_flow=starts,
            ends_flow=ends,
        )
        self.slices += len(kinds)


def _flows(of_rank: RankView) -> NDArray[np.int64]:
    """The flow that each call starts, by op; 0 where nothing that it asks for is shown."""
    flow = np.zeros(len(of_rank.operation), np.int64)
    reached = of_rank.on_stream[of_rank.operation[of_rank.on_stream] >= 0]
    calls = np.unique(of_rank.program.call[reached])
    flow[calls] = (of_rank.rank << 32) + calls + 1
    return flow


def _slice(operation: Operation) -> Slice:
    """The slices of an operation; arguments that are not known are left out."""
    row, prediction = operation.signature, operation.prediction
    args: dict[str, Value] = {"kernel": row["name"], "family": row["family"], "dtype": row["dtype"]}
    if operation.parts:
        args |= _communication_args(operation)
    else:
        args |= {f"shape.{name}": _number(value) for name, value in row["features"]}
        args["bytes"] = operation.size_bytes
    for name in ("grid", "block"):
        if row[name] is not None:
            args[name] = " x ".join(map(str, row[name]))
    if prediction["flops"]:
        args["flops"] = _number(prediction["flops"])
    args |= {
        "implementation": row["kernel_version"],
        "estimate_source": prediction["estimate_source"],
        "extrapolated": prediction["extrapolated"],
        "low_ns": prediction["low_ns"],
        "high_ns": prediction["high_ns"],
        "roofline_ns": prediction["roofline_ns"],
    }
    return Slice(
        operation.label,
        operation.activity,
        {name: value for name, value in args.items() if value != ""},
    )


def _communication_args(operation: Operation) -> dict[str, Value]:
    parts = operation.parts
    args: dict[str, Value] = {
        "collective": ", ".join(dict.fromkeys(part.kind for part in parts)),
        "bytes": operation.size_bytes,
        "communicator": ", ".join(dict.fromkeys(str(part.communicator) for part in parts)),
        "communicator_name": ", ".join(dict.fromkeys(part.description for part in parts)),
        "ranks": _ranks(parts[0].members),
        "reduce_op": parts[0].reduce_op,
    }
    if parts[0].root is not None:
        args["root"] = parts[0].root
    for kind, word in (("send", "sends_to"), ("recv", "receives_from")):
        peers = [str(part.peer) for part in parts if part.kind == kind]
        if peers:
            args[word] = ", ".join(peers)
    return args


def _ranks(members: tuple[int, ...]) -> str:
    """'0, 8, 16', of many only the first and the last."""
    if len(members) <= 16:
        return ", ".join(map(str, members))
    return f"{members[0]}, {members[1]}, ... {members[-1]} ({len(members)} ranks)"


def _number(value: Any) -> Value:
    return int(value) if float(value).is_integer() else float(value)
