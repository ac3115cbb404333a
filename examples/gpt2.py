"""Pre-training of a GPT-2 style language model, on one GPU or with DDP.

    python examples/gpt2.py
    torchrun --nproc-per-node 8 examples/gpt2.py

The defaults are GPT-2 124M: 12 layers, 12 heads, width 768, context 1024. Tokens are synthetic.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropout = dropout
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.proj_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        q, k, v = (
            t.view(batch, seq, self.n_head, width // self.n_head).transpose(1, 2)
            for t in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        y = y.transpose(1, 2).reshape(batch, seq, width)
        return self.proj_dropout(self.proj(y))


class Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, dropout)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.fc = nn.Linear(n_embd, 4 * n_embd)
        self.proj = nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        hidden = F.gelu(self.fc(self.ln_2(x)), approximate="tanh")
        return x + self.dropout(self.proj(hidden))


class GPT(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        seq_len: int,
        n_layer: int,
        n_head: int,
        n_embd: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, n_embd)
        self.positions = nn.Embedding(seq_len, n_embd)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(n_embd, n_head, dropout) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * n_layer))

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(ids.size(1), device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class SyntheticTokens:
    """Random crops of a random token stream, copied to the GPU from pinned memory."""

    def __init__(self, vocab_size: int, batch_size: int, seq_len: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.stream = torch.randint(vocab_size, (2_000_000,), generator=self.generator)
        self.batch_size = batch_size
        self.seq_len = seq_len

    def batch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        last = len(self.stream) - self.seq_len - 1
        starts = torch.randint(last, (self.batch_size,), generator=self.generator)
        crops = torch.stack([self.stream[i : i + self.seq_len + 1] for i in starts.tolist()])
        ids, targets = crops[:, :-1].contiguous(), crops[:, 1:].contiguous()
        return (
            ids.pin_memory().to(device, non_blocking=True),
            targets.pin_memory().to(device, non_blocking=True),
        )


def make_optimizer(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW that decays matrices but neither biases nor norms."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n-layer", type=int, default=12)
    parser.add_argument("--n-head", type=int, default=12)
    parser.add_argument("--n-embd", type=int, default=768)
    parser.add_argument("--vocab-size", type=int, default=50304)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per GPU")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of autocast")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--grad-clip", type=float, default=1.0, help="0: off")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--seed", type=int, default=1337)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed + rank)
    if world_size > 1:
        dist.init_process_group("nccl", device_id=device)

    with device:
        model: nn.Module = GPT(
            args.vocab_size, args.seq_len, args.n_layer, args.n_head, args.n_embd, args.dropout
        )
    if rank == 0:
        count = sum(p.numel() for p in model.parameters())
        print(f"{count / 1e6:.1f} million parameters, {world_size} GPUs", flush=True)
    optimizer = make_optimizer(model, args.lr, args.weight_decay)
    if args.compile:
        model.compile()
    if world_size > 1:
        model = DistributedDataParallel(model, device_ids=[device.index])

    dtype = DTYPES[args.dtype]
    autocast = (
        contextlib.nullcontext() if dtype == torch.float32 else torch.autocast("cuda", dtype=dtype)
    )
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    data = SyntheticTokens(args.vocab_size, args.batch_size, args.seq_len, args.seed + rank)

    ids, targets = data.batch(device)
    began = time.perf_counter()
    for step in range(args.steps):
        with autocast:
            loss = model(ids, targets)
        # The next batch is prepared while the GPU is still busy with this one.
        ids, targets = data.batch(device)
        scaler.scale(loss).backward()
        if args.grad_clip > 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % args.log_every == 0 and rank == 0:
            elapsed = time.perf_counter() - began
            print(f"step {step}: loss {loss.item():.4f}, {elapsed:.2f} s", flush=True)

    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
