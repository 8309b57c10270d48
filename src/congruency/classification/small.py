"""Networks small enough for many seeds, or for a laptop."""

from __future__ import annotations

import math

from torch import Tensor, nn

import congruency._torchvision_compat  # noqa: F401
from congruency.classification.layers import convolution, initialise, normalised

__all__ = ["ResNet9", "convnet", "mlp", "resnet18_cifar"]

# Maxima are large and all positive: a last layer on them as they are diverges at the rate that suits the convolutions.
_FEATURE_SCALE = 0.125


def mlp(classes: int, shape: tuple[int, int, int], width: int = 100, depth: int = 2) -> nn.Module:
    """A multilayer perceptron on the pixels, two hidden layers of 100 as in the paper's continual learning."""
    layers: list[nn.Module] = [nn.Flatten()]
    incoming = math.prod(shape)
    for _ in range(depth):
        layers += [nn.Linear(incoming, width), nn.ReLU()]
        incoming = width
    return nn.Sequential(*layers, nn.Linear(incoming, classes))


def convnet(classes: int, channels: int, width: int = 32) -> nn.Module:
    """Two convolutions and a linear layer, for images from 8x8 on."""
    network = nn.Sequential(
        normalised(channels, width),
        nn.MaxPool2d(2),
        normalised(width, 2 * width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, classes),
    )
    initialise(network)
    return network


def resnet18_cifar(classes: int, channels: int) -> nn.Module:
    """ResNet-18 as people train it on 32x32 images: a 3x3 stem at stride 1 and no pooling after it."""
    import timm

    network: nn.Module = timm.create_model("resnet18", num_classes=classes, in_chans=channels)
    network.conv1 = convolution(channels, 64, 3)
    network.maxpool = nn.Identity()
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    return network


class ResNet9(nn.Module):
    """A wide, shallow residual network for 32x32 images that trains in seconds on a GPU; 6.6 million parameters."""

    def __init__(self, classes: int, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(
            normalised(channels, width),
            normalised(width, 2 * width),
            nn.MaxPool2d(2),
            _Residual(2 * width),
            normalised(2 * width, 4 * width),
            nn.MaxPool2d(2),
            normalised(4 * width, 8 * width),
            nn.MaxPool2d(2),
            _Residual(8 * width),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            _Scaled(_FEATURE_SCALE),
        )
        self.classifier = nn.Linear(8 * width, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return self.classifier(self.features(images))  # type: ignore[no-any-return]


class _Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, features: Tensor) -> Tensor:
        return features * self.factor


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(normalised(width, width), normalised(width, width))

    def forward(self, features: Tensor) -> Tensor:
        return features + self.branch(features)  # type: ignore[no-any-return]
