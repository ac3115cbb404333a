"""Memory against PyTorch's own figures: every mode of its allocator, a smaller GPU, offloading."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from understudy import jobs
from understudy.emulation import Emulation, emulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("interceptor", "script_home"),
]

DEVICE = "h100-sxm-80gb"

TRAIN = """
    import json
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(6):
        x = torch.randn(256 * (1 + step % 3), 1024, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scratch = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        del scratch
        if step == 3:
            torch.cuda.empty_cache()
    print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
"""

#: What a script does that looks for the largest batch that fits.
SEARCH = """
    import json
    import torch

    gib = 1 << 30
    torch.ones(1, device="cuda").add_(1)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    tried = []
    batch = 64
    while True:
        tried.append(batch)
        try:
            blocks = [torch.empty(gib, dtype=torch.uint8, device="cuda") for _ in range(batch)]
            break
        except torch.OutOfMemoryError as error:
            message = str(error)
            blocks = None
            torch.cuda.empty_cache()
            assert torch.cuda.memory_reserved() == 0
            batch //= 2
    blocks = None
    torch.cuda.empty_cache()
    most = []
    try:
        while True:
            most.append(torch.empty(gib, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    retries = torch.cuda.memory_stats()["num_ooms"]
    print(json.dumps([free, total, tried, len(most), message, retries]))
"""

OFFLOAD = """
    import json
    import torch

    # 24 GiB of weights and twice that of optimizer state, in page-locked memory of the host.
    buffers = [torch.empty(6 << 30, dtype=torch.uint8, pin_memory=True) for _ in range(12)]
    on_gpu = torch.empty(6 << 30, dtype=torch.uint8, device="cuda")
    for buffer in buffers:
        on_gpu.copy_(buffer, non_blocking=True)
        buffer.copy_(on_gpu, non_blocking=True)
    torch.cuda.synchronize()
    small = torch.arange(4.0).pin_memory()
    assert small.cuda().cpu().tolist() == [0.0, 1.0, 2.0, 3.0]
    resident_kib = int(
        next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
    )
    print(json.dumps(resident_kib))
"""


def emulated(
    folder: Path, text: str, memory: str | None = None, **env: str
) -> tuple[Emulation, Any]:
    """The emulation of a script, and the last line that it printed."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    spec = jobs.ad_hoc_job(str(script), (), working_dir=folder)
    spec = dataclasses.replace(spec, env=env, warmup=100)
    if memory is not None:
        spec = jobs.with_memory(spec, memory)
    emulation = emulate(spec, DEVICE, log_path=folder / "log", traces_dir=folder / "traces")
    return emulation, json.loads((folder / "log").read_text().strip().splitlines()[-1])


def peaks(emulation: Emulation) -> dict[str, int]:
    (row,) = emulation.tables["ranks"].to_pylist()
    return {name: row[f"peak_{name}_bytes"] for name in ("allocated", "reserved", "device")}


@pytest.mark.parametrize(
    "settings", ["", "expandable_segments:True", "backend:cudaMallocAsync", "max_split_size_mb:64"]
)
def test_peaks_equal_those_of_pytorch(tmp_path: Path, settings: str) -> None:
    emulation, own = emulated(tmp_path, TRAIN, PYTORCH_CUDA_ALLOC_CONF=settings)
    seen = peaks(emulation)
    assert [seen["allocated"], seen["reserved"]] == own
    assert seen["device"] > seen["reserved"]  # the context
    assert not [w for w in emulation.warnings if "not emulated" in w]


def test_without_caching_every_tensor_is_device_memory(tmp_path: Path) -> None:
    emulation, own = emulated(tmp_path, TRAIN, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert own == [0, 0]  # PyTorch counts nothing then; the device does
    cached, (allocated, _) = emulated(tmp_path, TRAIN)
    assert peaks(emulation)["reserved"] == peaks(cached)["allocated"] == allocated


def test_a_script_meets_the_memory_that_was_set(tmp_path: Path) -> None:
    _, (free, total, tried, most, message, ooms) = emulated(tmp_path, SEARCH, memory="40GiB")
    assert total == 40 << 30
    context = total - free
    fits = (total - context) >> 30
    assert tried == [64, 32]
    assert most == fits
    assert "GPU 0 has a total capacity of 40.00 GiB" in message
    assert "Tried to allocate 1024.00 MiB" in message or "Tried to allocate 1.00 GiB" in message
    assert ooms == 2


def test_offloading_does_not_cost_the_host_the_size_of_the_model(tmp_path: Path) -> None:
    _, resident_kib = emulated(tmp_path, OFFLOAD)
    assert resident_kib < 1 << 20
