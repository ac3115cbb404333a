"""Times steps of a GPT-2 with its 12 layers but tensors too small to matter: host time only.

Run by bench.py, with `cpu` for plain dispatch and with `cuda` under the interceptor. Prints the
steps' processor time in nanoseconds as JSON: other load on the machine does not count.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from gpt2 import GPT, make_optimizer

BATCH_SIZE, SEQ_LEN, VOCAB_SIZE = 2, 16, 64


def main() -> None:
    device, steps = torch.device(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    with device:
        model = GPT(VOCAB_SIZE, SEQ_LEN, n_layer=12, n_head=2, n_embd=32, dropout=0.1)
        ids = torch.zeros(BATCH_SIZE, SEQ_LEN, dtype=torch.int64)
    optimizer = make_optimizer(model, lr=1e-3, weight_decay=0.1)
    durations_ns = []
    for _ in range(steps):
        began_ns = time.process_time_ns()
        model(ids, ids).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        durations_ns.append(time.process_time_ns() - began_ns)
    print(json.dumps(durations_ns))


if __name__ == "__main__":
    main()
