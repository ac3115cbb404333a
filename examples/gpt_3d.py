r"""Pre-training of a GPT with tensor x pipeline x data parallelism in plain torch.distributed.

    torchrun --nproc-per-node 8 examples/gpt_3d.py \
        --tensor-parallel-size 2 --pipeline-parallel-size 2

What is left of the ranks after tensor and pipeline parallelism is data parallel. The methods are
those of Megatron-LM (https://arxiv.org/abs/1909.08053, https://arxiv.org/abs/2104.04473):

* Tensor: attention and MLP are a column-parallel linear followed by a row-parallel one, so that
  each needs one all-reduce forward and one backward. The vocabulary is split as well.
* Pipeline: every rank holds an equal share of the layers; micro-batches follow the 1F1B schedule.
* Data: gradients are accumulated in float32 buckets, which are averaged over the data ranks while
  the last micro-batch's backward still runs. The optimizer works on float32 copies of the weights.

Tokens are synthetic.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


# --- ranks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """The ranks that differ from this one along one kind of parallelism only."""

    group: dist.ProcessGroup
    size: int
    rank: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def all_reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """In place."""
        if self.size > 1:
            dist.all_reduce(x, op=op, group=self.group)
        return x


@dataclass(frozen=True)
class Ranks:
    tensor: Axis
    pipeline: Axis
    data: Axis


def arrange_ranks(tensor: int, pipeline: int) -> Ranks:
    """Tensor-parallel ranks are neighbours, pipeline stages are farthest apart."""
    data = dist.get_world_size() // (tensor * pipeline)
    mesh = init_device_mesh(
        "cuda", (pipeline, data, tensor), mesh_dim_names=("pipeline", "data", "tensor")
    )
    axes = {
        name: Axis(mesh.get_group(name), mesh[name].size(), mesh.get_local_rank(name))
        for name in ("tensor", "pipeline", "data")
    }
    return Ranks(**axes)


# --- tensor parallelism --------------------------------------------------------------------------


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.axis.all_reduce(gradient.contiguous()), None


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, axis: Axis) -> Tensor:
        return axis.all_reduce(x.clone())

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def copy_to_ranks(x: Tensor, axis: Axis) -> Tensor:
    """`x`, which every rank has, for a computation that each rank does a part of; the gradient is
    the sum of the parts'."""
    return _CopyToRanks.apply(x, axis) if axis.size > 1 else x


