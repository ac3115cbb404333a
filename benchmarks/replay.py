"""`make bench`: how fast jobs are replayed, on a 1F1B GPT of 8 to 4,096 ranks.

Speeds are ops per second of processor time, the best of several runs, with everything from the
programs' arrays to the result counted. Exits with 1 when the C engine is less than TARGET_RATIO
times as fast as the Python one on 64 ranks. `--quick` leaves out the large jobs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

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
    Point,
    Program,
    World,
)

#: Tensor, pipeline and data parallel sizes by ranks; 8 ranks a node.
GRIDS = {8: (4, 2, 1), 64: (8, 4, 2), 512: (8, 8, 8), 4096: (8, 8, 64)}
#: Of each rank's some 19,500 ops in the large sweep: 10^9 ops of 4,096 ranks.
SWEPT_REPETITIONS = 13
#: Ranks, nodes of each, and how many of them lie from one all_reduce of all ranks to the next.
CHAINS = ((8, 10_000, 0), (8, 10_000, 20), (64, 5_000, 0), (64, 5_000, 20))
LAYERS, MICRO_BATCHES, KERNELS_PER_HALF = 8, 50, 6
COMPUTE, TENSOR, PIPELINE, DATA = range(4)
#: All durations are multiples of it; the multiple is the signature.
DURATION_STEP_NS = 500
RUNS = 7
TARGET_RATIO = 60


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
        """With random gaps."""
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
            signature=duration_ns // DURATION_STEP_NS,
        )


def _layers(ops: Ops, backward: bool) -> None:
    for _ in range(LAYERS):
        for half in range(2):
            for kernel in range(KERNELS_PER_HALF * (1 + backward)):
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


def chain(ranks: int, nodes: int, every: int) -> World:
    """Kernels of 50 us in line; `every` so many, an all_reduce of all ranks (0: none)."""
    ops = Ops()
    for node in range(nodes):
        if every and node % every == every - 1:
            ops.join(COMPUTE, 50_000, ("all_reduce", 0, -1))
        else:
            ops.add(DEVICE, COMPUTE, 50_000)
    return World([ops.program(0)], [Placement(0, {0: 0})] * ranks, {0: list(range(ranks))})


def count(world: World) -> int:
    """Ops of all ranks and repetitions."""
    return sum(len(world.programs[p.program].kind) for p in world.placements) * world.repetitions


def best_s(run: Callable[[], object], runs: int = RUNS) -> float:
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return best


def points(world: World, number: int) -> list[Point]:
    """Durations of other devices, each a little slower than the one before."""
    signatures = 1 + max(int(p.duration_ns.max()) for p in world.programs) // DURATION_STEP_NS
    durations_ns = np.arange(signatures) * DURATION_STEP_NS
    return [Point(durations_ns * (100 + i) // 100) for i in range(number)]


def swept(ranks: int, repetitions: int) -> tuple[int, float, float, int]:
    """Of a sweep with one point: ops, seconds without and with the work of the first point, and
    the peak of the process's resident memory in bytes."""
    world = replace(job(*GRIDS[ranks]), repetitions=repetitions)
    point = points(world, 1)
    loading_s = best_s(lambda: engine.sweep(world, []), 1)
    whole_s = best_s(lambda: engine.sweep(world, point), 1)
    # Not ru_maxrss: that starts at the peak of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak_bytes = int(status.split("VmHWM:")[1].split()[0]) * 1024
    return count(world), loading_s, whole_s, peak_bytes


def _in_new_process(ranks: int, repetitions: int) -> tuple[int, float, float, int]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(swept, ranks, repetitions).result()


def compare_engines() -> float:
    """Prints the speeds of both engines on 64 ranks; how many times faster the C engine is."""
    world = job(*GRIDS[64])
    ops = count(world)
    # Turn about, so that both see the machine as busy as it is.
    times = [
        (best_s(lambda: engine.replay(world)), best_s(lambda: reference.replay(world), 1))
        for _ in range(3)
    ]
    engine_s, reference_s = (min(of_engine) for of_engine in zip(*times, strict=True))
    loading_s = best_s(lambda: engine.sweep(world, []))
    print("\nReplay of a 1F1B GPT: starts and ends of all ops, M ops per second of CPU time")
    print(f"  64 ranks, {ops:,} ops: engine in C     {ops / engine_s / 1e6:8.1f}")
    loaded = ops / (engine_s - loading_s) / 1e6
    print(f"  {'':{14 + len(f'{ops:,}')}}    programs loaded {loaded:8.1f}")
    print(f"  {'':{14 + len(f'{ops:,}')}}    engine in Python{ops / reference_s / 1e6:8.1f}")
    print(f"  ratio {reference_s / engine_s:.0f}, at least {TARGET_RATIO} is asked for")
    return reference_s / engine_s


def main() -> None:
    """Prints the speeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no more than 64 ranks")
    quick = parser.parse_args().quick
    ratio = compare_engines()
    print("\nThe same on more ranks: all ops, and sweeps, which give the ends of iterations only")
    for ranks in [8, 64] if quick else GRIDS:
        world = job(*GRIDS[ranks])
        ops, runs = count(world), RUNS if ranks <= 64 else 2
        one, several = (points(world, 1 + more) for more in (0, 3))
        full = ops / best_s(lambda w=world: engine.replay(w), runs) / 1e6
        loading_s = best_s(lambda w=world: engine.sweep(w, []), runs)
        first_s = best_s(lambda w=world, p=one: engine.sweep(w, p), runs)
        line = f"  {ranks:>5} ranks, {ops:>13,} ops   all {full:6.1f}"
        line += f"   sweep {ops / first_s / 1e6:6.1f}"
        if ranks <= 512:
            all_s = best_s(lambda w=world, p=several: engine.sweep(w, p), runs)
            line += f"   further points {3 * ops / (all_s - first_s) / 1e6:6.1f}"
        print(f"{line}   programs loaded in {1e3 * loading_s:.0f} ms", flush=True)
    if not quick:
        ops, loading_s, whole_s, peak_bytes = _in_new_process(4096, SWEPT_REPETITIONS)
        print(
            f"  {4096:>5} ranks, {ops:>13,} ops   sweep {ops / whole_s / 1e6:6.1f}   "
            f"{whole_s:.1f} CPU-s, {loading_s:.1f} of them loading; "
            f"peak resident memory {peak_bytes / 2**30:.2f} GiB"
        )
    print("\nChains of 50 us kernels, M kernels per second of CPU time")
    for ranks, nodes, every in CHAINS:
        world = chain(ranks, nodes, every)
        speed = count(world) / best_s(lambda w=world: engine.replay(w)) / 1e6
        what = f"all_reduce every {every}" if every else "no collectives"
        print(f"  {ranks:>3} ranks of {nodes:>6,} kernels, {what:<20} {speed:6.1f}", flush=True)
    if ratio < TARGET_RATIO:
        sys.exit(f"the C engine is only {ratio:.0f} times as fast as the Python one")


if __name__ == "__main__":
    main()
