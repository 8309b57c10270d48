"""What learning a stream came to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from congruency.continual.scores import Average, Scores, scores

__all__ = ["Outcome"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """S seeds of M methods on a stream of T tasks; accuracies are shares of 1."""

    matrix: Tensor
    """(S, M, T, T): row i is the accuracy on every task after learning task i."""
    baseline: Tensor
    """(S, T): accuracy of the first weights."""
    agreement: Tensor
    """(S, M, T): mean cosine between updates and memory gradients while learning each task; nan without memory."""
    losses: Tensor
    """(S, M, T, T): row i is the loss on every task after learning task i; nan where it is not known.

    The loss on a task is the mean cross entropy over its N test images, in nats: ``-1/N sum_n log p(y_n | x_n)`` with
    ``p(c | x) = exp z_c / sum_k exp z_k``, k over all classes, or over the task's where the stream masks the others; z
    is what the network that answers for the task puts out. iCaRL answers with the nearest class mean, which has no
    probabilities: its loss is that of its network's outputs, by which it learns. Not known are the losses of runs kept
    before losses were; those of runs that diverged are not finite.
    """

    def scores(self, average: Average = "gem") -> Scores:
        """(S, M) accuracy and transfers."""
        return scores(self.matrix, self.baseline.unsqueeze(1), average)
