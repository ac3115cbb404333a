"""Programs that are not built with the sanitizers, Python above all, under an interceptor that is.

The address sanitizer's runtime has to be loaded before libc, so it is preloaded; it need not be the
very first library, as the launcher puts the interceptor in front of what it finds in LD_PRELOAD.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "interceptor_c" / "build" / "asan"

_REPORT = re.compile(r"^.*(ERROR: \w+Sanitizer|: runtime error: |Sanitizer CHECK failed).*$", re.M)
_SHOWN_LINES = 30


@functools.cache
def build() -> Path:
    """Builds the sanitized interceptor; its library."""
    subprocess.run(
        ["make", "--no-print-directory", "-C", str(REPOSITORY / "interceptor_c"), "asan"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return BUILD / "libunderstudy.so"


@functools.cache
def runtime(library: Path) -> Path:
    """The shared library of the address sanitizer that `library` needs."""
    listed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True)
    found = re.search(r"libasan\.so\S* => (\S+)", listed.stdout)
    assert found, f"{library} is not built with the address sanitizer"
    return Path(found[1])


def torch_libraries() -> Path:
    found = importlib.util.find_spec("torch")
    assert found and found.origin
    return Path(found.origin).parent / "lib"


def environment(library: Path) -> dict[str, str]:
    """What a program that is to use the sanitized `library` needs in its environment.

    Python keeps memory to its end on purpose, so leaks are not looked for. What was freed is kept
    for a while to find its use, but not PyTorch's big host buffers. The sanitizer calls dlopen in
    the program's place, where the run path of PyTorch's libraries does not count: their folder has
    to be named for libtorch_cuda_linalg.so to be found.
    """
    options = (
        "detect_leaks=0:verify_asan_link_order=0:quarantine_size_mb=32:"
        f"suppressions={REPOSITORY / 'tests' / 'asan_suppressions.txt'}"
    )
    return {
        "LD_PRELOAD": str(runtime(library)),
        "LD_LIBRARY_PATH": str(torch_libraries()),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def reports(output: str) -> str:
    """The first report of a sanitizer in a program's output; empty without one."""
    found = _REPORT.search(output)
    return "\n".join(output[found.start() :].splitlines()[:_SHOWN_LINES]) if found else ""
