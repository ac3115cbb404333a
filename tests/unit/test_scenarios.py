"""The scenarios and examples that come with the repository."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from understudy import catalog, jobs

REPOSITORY = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((REPOSITORY / "scenarios").glob("*.yaml"))
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


@dataclass(frozen=True)
class Model:
    """A GPT and the sequences of an iteration of all ranks."""

    layers: int
    width: int
    seq_length: int
    vocab_size: int
    sequences: int

    @property
    def flops_per_token(self) -> int:
        """6 N + 6 L d T: causal attention, so half of the scores."""
        parameters = self.layers * (12 * self.width**2 + 13 * self.width) + 2 * self.width
        parameters += self.vocab_size * self.width
        return 6 * parameters + 6 * self.layers * self.width * self.seq_length


def model_of(job: jobs.JobSpec) -> Model:
    options = dict(zip(job.args[::2], job.args[1::2], strict=True))

    def option(name: str, default: int = 0) -> int:
        return int(options.get(f"--{name}", default))

    assert job.script is not None
    if job.script.name == "gpt_3d.py":
        return Model(
            option("num-layers"),
            option("hidden-size"),
            option("seq-length"),
            option("vocab-size"),
            option("global-batch-size"),
        )
    sequences = job.world_size * option("batch-size")
    return Model(option("n-layer", 12), option("n-embd", 768), 1024, 50304, sequences)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_is_valid_on_known_devices(path: Path) -> None:
    job = jobs.load_job(path)
    assert job.devices
    for device in job.devices:
        assert catalog.device(device).id == device


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_states_its_own_work(path: Path) -> None:
    job = jobs.load_job(path)
    model = model_of(job)
    assert job.tokens_per_iteration == model.sequences * model.seq_length
    if job.samples_per_iteration is not None:
        assert job.samples_per_iteration == model.sequences
    if job.model_flops_per_iteration is not None and job.tokens_per_iteration is not None:
        expected = model.flops_per_token * job.tokens_per_iteration
        assert job.model_flops_per_iteration == expected


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_know_nothing_of_this_project(path: Path) -> None:
    assert not re.search(r"understudy|interceptor|emulat", path.read_text(), re.IGNORECASE)
