"""Elastic weight consolidation: weights that past tasks need are held where they were."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from congruency.continual.learners.base import Learner, Setting, masked
from congruency.continual.methods import Method

__all__ = ["Consolidated"]

_CHUNK = 64  # samples whose gradients are made at a time


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
        fisher = self._fisher(inputs)
        for name, p in self.model.named_parameters():
            self._stiffness[name] += fisher[name]
            self._pull[name] += fisher[name] * p

    def _fisher(self, inputs: Tensor) -> dict[str, Tensor]:
        """Mean over inputs of ``sum_c p(c) (d/dw log p(c))^2``; normalisation layers use their running averages."""
        self.model.eval()
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        buffers = dict(self.model.named_buffers())
        there = torch.ones(1, dtype=torch.bool) if self.mask is None else torch.isfinite(self.mask)

        def log_probabilities(p: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
            outputs = functional_call(self.model, (p, buffers), (x.unsqueeze(0),)).squeeze(0)
            found = masked(outputs, self.mask).log_softmax(-1)
            return (found if self.mask is None else found[there]), found.exp()

        jacobians = vmap(jacrev(log_probabilities, has_aux=True), in_dims=(None, 0))
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for part in inputs.split(_CHUNK):
            rows, probabilities = jacobians(parameters, part)
            weights = probabilities if self.mask is None else probabilities[:, there]
            for name, row in rows.items():
                total[name] += torch.einsum("nc,nc...->...", weights, row.square())
        return {name: value / len(inputs) for name, value in total.items()}
