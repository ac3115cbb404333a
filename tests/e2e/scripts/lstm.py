"""An LSTM language model, trained by truncated backpropagation through time.

python lstm.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LanguageModel(nn.Module):
    def __init__(self, vocab_size: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.lstm = nn.LSTM(width, width, num_layers=layers, dropout=0.2)
        self.head = nn.Linear(width, vocab_size)

    def forward(
        self, ids: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.lstm(self.tokens(ids), state)
        return self.head(y), state


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=35)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    model = LanguageModel(args.vocab_size, args.width, args.layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    hidden = torch.zeros(args.layers, args.batch_size, args.width, device=device)
    state = (hidden, hidden)
    for _ in range(args.steps):
        text = torch.randint(args.vocab_size, (args.seq_len + 1, args.batch_size), device=device)
        logits, state = model(text[:-1], state)
        state = (state[0].detach(), state[1].detach())
        loss = F.cross_entropy(logits.flatten(0, 1), text[1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
