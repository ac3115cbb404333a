"""Kernels of a shared library: reads the fatbins that nvcc embeds in it.

A CUDA library holds its device code in the ELF section `.nv_fatbin`: one fatbin per translation
unit, each with one (usually compressed) cubin per architecture. A cubin is an ELF file that says,
per kernel, how many registers and how much shared memory it takes and where its parameters lie.
Neither format is documented by NVIDIA; the field offsets below were found by reading the files of
PyTorch 2.7 to 2.14 and checked against `cuobjdump -elf`.

Everything is bounds-checked: a damaged file raises UnderstudyError naming the file and the offset.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from understudy.errors import UnderstudyError

FATBIN_MAGIC = 0xBA55ED50
_ELF_MAGIC = b"\x7fELF"

_ENTRY_KIND_CUBIN = 2
_FLAG_LZ4 = 0x2000
_FLAG_ZSTD = 0x8000
#: Code that runs on exactly this architecture only (`sm_90a`); it is usable on that one.
_FLAG_ARCH_SPECIFIC = 0x100000
#: A cubin larger than this is taken for damage (PyTorch's largest is about 100 MB).
_MAX_CUBIN_BYTES = 1 << 31

#: CUDA's limits ("CUDA C++ Programming Guide", Technical Specifications per Compute Capability).
_MAX_REGISTERS = 255
_MAX_PARAMETER_BYTES = 32764
_MAX_STATIC_SHARED_BYTES = 48 << 10

#: From compute capability 9.0 on, a kernel's shared memory section starts with what the system
#: reserves per block (cudaDevAttrReservedSharedMemoryPerBlock); CUDA does not count it as static.
_RESERVED_SHARED_BYTES = 1024

_SHT_NULL = 0
_SHT_SYMTAB = 2
_SHT_NOTE = 7
_SHT_NOBITS = 8

# Attributes of `.nv.info` sections (names as nvdisasm prints them).
_EIFMT_SVAL = 4
_EIATTR_MAX_THREADS = 0x05
_EIATTR_KPARAM_INFO = 0x17
_EIATTR_REGCOUNT = 0x2F
_EIATTR_KPARAM_INFO_LARGE = 0x45  # kernels with more than 4 KiB of parameters

_SECTION = np.dtype(
    [
        ("name", "<u4"),
        ("type", "<u4"),
        ("flags", "<u8"),
        ("address", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("link", "<u4"),
        ("info", "<u4"),
        ("alignment", "<u8"),
        ("entry_bytes", "<u8"),
    ]
)


@dataclass(frozen=True)
class Section:
    """One section of an ELF file; `offset` and `size` are in bytes of the file."""

    name: str
    type: int
    offset: int
    size: int


@dataclass(frozen=True)
class KernelInfo:
    """One kernel of a cubin. `parameters` are (offset_bytes, size_bytes) in the argument buffer, by
    ordinal; `max_threads` per block is 0 when the kernel states no bound."""

    name: str
    registers: int
    static_shared_bytes: int
    max_threads: int
    parameter_bytes: int
    parameters: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Fatbin:
    """The kernels that one fatbin holds for the chosen architecture.

    `index` counts the library's fatbins from 0, `offset` is that of the fatbin in `.nv_fatbin`.
    """

    index: int
    offset: int
    compute_capability: int
    kernels: tuple[KernelInfo, ...]


def _damaged(where: str, offset: int, what: str) -> UnderstudyError:
    return UnderstudyError(
        f"{where}: {what} at offset {offset} ({offset:#x}). The file is damaged or of a kind that "
        "is not supported; reinstall the package it belongs to."
    )


def _unpack(fmt: struct.Struct, data: memoryview, offset: int, where: str) -> tuple[int, ...]:
    if offset < 0 or offset + fmt.size > len(data):
        raise _damaged(where, offset, f"{fmt.size} bytes wanted beyond the end ({len(data)} bytes)")
    return fmt.unpack_from(data, offset)


_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_FATBIN_HEADER = struct.Struct("<IHHQ")
_ENTRY_HEADER = struct.Struct("<HHIQIIIIQQQ")  # first 56 bytes
_ENTRY_RAW_SIZE = struct.Struct("<Q")  # at 56


def _sections(data: memoryview, where: str) -> tuple[np.ndarray, bytes]:
    """Section headers (dtype `_SECTION`) and the bytes of the section name table."""
    header = _unpack(_ELF_HEADER, data, 0, where)
    identification: bytes = header[0]  # pyright: ignore[reportAssignmentType]
    if identification[:4] != _ELF_MAGIC or identification[4] != 2 or identification[5] != 1:
        raise _damaged(where, 0, "no 64-bit little-endian ELF header")
    table_offset, entry_bytes, count, names_index = header[6], header[11], header[12], header[13]
    if table_offset == 0:
        return np.zeros(0, _SECTION), b""
    if entry_bytes != _SECTION.itemsize:
        raise _damaged(where, 58, f"section headers of {entry_bytes} bytes")
    if table_offset + _SECTION.itemsize > len(data):
        raise _damaged(where, table_offset, "section header table beyond the end")
    first = np.frombuffer(data, _SECTION, 1, table_offset)[0]
    # ELF keeps counts that do not fit 16 bits in the otherwise unused first section header.
    count = count or int(first["size"])
    names_index = int(first["link"]) if names_index == 0xFFFF else names_index
    if table_offset + count * _SECTION.itemsize > len(data) or names_index >= count:
        raise _damaged(where, table_offset, f"section header table of {count} entries")
    table = np.frombuffer(data, _SECTION, count, table_offset)
    filled = table["type"] != _SHT_NOBITS
    ends = table["offset"] + table["size"]
    outside = filled & ((ends > len(data)) | (ends < table["offset"]))
    if outside.any():
        bad = int(np.argmax(outside))
        raise _damaged(where, table_offset + bad * _SECTION.itemsize, "section beyond the end")
    names = table[names_index]
    start = int(names["offset"])
    return table, bytes(data[start : start + int(names["size"])])


def _string(table: bytes, offset: int, where: str) -> str:
    end = table.find(b"\0", offset)
    if offset > len(table) or end < 0:
        raise _damaged(where, offset, "unterminated name in a string table")
    return table[offset:end].decode("utf-8", "replace")


def elf_sections(data: memoryview, where: str) -> list[Section]:
    """The sections of an ELF file."""
    table, names = _sections(data, where)
    return [
        Section(
            _string(names, int(s["name"]), where), int(s["type"]), int(s["offset"]), int(s["size"])
        )
        for s in table
    ]


def build_id(data: memoryview, sections: list[Section], where: str) -> str | None:
    """The GNU build id as lower-case hex, None when the file has none."""
    note = struct.Struct("<III")
    for section in sections:
        if section.type != _SHT_NOTE:
            continue
        position, end = section.offset, section.offset + section.size
        while position + note.size <= end:
            name_bytes, value_bytes, kind = _unpack(note, data, position, where)
            name_start = position + note.size
            value_start = name_start + (name_bytes + 3) // 4 * 4
            if value_start + value_bytes > end:
                raise _damaged(where, position, "note beyond the end of its section")
            if kind == 3 and bytes(data[name_start : name_start + name_bytes]) == b"GNU\0":
                return bytes(data[value_start : value_start + value_bytes]).hex()
            position = value_start + (value_bytes + 3) // 4 * 4
    return None


@dataclass(frozen=True)
class _Entry:
    offset: int  # of the payload in the section
    stored_bytes: int
    raw_bytes: int
    arch: int
    flags: int


def _entries(data: memoryview, start: int, end: int, where: str) -> Iterator[_Entry]:
    position = start
    while position < end:
        header = _unpack(_ENTRY_HEADER, data, position, where)
        kind, header_bytes, padded_bytes, compressed_bytes = (
            header[0],
            header[2],
            header[3],
            header[4],
        )
        arch, flags = header[7], header[9]
        payload = position + header_bytes
        if header_bytes < 64 or payload + padded_bytes > end:
            raise _damaged(where, position, "fatbin entry beyond the end of its fatbin")
        (raw_bytes,) = _unpack(_ENTRY_RAW_SIZE, data, position + 56, where)
        if kind == _ENTRY_KIND_CUBIN:
            compressed = bool(flags & (_FLAG_LZ4 | _FLAG_ZSTD))
            stored = compressed_bytes if compressed else padded_bytes
            if stored > padded_bytes or raw_bytes > _MAX_CUBIN_BYTES:
                raise _damaged(where, position, "fatbin entry with impossible sizes")
            yield _Entry(payload, stored, raw_bytes, arch, flags)
        position = payload + padded_bytes


def _cubin(data: memoryview, entry: _Entry, where: str) -> memoryview:
    stored = data[entry.offset : entry.offset + entry.stored_bytes]
    if entry.flags & _FLAG_ZSTD:
        codec = "zstd"
    elif entry.flags & _FLAG_LZ4:
        codec = "lz4_raw"
    else:
        return stored
    try:
        raw = pa.Codec(codec).decompress(stored, decompressed_size=entry.raw_bytes)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(
            where, entry.offset, f"{codec} data that does not decompress ({error})"
        ) from error
    return memoryview(raw)


def _choose(entries: list[_Entry], compute_capability: int) -> _Entry | None:
    """The cubin that the driver would load: the highest architecture of the same major version
    that is not above the device's; at the device's own, architecture-specific code wins."""

    def usable(entry: _Entry) -> bool:
        if entry.flags & _FLAG_ARCH_SPECIFIC:
            return entry.arch == compute_capability
        return entry.arch // 10 == compute_capability // 10 and entry.arch <= compute_capability

    candidates = [e for e in entries if usable(e)]
    key = lambda e: (e.arch, bool(e.flags & _FLAG_ARCH_SPECIFIC))  # noqa: E731
    return max(candidates, key=key, default=None)


def _attributes(data: bytes, where: str, base: int) -> Iterator[tuple[int, int, int]]:
    """(attribute, payload offset, payload size) of the sized entries of a `.nv.info` section."""
    position, end = 0, len(data)
    while position + 4 <= end:
        form, attribute = data[position], data[position + 1]
        if form == _EIFMT_SVAL:
            size = data[position + 2] | data[position + 3] << 8
            if position + 4 + size > end:
                raise _damaged(where, base + position, "kernel attribute beyond its section")
            yield attribute, position + 4, size
            position += 4 + size
        else:
            position += 4


_U32 = struct.Struct("<I")
_TRIPLE = struct.Struct("<3I")
_KPARAM = struct.Struct("<IHHI")
_KPARAM_LARGE = struct.Struct("<IHHHH")
_REGCOUNT = struct.Struct("<II")


def _kernel(
    name: str, data: bytes, registers: int, shared: int, where: str, base: int
) -> KernelInfo:
    parameters: dict[int, tuple[int, int]] = {}
    max_threads = 0
    for attribute, at, size in _attributes(data, where, base):
        if attribute == _EIATTR_KPARAM_INFO and size >= 12:
            _, ordinal, offset, packed = _KPARAM.unpack_from(data, at)
            parameters[ordinal] = (offset, packed >> 18)
        elif attribute == _EIATTR_KPARAM_INFO_LARGE and size >= 12:
            _, ordinal, offset, width, _ = _KPARAM_LARGE.unpack_from(data, at)
            parameters[ordinal] = (offset, width)
        elif attribute == _EIATTR_MAX_THREADS and size >= 12:
            max_threads = math.prod(_TRIPLE.unpack_from(data, at))
    ordered = tuple(parameters[ordinal] for ordinal in sorted(parameters))
    parameter_bytes = max((offset + width for offset, width in ordered), default=0)
    if set(parameters) != set(range(len(parameters))) or parameter_bytes > _MAX_PARAMETER_BYTES:
        raise _damaged(where, base, f"impossible parameters of kernel {name}")
    if registers > _MAX_REGISTERS or shared > _MAX_STATIC_SHARED_BYTES:
        raise _damaged(
            where, base, f"kernel {name} with {registers} registers and {shared} shared bytes"
        )
    return KernelInfo(name, registers, shared, max_threads, parameter_bytes, ordered)


def cubin_kernels(data: memoryview, arch: int, where: str) -> list[KernelInfo]:
    """The kernels of a cubin of architecture `arch` (90 = sm_90), in the order of its sections."""
    reserved = _RESERVED_SHARED_BYTES if arch >= 90 else 0
    table, names = _sections(data, where)
    # The first section, and no other, is empty; one is that of the names.
    own_name = names.find(b".shstrtab\0")
    if np.flatnonzero(table["type"] == _SHT_NULL).tolist() != [0] or own_name not in table["name"]:
        raise _damaged(where, 0, "cubin without a table of sections")
    infos: list[tuple[str, int, int]] = []
    functions: set[str] = set()
    shared: dict[str, int] = {}
    global_info: tuple[int, int] | None = None
    symbols: tuple[int, int, int] | None = None
    for name_at, kind, offset, size, link in zip(
        table["name"].tolist(),
        table["type"].tolist(),
        table["offset"].tolist(),
        table["size"].tolist(),
        table["link"].tolist(),
        strict=True,
    ):
        if kind == _SHT_SYMTAB:
            symbols = (offset, size, link)
        elif names.startswith(b".text.", name_at):
            functions.add(_string(names, name_at, where)[6:])
        elif names.startswith(b".nv.info", name_at):
            name = _string(names, name_at, where)
            if name == ".nv.info":
                global_info = (offset, size)
            elif name.startswith(".nv.info."):
                infos.append((name[9:], offset, size))
        elif names.startswith(b".nv.shared.", name_at):
            shared[_string(names, name_at, where)[11:]] = max(size - reserved, 0)
    if functions != {name for name, _, _ in infos}:
        raise _damaged(where, 0, "cubin whose functions and their attributes do not agree")
    if not infos:  # an object that only has variables
        return []
    if global_info is None or symbols is None:
        raise _damaged(where, 0, "cubin without attributes or symbols")
    registers = _register_counts(data, table, symbols, global_info, where)
    missing = functions - registers.keys()
    if missing:
        raise _damaged(where, global_info[0], f"no register count of {min(missing)}")
    return [
        _kernel(
            name,
            bytes(data[offset : offset + size]),
            registers[name],
            shared.get(name, 0),
            where,
            offset,
        )
        for name, offset, size in infos
    ]


def _register_counts(
    data: memoryview,
    table: np.ndarray,
    symbols: tuple[int, int, int],
    info: tuple[int, int],
    where: str,
) -> dict[str, int]:
    """Function name -> registers per thread."""
    symbol_offset, symbol_bytes, link = symbols
    if link >= len(table):
        raise _damaged(where, symbol_offset, "symbol table without names")
    start = int(table[link]["offset"])
    names = bytes(data[start : start + int(table[link]["size"])])
    counts: dict[str, int] = {}
    blob = bytes(data[info[0] : info[0] + info[1]])
    for attribute, at, size in _attributes(blob, where, info[0]):
        if attribute != _EIATTR_REGCOUNT or size < 8:
            continue
        symbol, registers = _REGCOUNT.unpack_from(blob, at)
        if (symbol + 1) * 24 > symbol_bytes:
            raise _damaged(where, info[0] + at, f"register count of symbol {symbol}")
        (name_at,) = _unpack(_U32, data, symbol_offset + symbol * 24, where)
        counts[_string(names, name_at, where)] = registers
    return counts


def section_fatbins(
    data: memoryview,
    compute_capability: int,
    where: str,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Fatbin]:
    """The fatbins of a `.nv_fatbin` section, with the kernels for `compute_capability` (90 = 9.0).

    A fatbin without usable code has no kernels. `progress` is called with (bytes done, bytes).
    """
    position, index = 0, 0
    while position + _FATBIN_HEADER.size <= len(data):
        magic, _, header_bytes, payload_bytes = _unpack(_FATBIN_HEADER, data, position, where)
        if magic == 0:  # padding between translation units
            position += 8
            continue
        if magic != FATBIN_MAGIC:
            raise _damaged(where, position, f"no fatbin (magic {magic:#x})")
        start = position + header_bytes
        end = start + payload_bytes
        if header_bytes < _FATBIN_HEADER.size or end > len(data):
            raise _damaged(where, position, "fatbin beyond the end of its section")
        entry = _choose(list(_entries(data, start, end, where)), compute_capability)
        kernels: tuple[KernelInfo, ...] = ()
        arch = 0
        if entry is not None:
            arch = entry.arch
            inside = f"{where}, cubin at offset {entry.offset} of .nv_fatbin"
            kernels = tuple(cubin_kernels(_cubin(data, entry, where), arch, inside))
        yield Fatbin(index, position, arch, kernels)
        index += 1
        position = (end + 7) // 8 * 8
        if progress:
            progress(min(position, len(data)), len(data))
    if index == 0 or bytes(data[position:]).strip(b"\0"):
        raise _damaged(where, position, "no fatbin where the section ends")


@dataclass(frozen=True)
class Library:
    """A mapped shared library: its build id (None: it has none) and its `.nv_fatbin` section
    (None: no device code)."""

    path: Path
    build_id: str | None
    fatbins: memoryview | None
    size_bytes: int


def open_library(path: Path) -> Library:
    """Maps a shared library. Raises UnderstudyError when it is no ELF file or cannot be read."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size == 0:
                raise _damaged(str(path), 0, "empty file")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise UnderstudyError(f"{path}: cannot be read ({error.strerror})") from error
    sections = elf_sections(data, str(path))
    section = next((s for s in sections if s.name == ".nv_fatbin"), None)
    fatbins = data[section.offset : section.offset + section.size] if section else None
    return Library(path, build_id(data, sections, str(path)), fatbins, size)
