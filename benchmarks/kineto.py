"""`python -m benchmarks.kineto TRACE [GIGABYTES]`: the speed and the memory of reading a trace.

Repeats the events of a real trace, shifted in time, until the file has the wanted size, and reads
it with this reader and with `orjson.loads`, each in its own process. orjson is no dependency:
without it that line says failed.
"""

from __future__ import annotations

import gzip
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from understudy.traces.kineto.findings import Findings
from understudy.traces.kineto.scanner import Scanner
from understudy.traces.kineto.source import chunks

_TIME = re.compile(rb'("ts": )(\d+)')
_ID = re.compile(rb'("(?:correlation|External id|id)": )(\d+)')
#: Correlation ids of a repetition lie this far from those of the one before.
_ID_STEP = 10_000_000

_READ = """\
from pathlib import Path
from understudy.traces.kineto import read_kineto
trace = read_kineto(Path({path!r}))
print({{name: len(table) for name, table in trace.tables().items()}})
print("tables take", sum(table.nbytes for table in trace.tables().values()) >> 20, "MiB")
"""
_ORJSON = """\
import gzip, orjson
from pathlib import Path
path = Path({path!r})
text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
print(len(orjson.loads(text)["traceEvents"]), "events")
"""


def main() -> None:
    """Prints seconds, megabytes a second and peak memory for both readers."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    source, gigabytes = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) == 3 else 0.5
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        plain = Path(folder) / "rank-0.json"
        write_repeated(source, plain, int(gigabytes * 1e9))
        size = plain.stat().st_size
        print(f"{size / 1e9:.2f} GB of JSON from {source.name}")
        measure("this reader", _READ.format(path=str(plain)), size)
        measure("orjson.loads", _ORJSON.format(path=str(plain)), size)
        packed = plain.with_suffix(".json.gz")
        with plain.open("rb") as text, gzip.open(packed, "wb", compresslevel=6) as file:
            while block := text.read(1 << 20):
                file.write(block)
        print(f"gzip: {packed.stat().st_size / 1e9:.2f} GB")
        measure("this reader, gzip", _READ.format(path=str(packed)), size)


def write_repeated(source: Path, target: Path, size_bytes: int) -> None:
    """Writes a trace of at least `size_bytes` with the events of `source` again and again."""
    text = b"".join(chunks(source, sys.exit))
    scanner = Scanner([text], Findings(source))
    for _ in scanner.blocks():
        pass
    start, end = len(scanner.outside[0]), len(text) - len(scanner.outside[-1])
    times = [int(match[2]) for match in _TIME.finditer(text, start, end)]
    middle = sorted(times)[len(times) // 2]
    near = [time for time in times if abs(time - middle) < 3_600_000_000]
    length_us = max(near) - min(near) + 1_000_000
    with target.open("wb") as file:
        file.write(text[:start])
        for number, events in enumerate(_shifted(text[start:end].rstrip(), length_us)):
            file.write(b"," * (number > 0) + events)
            if file.tell() >= size_bytes:
                break
        file.write(text[end:])


def _shifted(events: bytes, length_us: int) -> Iterator[bytes]:
    number = 0
    while True:
        shift_us, shift_ids = number * length_us, number * _ID_STEP
        moved = _TIME.sub(lambda m, by=shift_us: m[1] + b"%d" % (int(m[2]) + by), events)
        yield _ID.sub(lambda m, by=shift_ids: m[1] + b"%d" % (int(m[2]) + by), moved)
        number += 1


def measure(title: str, program: str, size_bytes: int) -> None:
    """Runs a program in its own process and prints its time and peak memory."""
    report = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program + report], stdout=subprocess.PIPE, text=True, check=False
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    *lines, peak_mib = done.stdout.splitlines() or ["failed", "0"]
    print(
        f"{title:<20}{processor:7.1f} CPU-s {wall:7.1f} s {size_bytes / wall / 1e6:7.0f} MB/s "
        f"peak {peak_mib} MiB   {'; '.join(lines)}"
    )


if __name__ == "__main__":
    main()
