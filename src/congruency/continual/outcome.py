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

    def scores(self, average: Average = "gem") -> Scores:
        """(S, M) accuracy and transfers."""
        return scores(self.matrix, self.baseline.unsqueeze(1), average)
