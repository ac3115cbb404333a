"""Rewrites symbols/<library>.tsv: which names the interceptor exports and what each one does.

Run it by hand (`make -C interceptor_c symbols TORCH=<torch/lib folder>`) for a new version of
torch, or after a function got an implementation. Names come from the files as they are now (none
is ever dropped), from what torch's libraries import, with --headers from the functions that CUDA's
headers declare, and with --callers from the functions that a library, C or Python file looks up by
name (such as pynvml.py, which monitors load). Dispositions:

  implemented    defined in src/ (a strong symbol of the built library)
  harmless       returns success and does nothing; nothing can be read back from it
  not_supported  returns the library's own NOT_SUPPORTED code and is recorded by name

A disposition edited by hand between harmless and not_supported is kept.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
_HARMLESS = re.compile(r"(Set|Destroy|Free|Unload|Release|Unregister|Deregister|Trim|Reset)")
#: Not harmless whatever they are called: changes of a graph's work, and of the machine.
_HARMFUL = re.compile(r"Graph\w*Node|^nvml")
_HEADER_FUNCTION = re.compile(r"(?:CUDAAPI|CUDARTAPI)\s+(\w+)\s*\(")
#: `#define cuMemAlloc cuMemAlloc_v2`: the second name is the one that binaries ask for.
_HEADER_ALIAS = re.compile(r"^\s*#\s*define\s+(cu\w+)\s+(\1_v\d)\s*$", re.MULTILINE)
_HEADERS = ("cuda.h", "cuda_runtime_api.h")
#: Libraries whose functions programs look up by name instead of linking them.
_LOOKED_UP = ("cuda", "nvml", "cupti")
#: A function's name; not a type (`_t`) nor a prefix (`_`).
_NAME = rb"((?:cu|nvml|cupti)[A-Z]\w+(?<!_t)(?<!_))(?!\w)"
_NAMES_IN_LIBRARY = re.compile(rb"(?<=\0)" + _NAME + rb"(?=\0)")
#: `library.nvmlInit`, `look_up("nvmlInit")`; not fields, `("nvmlReturn", ...)`, nor messages.
_NAMES_IN_PYTHON = re.compile(rb"(?:\.|\([\"'])" + _NAME + rb"(?![\"'],| )")
#: `get..Handle` are Triton's own look-up functions.
_NAMES_IN_C = re.compile(rb"(?<!\w)" + _NAME + rb"(?<!Handle)")
_READ_ONLY_DATA = re.compile(r"\] \.rodata +PROGBITS +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)")


class Library(NamedTuple):
    """One replaced library (a row of libraries.tsv): a shadow for each SONAME that some supported
    version of torch needs, with its version node ("" for none)."""

    name: str
    version_nodes: dict[str, str]
    prefixes: tuple[str, ...]
    not_supported_code: int


class Symbol(NamedTuple):
    """One exported name (a row of <library>.tsv)."""

    name: str
    disposition: str
    code: int


def read_libraries() -> list[Library]:
    """The rows of libraries.tsv."""
    rows = []
    for line in (HERE / "libraries.tsv").read_text().splitlines():
        if line and not line.startswith("#"):
            name, sonames, node, prefixes, code = line.split("\t")
            nodes = {
                soname: {"-": "", "soname": soname}.get(node, node) for soname in sonames.split(",")
            }
            rows.append(Library(name, nodes, tuple(prefixes.split(",")), int(code)))
    return rows


def read_symbols(library: str) -> list[Symbol]:
    """The rows of <library>.tsv; none when the file does not exist yet."""
    path = HERE / f"{library}.tsv"
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            name, disposition, code = line.split("\t")
            rows.append(Symbol(name, disposition, int(code)))
    return rows


def exported_names(library: Path) -> dict[str, str]:
    """Defined dynamic symbols and their nm type: T for a definition, W for a (weak) stub."""
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in listing.splitlines())
    return {row[2].split("@")[0]: row[1] for row in rows}


def imported_names(torch_lib: Path) -> set[str]:
    """Undefined dynamic symbols of every library in torch's lib folder."""
    names: set[str] = set()
    for path in sorted(torch_lib.glob("*.so*")):
        listing = subprocess.run(
            ["nm", "-D", "--undefined-only", str(path)], capture_output=True, text=True, check=True
        ).stdout
        names.update(line.split()[-1].split("@")[0] for line in listing.splitlines())
    return names


