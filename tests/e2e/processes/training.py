"""Training with all that scripts do with processes and threads around it; ends by os._exit(0).

Data come from workers of DataLoaders, forked and spawned, and as GPU tensors from producers,
spawned and forked by a server. Other programs run, one of which uses the GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, CLASSES, STEPS = 64, 256, 32, 12
ON_GPU = "import torch; x = torch.ones(8, 8, device='cuda'); print('product', (x @ x).shape)"


class Rows(Dataset[Tensor]):
    """Row i is full of i."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((WIDTH,), float(index))


def batches(method: str, workers: int) -> Iterator[Tensor]:
    loader = DataLoader(
        Rows(),
        BATCH,
        num_workers=workers,
        multiprocessing_context=method,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=3,
    )
    while True:
        yield from loader


def echo(inputs: Queue[Tensor], outputs: Queue[Tensor], done: Event) -> None:
    """Gives back a copy of each tensor, which lives as long as the receiver needs it."""
    for _ in range(STEPS):
        outputs.put(inputs.get().clone())
    done.wait()


class Echo:
    def __init__(self, method: str) -> None:
        context: Any = mp.get_context(method)
        self.inputs, self.outputs, self.done = context.Queue(), context.Queue(), context.Event()
        self.process = context.Process(target=echo, args=(self.inputs, self.outputs, self.done))
        self.process.start()

    def of(self, value: float) -> Tensor:
        self.inputs.put(torch.full((BATCH, WIDTH), value, device="cuda"))
        return self.outputs.get()

    def end(self) -> None:
        self.done.set()
        self.process.join()
        assert self.process.exitcode == 0


def forked_child_that_uses_cuda() -> str:
    """What a child says that is forked after its parent has used the GPU."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            torch.ones(1, device="cuda")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.wait()
    return os.read(read, 1000).decode()


def main() -> None:
    # Before any use of the GPU: its workers are forked.
    forked = batches("fork", 2)
    next(forked)
    spawned = batches("spawn", 1)
    echoes = [Echo("spawn")]
    # The other kind of memory that PyTorch shares: segments of the driver's virtual memory.
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    echoes.append(Echo("forkserver"))
    del os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    subprocess.run([sys.executable, "-c", ON_GPU], check=True)
    assert subprocess.run(["/bin/echo", "no Python"], capture_output=True, check=True).stdout

    model = nn.Linear(WIDTH, CLASSES).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = forked_child_that_uses_cuda()
    assert "Cannot re-initialize CUDA in forked subprocess" in said, said
    product = torch.empty(CLASSES, CLASSES, device="cuda")
    square = torch.ones(CLASSES, CLASSES, device="cuda")
    for step in range(STEPS):
        from_fork, from_spawn = next(forked).cuda(non_blocking=True), next(spawned).cuda()
        assert from_spawn[1, 0].item() == step * BATCH + 1
        passed = [echo.of(float(step)) for echo in echoes]
        assert [x[-1, -1].item() for x in passed] == [step, step], passed
        # A thread of the script's own launches kernels as well.
        thread = threading.Thread(target=torch.mm, args=(square, square), kwargs={"out": product})
        thread.start()
        thread.join()
        loss = torch.stack([model(x).sum() for x in (from_fork, from_spawn, *passed)]).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del passed
    for each in echoes:
        each.end()
    sys.stdout.write("all steps done")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
