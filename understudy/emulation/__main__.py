"""`python -m understudy.emulation`: emulates one job without Dagster.

    python -m understudy.emulation --job job.json --device h100-sxm-80gb --out DIR

writes the stage's tables as Parquet and `result.json` into DIR (see results.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from understudy import home
from understudy.emulation.launcher import emulate
from understudy.emulation.results import save_emulation, save_error
from understudy.errors import UnderstudyError
from understudy.jobs import from_json


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m understudy.emulation", description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="resolved job (job.json)")
    parser.add_argument("--device", required=True, help="device id of the catalog")
    parser.add_argument("--out", type=Path, required=True, help="folder for tables and result.json")
    parser.add_argument(
        "--log", type=Path, help="output of the ranks (default: in the job's folder)"
    )
    parser.add_argument("--traces", type=Path, help="traces (default: in the job's folder)")
    parser.add_argument(
        "--progress", action="store_true", help="print progress as JSON lines on standard output"
    )
    return parser.parse_args()


def _print_progress(what: str, done: int, total: int) -> None:
    sys.stdout.write(json.dumps({"what": what, "done": done, "total": total}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Exit code: 0, that of the UnderstudyError (1 or 2), or 130 when interrupted."""
    arguments = _arguments()
    try:
        job = from_json(arguments.job.read_text())
        folder = home.job_dir(job.job) / arguments.device
        emulation = emulate(
            job,
            arguments.device,
            log_path=arguments.log or folder / "emulation.log",
            traces_dir=arguments.traces or folder / "traces",
            progress=_print_progress if arguments.progress else None,
        )
        save_emulation(emulation, arguments.out)
    except UnderstudyError as error:
        save_error(error, arguments.out)
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
