"""Message passing on a random graph: nodes are classified from the mean of their neighbours.

python gnn.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Layer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.message = nn.Linear(inputs, outputs, bias=False)
        self.own = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, degree: Tensor) -> Tensor:
        messages = self.message(x).index_select(0, source)
        received = torch.zeros(len(x), messages.shape[1], device=x.device, dtype=x.dtype).index_add(
            0, target, messages
        )
        return self.own(x) + received / degree[:, None]


class GraphNetwork(nn.Module):
    def __init__(self, inputs: int, width: int, classes: int, layers: int) -> None:
        super().__init__()
        sizes = [inputs, *[width] * (layers - 1), classes]
        self.layers = nn.ModuleList(map(Layer, sizes, sizes[1:]))
        self.score = nn.Linear(width, 1)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        degree = torch.zeros(len(x), device=x.device).scatter_add_(
            0, target, torch.ones(len(target), device=x.device)
        )
        degree = degree.clamp(min=1.0)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x, source, target, degree))
        # Attention over each node's edges: softmax of scores, by scatter and gather.
        score = self.score(x).squeeze(1).gather(0, source)
        largest = torch.full((len(x),), -1e9, device=x.device).scatter_reduce(
            0, target, score.detach(), "amax"
        )
        weight = (score - largest.gather(0, target)).exp()
        total = torch.zeros(len(x), device=x.device).scatter_add(0, target, weight)
        weight = weight / total.gather(0, target)
        x = torch.zeros_like(x).index_add(0, target, weight[:, None] * x.index_select(0, source))
        return self.layers[-1](x, source, target, degree)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--edges", type=int, default=16000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--classes", type=int, default=16)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()

    device = torch.device("cuda")
    torch.manual_seed(0)
    x = torch.randn(args.nodes, args.features, device=device)
    source, target = torch.randint(args.nodes, (2, args.edges)).to(device)
    labels = torch.randint(args.classes, (args.nodes,)).to(device)
    model = GraphNetwork(args.features, args.width, args.classes, args.layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(args.steps):
        loss = F.cross_entropy(model(x, source, target), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
