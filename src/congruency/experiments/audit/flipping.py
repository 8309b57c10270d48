"""Wrong labels of our own making, so that a ranking can be tested on them."""

from __future__ import annotations

import torch
from torch import Tensor

from congruency.classification.batches import generator

__all__ = ["check_share", "flip"]


def check_share(share: float) -> None:
    """Refuse a share of labels that cannot be flipped."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"--flip must be a share of the labels above 0 and below 1, such as 0.2, got {share:g}")


def flip(labels: Tensor, share: float, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Give a share of the samples another label: any other, equally likely.

    Args:
        labels: int64 (n,).
        share: of the samples; ``round(share * n)`` of them get another label.
        classes: how many there are.
        seed: which samples and which labels.

    Returns:
        The labels as given from now on, and which of them are wrong: (n,) bool.
    """
    check_share(share)
    if classes < 2:
        raise ValueError("a label can only be flipped where there are two classes or more")
    count = round(share * len(labels))
    if not 0 < count < len(labels):
        raise ValueError(f"--flip {share:g} of {len(labels)} labels flips {count}; take more samples or another share")
    random = generator("flipped labels", seed)
    chosen = torch.randperm(len(labels), generator=random)[:count]
    steps = torch.randint(1, classes, (count,), generator=random)  # from the right class on, never back to it
    given = labels.clone()
    given[chosen] = (labels[chosen] + steps.to(labels.device)) % classes
    flipped = torch.zeros(len(labels), dtype=torch.bool)
    flipped[chosen] = True
    return given, flipped
