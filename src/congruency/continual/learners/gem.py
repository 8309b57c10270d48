"""Gradient Episodic Memory: no step against the gradients of what is remembered."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from congruency.continual.learners.base import Learner, Setting
from congruency.continual.methods import Method
from congruency.corrector import Corrector
from congruency.memory import EpisodicMemory
from congruency.sources import Source

__all__ = ["GradientMemory"]


class GradientMemory(Learner):
    """GEM (Lopez-Paz and Ranzato, NeurIPS 2017): one constraint a past task."""

    def __init__(self, method: Method, setting: Setting) -> None:
        super().__init__(method, setting)
        self.memory = self.make_memory()
        self.corrector = Corrector(self.optimizer, None, self.sources(), trigger=method.trigger)

    def make_memory(self) -> EpisodicMemory:
        """Where samples are kept."""
        setting = self.setting
        return EpisodicMemory(
            self.model, size=setting.memory, policy=setting.policy, margin=self.method.memory_margin,
            chunk=setting.chunk,
        )  # fmt: skip

    def sources(self) -> Sequence[Source]:
        """What constrains the steps; the memory comes first."""
        return [self.memory]

    def observe(self, inputs: Tensor, labels: Tensor) -> None:
        self.memory.observe(inputs, labels, self.task, self.mask)
        super().observe(inputs, labels)

    def agreement(self) -> Tensor | None:
        rows = self.memory.rows
        return self.corrector.stats.corrected_congruency[:rows].nanmean() if rows else None
