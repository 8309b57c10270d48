"""What the networks written here share: convolutions without bias, and how weights start."""

from __future__ import annotations

from torch import nn

__all__ = ["convolution", "initialise", "normalised"]


def convolution(incoming: int, outgoing: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the side (at stride 1), without the bias that a batch norm would take away again."""
    return nn.Conv2d(incoming, outgoing, kernel, stride, kernel // 2, groups=groups, bias=False)


def normalised(incoming: int, outgoing: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    return nn.Sequential(
        convolution(incoming, outgoing, kernel, stride), nn.BatchNorm2d(outgoing), nn.ReLU(inplace=True)
    )


def initialise(network: nn.Module) -> None:
    """He et al.'s normal weights for convolutions, 1 and 0 for norms, 0 for the biases of linear layers."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
