"""scikit-learn's 8x8 digits, the set that needs no download."""

from __future__ import annotations

import torch

from congruency.datasets.images import LabelledImages

__all__ = ["read"]

_TRAIN = 1437  # of 1797, four fifths
_SEED = 0


def read(split: str) -> LabelledImages:
    """1,437 digits to train on or the other 360 to test on, always the same ones; grey values 0..16 become 0..255."""
    from sklearn.datasets import load_digits

    content = load_digits()
    grey = torch.from_numpy(content.images).unsqueeze(1)
    images = (grey * (255 / 16)).round().to(torch.uint8)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(_SEED))
    chosen = order[:_TRAIN] if split == "train" else order[_TRAIN:]
    everything = LabelledImages(images, torch.from_numpy(content.target).long(), tuple("0123456789"))
    return everything.subset(chosen.sort().values)
