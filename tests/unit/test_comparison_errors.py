"""Predictions against measured traces: alignment, rows, sums."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit import job_tables
from tests.unit.test_comparison_replay import US, Trace, collective
from understudy import comparison
from understudy.comparison import Measurement
from understudy.comparison.alignment import Item, align, measured_item, simulated_item
from understudy.comparison.measurement import MeasuredKernel
from understudy.comparison.replay import MeasuredRun
from understudy.comparison.replay.records import Step
from understudy.errors import UnderstudyError
from understudy.merging import merge

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)"
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)"
TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<float>(int)"
FPROP = "sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nchw"


def kernel(name: str, grid: int = 1) -> Item:
    return measured_item("kernel", name, (grid, 1, 1))


def test_an_extra_kernel_does_not_shift_the_rest() -> None:
    simulated = [
        simulated_item("gemm 64x64x64", "gemm", None),
        simulated_item(ADD, "elementwise", (4, 1, 1)),
        simulated_item(GELU, "elementwise", (4, 1, 1)),
        simulated_item("gemm 64x64x64", "gemm", None),
    ]
    measured = [kernel(GEMM), kernel(ADD, 4), kernel(ADD, 9), kernel(GELU, 4), kernel(GEMM)]
    assert align(simulated, measured) == [(0, [0]), (1, [1]), (2, [3]), (3, [4])]
    assert align(simulated, measured[:1] + measured[3:]) == [(0, [0]), (2, [1]), (3, [2])]


def test_the_helpers_of_a_library_belong_to_its_call() -> None:
    simulated = [
        simulated_item("gemm 64x64x64", "gemm", None),
        simulated_item("convolution", "convolution_forward", None),
    ]
    measured = [kernel(GEMM), kernel(SPLIT_K), kernel(TO_NHWC), kernel(FPROP)]
    assert align(simulated, measured) == [(0, [0, 1]), (1, [2, 3])]


def test_other_names_of_the_same_are_found_by_family() -> None:
    simulated = [
        simulated_item("at::native::layer_norm_new_name", "normalization", (4, 1, 1)),
        simulated_item("gemm", "gemm", None),
    ]
    measured = [
        kernel("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)"),
        kernel("Cijk_Ailk_Bljk_BBS_BH_MT128x128"),
    ]
    assert align(simulated, measured) == [(0, [0]), (1, [1])]


ITEMS = st.lists(st.sampled_from("abcdef").map(lambda c: Item(c, c.upper())), max_size=30)


@given(ITEMS, st.data())
def test_alignment_keeps_order_and_finds_what_was_only_thinned_out(
    items: list[Item], data: st.DataObject
) -> None:
    kept = [item for item in items if data.draw(st.booleans(), label="kept")]
    pairs = align(items, kept)
    assert [j for _, theirs in pairs for j in theirs] == list(range(len(kept)))
    assert [i for i, _ in pairs] == sorted({i for i, _ in pairs})
    assert all(items[i] == kept[theirs[0]] for i, theirs in pairs)


def of_steps(*durations_us: int, extra_in: int | None = None) -> Trace:
    """Steps of one GEMM of the given durations; one step has a kernel more."""
    trace, now = Trace(), 0
    for number, duration_us in enumerate(durations_us):
        trace.launch(now, now + 8, now + 8 + duration_us, name=GEMM)
        if number == extra_in:
            trace.launch(now + 10, now + 200, now + 210, name=ADD)
        trace.steps.append(Step(f"ProfilerStep#{number}", now * US, (now + 500) * US))
        now += 500
    return trace


def test_what_a_trace_measured() -> None:
    trace = of_steps(100, 110, 130, 90, extra_in=3)
    measured = comparison.of_run(MeasuredRun([trace.done()], 1))
    assert measured.iteration_time_ns == 500 * US
    assert measured.kernels == {0: [MeasuredKernel("kernel", GEMM, None, None, 110 * US)]}
    assert measured.warnings == ["rank 0: 3 of 4 steps have the same kernels; these are compared"]


def test_stragglers() -> None:
    early, late = Trace(0), Trace(1)
    for trace, call_us in ((early, 0), (late, 200)):
        trace.steps.append(Step("ProfilerStep#0", 0, 400 * US))
        collective(trace, call_us, call_us + 8, 258)
    measured = comparison.of_run(MeasuredRun([early.done(), late.done()], 2))
    assert [(s.rank, s.mean_ns, s.last) for s in measured.stragglers] == [
        (1, 200 * US, 1),
        (0, 0, 0),
    ]
    # What rank 0 waited for is no time of the collective.
    assert [of_rank[0].duration_ns for of_rank in measured.kernels.values()] == [50 * US] * 2


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(UnderstudyError, match=r"rank 0 has no steps: call `prof\.step\(\)`"):
        trace = Trace()
        trace.launch(0, 8, 20)
        comparison.of_run(MeasuredRun([trace.done()], 1))


def predicted(durations: dict[str, int], merged: dict[str, pa.Table]) -> dict[str, Any]:
    names = merged["signatures"]["name"].to_pylist()
    return {
        "predicted_kernels": pa.table(
            {"signature": range(len(names)), "duration_ns": [durations[n] for n in names]}
        ),
        "simulated_runtimes": pa.table({"iteration_time_ns": [1_000]}),
    }


def test_rows_and_their_sums() -> None:
    merged = merge(
        job_tables.emulated(
            [
                [
                    job_tables.device(0, job_tables.GEMM),
                    job_tables.device(0, job_tables.ADD),
                    job_tables.collective(),
                ]
            ]
        )
    )
    tables = merged | predicted({"gemm": 200, "add": 50, "all_reduce": 400}, merged)
    measured = Measurement(
        800,
        {
            0: [
                MeasuredKernel("kernel", GEMM, None, None, 100),
                MeasuredKernel("kernel", SPLIT_K, None, None, 60),
                MeasuredKernel("kernel", "ncclDevKernel_AllReduce", None, 1024, 500),
                MeasuredKernel("memcpy", "Memcpy HtoD", None, 64, 7),
            ]
        },
    )
    rows = comparison.compare(measured, tables)["runtime_errors"].to_pylist()
    assert [(r["scope"], r["key"], r["op"], r["measured_ns"], r["simulated_ns"]) for r in rows] == [
        ("step", "iteration", None, 800, 1_000),
        ("kernel", "gemm", 0, 160, 200),
        ("kernel", "add", 1, None, 50),
        ("collective", "all_reduce", 2, 500, 400),
        ("kernel", "Memcpy HtoD", None, 7, None),
    ]
    assert [r["error"] for r in rows] == [
        pytest.approx(0.25), pytest.approx(0.25), None, pytest.approx(-0.2), None,
    ]  # fmt: skip
    found = comparison.summary(rows)
    assert [(g["family"], g["measured_ns"], g["simulated_ns"]) for g in found["families"]] == [
        ("collective", 500, 400),
        ("gemm", 160, 200),
    ]
    assert [g["key"] for g in found["contributors"]] == ["all_reduce", "gemm"]
    assert found["only_measured"] == {"count": 1, "time_ns": 7}
    assert found["only_simulated"] == {"count": 1, "time_ns": 50}


def test_a_rank_that_the_job_does_not_have() -> None:
    merged = merge(job_tables.emulated([[job_tables.device(0, job_tables.ADD)]]))
    tables = merged | predicted({"add": 50}, merged)
    measured = Measurement(800, {3: [MeasuredKernel("kernel", ADD, None, None, 100)]})
    with pytest.raises(UnderstudyError, match="rank 3 was measured, but the job has ranks 0 to 0"):
        comparison.compare(measured, tables)
