"""DenseNet-BC for 32x32 images (Huang et al., CVPR 2017), which timm has only for large ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from congruency.classification.layers import convolution, initialise

__all__ = ["DenseNet"]


class DenseNet(nn.Module):
    """DenseNet-BC: bottlenecks, and half of the channels kept between blocks; 769,162 parameters at depth 100, k = 12.

    Args:
        classes: outputs.
        depth: 6 n + 4, where each of the three blocks has n layers.
        growth: k, the channels that each layer adds.
        channels: of the images.
    """

    def __init__(self, classes: int, depth: int = 100, growth: int = 12, channels: int = 3) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"the depth of a DenseNet-BC is 6 n + 4 (10, 16, ... 100), got {depth}")
        width = 2 * growth
        parts: list[nn.Module] = [convolution(channels, width, 3)]
        for block in range(3):
            for _ in range((depth - 4) // 6):
                parts.append(_Layer(width, growth))
                width += growth
            if block < 2:
                parts.append(_transition(width, width // 2))
                width //= 2
        self.features = nn.Sequential(*parts, nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Linear(width, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return self.classifier(self.features(images).flatten(1))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, incoming: int, growth: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(incoming),
            nn.ReLU(inplace=True),
            convolution(incoming, 4 * growth, 1),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            convolution(4 * growth, growth, 3),
        )

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([features, self.branch(features)], 1)


def _transition(incoming: int, outgoing: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm2d(incoming), nn.ReLU(inplace=True), convolution(incoming, outgoing, 1), nn.AvgPool2d(2)
    )
