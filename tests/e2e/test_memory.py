"""Memory against PyTorch's own figures: every mode of its allocator, a smaller GPU, offloading."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy import jobs
from understudy.emulation import Emulation, emulate
from understudy.emulation.memory import check_peaks
from understudy.jobs import Launch
from understudy.traces.interceptor import Api, read_trace

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

#: Small GPTs: on one rank with and without DDP, on several under FSDP2. Every tensor is a multiple
#: of 2 MiB or smaller than 1 MiB, so that PyTorch's allocator gives each a block of its own size
#: (512 bytes at least).
GPT = """
    import json
    import os

    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    WIDTH, HEADS, LAYERS, VOCABULARY, BATCH, CONTEXT = 1024, 16, 2, 2048, 4, 128

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            q, k, v = (
                t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                for t in self.qkv(self.ln_1(x)).chunk(3, -1)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.ln_2(x))))

    def gpt():
        return nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH),
            *(Block() for _ in range(LAYERS)),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, VOCABULARY, bias=False),
        ).to(device)

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    if dist.get_world_size() == 1:
        models = [DistributedDataParallel(gpt(), gradient_as_bucket_view=True), gpt()]
    else:
        models = [gpt()]
        for block in models[0]:
            fully_shard(block)
        fully_shard(models[0])
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    for step in range(4):
        tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT), device=device)
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
    if device.index == 0:
        print(json.dumps([p.shape for p in models[0].parameters()]))
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
    folder: Path,
    text: str,
    *args: str,
    memory: str | None = None,
    nproc_per_node: int = 1,
    **env: str,
) -> tuple[Emulation, Any]:
    """The emulation of a script, and the last line that it printed."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    launch = Launch(nproc_per_node=nproc_per_node)
    spec = jobs.ad_hoc_job(str(script), args, launch=launch, working_dir=folder)
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
    assert wrong_peaks(emulation) == []


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


def block_bytes(shapes: list[list[int]], ranks: int = 1) -> int:
    """Blocks of float32 tensors that `ranks` share by their first dimension."""
    sizes = [math.ceil(shape[0] / ranks) * math.prod(shape[1:]) * 4 for shape in shapes]
    return sum(math.ceil(size / 512) * 512 for size in sizes)


def held_at_the_end(emulation: Emulation, rank: int) -> dict[str, int]:
    timeline = emulation.tables["memory_timeline"].to_pylist()
    held: Counter[str] = Counter()
    for row in timeline:
        if row["rank"] == rank:
            held[row["category"]] += row["change_bytes"]
    return dict(held)


def wrong_peaks(emulation: Emulation) -> list[str]:
    return [w for w in emulation.warnings if "own peak" in w]


@pytest.mark.parametrize(("ranks", "models"), [(1, 2), (2, 1)])
def test_categories_are_what_the_model_explains(tmp_path: Path, ranks: int, models: int) -> None:
    emulation, shapes = emulated(tmp_path, GPT, nproc_per_node=ranks)
    assert wrong_peaks(emulation) == []
    for rank in range(ranks):
        held = held_at_the_end(emulation, rank)
        parameters = models * block_bytes(shapes, ranks)
        assert held["parameters"] == parameters
        # Two averages, and a step that stays on the host.
        assert held["optimizer_state"] == 2 * parameters
        # Some lie together: in DDP's buckets, in what FSDP reduces a module into.
        exact = models * sum(math.prod(shape) for shape in shapes) * 4 // ranks
        assert exact <= held["gradients"] <= parameters + (1 << 20)
        assert held.get("communication", 0) == 0
    if ranks == 1:
        check_a_doctored_trace(tmp_path / "traces" / "rank-0")


def check_a_doctored_trace(stem: Path) -> None:
    """PyTorch's own peaks are in the trace: when the script resets them, and at its end."""
    trace = read_trace(stem)
    at = np.flatnonzero(trace.records["api"] == Api.MEMORY_PEAKS)
    assert len(at) == 2
    assert check_peaks(trace) == []
    trace.records["a"][at[1]] += 512
    (warning,) = check_peaks(trace)
    assert warning.startswith("rank 0: PyTorch's own peak of allocated memory on device 0 is")
    assert "(-512 bytes)" in warning
