"""The networks of the continual-learning tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp(sizes: Sequence[int] = (784, 100, 100, 10), seed: int = 0) -> nn.Sequential:
    """A ReLU perceptron over flattened images, with Xavier-uniform weights drawn by ``seed`` and zero biases."""
    layers: list[nn.Module] = [nn.Flatten()]
    for into, out in pairwise(sizes):
        layers += [nn.Linear(into, out), nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    nn.utils.vector_to_parameters(initial_mlp(sizes, seed), network.parameters())
    return network


def initial_mlp(sizes: Sequence[int], seed: int) -> Tensor:
    """The initial parameters of :func:`mlp` as one vector: uniform within sqrt(6 / (in + out)), biases 0."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for into, out in pairwise(sizes):
        bound = (6 / (into + out)) ** 0.5
        parts += [torch.rand(out * into, generator=generator) * (2 * bound) - bound, torch.zeros(out)]
    return torch.cat(parts)


class NarrowResNet18(nn.Module):
    """ResNet-18 for 32x32 images with ``filters`` channels in its first stage; 20 in the paper's tables."""

    def __init__(self, classes: int = 100, filters: int = 20, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(filters)
        stages, width = [], filters
        for i in range(4):
            out = filters * 2**i
            stages += [_Block(width, out, stride=1 if i == 0 else 2), _Block(out, out, stride=1)]
            width = out
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, 32, 32) -> (N, classes)."""
        values = functional.relu(self.norm(self.stem(images)))
        outputs: Tensor = self.fc(self.stages(values).mean((2, 3)))
        return outputs


class _Block(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.short = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, values: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(values)))
        return functional.relu(self.second_norm(self.second(inner)) + self.short(values))
