"""Predictions for devices without measurements, and for one that PyTorch has no code for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import Cli

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor")]

SCRIPT = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256))
model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(512, 256, device="cuda")
while True:
    with torch.autocast("cuda", torch.float16):
        q = model(x).view(8, 64, 4, 64).transpose(1, 2)
        loss = nn.functional.scaled_dot_product_attention(q, q, q).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_device_without_measurements(cli: Cli, script: Path) -> None:
    report = cli.predict(script, device="t4", warmup=3, iterations=3)
    assert report["device"] == "t4-pcie-16gb" and report["fits"]
    assert report["low_ns"] < report["iteration_time_ns"] < report["high_ns"]
    query = "select family, any_value(estimate_source) as source from predicted_kernels group by 1"
    families = {row["family"]: row["source"] for row in cli.rows(query)}
    assert set(families.values()) == {"law"}
    # On compute capability 7.5 attention is the memory-efficient kernel, not FlashAttention.
    assert {"gemm", "attention_forward", "normalization", "optimizer"} <= set(families)


def test_a_device_that_pytorch_has_no_code_for(cli: Cli, script: Path) -> None:
    done = cli.run("predict", "--device", "v100-sxm-32gb", "--", script)
    assert done.code == 1
    assert done.err.count("Traceback") == 1
    assert "AcceleratorError: CUDA error: no kernel image is available for execution" in done.err
    assert done.err.count("This PyTorch has no code for the device: give --python") == 1
    (log,) = cli.home.glob("jobs/train-*/v100-sxm-32gb/emulation.log")
    assert (
        "Found GPU0 Tesla V100-SXM2-32GB which is of compute capability (CC) 7.0" in log.read_text()
    )
    assert cli.rows("select device from simulated_runtimes where device like 'v100%'") == []
