"""Where iterations are found to end, by whatever ends them, and that each holds what the model's
arithmetic says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.plain_script import emulated, gemms
from tests.e2e.script_case import Gemm, input_gradient, linear, times
from understudy.emulation import Emulation
from understudy.errors import UnderstudyError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor", "script_home")]


def forward(tokens: int, inputs: int, outputs: int) -> Counter[Gemm]:
    return Counter([(tokens, outputs, inputs, 1)])


def found(emulation: Emulation) -> tuple[str, list[int], list[int]]:
    """(what ends an iteration, iterations seen, iterations recorded), the latter by rank."""
    ranks = emulation.tables["ranks"]
    (source,) = set(ranks["iteration_source"].to_pylist())
    return source, ranks["iterations_seen"].to_pylist(), ranks["iterations"].to_pylist()


def test_accumulated_gradients_and_evaluations_now_and_then(tmp_path: Path) -> None:
    """Four micro-batches of 16 rows per step, and after every third step an evaluation of 128."""
    text = """
        import torch
        from torch import nn
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in range(4 * 13):
            model(torch.randn(16, 64, device="cuda")).square().mean().div(4).backward()
            if batch % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            if batch % 12 == 11:
                with torch.inference_mode():
                    model(torch.randn(128, 64, device="cuda")).argmax(1).cpu()
    """
    result = emulated(tmp_path, text, warmup=3, iterations=6)
    assert found(result) == ("optimizer steps", [9], [6])
    assert result.warnings == ()
    step = times(4, linear(16, 64, 256), linear(16, 256, 8))
    step -= times(4, input_gradient(16, 64, 256))
    evaluation = forward(128, 64, 256) + forward(128, 256, 8)
    # An evaluation belongs to the iteration that follows it.
    assert gemms(result) == 2 * [step + evaluation, step, step]


def test_two_optimizers_of_which_one_steps_twice(tmp_path: Path) -> None:
    text = """
        import torch
        from torch import nn
        generator = nn.Linear(32, 64).cuda()
        critic = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
        of_generator = torch.optim.Adam(generator.parameters())
        of_critic = torch.optim.Adam(critic.parameters())
        noise = lambda: torch.randn(16, 32, device="cuda")
        while True:
            for _ in range(2):
                with torch.no_grad():
                    fake = generator(noise())
                of_critic.zero_grad()
                (critic(fake).mean() - critic(torch.randn(16, 64, device="cuda")).mean()).backward()
                of_critic.step()
            of_generator.zero_grad()
            (-critic(generator(noise())).mean()).backward()
            of_generator.step()
    """
    result = emulated(tmp_path, text, warmup=3, iterations=4)
    assert found(result) == ("optimizer steps", [7], [4])
    assert result.warnings == ()
    critic = linear(16, 64, 128) + linear(16, 128, 1)
    first_gradient = input_gradient(16, 64, 128)
    generator = linear(16, 32, 64) - input_gradient(16, 32, 64)
    assert gemms(result) == [
        times(2, forward(16, 32, 64)) + times(4, critic) - times(4, first_gradient)
        + generator + critic
    ]  # fmt: skip


def test_inference_by_functions_alone(tmp_path: Path) -> None:
    """No module is called: the sequence of operations says where an iteration ends."""
    text = """
        import torch
        weights = [torch.randn(128, 128, device="cuda") for _ in range(3)]
        with torch.inference_mode():
            for _ in range(12):
                x = torch.randn(32, 128).cuda()
                for weight in weights:
                    x = torch.relu(x @ weight)
                x.sum().item()
    """
    result = emulated(tmp_path, text, warmup=3, iterations=4)
    assert found(result) == ("repeated sequence", [12], [4])
    assert "repeats" in result.warnings[0]
    assert gemms(result) == [times(3, forward(32, 128, 128))]


def test_inference_that_calls_one_of_its_modules_several_times(tmp_path: Path) -> None:
    text = """
        import torch
        from torch import nn
        encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
        decoder = nn.Linear(64, 64).cuda()
        with torch.inference_mode():
            while True:
                x = encoder(torch.randn(32, 64, device="cuda"))
                for _ in range(4):
                    x = decoder(x)
                x.argmax(1).cpu()
    """
    result = emulated(tmp_path, text, warmup=3, iterations=4)
    source, _, recorded = found(result)
    assert (source, recorded) == ("module calls", [4])
    assert "outermost module" in result.warnings[0]
    assert gemms(result) == [
        forward(32, 64, 256) + forward(32, 256, 64) + times(4, forward(32, 64, 64))
    ]


MARKED = """
    import os, torch
    from torch.profiler import record_function
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    named = torch.cuda.nvtx.range if os.environ["RANK"] == "0" else record_function
    weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for number in range(1_000_000):
        with named(f"batch {number}"):
            for _ in range(3):
                with named("part"):
                    (weight @ weight).sum().backward()
                    optimizer.step()
"""


def test_a_marker_goes_before_optimizer_steps(tmp_path: Path) -> None:
    """NVTX ranges on rank 0, ranges of the profiler on rank 1."""
    result = emulated(tmp_path, MARKED, ranks=2, warmup=2, iterations=3, marker="batch")
    assert found(result) == ("marker batch", [5, 5], [3, 3])
    assert result.warnings == ()
    for rank in range(2):
        assert gemms(result, rank) == [times(3 * 3, forward(64, 64, 64))]


def test_a_marker_that_never_ends_a_range(tmp_path: Path) -> None:
    with pytest.raises(UnderstudyError, match=r"no NVTX .* named 'epoch' ended: rank 0 has") as e:
        emulated(tmp_path, MARKED, warmup=1, iterations=1, marker="epoch")
    assert "batch 0, part" in str(e.value)


def test_profiled_inference_with_fewer_iterations_than_asked(tmp_path: Path) -> None:
    text = """
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        with torch.profiler.profile():
            for _ in range(5):
                model(torch.randn(8, 64, device="cuda")).cpu()
    """
    result = emulated(tmp_path, text, warmup=2, iterations=10)
    assert found(result) == ("module calls", [4], [3])
    assert any("the script ended after 4 iterations" in warning for warning in result.warnings)
    assert gemms(result) == [forward(8, 64, 64)]
