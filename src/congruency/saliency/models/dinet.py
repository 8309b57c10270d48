"""DINet (Yang et al., 2019): a dilated backbone, a dilated inception module, three convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from congruency.saliency.models.backbone import Backbone
from congruency.saliency.models.base import SaliencyModel

__all__ = ["DINet", "DilatedInception"]


class DilatedInception(nn.Module):
    """Contexts of several sizes at no more than 3x3 weights each: parallel convolutions with growing dilation.

    (B, inputs, h, w) -> (B, width, h, w): reduced by a 1x1 convolution, seen by a 1x1 and by one 3x3 convolution for
    each rate, summed.
    """

    def __init__(self, inputs: int, width: int = 256, rates: Sequence[int] = (4, 8, 16)) -> None:
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(inputs, width, 1), nn.ReLU(inplace=True))
        self.branches = nn.ModuleList(
            [nn.Conv2d(width, width, 1), *(nn.Conv2d(width, width, 3, padding=r, dilation=r) for r in rates)]
        )

    def forward(self, features: Tensor) -> Tensor:
        reduced = self.reduce(features)
        total: Tensor = self.branches[0](reduced)
        for branch in self.branches[1:]:
            total = total + branch(reduced)
        return torch.relu(total)


class DINet(SaliencyModel):
    """A backbone at stride 8, a dilated inception module with rates 4, 8 and 16, a readout of three convolutions.

    The last layer is a 3x3 convolution without bias on 256 channels: 2304 weights, the number the paper gives.

    Args:
        backbone: Any timm network with features at ``stride``.
        stride: 8 as in the original; the backbone's last stages are dilated.
        width: Channels of the module and of the readout.
        rates: Dilations of the module.
        weights: A file of weights for the backbone, or None.
        pretrained: Fetch timm's weights.
    """

    def __init__(
        self,
        backbone: str = "resnet50",
        *,
        stride: int = 8,
        width: int = 256,
        rates: Sequence[int] = (4, 8, 16),
        weights: str | Path | None = None,
        pretrained: bool = False,
    ) -> None:
        super().__init__()
        self.options = {"stride": stride, "width": width, "rates": list(rates)}
        self.backbone = Backbone(backbone, stride=stride, weights=weights, pretrained=pretrained)
        self.inception = DilatedInception(self.backbone.channels, width, rates)
        self.readout = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 1, 3, padding=1, bias=False),
        )

    def logits(self, normalised: Tensor) -> Tensor:
        logits: Tensor = self.readout(self.inception(self.backbone(normalised)))
        return logits
