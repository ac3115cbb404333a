"""The `understudy` command: thin, and quick to start (each command imports what it needs).

Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 the job does not fit into the memory.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.command import (
    as_json_option,
    milliseconds,
    predicted_devices,
    print_json,
    quiet_instance,
)
from pipelines.export_command import export
from pipelines.forests_command import forests
from pipelines.measured import compare, simulate
from pipelines.what_if_command import what_if
from understudy.errors import UnderstudyError, UsageError

if TYPE_CHECKING:
    from understudy.jobs import JobSpec

_DOES_NOT_FIT = 3
_FAILED = 1

#: A disk with less free space is full; what fails then fails for that reason.
_FULL_BYTES = 256 * 1024

_device = click.option("--device", metavar="DEVICE", help="Only this device (id or alias).")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits; every failure is one message on standard error."""
    # `kill` ends a run as Ctrl-C does: through the code that ends the ranks.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(cli, arguments))


def run(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Runs `command` and returns its exit code."""
    try:
        code = command.main(arguments, prog_name="understudy", standalone_mode=False)
        sys.stdout.flush()
    except UnderstudyError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"; see `{context.command_path} --help`" if context is not None else ""
        return _fail(error.format_message().rstrip(".") + hint, UsageError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", _FAILED)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(_describe(error), _FAILED)
    except Exception as error:  # noqa: BLE001 - the last net: a message instead of a traceback
        return _fail(_explain(error), _FAILED)
    except BaseException as error:
        # Dagster's interrupt, which is no KeyboardInterrupt; named to spare the import of Dagster.
        if type(error).__name__ == "DagsterExecutionInterruptedError":
            return _fail("interrupted", _FAILED)
        raise
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    click.echo(f"understudy: {message}", err=True)
    return code


def _describe(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return _full_disk(error.filename)
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _full_disk(path: str | None = None) -> str:
    from understudy.home import home

    return (
        f"{path or home()}: the disk is full; free space there, or set UNDERSTUDY_HOME to a "
        "larger disk"
    )


def _explain(error: Exception) -> str:
    """Of an error that nobody expected: the full disk behind it, or where its traceback is."""
    from understudy.home import home

    if shutil.disk_usage(home()).free < _FULL_BYTES:
        return _full_disk()
    path = home() / "failure.log"
    path.write_text(traceback.format_exc())
    return f"internal error: {error!r}; details in {path}"


def _version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"understudy {version('understudy')}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version.",
)
def cli() -> None:
    """Predicts PyTorch training time without a GPU."""


# --- predictions -----------------------------------------------------------------------------


@cli.command()
@click.argument("what", nargs=-1, required=True, metavar="[FILE.yaml | -- SCRIPT ARGS...]")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="DEVICE",
    help="Device to predict for (id or alias); may be given several times.",
)
@click.option("--nnodes", type=click.IntRange(1), help="Nodes (default 1).")
@click.option("--nproc-per-node", type=click.IntRange(1), help="Processes per node (default 1).")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    metavar="PYTHON",
    help="The interpreter of your own environment.",
)
@click.option("--warmup", type=click.IntRange(0), help="Iterations before recording starts.")
@click.option("--iterations", type=click.IntRange(1), help="Iterations to record.")
@click.option(
    "--marker",
    metavar="NAME",
    help="NVTX or profiler range whose end ends an iteration (default: optimizer steps).",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="memory=40GiB: predict for a device with that memory, as a job of its own.",
)
@click.option("--host", metavar="HOST", help="Host of the catalog, as a job of its own.")
@click.option("--remeasure-host", is_flag=True, help="Measure the host's time anew.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PATH",
    help="Write the report as one HTML page.",
)
@as_json_option
def predict(
    what: tuple[str, ...],
    devices: tuple[str, ...],
    nnodes: int | None,
    nproc_per_node: int | None,
    python: Path | None,
    warmup: int | None,
    iterations: int | None,
    marker: str | None,
    settings: tuple[str, ...],
    host: str | None,
    remeasure_host: bool,
    html: Path | None,
    as_json: bool,
) -> int:
    """Predicts the iteration time of a job file, or of a script with its arguments.

    Exits with 3 when the job fits on none of the devices.
    """
    from pipelines import requests

    spec = requests.job(what, nnodes=nnodes, nproc_per_node=nproc_per_node)
    spec = requests.override(
        spec,
        devices=devices,
        python=python,
        warmup=warmup,
        iterations=iterations,
        marker=marker,
        settings=settings,
        host=host,
    )
    wanted = requests.device_ids(spec)
    if html is not None and len(wanted) > 1:
        raise UsageError("--html writes one report: give one --device with it")
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.parent}")
    reports = _predict(spec, wanted, remeasure_host)
    if html is not None:
        from understudy import reporting
        from understudy.home import write_whole

        write_whole(html, reporting.html(reports[0]))
    _print_reports(reports, as_json)
    return 0 if any(report["fits"] for report in reports) else _DOES_NOT_FIT


def _predict(spec: JobSpec, devices: Sequence[str], remeasure_host: bool) -> list[dict[str, Any]]:
    from pipelines import display

    reports = []
    with display.progress(f"{spec.job}  starting") as listener, quiet_instance() as instance:
        from pipelines import running

        for device in devices:
            if listener is not None:
                listener.title = f"{spec.job} on {device}"
            running.predict(
                instance, spec, device, remeasure_host=remeasure_host, listener=listener
            )
            reports.append(_report(spec, device))
    return reports


def _report(spec: JobSpec, device: str) -> dict[str, Any]:
    from understudy import jobs, reporting

    return reporting.report(jobs.device_of(spec, device), spec)


def _print_reports(reports: Sequence[dict[str, Any]], as_json: bool) -> None:
    """One report as it is; several as a JSON list, or as a table that compares them."""
    from pipelines import display
    from understudy import reporting

    if as_json:
        print_json(reports[0] if len(reports) == 1 else list(reports))
    elif len(reports) == 1:
        click.echo(reporting.text(reports[0]))
    else:
        rows = [_comparison_row(report) for report in reports]
        click.echo(display.table(tuple(rows[0]), [tuple(row.values()) for row in rows]))


def _comparison_row(report: dict[str, Any]) -> dict[str, Any]:
    throughput, cost = report["throughput"] or {}, report["cost_usd"] or {}
    return {
        "device": report["device"],
        "fits": report["fits"],
        "iteration ms": milliseconds(report["iteration_time_ns"]),
        "low ms": milliseconds(report["low_ns"]),
        "high ms": milliseconds(report["high_ns"]),
        "tokens/s": throughput.get("tokens_per_second"),
        "USD/1e9 tokens": cost.get("per_billion_tokens"),
        "peak GiB": round(max(report["peak_memory_bytes"], default=0) / 2**30, 2),
        "hfu": report["hfu"],
    }


# --- what is known ---------------------------------------------------------------------------


@cli.command()
@as_json_option
def devices(as_json: bool) -> None:
    """Lists the GPUs of the catalog, and of which operations there are measurements: the others,
    and all of a device without any, are predicted by law.
    """
    from pipelines import display
    from understudy import catalog
    from understudy.profiling import measured_families

    entries = catalog.devices()
    if as_json:
        derived = [
            {"architecture": vars(entry.architecture), "measured": measured_families(entry)}
            for entry in entries
        ]
        print_json([vars(entry) | more for entry, more in zip(entries, derived, strict=True)])
        return
    names = (
        *("device", "memory GiB", "compute", "TB/s", "16-bit TFLOP/s", "interconnect", "USD/h"),
        "measured",
    )
    rows = [
        (
            device.id,
            round(device.memory_bytes / 2**30, 1),
            device.compute_capability,
            round(device.memory_bandwidth_bytes_per_s / 1e12, 2),
            round(device.peak_flops["float16"] / 1e12),
            device.interconnect,
            device.price_usd_per_hour,
            ", ".join(measured_families(device)) or None,
        )
        for device in entries
    ]
    click.echo(display.table(names, rows))


@cli.command()
@as_json_option
def jobs(as_json: bool) -> None:
    """Lists the jobs and what was predicted for them."""
    from pipelines import display, warehouse_queries

    rows = warehouse_queries.job_overview()
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo("no jobs yet: predict one with `understudy predict`")
    else:
        shown = [
            (row["job"], row["device"], row["fits"], milliseconds(row["iteration_time_ns"]))
            for row in rows
        ]
        click.echo(display.table(("job", "device", "fits", "iteration ms"), shown))


@cli.command()
@click.argument("job")
@_device
@as_json_option
def show(job: str, device: str | None, as_json: bool) -> int:
    """Shows the prediction of JOB once more. Exits with 3 when the job fits on no device."""
    from understudy import jobs

    spec = jobs.load(job)
    reports = [_report(spec, found) for found in predicted_devices(job, device)]
    _print_reports(reports, as_json)
    return 0 if any(report["fits"] for report in reports) else _DOES_NOT_FIT


@cli.command()
@click.argument("job")
@_device
def rm(job: str, device: str | None) -> None:
    """Removes JOB: its tables, traces, logs and reports (of one device with --device)."""
    from pipelines import removal

    removal.remove(job, device)


@cli.command()
@click.argument("query")
@as_json_option
def sql(query: str, as_json: bool) -> None:
    """Answers a DuckDB QUERY over the tables of the warehouse, for example

    understudy sql "select device, job, iteration_time_ns from simulated_runtimes"
    """
    from pipelines import display, warehouse_queries

    names, rows = warehouse_queries.answer(query)
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        click.echo(display.table(names, rows))


cli.add_command(compare)
cli.add_command(export)
cli.add_command(forests)
cli.add_command(simulate)
cli.add_command(what_if)


# --- the house -------------------------------------------------------------------------------


@cli.command()
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True)
def ui(port: int) -> None:
    """Opens the Dagster web page in the foreground; Ctrl-C ends it."""
    from pipelines import web

    web.serve(port)


@cli.command()
@as_json_option
def doctor(as_json: bool) -> int:
    """Says what this machine lacks and how to get it. Exits with 1 when something needed lacks."""
    from dataclasses import asdict

    from pipelines.doctor import findings

    found = findings()
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        click.echo("\n".join(finding.line() for finding in found))
    return _FAILED if any(f.state == "missing" for f in found) else 0
