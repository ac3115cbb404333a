"""Training whose whole step is one CUDA graph: the optimizer's step is called once, replayed often.

The warm-up before the capture runs eagerly, as PyTorch's documentation has it.
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch, target = torch.zeros(32, 64, device="cuda"), torch.zeros(32, 64, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    nn.functional.mse_loss(model(batch), target).backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(1_000_000):
    batch.copy_(torch.zeros(32, 64).pin_memory(), non_blocking=True)
    graph.replay()