def sum_over_ranks(x: Tensor, axis: Axis) -> Tensor:
    """The sum of every rank's part; each part has the sum's gradient."""
    return _SumOverRanks.apply(x, axis) if axis.size > 1 else x


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each tensor rank computes a share of the outputs."""

    def __init__(self, inputs: int, outputs: int, tensor: Axis, bias: bool = True) -> None:
        super().__init__()
        self.tensor = tensor
        self.weight = sharded(torch.empty(outputs // tensor.size, inputs))
        self.bias = sharded(torch.zeros(outputs // tensor.size)) if bias else None
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(copy_to_ranks(x, self.tensor), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer of which each tensor rank holds a share of the inputs."""

    def __init__(self, inputs: int, outputs: int, tensor: Axis) -> None:
        super().__init__()
        self.tensor = tensor
        self.weight = sharded(torch.empty(outputs, inputs // tensor.size))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return sum_over_ranks(F.linear(x, self.weight), self.tensor) + self.bias


def sharded(x: Tensor) -> nn.Parameter:
    """A parameter that is a tensor rank's own; any other is the same on all tensor ranks."""
    parameter = nn.Parameter(x)
    parameter.is_sharded = True  # pyright: ignore[reportAttributeAccessIssue]
    return parameter


def is_sharded(parameter: nn.Parameter) -> bool:
    return getattr(parameter, "is_sharded", False)


class VocabularyShard:
    """The token numbers of this tensor rank."""

    def __init__(self, vocab_size: int, tensor: Axis) -> None:
        self.size = vocab_size // tensor.size
        self.first = tensor.rank * self.size

    def locate(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """(where another rank has the token, the token's place in this shard)."""
        elsewhere = (ids < self.first) | (ids >= self.first + self.size)
        return elsewhere, (ids - self.first).masked_fill(elsewhere, 0)


class VocabularyParallelEmbedding(nn.Module):
    def __init__(self, vocab_size: int, width: int, tensor: Axis) -> None:
        super().__init__()
        self.tensor = tensor
        self.shard = VocabularyShard(vocab_size, tensor)
        self.weight = sharded(torch.empty(self.shard.size, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        elsewhere, places = self.shard.locate(ids)
        x = F.embedding(places, self.weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return sum_over_ranks(x, self.tensor)


def vocabulary_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, shard: VocabularyShard, tensor: Axis
) -> Tensor:
    """Mean cross entropy where each tensor rank has the logits [.., tokens] of its own tokens."""
    logits = logits.float()
    highest = tensor.all_reduce(logits.detach().amax(dim=-1), dist.ReduceOp.MAX)
    logits = logits - highest.unsqueeze(-1)
    total = sum_over_ranks(logits.exp().sum(dim=-1), tensor)
    elsewhere, places = shard.locate(targets)
    chosen = logits.gather(-1, places.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
    return (total.log() - sum_over_ranks(chosen, tensor)).mean()


# --- model ---------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, tensor: Axis) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.qkv = ColumnParallelLinear(width, 3 * width, tensor)
        self.proj = RowParallelLinear(width, width, tensor)

    def forward(self, x: Tensor) -> Tensor:
        # Of this rank's heads: [batch, heads, sequence, 3, head_dim].
        qkv = self.qkv(x).unflatten(-1, (-1, 3, self.head_dim)).transpose(1, 2)
        y = F.scaled_dot_product_attention(*qkv.unbind(dim=3), is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int, tensor: Axis) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(width, 4 * width, tensor)
        self.down = RowParallelLinear(4 * width, width, tensor)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, tensor: Axis) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, tensor)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, tensor)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Stage(nn.Module):
    """This rank's part of the GPT: a share of the blocks; the first stage has the embedding, too,
    the last one head and loss."""

    def __init__(self, args: argparse.Namespace, ranks: Ranks) -> None:
        super().__init__()
        width, tensor = args.hidden_size, ranks.tensor
        self.tensor = tensor
        self.is_first, self.is_last = ranks.pipeline.is_first, ranks.pipeline.is_last
        if self.is_first:
            self.tokens = VocabularyParallelEmbedding(args.vocab_size, width, tensor)
            self.positions = nn.Parameter(torch.empty(args.seq_length, width).normal_(std=0.02))
        self.blocks = nn.ModuleList(
            Block(width, args.num_attention_heads, tensor)
            for _ in range(args.num_layers // ranks.pipeline.size)
        )
        if self.is_last:
            self.ln_f = nn.LayerNorm(width)
            self.head = ColumnParallelLinear(width, args.vocab_size, tensor, bias=False)
            self.shard = VocabularyShard(args.vocab_size, tensor)

    def forward(self, x: Tensor, targets: Tensor | None) -> Tensor:
        """From token ids (first stage) or the stage before's output to the next stage's input or,
        on the last stage, the loss."""
        if self.is_first:
            x = self.tokens(x) + self.positions
        for block in self.blocks:
            x = block(x)
        if not self.is_last:
            return x
        assert targets is not None
        logits = self.head(self.ln_f(x))
        return vocabulary_parallel_cross_entropy(logits, targets, self.shard, self.tensor)


# --- data parallelism and optimizer --------------------------------------------------------------


class GradientBuckets:
    """Gradients of all micro-batches in float32, averaged over the data ranks bucket by bucket.

    Buckets hold the parameters in the order in which backward reaches them, so that each can be
    reduced as soon as its last gradient is there, while backward goes on.
    """

    def __init__(self, parameters: list[nn.Parameter], bucket_bytes: int, data: Axis) -> None:
        self.data = data
        self.is_last_micro_batch = False
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self.buckets: list[Tensor] = []
        self.bucket_of: dict[nn.Parameter, int] = {}
        self.missing: list[int] = []
        self.work: list[dist.Work] = []
        members: list[nn.Parameter] = []
        for parameter in reversed(parameters):
            members.append(parameter)
            if 4 * sum(p.numel() for p in members) >= bucket_bytes:
                self._add_bucket(members)
                members = []
        if members:
            self._add_bucket(members)
        self.sizes = list(self.missing)

    def _add_bucket(self, members: list[nn.Parameter]) -> None:
        bucket = torch.zeros(sum(p.numel() for p in members), device=members[0].device)
        for p, part in zip(members, bucket.split([p.numel() for p in members]), strict=True):
            self.gradients[p] = part.view_as(p)
            self.bucket_of[p] = len(self.buckets)
            p.register_post_accumulate_grad_hook(self._accumulate)
        self.buckets.append(bucket)
        self.missing.append(len(members))

    def _accumulate(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self.gradients[parameter].add_(parameter.grad)
        parameter.grad = None
        if self.is_last_micro_batch:
            number = self.bucket_of[parameter]
            self.missing[number] -= 1
            if self.missing[number] == 0 and self.data.size > 1:
                self.work.append(
                    dist.all_reduce(
                        self.buckets[number],
                        op=dist.ReduceOp.AVG,
                        group=self.data.group,
                        async_op=True,
                    )
                )

    def finish(self) -> None:
        """Waits for the averages."""
        for work in self.work:
            work.wait()
        self.work.clear()
        self.missing = list(self.sizes)

    def zero(self) -> None:
        torch._foreach_zero_(self.buckets)


class Optimizer:
    """AdamW on float32 copies of the weights, with clipping by the norm of the whole gradient."""

    def __init__(
        self, parameters: list[nn.Parameter], buckets: GradientBuckets, ranks: Ranks, lr: float
    ) -> None:
        self.parameters, self.buckets, self.ranks = parameters, buckets, ranks
        self.copies = [p.detach().float().clone() for p in parameters]
        for copy, parameter in zip(self.copies, parameters, strict=True):
            copy.grad = buckets.gradients[parameter]
        self.adam = torch.optim.AdamW(self.copies, lr=lr, betas=(0.9, 0.95), fused=True)

    def clip(self, max_norm: float) -> None:
        # What all tensor ranks share counts once.
        counted = [
            self.buckets.gradients[p]
            for p in self.parameters
            if is_sharded(p) or self.ranks.tensor.is_first
        ]
        squares = torch.stack(torch._foreach_norm(counted)).square().sum()
        self.ranks.tensor.all_reduce(squares)
        self.ranks.pipeline.all_reduce(squares)
        scale = (max_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(self.buckets.buckets, scale)

    @torch.no_grad()
    def step(self) -> None:
        self.adam.step()
        torch._foreach_copy_(self.parameters, self.copies)
        self.buckets.zero()


# --- pipeline parallelism ------------------------------------------------------------------------


class Pipe:
    """This stage's connections to the stage before and the stage after."""

    def __init__(self, pipeline: Axis, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.axis, self.shape, self.dtype = pipeline, shape, dtype

    def exchange(
        self,
        *,
        to_next: Tensor | None = None,
        to_previous: Tensor | None = None,
        from_previous: bool = False,
        from_next: bool = False,
    ) -> Tensor | None:
        """Sends and receives together; at the ends of the pipeline nothing is sent or received."""
        axis, received, calls = self.axis, None, []
        if to_next is not None and not axis.is_last:
            calls.append(self._call(dist.isend, to_next.detach(), axis.rank + 1))
        if to_previous is not None and not axis.is_first:
            calls.append(self._call(dist.isend, to_previous, axis.rank - 1))
        if (from_previous and not axis.is_first) or (from_next and not axis.is_last):
            received = torch.empty(self.shape, dtype=self.dtype, device="cuda")
            peer = axis.rank - 1 if from_previous else axis.rank + 1
            calls.append(self._call(dist.irecv, received, peer))
        if calls:
            for work in dist.batch_isend_irecv(calls):
                work.wait()
        return received

    def _call(self, operation, x: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(operation, x.contiguous(), group=self.axis.group, group_peer=peer)


def forward_backward(
    stage: Stage,
    pipe: Pipe,
    buckets: GradientBuckets,
    micro_batches: Iterable[tuple[Tensor | None, Tensor | None]],
) -> Tensor:
    """Runs all micro-batches, each (token ids on the first stage, targets on the last one), and
    returns the mean loss on the last stage.

    1F1B: a stage first runs as many forwards as there are stages after it, then alternates forward
    and backward, then runs the backwards that are left.
    """
    waiting = deque(micro_batches)
    in_flight: deque[tuple[Tensor | None, Tensor]] = deque()
    count = len(waiting)
    loss = torch.zeros((), device="cuda")

    def forward(x: Tensor | None) -> Tensor:
        ids, targets = waiting.popleft()
        y = stage(ids if x is None else x.requires_grad_(), targets)
        if stage.is_last:
            y = y / count
            loss.add_(y.detach())
        in_flight.append((x, y))
        return y

    def backward(dy: Tensor | None) -> Tensor | None:
        x, y = in_flight.popleft()
        buckets.is_last_micro_batch = not waiting and not in_flight
        torch.autograd.backward(y, dy)
        return None if x is None else x.grad

    warmup = min(pipe.axis.size - 1 - pipe.axis.rank, count)
    for _ in range(warmup):
        y = forward(pipe.exchange(from_previous=True))
        pipe.exchange(to_next=y)
    x = pipe.exchange(from_previous=True) if waiting else None
    while waiting:
        dy = pipe.exchange(to_next=forward(x), from_next=True)
        x = pipe.exchange(to_previous=backward(dy), from_previous=bool(waiting))
    for _ in range(warmup):
        dx = backward(pipe.exchange(from_next=True))
        pipe.exchange(to_previous=dx)
    return loss


# --- training ------------------------------------------------------------------------------------


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="ranks per layer")
    parser.add_argument("--pipeline-parallel-size", type=int, default=1, help="stages")
    parser.add_argument("--micro-batch-size", type=int, default=4, help="sequences per micro-batch")
    parser.add_argument("--global-batch-size", type=int, default=64, help="sequences per iteration")
    parser.add_argument("--num-layers", type=int, default=24)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--num-attention-heads", type=int, default=16)
    parser.add_argument("--seq-length", type=int, default=1024)
    parser.add_argument("--vocab-size", type=int, default=51200)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the weights")
    parser.add_argument("--lr", type=float, default=1.5e-4)
    parser.add_argument("--clip-grad", type=float, default=1.0, help="largest norm; 0: any")
    parser.add_argument("--bucket-size-mb", type=float, default=40.0, help="of gradient buckets")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args()
    for total, part in (
        ("num_layers", "pipeline_parallel_size"),
        ("hidden_size", "num_attention_heads"),
        ("num_attention_heads", "tensor_parallel_size"),
        ("vocab_size", "tensor_parallel_size"),
    ):
        if getattr(args, total) % getattr(args, part):
            parser.error(f"--{total} must be a multiple of --{part}".replace("_", "-"))
    world_size = int(os.environ["WORLD_SIZE"])
    model_ranks = args.tensor_parallel_size * args.pipeline_parallel_size
    if world_size % model_ranks:
        parser.error(f"{world_size} ranks cannot be divided into groups of {model_ranks}")
    if args.global_batch_size % (args.micro_batch_size * (world_size // model_ranks)):
        parser.error("--global-batch-size must be a multiple of micro-batch size x data ranks")
    return args


def share_replicated(parameters: Iterable[nn.Parameter], tensor: Axis) -> None:
    """Gives all tensor ranks the first one's values of what is not sharded."""
    if tensor.size > 1:
        for parameter in parameters:
            if not is_sharded(parameter):
                dist.broadcast(parameter.data, group=tensor.group, group_src=0)


def main() -> None:
    args = parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    ranks = arrange_ranks(args.tensor_parallel_size, args.pipeline_parallel_size)
    pipeline, dtype = ranks.pipeline, DTYPES[args.dtype]

    # Alike on all data ranks; share_replicated makes alike what tensor ranks have in common.
    torch.manual_seed(args.seed + 100 * pipeline.rank + ranks.tensor.rank)
    with device:
        stage = Stage(args, ranks).to(dtype)
    parameters = list(stage.parameters())
    share_replicated(parameters, ranks.tensor)
    buckets = GradientBuckets(parameters, int(args.bucket_size_mb * 2**20), ranks.data)
    optimizer = Optimizer(parameters, buckets, ranks, args.lr)
    shape = (args.micro_batch_size, args.seq_length, args.hidden_size)
    pipe = Pipe(pipeline, shape, dtype)
    reports = pipeline.is_last and ranks.tensor.is_first and ranks.data.is_first

    sequences = args.global_batch_size // ranks.data.size
    data = torch.Generator().manual_seed(args.seed + ranks.data.rank)
    began = time.perf_counter()
    for iteration in range(args.iterations):
        tokens = torch.randint(args.vocab_size, (sequences, args.seq_length + 1), generator=data)
        tokens = tokens.pin_memory().to(device, non_blocking=True)
        micro_batches = [
            (t[:, :-1] if pipeline.is_first else None, t[:, 1:] if pipeline.is_last else None)
            for t in tokens.split(args.micro_batch_size)
        ]
        loss = forward_backward(stage, pipe, buckets, micro_batches)
        buckets.finish()
        if args.clip_grad > 0:
            optimizer.clip(args.clip_grad)
        optimizer.step()
        if reports and iteration % args.log_interval == 0:
            elapsed = time.perf_counter() - began
            print(f"iteration {iteration}: loss {loss.item():.4f}, {elapsed:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
