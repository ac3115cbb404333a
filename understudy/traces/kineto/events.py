"""Events to rows of the tables: which category goes where, and which arguments are read.

The times of rows count from the file's own clock (`baseTimeNanoseconds`, known at the end of many
files); understudy/traces/kineto/reader.py moves them to the trace's base.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct, field

from understudy.traces.kineto.findings import Findings
from understudy.traces.kineto.scanner import Block, Event
from understudy.traces.kineto.tables import SYNC_KINDS
from understudy.traces.kineto.texts import Texts, integer, text_of
from understudy.traces.kineto.times import LATEST_NS, nanoseconds

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Triple = tuple[Int32, Int32, Int32]
Row = tuple[Any, ...]

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})$")
#: CUPTI's "no stream", "no event": all bits set, as a signed or as an unsigned number.
_INVALID = frozenset({-1, 2**32 - 1, 2**64 - 1})
#: A row lasts at most a day: CUPTI is known to report durations of years.
LONGEST_NS = 86_400 * 10**9


class CollectiveArguments(Struct, gc=False):
    """What PyTorch records of a collective."""

    collective: str | None = field(default=None, name="Collective name")
    in_elements: Int64 | None = field(default=None, name="In msg nelems")
    out_elements: Int64 | None = field(default=None, name="Out msg nelems")
    dtype: str | None = None
    group_size: Int32 | None = field(default=None, name="Group size")
    group_name: str | None = field(default=None, name="Process Group Name")
    group_description: str | None = field(default=None, name="Process Group Description")
    group_ranks: str | None = field(default=None, name="Process Group Ranks")
    in_splits: str | None = field(default=None, name="In split size")
    out_splits: str | None = field(default=None, name="Out split size")
    source_rank: Int32 | None = field(default=None, name="Src Rank")
    destination_rank: Int32 | None = field(default=None, name="Dst Rank")
    sequence: Int64 | None = field(default=None, name="Seq")


class DeviceArguments(CollectiveArguments, gc=False):
    """Arguments of kernels, copies and memsets."""

    device: Int32 | None = None
    in_device: Int32 | None = field(default=None, name="inDevice")
    stream: Int64 | None = None
    correlation: Int64 | None = None
    external_id: Int64 | None = field(default=None, name="External id")
    old_external_id: Int64 | None = field(default=None, name="external id")
    grid: Triple | None = None
    block: Triple | None = None
    shared_memory_bytes: Int64 | None = field(default=None, name="shared memory")
    registers: Int32 | None = field(default=None, name="registers per thread")
    size_bytes: Int64 | None = field(default=None, name="bytes")
    graph_node: Int64 | None = field(default=None, name="graph node id")


class CallArguments(Struct, gc=False):
    """Arguments of runtime and driver calls. HIP calls of old traces give sizes as text.

    HIP calls describe the kernel that they launch; where the kernel does not, this is the only
    place.
    """

    correlation: Int64 | None = None
    external_id: Int64 | None = field(default=None, name="External id")
    old_external_id: Int64 | None = field(default=None, name="external id")
    size_bytes: Int64 | None = field(default=None, name="bytes")
    old_size_bytes: str | None = field(default=None, name="size")
    shared_memory_bytes: Int64 | None = field(default=None, name="shared memory")
    grid: Triple | None = None
    block: Triple | None = None


class SyncArguments(Struct, gc=False):
    """Arguments of cuda_sync and cuda_event events."""

    kind: str | None = field(default=None, name="cuda_sync_kind")
    device: Int32 | None = None
    stream: Int64 | None = None
    correlation: Int64 | None = None
    event: Int64 | None = field(default=None, name="wait_on_cuda_event_id")
    recorded_event: Int64 | None = field(default=None, name="event_id")
    wait_on_stream: Int64 | None = None
    wait_on_correlation: Int64 | None = field(
        default=None, name="wait_on_cuda_event_record_corr_id"
    )


class OpArguments(CollectiveArguments, gc=False):
    """Arguments of host operators and annotations."""

    external_id: Int64 | None = field(default=None, name="External id")
    sequence_number: Int64 | None = field(default=None, name="Sequence number")
    forward_thread: Int64 | None = field(default=None, name="Fwd thread id")
    input_dims: Raw = field(default=Raw(), name="Input Dims")
    input_types: Raw = field(default=Raw(), name="Input type")
    rank: Int32 | None = field(default=None, name="Rank")


_Arguments = TypeVar("_Arguments", bound=Struct)


class Decoder:
    """Decodes the `args` of one kind of event; what has the wrong type becomes None."""

    def __init__(self, kind: type[_Arguments]) -> None:
        self._kind = kind
        self._empty = kind()
        self._decode = msgspec.json.Decoder(kind).decode
        self._fields = [
            (known.encode_name, known.name, msgspec.json.Decoder(known.type).decode)
            for known in msgspec.structs.fields(kind)
        ]

    def __call__(self, raw: Raw) -> Any:
        if not raw:
            return self._empty
        try:
            return self._decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return self._field_by_field(raw)

    def _field_by_field(self, raw: Raw) -> Any:
        try:
            values = msgspec.json.decode(raw, type=dict[str, Raw])
        except (msgspec.DecodeError, RecursionError):
            return self._empty
        arguments = self._kind()
        for key, name, decode in self._fields:
            if key in values:
                setattr(arguments, name, _coerced(bytes(values[key]), decode))
        return arguments


def _coerced(value: bytes, decode: Callable[[bytes], Any]) -> Any:
    for candidate in (value, value.strip(b'"'), b'"%b"' % value):
        try:
            return decode(candidate)
        except (msgspec.DecodeError, RecursionError):
            continue
    return None


class Clock:
    """Reads the times of events."""

    def __init__(self) -> None:
        #: Events whose times were not in microseconds: some tools write nanoseconds.
        self.in_nanoseconds = 0

    def times_ns(self, event: Event) -> tuple[int, int]:
        """Start by the clock of the file and duration; ValueError says what is wrong with them."""
        if not event.ts:
            raise ValueError("without a time stamp")
        if not event.dur:
            raise ValueError("without a duration")
        try:
            start_ns = nanoseconds(bytes(event.ts))
            duration_ns = nanoseconds(bytes(event.dur))
        except ValueError:
            raise ValueError("whose time is not a number") from None
        if start_ns > LATEST_NS:
            self.in_nanoseconds += 1
            start_ns //= 1000
            duration_ns //= 1000
        if abs(start_ns) > LATEST_NS:
            raise ValueError("whose time stamp is out of range")
        if duration_ns < 0:
            raise ValueError("with a negative duration")
        if duration_ns > LONGEST_NS:
            raise ValueError("longer than a day")
        return start_ns, duration_ns


class Rows:
    """Turns blocks of events into rows, table by table."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        #: Rows not yet taken away, by table.
        self.device_events: list[Row] = []
        self.host_calls: list[Row] = []
        self.syncs: list[Row] = []
        self.annotations: list[Row] = []
        self.host_ops: list[Row] = []
        self.collective_calls: list[Row] = []
        self.texts = Texts()
        self.clock = Clock()
        self.ignored: Counter[tuple[str, str]] = Counter()
        #: Ranks that default process groups name, with how often.
        self.ranks: Counter[int] = Counter()
        #: Texts of 'Process Group Ranks' by group name.
        self.group_ranks: dict[str, str] = {}
        self._device = Decoder(DeviceArguments)
        self._call = Decoder(CallArguments)
        self._sync = Decoder(SyncArguments)
        self._op = Decoder(OpArguments)
        self._handlers: dict[str, Callable[[Event, int, int], None]] = {}
        for handler, categories in (
            (self._kernel, ("kernel", "concurrent_kernel")),
            (self._memcpy, ("gpu_memcpy", "memcpy")),
            (self._memset, ("gpu_memset", "memset")),
            (self._runtime_call, ("cuda_runtime", "hip_runtime", "runtime")),
            (self._driver_call, ("cuda_driver", "hip_driver", "driver")),
            (self._synchronization, ("cuda_sync",)),
            (self._event_record, ("cuda_event",)),
            (self._host_op, ("cpu_op", "operator")),
            (self._host_annotation, ("user_annotation",)),
            (self._device_annotation, ("gpu_user_annotation",)),
        ):
            self._handlers |= dict.fromkeys(categories, handler)
        # Traces before 2022 capitalise; a lookup is cheaper than lower() on each event.
        self._handlers |= {name.capitalize(): call for name, call in self._handlers.items()}

    def add(self, block: Block) -> None:
        """Reads all events of a block."""
        handlers = self._handlers
        for index, event in enumerate(block.events):
            category = event.cat
            handler = handlers.get(category) if category else None
            if handler is not None:
                reason = self._read(event, handler)
            elif category or event.ph != "X":
                self.ignored[event.ph, category or ""] += 1
                continue
            else:
                reason = "event without a category"
            if reason:
                position = block.offset_of(index) if self._findings.wants_position(reason) else -1
                self._findings.drop(position, reason)

    def _read(self, event: Event, handler: Callable[[Event, int, int], None]) -> str | None:
        """Adds one row; returns why not."""
        if event.ph != "X":
            return f"{event.cat} event of phase {event.ph!r}, not 'X'"
        try:
            start_ns, duration_ns = self.clock.times_ns(event)
        except ValueError as error:
            return f"{event.cat} event {error}"
        handler(event, start_ns, duration_ns)
        return None

    def _device_event(self, kind: str, event: Event, start_ns: int, duration_ns: int) -> None:
        a: DeviceArguments = self._device(event.args)
        device = a.device if a.device is not None else a.in_device
        stream = a.stream
        if device is None:
            device = _int32(self.texts.number(event.pid))
        if stream is None:
            stream = self.texts.number(event.tid)
        code = self.texts.code
        self.device_events.append(
            (
                code(kind),
                self.texts.raw_code(event.name),
                device,
                stream,
                start_ns,
                duration_ns,
                a.correlation,
                a.external_id if a.external_id is not None else a.old_external_id,
                a.grid,
                a.block,
                a.shared_memory_bytes,
                a.registers,
                a.size_bytes,
                a.graph_node,
                *(self._collective(a) if a.collective is not None else _NO_COLLECTIVE),
            )
        )

    def _collective(self, a: CollectiveArguments) -> Row:
        if a.group_name is not None and a.group_ranks is not None:
            self.group_ranks.setdefault(a.group_name, a.group_ranks)
        code = self.texts.code
        return (
            code(a.collective),
            a.in_elements,
            a.out_elements,
            code(a.dtype),
            a.group_size,
            code(a.group_name),
            code(a.group_description),
            code(a.group_ranks),
            code(a.in_splits),
            code(a.out_splits),
            a.source_rank,
            a.destination_rank,
            a.sequence,
        )

    def _kernel(self, event: Event, start_ns: int, duration_ns: int) -> None:
        self._device_event("kernel", event, start_ns, duration_ns)

    def _memcpy(self, event: Event, start_ns: int, duration_ns: int) -> None:
        self._device_event("memcpy", event, start_ns, duration_ns)

    def _memset(self, event: Event, start_ns: int, duration_ns: int) -> None:
        self._device_event("memset", event, start_ns, duration_ns)

    def _host_call(self, api: str, event: Event, start_ns: int, duration_ns: int) -> None:
        a: CallArguments = self._call(event.args)
        size_bytes = a.size_bytes
        if size_bytes is None and a.old_size_bytes is not None:
            size_bytes = integer(a.old_size_bytes.encode())
        self.host_calls.append(
            (
                self.texts.number(event.pid),
                self.texts.number(event.tid),
                self.texts.code(api),
                self.texts.raw_code(event.name),
                start_ns,
                duration_ns,
                a.correlation,
                a.external_id if a.external_id is not None else a.old_external_id,
                size_bytes,
                a.shared_memory_bytes,
                a.grid,
                a.block,
            )
        )

    def _runtime_call(self, event: Event, start_ns: int, duration_ns: int) -> None:
        self._host_call("runtime", event, start_ns, duration_ns)

    def _driver_call(self, event: Event, start_ns: int, duration_ns: int) -> None:
        self._host_call("driver", event, start_ns, duration_ns)

    def _synchronization(self, event: Event, start_ns: int, duration_ns: int) -> None:
        a: SyncArguments = self._sync(event.args)
        kind = (a.kind or text_of(event.name)).lower().replace(" ", "_")
        self._add_sync(kind if kind in SYNC_KINDS else "unknown", a, a.event, start_ns, duration_ns)

    def _event_record(self, event: Event, start_ns: int, duration_ns: int) -> None:
        a: SyncArguments = self._sync(event.args)
        self._add_sync("event_record", a, a.recorded_event, start_ns, duration_ns)

    def _add_sync(
        self, kind: str, a: SyncArguments, event: int | None, start_ns: int, duration_ns: int
    ) -> None:
        self.syncs.append(
            (
                self.texts.code(kind),
                a.device,
                _valid(a.stream),
                start_ns,
                duration_ns,
                _valid(a.correlation),
                _valid(event),
                _valid(a.wait_on_stream),
                _valid(a.wait_on_correlation),
            )
        )

    def _host_op(self, event: Event, start_ns: int, duration_ns: int) -> None:
        if b"ProfilerStep" in bytes(event.name):  # an operator before 2022
            self._host_annotation(event, start_ns, duration_ns)
            return
        a: OpArguments = self._op(event.args)
        process, thread = self.texts.number(event.pid), self.texts.number(event.tid)
        name = self.texts.raw_code(event.name)
        self.host_ops.append(
            (
                process,
                thread,
                name,
                start_ns,
                duration_ns,
                a.external_id,
                a.sequence_number,
                a.forward_thread,
                self.texts.json_code(a.input_dims),
                self.texts.json_code(a.input_types),
            )
        )
        if a.collective is not None:
            if a.rank is not None and a.group_description == "default_pg":
                self.ranks[a.rank] += 1
            self.collective_calls.append(
                (process, thread, name, start_ns, duration_ns, a.external_id, *self._collective(a))
            )

    def _host_annotation(self, event: Event, start_ns: int, duration_ns: int) -> None:
        self._annotation("host", event, start_ns, duration_ns)

    def _device_annotation(self, event: Event, start_ns: int, duration_ns: int) -> None:
        self._annotation("device", event, start_ns, duration_ns)

    def _annotation(self, side: str, event: Event, start_ns: int, duration_ns: int) -> None:
        step = _STEP.match(text_of(event.name))
        self.annotations.append(
            (
                self.texts.code(side),
                self.texts.number(event.pid),
                self.texts.number(event.tid),
                self.texts.raw_code(event.name),
                start_ns,
                duration_ns,
                self._op(event.args).external_id,
                int(step[1]) if step else None,
            )
        )


_NO_COLLECTIVE: Row = (None,) * 13


def _int32(number: int | None) -> int | None:
    return number if number is not None and -(2**31) <= number < 2**31 else None


def _valid(number: int | None) -> int | None:
    return None if number in _INVALID else number
