"""Results of continual learning: accuracy, backward and forward transfer, forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from congruency._validate import warn
from congruency.continual.config import LearnerConfig


@dataclass(frozen=True)
class Scores:
    """Scores with the batch shape of the matrix: 0-d for one matrix, (S,) for S of them."""

    accuracy: Tensor
    """Mean accuracy over all tasks after the last one, in the units of the matrix."""
    backward_transfer: Tensor
    """Change of the accuracy on earlier tasks by later ones; negative is forgetting."""
    forward_transfer: Tensor
    """Accuracy on a task before it was learned, minus that of the untrained network."""
    forgetting: Tensor
    """Best accuracy on earlier tasks at any time before the last task, minus that after it."""


def scores(matrix: Tensor | Sequence[Sequence[float]], baseline: Tensor | Sequence[float]) -> Scores:
    """Accuracy, transfers and forgetting from the accuracy matrix R and the baseline b.

    Accuracy and transfers are those of Lopez-Paz and Ranzato (2017), forgetting that of Chaudhry et al. (2018).

        accuracy          = 1/T     sum_i      R[T-1, i]
        backward_transfer = 1/(T-1) sum_{i<T-1} R[T-1, i] - R[i, i]
        forward_transfer  = 1/(T-1) sum_{i>0}   R[i-1, i] - b[i]
        forgetting        = 1/(T-1) sum_{i<T-1} max_{l<T-1} R[l, i] - R[T-1, i]

    Args:
        matrix: (..., T, T); row i is the accuracy on every task after learning task i.
        baseline: (..., T), the accuracy on every task at initialisation.

    With one task there is no transfer and no forgetting: all three are nan. The published code divides both transfers
    by T, which shrinks them by (T - 1) / T.
    """
    r = torch.as_tensor(matrix, dtype=torch.float64)
    b = torch.as_tensor(baseline, dtype=torch.float64, device=r.device)
    tasks = r.shape[-1] if r.ndim >= 2 else 0
    if not tasks or r.shape[-2] != tasks:
        raise ValueError(f"matrix must be square, (..., T, T), one row per task, got shape {tuple(r.shape)}")
    if b.ndim < 1 or b.shape[-1] != tasks:
        raise ValueError(f"baseline must be (..., {tasks}), one accuracy per task, got shape {tuple(b.shape)}")
    if not _broadcastable(b.shape[:-1], r.shape[:-2]):
        raise ValueError(f"baseline must be one for all or one per matrix, got {tuple(b.shape)} for {tuple(r.shape)}")
    final, learned = r[..., -1, :], r.diagonal(dim1=-2, dim2=-1)
    before = r.diagonal(offset=1, dim1=-2, dim2=-1)  # R[i-1, i]
    if tasks == 1:
        none = torch.full_like(final[..., 0], torch.nan)
        return Scores(final.mean(-1), none, none, none)
    backward = (final - learned)[..., :-1].mean(-1)
    forward = (before - b[..., 1:]).mean(-1)
    forgetting = (r[..., :-1, :-1].amax(-2) - final[..., :-1]).mean(-1)
    return Scores(final.mean(-1), backward, forward, forgetting)


def _broadcastable(own: torch.Size, to: torch.Size) -> bool:
    """Whether a tensor of one shape broadcasts to another."""
    try:
        return bool(torch.broadcast_shapes(own, to) == to)
    except RuntimeError:
        return False


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of S seeds of M learners on a stream of T tasks; accuracies are fractions of 1."""

    matrix: Tensor
    """(S, M, T, T): row i is the accuracy on every task after learning task i."""
    baseline: Tensor
    """(S, T): accuracy at initialisation."""
    agreement: Tensor
    """(S, M, T): mean cosine between updates and memory gradients while learning each task; nan without memory."""
    losses: Tensor
    """(S, M, T, T): row i is the loss on every task after learning task i; nan if unknown.

    The loss on a task is the mean cross entropy over its N test images, in nats: ``-1/N sum_n log p(y_n | x_n)`` with
    ``p(c | x) = exp z_c / sum_k exp z_k``, k over all classes, or over the task's if the stream masks the others; z are
    the outputs of the network for the task. iCaRL predicts by the nearest class mean, which has no probabilities: its
    loss is that of its network's outputs, by which it learns. Runs stored before losses were recorded have none; those
    of diverged runs are not finite.
    """

    def scores(self) -> Scores:
        """(S, M) accuracy, transfers and forgetting."""
        return scores(self.matrix, self.baseline.unsqueeze(1))


def warn_of_divergence(outcome: Outcome, configs: Sequence[LearnerConfig]) -> None:
    """Warn of every learner whose losses are not finite after the last task."""
    for m, config in enumerate(configs):
        wrong = (~torch.isfinite(outcome.losses[:, m, -1]).all(-1)).sum()
        if wrong:
            warn(
                f"{config.name} diverged on {int(wrong)} of {len(outcome.losses)} streams: its losses are not finite, "
                "and its accuracies mean nothing. Lower its learning rate, or the strength of its loss"
            )
