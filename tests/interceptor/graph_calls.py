"""CUDA graphs as PyTorch makes and launches them; test_graphs.py compares each with eager work.

Prints the names of its cases. Each ends with a mark, so it is an iteration of the trace.
"""

import ctypes
import json
import os
import sys

import torch

REPLAYS = 10
cuda = torch.device("cuda")
library = ctypes.CDLL(os.environ["UNDERSTUDY_LIBRARY"])
cases = []


def end(name):
    """Ends a case."""
    library.understudy_mark_iteration()
    cases.append(name)


torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 8)
).to(cuda)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)
batch = torch.zeros(32, 64, device=cuda)


def step():
    optimizer.zero_grad(set_to_none=True)
    model(batch).square().mean().backward()
    optimizer.step()


def on_side_stream(work):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)


on_side_stream(lambda: [step() for _ in range(3)])
torch.cuda.synchronize()
end("warm-up")
for _ in range(REPLAYS):
    step()
end("eager step")

whole = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(whole):
    model(batch).square().mean().backward()
    optimizer.step()
end("capture of a step")
for _ in range(REPLAYS):
    whole.replay()
end("captured step")

block = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
block = block.to(cuda)


def block_step(module):
    optimizer.zero_grad(set_to_none=True)
    module(batch).square().mean().backward()


block_step(block)
end("warm-up of a block")
for _ in range(REPLAYS):
    block_step(block)
end("eager block")
graphed = torch.cuda.make_graphed_callables(block, (torch.zeros(32, 64, device=cuda),))
end("capture of a block")
for _ in range(REPLAYS):
    block_step(graphed)
end("captured block")

a, b = torch.zeros(128, 256, device=cuda), torch.zeros(256, 512, device=cuda)
host = torch.zeros(128, 256).pin_memory()
streams = [torch.cuda.Stream() for _ in range(2)]


def branches():
    current = torch.cuda.current_stream()
    a.copy_(host, non_blocking=True)
    for stream in streams:
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            torch.mm(a, b)
    for stream in streams:
        current.wait_stream(stream)
    a.zero_()


on_side_stream(branches)
torch.cuda.synchronize()
end("warm-up of branches")
on_side_stream(branches)
end("eager branches")
branched = torch.cuda.CUDAGraph()
with torch.cuda.graph(branched):
    branches()
end("capture of branches")
branched.replay()
branched.replay()
end("captured branches")

compiled = torch.cuda.CUDAGraph(keep_graph=True)
with torch.cuda.graph(compiled):
    torch.mm(a, b)
compiled.instantiate()
end("capture of a kept graph")
compiled.replay()
end("kept graph")
torch.cuda.synchronize()
sys.stdout.write(json.dumps(cases) + "\n")
