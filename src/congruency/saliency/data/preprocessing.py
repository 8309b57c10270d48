"""Preprocessing of images: resize to one size, stretching or keeping the aspect ratio; and its inverse for maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from congruency._validate import check_choice

Aspect = Literal["stretch", "pad"]
"""``"stretch"``: resize without keeping the aspect ratio; ``"pad"``: keep it and centre the image on black."""

Box = tuple[int, int, int, int]
"""(top, left, height, width) of the part of the input that shows the image."""


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of an image, the same in training and prediction.

    Attributes:
        size: (height, width) of the network's input.
        aspect: ``"stretch"`` resizes the image to that size; ``"pad"`` keeps its aspect ratio and pads it with black.
    """

    size: tuple[int, int] = (240, 320)
    aspect: Aspect = "stretch"

    def __post_init__(self) -> None:
        check_choice("aspect", self.aspect, get_args(Aspect))
        if len(self.size) != 2 or not all(isinstance(side, int) and side > 0 for side in self.size):
            raise ValueError(f"size must be (height, width) in pixels, got {self.size}")

    def __str__(self) -> str:
        return f"{self.size[0]}x{self.size[1]}, {'stretched' if self.aspect == 'stretch' else 'padded'}"

    def box(self, frame: tuple[int, int]) -> Box:
        """Return the box of an image of (height, width) in the input."""
        height, width = self.size
        if self.aspect == "stretch":
            return 0, 0, height, width
        scale = min(height / frame[0], width / frame[1])
        inner = max(1, round(frame[0] * scale)), max(1, round(frame[1] * scale))
        return (height - inner[0]) // 2, (width - inner[1]) // 2, *inner

    def apply(self, image: Tensor) -> Tensor:
        """Resize (3, h, w) uint8 to (3, height, width) uint8: bilinear, with antialiasing."""
        height, width = self.size
        top, left, inner_height, inner_width = self.box((image.shape[1], image.shape[2]))
        if tuple(image.shape[1:]) != (inner_height, inner_width):
            picture = Image.fromarray(image.permute(1, 2, 0).cpu().numpy())
            resized = picture.resize((inner_width, inner_height), Image.Resampling.BILINEAR)
            image = torch.from_numpy(np.array(resized)).permute(2, 0, 1)
        if (inner_height, inner_width) == self.size:
            return image
        whole = torch.zeros(3, height, width, dtype=torch.uint8)
        whole[:, top : top + inner_height, left : left + inner_width] = image
        return whole

    def points(self, points: Tensor, frame: tuple[int, int]) -> Tensor:
        """Convert (n, 2) points ``(x, y)`` of an image of (height, width) to pixels of the input."""
        top, left, height, width = self.box(frame)
        scale = torch.tensor([width / frame[1], height / frame[0]], dtype=torch.float64)
        return (points.to(torch.float64) + 0.5) * scale - 0.5 + torch.tensor([left, top], dtype=torch.float64)

    def crop(self, maps: Tensor, frame: tuple[int, int]) -> Tensor:
        """Crop (..., height, width) maps of the input to the part that shows an image of (height, width)."""
        top, left, height, width = self.box(frame)
        return maps[..., top : top + height, left : left + width]
