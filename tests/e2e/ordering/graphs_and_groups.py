"""One data-parallel step in a CUDA graph, then exchanges of every kind, then a loop that polls.

Two ranks. Rank 0 sends nothing to itself in the uneven all-to-all, rank 1 two rows to rank 0.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _coalescing_manager

WIDTH, BATCH = 64, 32


def new_groups(rank):
    """A group of this rank alone and a second one of both."""
    alone = [dist.new_group([member]) for member in range(2)]
    return alone[rank], dist.new_group([0, 1])


def capture(model, optimizer, batch, group):
    """Forward, backward and the gradient's all-reduce as one graph."""

    def passes():
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        dist.all_reduce(model.weight.grad, group=group)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            passes()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        passes()
    return graph


def exchange(rank, row, alone, both):
    """An uneven all-to-all, a pair of messages, a group of one, two collectives in a group."""
    sent, received = (([0, 3], [0, 2]), ([2, 1], [3, 1]))[rank]
    rows = torch.zeros(sum(sent), 8, device="cuda")
    dist.all_to_all_single(torch.zeros(sum(received), 8, device="cuda"), rows, received, sent)
    other = torch.zeros_like(row)
    messages = [dist.P2POp(dist.isend, row, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for request in dist.batch_isend_irecv(messages):
        request.wait()
    dist.all_reduce(row, group=alone)
    with _coalescing_manager(group=both):
        dist.all_reduce(row, group=both)
        dist.all_reduce(other, group=both)


def main():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    alone, both = new_groups(rank)
    model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graph = capture(model, optimizer, torch.zeros(BATCH, WIDTH, device="cuda"), both)
    row = torch.zeros(16, device="cuda")
    for _ in range(1000):
        graph.replay()
        exchange(rank, row, alone, both)
        event = torch.cuda.Event()
        event.record()
        while not event.query():
            time.sleep(0.001)
        work = dist.all_reduce(row, group=both, async_op=True)  # pyright: ignore
        while not work.is_completed():
            time.sleep(0.001)
        optimizer.step()


main()
