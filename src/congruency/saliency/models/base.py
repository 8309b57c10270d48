"""What the saliency networks share: from a coarse map of logits to a smooth map of the image's size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency.saliency.models.backbone import Backbone

__all__ = ["SaliencyModel", "finish"]

_FAR = -15.0


def finish(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, 1, h, w) logits -> (B, height, width) saliency above 0, its largest value 1, in float32.

    The logits l are enlarged by cubic splines and become ``softplus(l) = log(1 + exp(l))`` in units of its largest
    value, computed through its logarithm. High logits are taken as they are, as DINet's linear normalisation does;
    where all are far below 0 this is a softmax. So no level of the logits is without a gradient, as the two ends of a
    sigmoid are: a network that its first steps threw far out can come back.
    """
    large = functional.interpolate(logits.float(), size=size, mode="bicubic", align_corners=False).squeeze(1)
    near = functional.softplus(large.clamp(min=_FAR)).log()
    level = near.where(large > _FAR, large)  # log(1 + exp(l)) is exp(l) there
    return torch.exp(level - level.detach().amax((-2, -1), keepdim=True))


class SaliencyModel(nn.Module, ABC):
    """(B, 3, H, W) images of bytes -> (B, H, W) saliency, above 0, its largest value 1; float32.

    A subclass makes coarse logits; its last layer (``congruency.head(model)``) must be the last one it defines.
    """

    backbone: Backbone
    options: dict[str, Any]
    """What the class was made with besides the backbone's name and weights."""

    @abstractmethod
    def logits(self, normalised: Tensor) -> Tensor:
        """(B, 1, h, w) of images that the backbone has normalised."""

    def forward(self, images: Tensor) -> Tensor:
        """The map of each image, of the image's size; it sums to nothing in particular."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must have shape (B, 3, H, W), got {tuple(images.shape)}")
        height, width = images.shape[-2:]
        return finish(self.logits(self.backbone.normalise(images)), (height, width))
