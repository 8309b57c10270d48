"""DCL with memory: the rows of the reference points and of the past tasks together (``eqn:constraints_conn``)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from congruency.constraints.base import ConstraintSource
from congruency.constraints.references import References
from congruency.continual.learners.gem import GradientMemory

__all__ = ["ConcentratedMemory"]


class ConcentratedMemory(GradientMemory):
    """GEM's rows and DCL's in one quadratic program; each source has a margin of its own."""

    def sources(self) -> Sequence[ConstraintSource]:
        method = self.method
        self.references = References(
            method.references, window=method.window, offset=method.offset, mode=method.mode,
            margin=method.reference_margin,
        )  # fmt: skip
        return [self.memory, self.references]

    def begin(self, task: int, mask: Tensor | None) -> None:
        super().begin(task, mask)
        self.references.reset()
