"""How stacked networks do on samples: right guesses, cross entropies."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["tally"]


def tally(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The number of right guesses, and the sum of the cross entropies in float64, over N samples: (...), (...).

    For a sample with outputs z and label y the cross entropy is ``-log p(y) = m + log sum_c exp(z_c - m) - z_y`` with
    ``m = max_c z_c``: the m that finds the guess also keeps the exponentials from overflowing. Outputs of -inf, as
    classes have that are not of the task, add nothing.

    Args:
        logits: (..., N, classes); overwritten, so that scoring needs no room beside the outputs.
        labels: (..., N), or what expands to it.
    """
    top, guesses = logits.max(-1)
    own = logits.gather(-1, labels.expand(top.shape).unsqueeze(-1)).squeeze(-1)
    total = logits.sub_(top.unsqueeze(-1)).exp_().sum(-1)
    entropies = total.log_().add_(top).sub_(own)
    return (guesses == labels).sum(-1), entropies.sum(-1, dtype=torch.float64)