def _read_only_data(library: Path) -> bytes:
    """The section `.rodata` of an ELF file, where string literals lie; all else may be device code
    of hundreds of megabytes."""
    listing = subprocess.run(
        ["readelf", "-SW", str(library)], capture_output=True, text=True, check=True
    ).stdout
    found = _READ_ONLY_DATA.search(listing)
    if found is None:
        return b""
    with library.open("rb") as file:
        file.seek(int(found[1], 16))
        return file.read(int(found[2], 16))


def looked_up_names(path: Path) -> set[str]:
    """Driver, NVML and CUPTI functions that a library, Python or C source looks up by name."""
    if ".so" in path.suffixes:
        words = _NAMES_IN_LIBRARY.findall(_read_only_data(path))
    else:
        pattern = _NAMES_IN_PYTHON if path.suffix == ".py" else _NAMES_IN_C
        words = pattern.findall(path.read_bytes())
    libraries = read_libraries()
    return {name for name in map(bytes.decode, words) if library_of(name, libraries) in _LOOKED_UP}


def library_of(name: str, libraries: list[Library]) -> str | None:
    """The library with the longest prefix of `name` that an API name may have."""
    best: tuple[int, str] | None = None
    for library in libraries:
        for prefix in library.prefixes:
            rest = name[len(prefix) :]
            # cuBLAS, cuFFT and the driver start with "cu" too: what follows is upper case.
            fits = name.startswith(prefix) and bool(rest) and (prefix != "cu" or rest[0].isupper())
            if fits and (best is None or len(prefix) > best[0]):
                best = (len(prefix), library.name)
    return best[1] if best else None


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path, help="the built libunderstudy.so")
    parser.add_argument("--torch-lib", type=Path, help="torch/lib of an installed torch")
    parser.add_argument("--headers", type=Path, help="folder of cuda.h and cuda_runtime_api.h")
    parser.add_argument("--callers", type=Path, nargs="*", default=[], help="who looks names up")
    arguments = parser.parse_args()
    libraries = read_libraries()
    rows = {library.name: {s.name: s for s in read_symbols(library.name)} for library in libraries}
    exported = exported_names(arguments.library)
    implemented = {name for name, kind in exported.items() if kind == "T"}
    names = set(implemented)
    if arguments.torch_lib:
        names |= imported_names(arguments.torch_lib)
    if arguments.headers:
        for header in _HEADERS:
            text = (arguments.headers / header).read_text()
            names.update(_HEADER_FUNCTION.findall(text))
            names.update(versioned for _, versioned in _HEADER_ALIAS.findall(text))
    for caller in arguments.callers:
        names |= looked_up_names(caller)
    for name in names:
        owner = library_of(name, libraries)
        if owner is not None:
            rows[owner].setdefault(name, Symbol(name, "", 0))
    for library in libraries:
        lines = ["# symbol\tdisposition\treturn_code"]
        for name, symbol in sorted(rows[library.name].items()):
            disposition = symbol.disposition
            if name in implemented:
                disposition = "implemented"
            elif disposition not in ("harmless", "not_supported"):
                harmless = _HARMLESS.search(name) and not _HARMFUL.search(name)
                disposition = "harmless" if harmless else "not_supported"
            code = library.not_supported_code if disposition == "not_supported" else 0
            lines.append(f"{name}\t{disposition}\t{code}")
        (HERE / f"{library.name}.tsv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
