"""What a continual learner is judged by: accuracy, backward and forward transfer (Lopez-Paz and Ranzato, 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["Average", "Scores", "scores"]

Average = Literal["gem", "published"]


@dataclass(frozen=True)
class Scores:
    """Tensors of the shape in front of the matrix: one number for one matrix, (S,) for S of them."""

    accuracy: Tensor
    """Mean accuracy over all tasks after the last one, in the units of the matrix."""
    backward_transfer: Tensor
    """How much later tasks changed the accuracy on earlier ones; negative is forgetting."""
    forward_transfer: Tensor
    """How much better than the untrained network a task is done before it was learned."""


def scores(
    matrix: Tensor | Sequence[Sequence[float]], baseline: Tensor | Sequence[float], average: Average = "gem"
) -> Scores:
    """Accuracy, backward and forward transfer from the accuracy matrix R and the baseline b.

        accuracy          = 1/T     sum_i      R[T-1, i]
        backward_transfer = 1/(T-1) sum_{i<T-1} R[T-1, i] - R[i, i]
        forward_transfer  = 1/(T-1) sum_{i>0}   R[i-1, i] - b[i]

    Args:
        matrix: (..., T, T); row i is the accuracy on every task after learning task i.
        baseline: (..., T), the accuracy on every task at initialisation.
        average: ``"gem"`` divides both transfers by their T - 1 terms, as the definition says; ``"published"`` by T, as
            the published code does, which shrinks them by (T - 1) / T.

    With one task there is no transfer: both are nan.
    """
    if average not in get_args(Average):
        raise ValueError(f"average must be one of {', '.join(map(repr, get_args(Average)))}, got {average!r}")
    r = torch.as_tensor(matrix, dtype=torch.float64)
    b = torch.as_tensor(baseline, dtype=torch.float64, device=r.device)
    tasks = r.shape[-1] if r.ndim >= 2 else 0
    if not tasks or r.shape[-2] != tasks:
        raise ValueError(f"matrix must be square, (..., T, T), one row a task, got shape {tuple(r.shape)}")
    if b.ndim < 1 or b.shape[-1] != tasks:
        raise ValueError(f"baseline must be (..., {tasks}), one accuracy a task, got shape {tuple(b.shape)}")
    if not _fits(b.shape[:-1], r.shape[:-2]):
        raise ValueError(f"baseline must be one for all or one a matrix, got {tuple(b.shape)} for {tuple(r.shape)}")
    terms = tasks - 1 if average == "gem" else tasks
    final, learned = r[..., -1, :], r.diagonal(dim1=-2, dim2=-1)
    before = r.diagonal(offset=1, dim1=-2, dim2=-1)  # R[i-1, i]
    backward = (final - learned)[..., :-1].sum(-1) / terms if tasks > 1 else torch.full_like(final[..., 0], torch.nan)
    forward = (before - b[..., 1:]).sum(-1) / terms if tasks > 1 else torch.full_like(final[..., 0], torch.nan)
    return Scores(final.mean(-1), backward, forward)


def _fits(own: torch.Size, of: torch.Size) -> bool:
    """Whether something of one shape can be repeated to another."""
    try:
        return bool(torch.broadcast_shapes(own, of) == of)
    except RuntimeError:
        return False
