"""The SALICON model (Huang et al., 2015): one backbone at two scales, read out by one 1x1 convolution."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency.saliency.models.backbone import Backbone
from congruency.saliency.models.base import SaliencyModel

__all__ = ["SALICON"]


class SALICON(SaliencyModel):
    """Features of the image and of its half size, from the same weights, side by side; a 1x1 convolution reads them.

    The paper's "improved" model has a ResNet-50 in place of the original's VGG-16; with it there are 23.51 million
    weights. The last layer is the 1x1 convolution.

    Args:
        backbone: Any timm network with features at ``stride``.
        stride: Of the fine scale, 16 as in the original.
        weights: A file of weights for the backbone, or None.
        pretrained: Fetch timm's weights.
    """

    def __init__(
        self,
        backbone: str = "resnet50",
        *,
        stride: int = 16,
        weights: str | Path | None = None,
        pretrained: bool = False,
    ) -> None:
        super().__init__()
        self.options = {"stride": stride}
        self.backbone = Backbone(backbone, stride=stride, weights=weights, pretrained=pretrained)
        self.readout = nn.Conv2d(2 * self.backbone.channels, 1, kernel_size=1)
        nn.init.normal_(self.readout.weight, std=0.01)
        nn.init.zeros_(self.readout.bias)  # type: ignore[arg-type]

    def logits(self, normalised: Tensor) -> Tensor:
        half = functional.interpolate(normalised, scale_factor=0.5, mode="bilinear", antialias=True)
        fine, coarse = self.backbone(normalised), self.backbone(half)
        coarse = functional.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        logits: Tensor = self.readout(torch.cat([fine, coarse], dim=1))
        return logits
