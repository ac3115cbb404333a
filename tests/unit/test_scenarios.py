"""The scenarios and examples that come with the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from understudy import catalog, jobs

REPOSITORY = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((REPOSITORY / "scenarios").glob("*.yaml"))
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def gpt2_flops_per_token(layers: int, width: int, seq_len: int = 1024) -> int:
    """6 N + 6 L d T: causal attention, so half of the scores."""
    vocab_size = 50304
    parameters = layers * (12 * width**2 + 13 * width) + vocab_size * width + 2 * width
    return 6 * parameters + 6 * layers * width * seq_len


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_is_valid_on_known_devices(path: Path) -> None:
    job = jobs.load_job(path)
    assert job.devices
    for device in job.devices:
        assert catalog.device(device).id == device


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_states_its_own_work(path: Path) -> None:
    job = jobs.load_job(path)
    options = dict(zip(job.args[::2], job.args[1::2], strict=True))
    assert job.tokens_per_iteration == job.world_size * int(options["--batch-size"]) * 1024
    if job.samples_per_iteration is not None:
        assert job.samples_per_iteration * 1024 == job.tokens_per_iteration
    if job.model_flops_per_iteration is not None and job.tokens_per_iteration is not None:
        shape = (int(options.get("--n-layer", 12)), int(options.get("--n-embd", 768)))
        expected = gpt2_flops_per_token(*shape) * job.tokens_per_iteration
        assert job.model_flops_per_iteration == expected


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_know_nothing_of_this_project(path: Path) -> None:
    assert not re.search(r"understudy|interceptor|emulat", path.read_text(), re.IGNORECASE)
