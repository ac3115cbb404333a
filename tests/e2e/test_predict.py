"""The main job, end to end: real scripts through the `understudy` command, real torch, no mocks.

Each prediction runs in a process of its own against one warehouse that the module shares, so the
forests are trained once. Jobs are small in ranks and iterations; sizes are those of real training.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.e2e.command import GPT2, REPOSITORY, UNDERSTUDY, Cli

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gpt2(cli: Cli) -> dict[int, dict[str, Any]]:
    """GPT-2 of 12, 24 and 36 layers on one H100."""
    return {layers: cli.predict(GPT2, "--n-layer", layers) for layers in (12, 24, 36)}


@pytest.fixture(scope="module")
def two_ranks(cli: Cli) -> dict[str, Any]:
    return cli.predict(GPT2, nproc_per_node=2)


def test_report_has_every_key_and_adds_up(gpt2: dict[int, dict[str, Any]]) -> None:
    report = gpt2[12]
    assert {
        "job", "device", "world_size", "fits", "iteration_time_ns", "low_ns", "high_ns",
        "iterations", "breakdown_ns", "ranks", "peak_memory_bytes", "hfu", "mfu", "coverage",
        "trace_events", "versions", "warnings",
    } <= set(report)  # fmt: skip
    breakdown = report["breakdown_ns"]
    assert (
        breakdown["compute"] + breakdown["exposed_communication"] + breakdown["host_idle"]
        == report["iteration_time_ns"]
    )
    assert breakdown["communication"] == 0
    assert sum(report["coverage"].values()) == pytest.approx(1.0)
    assert report["low_ns"] < report["iteration_time_ns"] < report["high_ns"]
    assert report["mfu"] is None
    assert 0.1 < report["hfu"] < 0.9


def test_time_grows_by_the_same_amount_per_layer(gpt2: dict[int, dict[str, Any]]) -> None:
    first = gpt2[24]["iteration_time_ns"] - gpt2[12]["iteration_time_ns"]
    second = gpt2[36]["iteration_time_ns"] - gpt2[24]["iteration_time_ns"]
    assert first > 0
    assert second == pytest.approx(first, rel=0.03)


def test_h200_helps_memory_bound_jobs_only(cli: Cli) -> None:
    def ratio(script: str) -> float:
        path = REPOSITORY / "examples" / script
        h100 = cli.predict(path, device="h100-sxm-80gb")["iteration_time_ns"]
        return h100 / cli.predict(path, device="h200-sxm-141gb")["iteration_time_ns"]

    assert ratio("memory_bound.py") >= 1.2
    assert ratio("mlp.py") == pytest.approx(1.0, abs=0.05)


def test_eight_ranks_expose_more_communication_than_two(
    cli: Cli, two_ranks: dict[str, Any]
) -> None:
    eight = cli.predict(GPT2, nproc_per_node=8)
    assert eight["world_size"] == 8
    assert len(eight["ranks"]) == len(eight["peak_memory_bytes"]) == 8
    assert (
        eight["breakdown_ns"]["exposed_communication"]
        > two_ranks["breakdown_ns"]["exposed_communication"]
        > 0
    )


def test_all_reduced_bytes_are_the_gradients(cli: Cli, two_ranks: dict[str, Any]) -> None:
    parts = cli.rows(
        "select sum(size_bytes) as n from collective_parts where kind = 'all_reduce' "
        f"and job = '{two_ranks['job']}'"
    )
    parameters = (50304 + 1024) * 768 + 12 * (12 * 768 * 768 + 13 * 768) + 2 * 768
    assert parts[0]["n"] == pytest.approx(4 * parameters, rel=1e-3)


def test_two_emulations_have_equal_content(cli: Cli, two_ranks: dict[str, Any]) -> None:
    def content() -> dict[str, list[dict[str, Any]]]:
        tables = ("events", "signatures", "collective_parts", "communicators", "ranks")
        where = f"where job = '{two_ranks['job']}'"
        return {name: cli.rows(f"select * from emulation.{name} {where}") for name in tables}

    first = content()
    repeated = cli.predict(GPT2, nproc_per_node=2, switches=["--remeasure-host"])
    assert repeated["job"] == two_ranks["job"]
    assert repeated["versions"]["events"] == two_ranks["versions"]["events"]
    assert repeated["versions"]["host_gaps"] != two_ranks["versions"]["host_gaps"]
    assert content() == first
    assert repeated["iteration_time_ns"] == pytest.approx(two_ranks["iteration_time_ns"], rel=0.03)


def test_gemm_total_equals_the_estimator_and_is_near_peak(cli: Cli) -> None:
    from understudy import catalog, forests
    from warehouse import store

    report = cli.predict(REPOSITORY / "examples" / "mlp.py")
    job, device = report["job"], catalog.device("h100-sxm-80gb")
    os.environ["UNDERSTUDY_HOME"] = str(cli.home)
    try:
        signatures = store.read_table("merging", "signatures", device.id, job)
        predicted = store.read_table("simulation", "predicted_kernels", device.id, job)
        gemms = signatures.filter(pc.field("family") == "gemm")
        estimates = forests.predict(gemms, device)
    finally:
        del os.environ["UNDERSTUDY_HOME"]
    launches = dict(
        zip(predicted["signature"].to_pylist(), predicted["launch_count"].to_pylist(), strict=True)
    )
    expected = sum(
        int(duration) * launches[signature]
        for signature, duration in zip(
            gemms["signature"].to_pylist(), estimates["duration_ns"].to_pylist(), strict=True
        )
    )
    total = cli.rows(
        "select sum(duration_ns * launch_count)::bigint as ns, "
        "sum(flops * launch_count) as flops "
        f"from predicted_kernels where family = 'gemm' and job = '{job}' "
        f"and device = '{device.id}'"
    )[0]
    assert total["ns"] == expected
    assert 0.4 < total["flops"] / (total["ns"] / 1e9) / report["peak_flops"] < 0.9


def test_ten_billion_parameters_do_not_fit(cli: Cli) -> None:
    done = cli.run("predict", REPOSITORY / "scenarios" / "gpt-10b.yaml", "--json")
    assert done.code == 3, done.err
    report = done.json
    assert report["fits"] is False
    assert report["iteration_time_ns"] is None
    assert report["oom"]["rank"] == 0
    assert report["oom"]["iteration"] >= 0
    assert report["oom"]["requested_bytes"] > 0
    assert report["oom"]["capacity_bytes"] == pytest.approx(85e9, rel=0.03)
    rows = cli.rows("select fits from simulated_runtimes where job = 'gpt-10b'")
    assert rows == [{"fits": False}]


def test_query_answers_while_a_materialization_runs(
    cli: Cli, gpt2: dict[int, dict[str, Any]]
) -> None:
    running = subprocess.Popen(
        [str(UNDERSTUDY), "predict", "--device", "h100-sxm-80gb", "--json", "--", str(GPT2)],
        env=cli.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    query = "select family, sum(duration_ns * launch_count) as ns from predicted_kernels group by 1"
    answers = 0
    while running.poll() is None:
        families = {row["family"] for row in cli.rows(query)}
        assert {"gemm", "optimizer"} <= families
        answers += 1
    assert running.returncode == 0
    assert answers >= 2
