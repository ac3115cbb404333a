"""Reports of synthetic predictions: the figures, the text and the page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy import catalog, reporting
from understudy.errors import UnderstudyError
from understudy.jobs import JobSpec, Launch
from understudy.reporting import charts, labels, memory, units
from warehouse import schemas, store

DEVICE = catalog.device("h100-sxm-80gb")
GEMM = {"m": 8192.0, "n": 3072.0, "k": 768.0, "batch": 1.0}
KERNELS = (
    # family, name, features, launches in the span of all ranks, duration, source, extrapolated
    ("gemm", "cublasLtMatmul", GEMM, 96, 200_000, "measured", False),
    ("gemm", "cublasGemmEx", GEMM | {"n": 50304.0}, 16, 1_500_000, "transferred", True),
    (
        "attention_forward",
        "cudnn",
        {"batch": 8.0, "heads": 12.0, "seq_q": 1024.0, "head_dim": 64.0, "causal": 1.0},
        192,
        90_000,
        "measured",
        False,
    ),
    (
        "elementwise",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>)",
        {"bytes": 1e8},
        384,
        40_000,
        "law",
        False,
    ),
    ("collective", "all_reduce", {"size_bytes": 26e6, "ranks": 2.0}, 40, 180_000, "law", False),
)


def job(**changes: Any) -> JobSpec:
    values = {"launch": Launch(nproc_per_node=2), "devices": (DEVICE.id,)} | changes
    return JobSpec("synthetic", Path("train.py"), None, **values)


def breakdown(compute: int, exposed: int, idle: int, communication: int) -> dict[str, int]:
    return {
        "compute": compute,
        "exposed_communication": exposed,
        "host_idle": idle,
        "communication": communication,
    }


def runtime_row(**changes: Any) -> dict[str, Any]:
    slow = breakdown(30_000_000, 6_000_000, 4_000_000, 7_000_000)
    fast = breakdown(30_500_000, 5_500_000, 3_000_000, 7_000_000)
    return {
        "world_size": 2,
        "fits": True,
        "iteration_time_ns": 40_000_000,
        "low_ns": 36_000_000,
        "high_ns": 47_000_000,
        "iterations": 8,
        "slowest_rank": 1,
        "breakdown_ns": slow,
        "ranks": [
            {
                "rank": rank,
                "iteration_time_ns": sum(list(parts.values())[:3]),
                "breakdown_ns": parts,
                "peak_memory_bytes": 20 * 2**30 + rank,
            }
            for rank, parts in enumerate((fast, slow))
        ],
        "peak_memory_bytes": [20 * 2**30, 20 * 2**30 + 1],
        "capacity_bytes": DEVICE.memory_bytes,
        "oom_rank": None,
        "oom_iteration": None,
        "oom_requested_bytes": None,
        "flops_per_iteration": 2 * 14e12,
        "peak_flops": 989.4e12,
        "coverage_measured": 0.5,
        "coverage_transferred": 0.2,
        "coverage_law": 0.3,
        "trace_events": 123_456,
        "versions": {"understudy": "0.1.0", "torch": "2.14.1"},
        "warnings": ["the host <default> was not calibrated"],
    } | changes


OUT_OF_MEMORY: dict[str, Any] = {
    "fits": False,
    "iteration_time_ns": None,
    "low_ns": None,
    "high_ns": None,
    "iterations": 0,
    "slowest_rank": None,
    "breakdown_ns": None,
    "ranks": [],
    "oom_rank": 1,
    "oom_iteration": 0,
    "oom_requested_bytes": 5 * 2**30,
    "coverage_measured": None,
    "coverage_transferred": None,
    "coverage_law": None,
    "peak_memory_bytes": [70 * 2**30, 78 * 2**30],
}


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schemas.table(name).schema)


def write_prediction(runtime: dict[str, Any]) -> None:
    """Writes merging and simulation of the synthetic job: a span of two iterations, two ranks."""
    signatures, predicted, events = [], [], []
    for number, (family, name, features, count, duration_ns, source, beyond) in enumerate(KERNELS):
        common = {"signature": number, "name": name, "family": family, "dtype": "bfloat16"}
        signatures.append(
            common
            | {
                "api": "cudaLaunchKernel",
                "shared_memory_bytes": 0,
                "registers": 32,
                "kernel_version": "cudnn" if name == "cudnn" else "",
                "features": features,
                "tensor_bytes": 1_000_000,
            }
        )
        predicted.append(
            common
            | {
                "launch_count": count,
                "duration_ns": duration_ns,
                "low_ns": duration_ns // 2,
                "high_ns": duration_ns * 2,
                "roofline_ns": duration_ns // 2,
                "flops": 1e9,
                "estimate_source": source,
                "extrapolated": beyond,
            }
        )
    for op in range(50):
        number = op % len(KERNELS)
        events.append(
            {
                "program": 0,
                "op": op,
                "iteration": 0,
                "kind": "join" if number == 4 else "device",
                "stream": 1 if number == 4 else 0,
                "signature": number,
                "depends_on": None,
                "thread": 0,
            }
        )
    merging: dict[str, list[dict[str, Any]]] = {t.name: [] for t in schemas.stage_tables("merging")}
    merging["events"] = events
    merging["signatures"] = signatures
    merging["ranks"] = [
        {
            "rank": rank,
            "program": 0,
            "node": 0,
            "local_rank": rank,
            "communicator_map": {0: 0},
            "iterations": 8,
            "span_iterations": 2,
            "iterations_seen": 20,
            "iteration_source": "optimizer steps",
            "trace_events": 60_000,
            "peak_allocated_bytes": 18 * 2**30,
            "peak_reserved_bytes": 19 * 2**30,
            "peak_device_bytes": 20 * 2**30,
            "peak_iteration": 1,
            "peak_parts_bytes": [
                ("parameters", 6 * 2**30),
                ("activations", 12 * 2**30),
                ("unused", 2**30),
                ("context", 2**30),
            ],
        }
        for rank in range(2)
    ]
    merging["memory_timeline"] = [
        {
            "rank": rank,
            "step": step,
            "iteration": step // 1000 - 1,
            "category": "activations",
            "change_bytes": 1,
            "allocated_bytes": (step % 1000) * 2**24,
            "reserved_bytes": 16 * 2**30,
            "device_bytes": 16 * 2**30 + (2**30 if step == 1501 else 0),
        }
        for rank in range(2)
        for step in range(3000)
    ]
    fits = runtime["fits"]
    simulation = {
        "predicted_kernels": predicted if fits else [],
        "simulated_events": [
            {
                "rank": rank,
                "op": op,
                "stream": int(op % 5 == 4),
                "start_ns": op * 1_000_000 + rank * 1000,
                "end_ns": op * 1_000_000 + 900_000,
            }
            for rank in range(2)
            for op in range(40)
            if fits
        ],
        "simulated_runtimes": [runtime],
    }
    partitions: dict[schemas.Stage, Any] = {"merging": merging, "simulation": simulation}
    for stage, tables in partitions.items():
        store.write_tables(
            stage,
            {name: table(name, rows) for name, rows in tables.items()},
            DEVICE.id,
            "synthetic",
        )


@pytest.fixture
def prediction(understudy_home: Path) -> None:
    write_prediction(runtime_row())


@pytest.fixture
def out_of_memory(understudy_home: Path) -> None:
    write_prediction(runtime_row(**OUT_OF_MEMORY))


@pytest.mark.usefixtures("prediction")
def test_report_holds_the_rows_figures_and_is_json() -> None:
    report = reporting.report(DEVICE, job())
    assert json.loads(json.dumps(report)) == report
    assert report["job"] == "synthetic"
    assert report["device"] == "h100-sxm-80gb"
    assert report["iteration_time_ns"] == 40_000_000
    assert report["breakdown_ns"] == breakdown(30_000_000, 6_000_000, 4_000_000, 7_000_000)
    assert report["coverage"] == {"measured": 0.5, "transferred": 0.2, "law": 0.3}
    assert report["versions"] == {"understudy": "0.1.0", "torch": "2.14.1"}
    assert [row["rank"] for row in report["ranks"]] == [0, 1]
    assert "oom" not in report
    # 28 TFLOP in 40 ms on two devices of 989.4 TFLOP/s
    assert report["hfu"] == pytest.approx(28e12 / (0.04 * 2 * 989.4e12))
    assert report["mfu"] is None
    assert report["throughput"] is None


@pytest.mark.usefixtures("prediction")
def test_throughput_cost_and_mfu_follow_what_the_job_states() -> None:
    stated = job(
        tokens_per_iteration=16384, samples_per_iteration=16, model_flops_per_iteration=13e12
    )
    report = reporting.report(DEVICE, stated)
    assert report["throughput"] == {
        "tokens_per_second": pytest.approx(409_600),
        "samples_per_second": pytest.approx(400),
    }
    hours = 2 * 1e9 / 409_600 / 3600
    assert report["gpu_hours"]["per_billion_tokens"] == pytest.approx(hours)
    assert DEVICE.price_usd_per_hour is not None
    assert report["cost_usd"]["per_billion_tokens"] == pytest.approx(
        hours * DEVICE.price_usd_per_hour
    )
    assert report["mfu"] == pytest.approx(13e12 / (0.04 * 2 * 989.4e12))


@pytest.mark.usefixtures("prediction")
def test_top_kernels_are_sorted_and_per_iteration() -> None:
    top = reporting.report(DEVICE, job())["top_kernels"]
    assert [row["total_ns"] for row in top] == sorted((r["total_ns"] for r in top), reverse=True)
    assert sum(row["share"] for row in top) == pytest.approx(1)
    assert top[0]["label"] == "gemm 8192 x 50304 x 768"
    assert top[0]["launches"] == 8
    assert top[0]["total_ns"] == 8 * 1_500_000


@pytest.mark.usefixtures("out_of_memory")
def test_report_of_a_job_that_does_not_fit() -> None:
    report = reporting.report(DEVICE, job(tokens_per_iteration=1024))
    assert report["fits"] is False
    assert report["iteration_time_ns"] is None
    assert report["hfu"] is None and report["coverage"] is None
    assert report["oom"] == {
        "rank": 1,
        "iteration": 0,
        "requested_bytes": 5 * 2**30,
        "capacity_bytes": DEVICE.memory_bytes,
    }
    shown = reporting.text(report)
    assert "does not fit" in shown
    assert "rank 1 runs out of memory in iteration 0" in shown
    assert "5.00 GiB" in shown
    page = reporting.html(report)
    assert "Does not fit" in page and "Memory of rank 1" in page


def test_report_of_a_job_that_was_never_simulated(understudy_home: Path) -> None:
    with pytest.raises(UnderstudyError, match="materialize simulation first"):
        reporting.report(DEVICE, job())


@pytest.mark.parametrize(
    ("changes", "regime"),
    [
        ({}, "GPU-bound"),
        ({"breakdown_ns": breakdown(20_000_000, 0, 20_000_000, 0)}, "host-bound"),
        ({"coverage_law": 0.6, "coverage_measured": 0.2}, "mostly laws"),
    ],
)
def test_accuracy_follows_the_regime(
    understudy_home: Path, changes: dict[str, Any], regime: str
) -> None:
    write_prediction(runtime_row(**changes))
    assert reporting.report(DEVICE, job())["accuracy"]["regime"] == regime


@pytest.mark.usefixtures("prediction")
def test_text_is_narrow_and_says_what_matters() -> None:
    shown = reporting.text(reporting.report(DEVICE, job(tokens_per_iteration=16384)))
    assert max(map(len, shown.splitlines())) <= 96
    assert shown.startswith("synthetic on 2 x NVIDIA H100 80GB HBM3 (h100-sxm-80gb)\n")
    for expected in (
        "40.0 ms   90 % interval 36.0 ms to 47.0 ms",
        "410,000 tokens/s",
        "█ compute                30.0 ms  75.0 %",
        "communication takes 7.00 ms, of which compute hides 14.3 %",
        "50.0 % measured, 20.0 % transferred, 30.0 % law",
        "transferred *",
        "warning: the host <default> was not calibrated",
    ):
        assert expected in shown
    bar = next(line for line in shown.splitlines() if "█" in line).strip()
    assert bar == "█" * 69 + "▒" * 14 + "·" * 9


@pytest.mark.usefixtures("prediction")
def test_memory_at_its_peak_sums_up_and_says_what_is_a_guess() -> None:
    report = reporting.report(DEVICE, job())
    assert DEVICE.sources["context_bytes"].startswith("guess")
    assert report["peak_memory"] == {
        "rank": 1,
        "iteration": 1,
        "parts_bytes": {
            "parameters": 6 * 2**30,
            "activations": 12 * 2**30,
            "unused": 2**30,
            "context": 2**30,
        },
        "guessed_parts": ["context"],
        "guessed_bytes": 2**30,
    }
    shown = reporting.text(report)
    assert (
        "Memory of rank 1 at its peak (iteration 1)\n"
        "  activations           12.0 GiB  60.0 %\n"
        "  parameters            6.00 GiB  30.0 %\n"
        "  reserved, not used    1.00 GiB   5.0 %\n"
        "  CUDA context (guess)  1.00 GiB   5.0 %\n"
        "  1.00 GiB of it, 5.0 %, are a guess\n"
    ) in shown
    page = reporting.html(report)
    assert "in iteration 1: 20.0 GiB, of which 1.00 GiB are a guess." in page
    for css_class in ("m-parameters", "m-activations", "m-unused", "m-context"):
        assert f'class="{css_class}"' in page and f".{css_class} {{" in page


def test_every_part_of_memory_has_a_word_and_a_colour() -> None:
    assert tuple(memory.WORDS) == (*schemas.MEMORY_CATEGORIES, *schemas.MEMORY_REST)
    style = (Path(charts.__file__).parent / "style.css").read_text()
    for name in memory.WORDS:
        assert f".m-{name} {{" in style


def test_memory_of_ranks_that_were_emulated_earlier_has_no_parts(
    understudy_home: Path,
) -> None:
    write_prediction(runtime_row())
    path = store.table_path("merging", "ranks", DEVICE.id, "synthetic")
    older = pq.read_table(path).drop_columns(["peak_iteration", "peak_parts_bytes"])
    pq.write_table(older, path)
    report = reporting.report(DEVICE, job())
    assert report["peak_memory"] is None
    assert "at its peak" not in reporting.text(report)
    assert "Memory of rank 1" in reporting.html(report)


def test_one_iteration_by_part_adds_up_to_what_is_reserved() -> None:
    changes = [
        (0, "segment", 4096, 4096),
        (0, "parameters", 1024, 4096),
        (1, "activations", 2048, 4096),
        (1, "segment", 2048, 6144),
        (1, "activations", -2048, 6144),
    ]
    rows = [
        {
            "rank": 0,
            "step": step,
            "iteration": iteration,
            "category": category,
            "change_bytes": change,
            "allocated_bytes": 0,
            "reserved_bytes": reserved,
            "device_bytes": reserved + 600,
        }
        for step, (iteration, category, change, reserved) in enumerate(changes)
    ]
    assert memory.over_iteration(table("memory_timeline", rows), 1) == {
        "parameters": [1024, 1024, 1024],
        "activations": [2048, 2048, 0],
        "unused": [1024, 3072, 5120],
    }
    assert memory.over_iteration(table("memory_timeline", rows), 7) == {}


class _Balance(HTMLParser):
    """Fails where tags do not nest; collects what a browser would fetch."""

    VOID = frozenset({"meta", "br", "rect", "line", "polygon", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href")]
        if tag in ("script", "link", "img", "iframe"):
            self.fetched.append(tag)
        if tag not in self.VOID or not self.get_starttag_text().endswith("/>"):  # pyright: ignore
            self.open.append(tag)
        if tag == "meta":
            self.open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.usefixtures("prediction")
def test_page_is_well_formed_self_contained_and_escaped() -> None:
    page = reporting.html(reporting.report(DEVICE, job()))
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []
    assert parser.fetched == []
    assert "url(" not in page and "@import" not in page
    assert "the host &lt;default&gt; was not calibrated" in page
    for heading in ("Where the time goes", "Timeline", "Kernels", "Memory of rank 1"):
        assert heading in page
    assert len(page) < 400_000


def test_short_operations_are_drawn_together() -> None:
    spans = [charts.Span(i * 10, i * 10 + 9, "gemm", f"op {i}") for i in range(100_000)]
    drawn = charts.timeline([charts.Lane("rank 0", spans)], 1_000_000)
    assert drawn.count("<rect") < 2 * charts.WIDTH
    assert "short operations" in drawn


def test_memory_plot_keeps_peaks() -> None:
    in_use = [1 << 30] * 50_000
    in_use[31_234] = 3 << 30
    plot = charts.memory([0] * 50_000, in_use, [0] * 50_000, 2 << 30)
    line = re.search(r'<polyline class="in-use" points="([^"]*)"', plot)
    assert line is not None
    heights = [float(point.split(",")[1]) for point in line[1].split()]
    assert min(heights) < 30
    assert len(heights) < 1100


def test_layers_lie_on_each_other_and_keep_the_peak() -> None:
    count = 40_000
    burst = [0] * count
    burst[31_234] = 3 << 20
    plot = charts.layers(
        [
            charts.Layer("m-parameters", "parameters", [1 << 20] * count),
            charts.Layer("m-activations", "activations", burst),
        ]
    )
    areas = re.findall(r'<polygon class="m-(\w+)" points="([^"]*)"><title>([^<]*)<', plot)
    assert [(name, title) for name, _, title in areas] == [
        ("parameters", "parameters: up to 1.00 MiB"),
        ("activations", "activations: up to 3.00 MiB"),
    ]
    heights = [[float(p.split(",")[1]) for p in points.split()] for _, points, _ in areas]
    upper = [values[: len(values) // 2] for values in heights]
    lower = [values[len(values) // 2 :] for values in heights]
    assert set(upper[0]) == set(lower[1])  # each begins where the one below ends
    assert min(upper[1]) < 0.1 * max(lower[0])
    assert len(upper[0]) < 600
    assert "<polygon" not in charts.layers([])


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (42.714, "42.7"), (999.6, "1,000"), (1_534_000, "1,530,000"), (0.01234, "0.0123")],
)
def test_significant_digits(value: float, shown: str) -> None:
    assert units.significant(value) == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (KERNELS[3][1], "CUDAFunctor_add"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)",
            "vectorized_layer_norm_kernel",
        ),
        (
            "at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
            "at::native::CUDAFunctor_add<float> >(at::TensorIteratorBase&)::{lambda(int)#1}>",
            "CUDAFunctor_add",
        ),
        (
            "at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl("
            "at::TensorIteratorBase&, at::native::GeluType)::{lambda()#1}>",
            "GeluCUDAKernelImpl",
        ),
        (
            "at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
            "namespace)::FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >",
            "FusedAdamMathFunctor",
        ),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("memcpy h2d pinned", "memcpy h2d pinned"),
        ("at::native::vectorized_elementwise_kernel<4, Unheard>", "vectorized_elementwise_kernel"),
        ("main_kernel(int)", "main_kernel"),
    ],
)
def test_kernel_names_lose_their_noise(name: str, shown: str) -> None:
    assert labels.short_name(name) == shown
