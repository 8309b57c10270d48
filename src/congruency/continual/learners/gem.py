"""Gradient Episodic Memory: no step against the gradients of what is remembered."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from congruency.constraints.base import ConstraintSource
from congruency.constraints.memory import EpisodicMemory
from congruency.continual.learners.base import Learner, Setting
from congruency.continual.methods import Method
from congruency.corrector import Corrector

__all__ = ["GradientMemory"]


class GradientMemory(Learner):
    """GEM (Lopez-Paz and Ranzato, NeurIPS 2017): one constraint a past task."""

    def __init__(self, method: Method, setting: Setting) -> None:
        super().__init__(method, setting)
        self.memory = self.make_memory()
        self.corrector = Corrector(self.optimizer, constraints=self.sources(), trigger=method.trigger)

    def make_memory(self) -> EpisodicMemory:
        """Where samples are kept."""
        setting = self.setting
        return EpisodicMemory(
            self.model, size=setting.memory, policy=setting.policy, margin=self.method.memory_margin,
            chunk=setting.chunk,
        )  # fmt: skip

    def sources(self) -> Sequence[ConstraintSource]:
        """What constrains the steps; the memory comes first."""
        return [self.memory]

    def observe(self, inputs: Tensor, labels: Tensor) -> None:
        self.memory.observe(inputs, labels, self.task, self.mask)
        super().observe(inputs, labels)

    def agreement(self) -> Tensor | None:
        past = self.memory.active
        return self.corrector.stats.corrected_congruency[:past].nanmean() if past else None
