"""`understudy simulate` and `understudy compare`: the simulation against measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.command import (
    as_json_option,
    milliseconds,
    predicted_device,
    print_json,
    quiet_instance,
)
from understudy.errors import UsageError

if TYPE_CHECKING:
    from understudy.comparison import replay


#: Ranks shown of those that come late.
_STRAGGLERS = 3


@click.command()
@click.option(
    "--kineto",
    "folder",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="A trace of torch.profiler (.json, .json.gz), or a folder with one per rank.",
)
@click.option(
    "--execution-traces",
    "executed",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="PyTorch execution traces of the ranks: names and sizes of collectives.",
)
@as_json_option
def simulate(folder: Path, executed: Path | None, as_json: bool) -> None:
    """Replays a measured run with its measured kernel durations, step by step.

    What is put to the test is everything but the durations: streams, events, collectives, launch
    queue, and the pace of the host, which comes from the earlier half of the steps where there are
    several.
    """
    from pipelines import display
    from understudy.comparison import replay
    from understudy.traces import kineto

    with display.progress(f"{folder}  reading") as listener:
        traces = replay.read_traces(folder)
        if listener is not None:
            listener.title = f"{folder}  replaying"
        run = replay.measured_run(traces)
        warnings = [] if executed is None else replay.add_execution_traces(run, executed)
        fidelity = replay.replay(run)
    dropped = [problem for problem in traces.problems if isinstance(problem, kineto.Dropped)]
    notes = [str(problem) for problem in traces.problems if isinstance(problem, kineto.Note)]
    found = _as_dict(fidelity, dropped, [*notes, *warnings, *fidelity.warnings])
    if as_json:
        print_json(found)
    else:
        click.echo(_text(found))


def _as_dict(fidelity: replay.Fidelity, dropped: list[Any], warnings: list[str]) -> dict[str, Any]:
    return {
        "steps": [
            {
                "rank": step.rank,
                "step": step.step,
                "measured_ns": step.measured_ns,
                "simulated_ns": step.simulated_ns,
                "error": step.error,
                "own_host_error": step.own_host_error,
            }
            for step in fidelity.steps
        ],
        "collectives": [vars(collective) for collective in fidelity.collectives],
        "error": fidelity.error,
        "step_error_max": fidelity.step_error_max,
        "host_times": "earlier steps" if fidelity.learned_host else "own",
        "inferred_waits": fidelity.inferred,
        "dropped": [
            {
                "file": str(problem.path),
                "reason": problem.reason,
                "count": problem.count,
                "byte_offsets": list(problem.byte_offsets),
            }
            for problem in dropped
        ],
        "warnings": warnings,
    }


def _text(found: Mapping[str, Any]) -> str:
    from pipelines import display

    names = ("rank", "step", "measured ms", "simulated ms", "error", "with its own host times")
    rows = [
        (
            step["rank"],
            step["step"],
            round(step["measured_ns"] / 1e6, 3),
            round(step["simulated_ns"] / 1e6, 3),
            f"{step['error']:+.2%}",
            f"{step['own_host_error']:+.2%}",
        )
        for step in found["steps"]
    ]
    lines = [display.table(names, rows)]
    errors = [abs(collective["error"]) for collective in found["collectives"]]
    if errors:
        lines.append(
            f"{len(errors)} ends of collectives: off by at most {max(errors):.2%} of their step"
        )
    lines.append(
        f"all steps {found['error']:+.2%}, worst {found['step_error_max']:.2%}; host times: "
        f"{found['host_times']}; {found['inferred_waits']} waits inferred"
    )
    lines += [
        f"dropped: {problem['file']}: {problem['count']} x {problem['reason']}, first at byte "
        f"{problem['byte_offsets'][0]}"
        for problem in found["dropped"]
    ]
    return "\n".join([*lines, *(f"warning: {warning}" for warning in found["warnings"])])


@click.command()
@click.argument("job")
@click.option("--device", required=True, metavar="DEVICE", help="Device it was measured on.")
@click.option("--measured-ms", type=float, help="Measured time of one iteration in ms.")
@click.option(
    "--kineto",
    "folder",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="A trace of torch.profiler (.json, .json.gz), or a folder with one per rank.",
)
@as_json_option
def compare(
    job: str, device: str, measured_ms: float | None, folder: Path | None, as_json: bool
) -> None:
    """Records what was measured of JOB and compares the prediction with it: the time of an
    iteration, or a trace of a few iterations, kernel by kernel.
    """
    from pipelines import display
    from understudy import comparison
    from understudy.comparison import replay
    from warehouse import store

    if (measured_ms is None) == (folder is None):
        raise UsageError("give either --measured-ms or --kineto")
    found = predicted_device(job, device)
    with display.progress(f"{job} on {found}") as listener:
        problems: Sequence[Any] = ()
        if folder is None:
            measurement = comparison.Measurement(round((measured_ms or 0) * 1e6))
        else:
            traces = replay.read_traces(folder)
            problems = traces.problems
            measurement = comparison.of_run(replay.measured_run(traces))
        comparison.save_measured(job, found, measurement)
        with quiet_instance() as instance:
            from pipelines import running

            running.compare(instance, job, found, listener=listener)
    rows = store.read_table("comparison", "runtime_errors", found, job).to_pylist()
    step = next(row for row in rows if row["scope"] == "step")
    result = {
        "job": job,
        "device": found,
        "measured_ns": step["measured_ns"],
        "simulated_ns": step["simulated_ns"],
        "error": step["error"],
    }
    if folder is not None:
        result |= comparison.summary(rows) | {
            "stragglers": [vars(lateness) for lateness in measurement.stragglers],
            "warnings": [*map(str, problems), *measurement.warnings],
        }
    if as_json:
        print_json(result)
    else:
        click.echo(_comparison_text(result))


def _comparison_text(result: Mapping[str, Any]) -> str:
    from pipelines import display

    lines = [
        f"{result['job']} on {result['device']}: iteration measured "
        f"{milliseconds(result['measured_ns'])} ms, predicted "
        f"{milliseconds(result['simulated_ns'])} ms ({result['error']:+.1%})"
    ]
    if "families" not in result:
        return lines[0]
    names = ("family", "operations", "measured ms", "predicted ms", "error")
    lines += ["", display.table(names, [(g["family"], *_sums(g)) for g in result["families"]])]
    lines += ["", "largest differences"]
    names = ("operation", "count", "measured ms", "predicted ms", "error")
    top = [(g["key"][:60], *_sums(g)) for g in result["contributors"]]
    lines += [display.table(names, top), ""]
    for side, what in (("only_measured", "only measured"), ("only_simulated", "only predicted")):
        unmatched = result[side]
        lines.append(
            f"{what}: {unmatched['count']} operations, {milliseconds(unmatched['time_ns'])} ms"
        )
    lines += [
        f"rank {late['rank']} comes {milliseconds(late['mean_ns'])} ms after the first to its "
        f"collectives, last to {late['last']} of them"
        for late in result["stragglers"][:_STRAGGLERS]
        if late["mean_ns"] > 0
    ]
    return "\n".join([*lines, *(f"warning: {warning}" for warning in result["warnings"])])


def _sums(group: Mapping[str, Any]) -> tuple[Any, ...]:
    error = None if group["error"] is None else f"{group['error']:+.1%}"
    return (
        group["count"],
        milliseconds(group["measured_ns"]),
        milliseconds(group["simulated_ns"]),
        error,
    )
