"""Elastic weight consolidation: weights that past tasks need are held where they were."""

from __future__ import annotations

import torch
from torch import Tensor

from congruency.continual.learners.base import Learner, Setting
from congruency.continual.learners.fisher import fisher_diagonal
from congruency.continual.methods import Method

__all__ = ["Consolidated"]


class Consolidated(Learner):
    """EWC (Kirkpatrick et al., PNAS 2017): ``strength/2 sum_k F_k (w - w_k)^2`` beside the loss.

    F_k is the diagonal of the Fisher information over task k's samples, the expectation taken over the network's own
    classes. Only ``sum_k F_k`` and ``sum_k F_k w_k`` are kept.
    """

    def __init__(self, method: Method, setting: Setting) -> None:
        super().__init__(method, setting)
        self._stiffness = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self._pull = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}

    def observe(self, inputs: Tensor, labels: Tensor) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        self.loss(inputs, labels).backward()
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                if p.grad is not None:
                    p.grad += self.method.strength * (self._stiffness[name] * p - self._pull[name])
        self.optimizer.step()

    @torch.no_grad()
    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        fisher = fisher_diagonal(self.model, inputs, self.mask)
        for name, p in self.model.named_parameters():
            self._stiffness[name] += fisher[name]
            self._pull[name] += fisher[name] * p
