"""cleanlab's scores, from the probabilities that networks give samples they did not see."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

__all__ = ["check_installed", "label_quality"]


def check_installed() -> None:
    """Say that cleanlab is missing before hours of training, not after."""
    if importlib.util.find_spec("cleanlab") is None:
        raise ValueError("cleanlab is not installed; install it (pip install cleanlab), or give --no-cleanlab")


def label_quality(probabilities: Tensor, labels: Tensor) -> Tensor:
    """cleanlab's label quality, from 0 (surely wrong) to 1: (n, K), (n,) -> float64 (n,).

    It is what ``cleanlab.rank.get_label_quality_scores`` gives by default, the "self-confidence": the probability of
    the given label, which must come from networks that were not trained on the sample.
    """
    check_installed()
    from cleanlab.rank import get_label_quality_scores

    lost = int(probabilities.isnan().any(1).sum())
    if lost:
        raise ValueError(
            f"the probabilities of {lost} samples are not numbers: a training diverged; try a smaller --lr"
        )
    found = get_label_quality_scores(labels.numpy(), probabilities.double().numpy())
    return torch.as_tensor(found, dtype=torch.float64)
