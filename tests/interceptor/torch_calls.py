"""Plain PyTorch, run under the interceptor by test_torch.py; prints what it saw as JSON."""

import json
import sys
from pathlib import Path

import torch

cuda = torch.device("cuda")
seen = {}

properties = torch.cuda.get_device_properties(0)
seen["device"] = [
    torch.cuda.is_available(),
    torch.cuda.device_count(),
    properties.name,
    list(torch.cuda.get_device_capability()),
    properties.total_memory,
    properties.multi_processor_count,
]
seen["full"] = torch.full((2, 3), 7.5, device=cuda).tolist()
seen["ones"] = [
    torch.ones(3, dtype=dtype, device=cuda).tolist()
    for dtype in (torch.float64, torch.int64, torch.bool, torch.half, torch.bfloat16, torch.uint8)
]
seen["round_trip"] = torch.arange(5).to(cuda).clone().tolist()
seen["randn"] = torch.randn(4, device=cuda).tolist()
seen["any_nan"] = torch.isnan(torch.ones(4, device=cuda)).any().item()

# A step with pinned input, autocast, a scaler and the fused optimizer.
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 8)
).to(cuda)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scaler = torch.amp.GradScaler("cuda")
for _ in range(2):
    batch = torch.randn(32, 64).pin_memory().to(cuda, non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(batch).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
seen["scale"] = scaler.get_scale()

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    start.record()
    torch.mm(torch.empty(512, 256, device=cuda), torch.empty(256, 128, device=cuda))
    end.record()
end.synchronize()
seen["elapsed_is_positive"] = start.elapsed_time(end) > 0

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = torch.ones(1000, device=cuda) * 2
graph.replay()

torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
blocks = [torch.empty(1 << 30, dtype=torch.uint8, device=cuda) for _ in range(10)]
seen["ten_gib"] = torch.cuda.max_memory_allocated() - before
try:
    torch.empty(75 << 30, dtype=torch.uint8, device=cuda)
except torch.OutOfMemoryError as error:
    seen["oom"] = str(error)
del blocks
torch.cuda.empty_cache()
seen["after_oom"] = torch.empty(75 << 30, dtype=torch.uint8, device=cuda).numel() >> 30
torch.cuda.synchronize()

mapped = Path("/proc/self/maps").read_text().splitlines()
seen["libraries"] = sorted({Path(line.split()[-1]).name for line in mapped if "/shadow/" in line})
sys.stdout.write(json.dumps(seen) + "\n")
