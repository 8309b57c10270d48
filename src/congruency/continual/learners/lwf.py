"""Learning without forgetting: distillation of the network before the task."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor
from torch.nn import functional

from congruency.continual.config import LearnerConfig
from congruency.continual.learners.base import Learner, Setting, masked


class LwFLearner(Learner):
    """LwF (Li and Hoiem, ECCV 2016): on the new samples the outputs for old tasks stay as they were.

    With the network h' from before the task, temperature T and ``p_k(x) = softmax(h(x) / T)`` over the classes of the
    k-th head,

        loss = L(B) + strength sum_k E_(x in B) KL(p'_k(x) | p_k(x)).

    The heads are the past tasks' classes where tasks have their own outputs, otherwise one, of all classes seen before.
    """

    def __init__(self, config: LearnerConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._heads: list[Tensor] = []  # masks
        self._old = self.model

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        outputs, temperature = self.outputs(inputs, self.task), self.config.temperature
        loss = functional.cross_entropy(masked(outputs, self.mask), labels)
        if not self._heads:
            return loss
        with torch.no_grad():
            before = self._old(inputs)
        for head in self._heads:
            known = torch.isfinite(head)
            new, old = ((z[:, known] / temperature).log_softmax(-1) for z in (outputs, before))
            loss = loss + self.config.strength * functional.kl_div(new, old, reduction="batchmean", log_target=True)
        return loss

    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        self._old = copy.deepcopy(self.model).eval().requires_grad_(False)
        if self.mask is not None:
            self._heads.append(self.mask)
            return
        classes = self.outputs(inputs[:1], self.task).shape[-1]
        seen = self._heads[0] if self._heads else inputs.new_full((classes,), -math.inf)
        self._heads = [seen.index_fill(0, labels.unique(), 0.0)]
