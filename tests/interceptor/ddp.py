"""Plain DDP training under torchrun; the first argument is the folder for one trace per rank."""

from __future__ import annotations

import ctypes
import os
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
understudy = ctypes.CDLL("libunderstudy.so")
error = understudy.understudy_trace_open(f"{sys.argv[1]}/rank{rank}".encode())
if error:
    raise OSError(error, os.strerror(error), sys.argv[1])
torch.cuda.set_device(local_rank)
distributed.init_process_group("nccl")

model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
parallel = DistributedDataParallel(model.cuda(), bucket_cap_mb=1)
optimizer = torch.optim.AdamW(parallel.parameters())
for _ in range(2):
    parallel(torch.randn(16, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

# What every rank holds comes back from collectives.
gathered = [torch.zeros(3, dtype=torch.int64, device="cuda") for _ in range(2)]
distributed.all_gather(gathered, torch.tensor([7, 8, 9], device="cuda"))
assert [part.tolist() for part in gathered] == [[7, 8, 9]] * 2, gathered
total = torch.tensor([16.0], device="cuda")
distributed.all_reduce(total)
assert total.item() == 32, total

# Point to point in one group, and communicators of subsets.
received = torch.zeros(64, device="cuda")
calls = [
    distributed.P2POp(distributed.isend, torch.ones(64, device="cuda"), 1 - rank),
    distributed.P2POp(distributed.irecv, received, 1 - rank),
]
for work in distributed.batch_isend_irecv(calls):
    work.wait()
both = distributed.new_group([0, 1])
assert isinstance(both, distributed.ProcessGroup)
shard = torch.zeros(128, device="cuda")
distributed.reduce_scatter_tensor(shard, torch.ones(256, device="cuda"), group=both)
gradients = sum(4 * parameter.numel() for parameter in model.parameters())
understudy.understudy_annotate(f"gradient bytes {gradients}".encode())
distributed.destroy_process_group()
