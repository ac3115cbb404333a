"""Replays public traces of real runs with their own kernel durations: how far off is the replay?

`make fidelity` prints the table of the README. The traces are not part of the repository:
$UNDERSTUDY_SHARED_DATA, else ../shared/data, has them.

Where a trace has several steps, the host's times come from the earlier half and the later half is
scored. Kernels last as long as measured; a collective lasts as long as its members needed from the
arrival of the last one.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from understudy.comparison.replay import (
    Fidelity,
    add_execution_traces,
    measured_run,
    read_traces,
    replay,
)

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Case:
    """`limit` is what the error of the trace, over its scored steps, must stay within."""

    title: str
    path: str  #: a trace, or an archive with a folder of traces
    limit: float = 0.03
    exception: str = ""  #: why the limit does not hold; empty: it does
    executed: str = ""  #: archive of the execution traces of the ranks


CASES = (
    Case(
        "DLRM, 8 x V100",
        "param/dlrm_kineto.tar.gz",
        0.02,
        executed="param/dlrm_pytorch_et.tar.gz",
    ),
    Case(
        "ResNet-50, V100, no loader processes",
        "kineto_tb/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    ),
    Case(
        "ResNet-50, V100, 4 loader processes (1)",
        "kineto_tb/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
        exception="the host of one scored step took 35 ms longer than that of any learned one",
    ),
    Case(
        "ResNet-50, V100, 4 loader processes (2)",
        "kineto_tb/resnet50_num_workers_4/worker0.1623213129365.pt.trace.json.gz",
    ),
    Case("CNN, DDP, rank 0 of 2, A100", "hta/nccl_parser_config/nccl_data.json.gz"),
    Case("DDP, rank 1 of 2, V100", "hta/df_index_resolver/df_index_resolver.json.gz"),
    Case("CNN, V100", "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"),
    Case("ViT inference, H100", "tracelens/h100/Falconsai_nsfw_image_detection__1016002.json.gz"),
    Case("Qwen1.5-0.5B inference, H100", "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"),
    Case(
        "TimeSformer inference, H100",
        "tracelens/h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    ),
    Case("BERT inference, H100", "tracelens/h100/gaunernst_bert-small-uncased__1016001.json.gz"),
    Case(
        "OWLv2 inference, H100",
        "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
    ),
    Case("ResNet, DDP, rank 0 of 8, MI300X", "tracelens/mi300/resnet_act_checkpoint.json.gz"),
    Case("VGG-13, H100", "triosim/profiler_vgg13-iter41.json.gz"),
)


def run(case: Case, traces: Path) -> Fidelity:
    """Replays one case of those in the folder `traces`."""
    with _unpacked(traces / case.path) as path:
        run = measured_run(read_traces(path))
    if case.executed:
        with _unpacked(traces / case.executed) as path:
            warnings = add_execution_traces(run, path)
            assert not warnings, warnings
    return replay(run)


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    if not path.name.endswith(".tar.gz"):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
        (found,) = {trace.parent for trace in Path(folder).rglob("*.json*")}
        yield found


def row(case: Case, fidelity: Fidelity) -> str:
    """A row of the README's table."""
    own = max(abs(step.own_host_error) for step in fidelity.steps)
    collectives = max((abs(c.error) for c in fidelity.collectives), default=None)
    cells = (
        case.title + (" *" if case.exception else ""),
        len(fidelity.steps),
        f"{sum(s.measured_ns for s in fidelity.steps) / len(fidelity.steps) / 1e6:.1f}",
        f"{fidelity.error:+.2%}",
        f"{fidelity.step_error_max:.2%}",
        f"{own:.2%}",
        "" if collectives is None else f"{collectives:.2%}",
        "earlier steps" if fidelity.learned_host else "own",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


HEADER = (
    "| trace | steps scored | measured ms | error | worst step | worst step, own host times "
    "| ends of collectives | host times |\n|---|--:|--:|--:|--:|--:|--:|---|"
)


def main() -> int:
    named = os.environ.get("UNDERSTUDY_SHARED_DATA")
    data = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not (data / "traces").is_dir():
        print(f"{data}/traces: no such folder; set UNDERSTUDY_SHARED_DATA", file=sys.stderr)
        return 2
    print(HEADER)
    failed = False
    for case in CASES:
        fidelity = run(case, data / "traces")
        print(row(case, fidelity), flush=True)
        failed |= abs(fidelity.error) > case.limit and not case.exception
    for case in CASES:
        if case.exception:
            print(f"\n\\* {case.exception}.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
