"""Checks that the symbol tables and the built library agree.

    python3 symbols/check_symbols.py BUILD_FOLDER [--torch-lib FOLDER] [--site-packages FOLDER]

Every name of symbols/*.tsv is exported; `implemented` ones by a definition in src/, the others by a
stub; nothing else is exported; each shadow library carries its SONAME, its version node and the
need for libunderstudy.so. With --torch-lib, every function that torch's libraries import from a
replaced SONAME is exported, and every driver, NVML and CUPTI function that they look up by name.
With --site-packages, the same of torchvision, Triton and pynvml, as far as they are there. Prints
what does not hold and exits 1.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from update_symbols import (
    exported_names,
    imported_names,
    library_of,
    looked_up_names,
    read_libraries,
    read_symbols,
)

#: Exported besides the APIs: the tracer's own functions, and the function of libc10 it stands in
#: front of.
OWN_PREFIXES = ("understudy_", "_ZN3c10")
#: Functions of the C library that src/host.c stands in front of.
HOST_NAMES = {"getaddrinfo", "gethostname", "uname"}
#: What NVTX calls of the library that NVTX_INJECTION64_PATH names.
INJECTION_NAMES = {"InitializeInjectionNvtx2"}
#: Functions that return a pointer: a stub's status code would be taken for one.
_RETURNS_POINTER = re.compile(r"(Get(Error|Status|LastError)(String|Name)|_malloc|_ptr)$")


def check_tables(symbols: dict[str, str]) -> list[str]:
    """Tables against the library."""
    problems = []
    listed: set[str] = set()
    for library in read_libraries():
        for symbol in read_symbols(library.name):
            where = f"symbols/{library.name}.tsv: {symbol.name}"
            if symbol.name in listed:
                problems.append(f"{where} is listed twice")
            listed.add(symbol.name)
            kind = symbols.get(symbol.name)
            if kind is None:
                problems.append(f"{where} is not exported")
            elif symbol.disposition == "implemented" and kind != "T":
                problems.append(f"{where} is said to be implemented but is a stub")
            elif symbol.disposition != "implemented" and kind == "T":
                problems.append(f"{where} is implemented, the table says {symbol.disposition}")
            if _RETURNS_POINTER.search(symbol.name) and kind != "T":
                problems.append(f"{where} returns a pointer and must not be a stub")
            if symbol.disposition == "not_supported" and symbol.code == 0:
                problems.append(f"{where} is not_supported but returns success")
    for name in sorted(set(symbols) - listed - HOST_NAMES - INJECTION_NAMES):
        if not name.startswith(OWN_PREFIXES):
            problems.append(f"{name} is exported but stands in no table (make symbols)")
    return problems


def check_shadows(build: Path) -> list[str]:
    """Each shadow library against its row of libraries.tsv."""
    problems = []
    shadows = {s: n for library in read_libraries() for s, n in library.version_nodes.items()}
    for soname, node in shadows.items():
        path = build / "shadow" / soname
        if not path.is_file():
            problems.append(f"{path} is missing")
            continue
        text = subprocess.run(
            ["readelf", "-dVW", str(path)], capture_output=True, text=True, check=True
        ).stdout
        wanted = [f"soname: [{soname}]", "library: [libunderstudy.so]"]
        if node:
            wanted.append(f"Name: {node}")
        problems += [f"{path} lacks `{item}`" for item in wanted if item not in text]
    return problems


def check_names(symbols: dict[str, str], names: set[str], user: Path) -> list[str]:
    """What `user` needs against what is exported."""
    libraries = read_libraries()
    return [
        f"{user} needs {name}, which is not exported (make symbols TORCH=...)"
        for name in sorted(names)
        if library_of(name, libraries) is not None and name not in symbols
    ]


def check_callers(symbols: dict[str, str], callers: list[Path]) -> list[str]:
    """What libraries and sources look up by name; those that are not installed are left out."""
    return [
        problem
        for caller in callers
        if caller.is_file()
        for problem in check_names(symbols, looked_up_names(caller), caller)
    ]


def check_torch(symbols: dict[str, str], torch_lib: Path) -> list[str]:
    """PyTorch's libraries and its Python code."""
    libraries = [torch_lib / f"lib{name}.so" for name in ("c10_cuda", "torch_cuda", "torch_python")]
    sources = sorted((torch_lib.parent / "cuda").glob("*.py"))
    return check_names(symbols, imported_names(torch_lib), torch_lib) + check_callers(
        symbols, libraries + sources
    )


def check_site_packages(symbols: dict[str, str], folder: Path) -> list[str]:
    """Torchvision, Triton with its profiler, and pynvml."""
    triton = folder / "triton" / "_C"
    problems = []
    for libraries in (folder / "torchvision", triton):
        problems += check_names(symbols, imported_names(libraries), libraries)
    callers = [
        triton / "libtriton.so",
        triton / "libproton.so",
        folder / "triton" / "backends" / "nvidia" / "driver.c",
        folder / "pynvml.py",
    ]
    return problems + check_callers(symbols, callers)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--torch-lib", type=Path)
    parser.add_argument("--site-packages", type=Path)
    arguments = parser.parse_args()
    symbols = exported_names(arguments.build / "libunderstudy.so")
    problems = check_tables(symbols) + check_shadows(arguments.build)
    if arguments.torch_lib:
        problems += check_torch(symbols, arguments.torch_lib)
    if arguments.site_packages:
        problems += check_site_packages(symbols, arguments.site_packages)
    for problem in problems:
        sys.stdout.write(problem + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
