"""`make bench`: how fast the replay engine is, on a 1F1B GPT of 8 to 4,096 ranks.

Speeds are operations per second of processor time, the best of several runs; preparing the arrays
is included. The Python reference engine replays the smaller jobs, for the ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from understudy.simulation import engine, reference
from understudy.simulation.world import (
    DEVICE,
    HOST_WAIT,
    JOIN,
    NONE,
    STREAM_WAIT,
    Part,
    Placement,
    Program,
    World,
)

#: Tensor, pipeline and data parallel sizes; 8 ranks a node.
GRIDS = ((4, 2, 1), (8, 4, 2), (8, 8, 8), (8, 8, 64))
LAYERS, MICRO_BATCHES, KERNELS_PER_LAYER = 8, 50, 9
COMPUTE, TENSOR, PIPELINE, DATA = range(4)
RUNS = 5
#: The reference engine takes a second per million operations.
MAX_REFERENCE_OPS = 2_000_000


@dataclass
class Ops:
    """A program while it is written: a list per column, and how often each channel was called."""

    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    parts: dict[int, list[tuple[str, int, int, int]]] = field(default_factory=dict)
    calls: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def add(self, kind: int, stream: int, duration_ns: int = 0, depends_on: int = NONE) -> int:
        self.rows.append((kind, stream, depends_on, duration_ns))
        return len(self.rows) - 1

    def join(self, stream: int, duration_ns: int, *parts: tuple[str, int, int]) -> int:
        """Parts are (kind, communicator, peer)."""
        op = self.add(JOIN, stream, duration_ns)
        for kind, communicator, peer in parts:
            key = (kind if peer >= 0 else "", communicator, peer)
            sequence = self.calls[key] = self.calls.get(key, 0) + 1
            self.parts.setdefault(op, []).append((kind, communicator, peer, sequence - 1))
        return op

    def program(self, seed: int) -> Program:
        kind, stream, depends_on, duration_ns = np.array(self.rows, np.int64).T
        random = np.random.default_rng(seed)
        length = len(kind)
        return Program(
            kind,
            stream,
            depends_on,
            gap_ns=random.integers(4_000, 8_000, length),
            cost_ns=np.full(length, 500),
            latency_ns=np.full(length, 3_000),
            duration_ns=duration_ns,
            parts={
                op: tuple(
                    Part(k, c, p, sequence, self.calls[k if p >= 0 else "", c, p])
                    for k, c, p, sequence in parts
                )
                for op, parts in self.parts.items()
            },
        )


def _layers(ops: Ops, backward: bool) -> None:
    for _ in range(LAYERS):
        for half in range(2):
            for kernel in range(KERNELS_PER_LAYER // 2 * (1 + backward)):
                ops.add(DEVICE, COMPUTE, 20_000 + 1_000 * kernel + 500 * half)
            ops.add(STREAM_WAIT, TENSOR, depends_on=len(ops.rows) - 1)
            reduced = ops.join(TENSOR, 30_000, ("all_reduce", 0, -1))
            ops.add(STREAM_WAIT, COMPUTE, depends_on=reduced)


def stage_program(stage: int, stages: int) -> Program:
    """One iteration of a stage under the 1F1B schedule.

    Communicator 0 is tensor parallel, 1 pipeline parallel, 2 data parallel.
    """
    ops = Ops()
    previous, following = stage - 1, stage + 1 if stage + 1 < stages else -1

    def exchange(*calls: tuple[str, int]) -> None:
        parts = [(kind, 1, peer) for kind, peer in calls if peer >= 0]
        if parts:
            ops.add(STREAM_WAIT, PIPELINE, depends_on=len(ops.rows) - 1)
            ops.join(PIPELINE, 40_000, *parts)
            ops.add(HOST_WAIT, -1, depends_on=len(ops.rows) - 1)

    warmup = min(stages - stage - 1, MICRO_BATCHES)
    ops.add(DEVICE, COMPUTE, 5_000)
    for _ in range(warmup):
        exchange(("recv", previous))
        _layers(ops, backward=False)
        exchange(("send", following))
    steady = MICRO_BATCHES - warmup
    if steady:
        exchange(("recv", previous))
    for micro_batch in range(steady):
        _layers(ops, backward=False)
        exchange(("send", following), ("recv", following))
        _layers(ops, backward=True)
        last = micro_batch + 1 == steady
        exchange(("send", previous), *(() if last else (("recv", previous),)))
    for _ in range(warmup):
        exchange(("recv", following))
        _layers(ops, backward=True)
        exchange(("send", previous))
    for _ in range(4):
        ops.add(STREAM_WAIT, DATA, depends_on=len(ops.rows) - 1)
        ops.join(DATA, 900_000, ("all_reduce", 2, -1))
    ops.add(HOST_WAIT, -1)
    return ops.program(stage)


def job(tensor: int, pipeline: int, data: int) -> World:
    """Ranks in the order (pipeline, data, tensor), tensor fastest; 8 to a node, a card each."""
    members: dict[int, list[int]] = {}
    placements = []
    ranks = np.arange(tensor * pipeline * data).reshape(pipeline, data, tensor)
    tensor_groups = ranks.reshape(-1, tensor)
    pipeline_groups = ranks.transpose(1, 2, 0).reshape(-1, pipeline)
    data_groups = ranks.transpose(0, 2, 1).reshape(-1, data)
    first = {}
    for name, groups in (("t", tensor_groups), ("p", pipeline_groups), ("d", data_groups)):
        first[name] = len(members)
        members.update(enumerate(groups.tolist(), first[name]))
    for rank in range(ranks.size):
        p, d, t = (int(i) for i in np.unravel_index(rank, ranks.shape))
        communicators = {
            0: first["t"] + p * data + d,
            1: first["p"] + d * tensor + t,
            2: first["d"] + p * tensor + t,
        }
        placements.append(Placement(p, communicators, node=rank // 8, network_card=rank))
    return World([stage_program(p, pipeline) for p in range(pipeline)], placements, members)


def _best_s(run: Callable[[], object], runs: int) -> float:
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return best


def main() -> None:
    """Prints the speeds."""
    print("\nReplay of a 1F1B GPT (tensor x pipeline x data), operations per second of CPU time")
    for grid in GRIDS:
        world = job(*grid)
        ops = sum(len(world.programs[p.program].kind) for p in world.placements)
        world_size = len(world.placements)
        engine_s = _best_s(lambda w=world: engine.replay(w), RUNS if world_size < 4096 else 1)
        line = f"  {world_size:>5} ranks, {ops:>12,} operations {ops / engine_s / 1e6:8.1f} M/s"
        if ops <= MAX_REFERENCE_OPS:
            reference_s = _best_s(lambda w=world: reference.replay(w), 1)
            line += f", {reference_s / engine_s:5.0f} x the reference engine"
        print(line, flush=True)


if __name__ == "__main__":
    main()
