"""Quadratic penalties on the weights that matter to past tasks: elastic weight consolidation and MAS."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from congruency.continual.config import LearnerConfig
from congruency.continual.learners.base import Learner, Setting, masked

_SAMPLES = 64  # whose gradients are held at a time


class EWCLearner(Learner):
    """EWC (Kirkpatrick et al., PNAS 2017): the penalty ``strength/2 sum_k F_k (w - w_k)^2`` is added to the loss.

    F_k is the Fisher diagonal over task k's samples. Only ``sum_k F_k`` and ``sum_k F_k w_k`` are stored.
    """

    def __init__(self, config: LearnerConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._importance = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self._pull = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}

    def backward(self, inputs: Tensor, labels: Tensor) -> None:
        super().backward(inputs, labels)
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                if p.grad is not None:
                    p.grad += self.config.strength * (self._importance[name] * p - self._pull[name])

    @torch.no_grad()
    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        fisher = fisher_diagonal(self.model, inputs, self.mask)
        for name, p in self.model.named_parameters():
            self._importance[name] += fisher[name]
            self._pull[name] += fisher[name] * p


class MASLearner(EWCLearner):
    """Memory aware synapses (Aljundi et al., ECCV 2018): the penalty ``strength sum_k O_k (w - w')^2``.

    ``O_k = 1/N sum_n |d/dw |h(x_n)|^2|`` over the N samples of past task k, h the outputs for its classes; w' are the
    weights after the latest task. No labels are used.
    """

    @torch.no_grad()
    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        sensitivity = output_sensitivity(self.model, inputs, self.mask)
        for name, p in self.model.named_parameters():
            self._importance[name] += 2 * sensitivity[name]  # as EWC's, whose penalty has a factor of 1/2
            self._pull[name] = self._importance[name] * p


def output_sensitivity(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """Mean over ``inputs`` (N, ...) of ``|d/dw |h(x)|^2|`` by parameter name; ``mask`` leaves out outputs at -inf."""
    model.eval()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def squared(p: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs = functional_call(model, (p, buffers), (x.unsqueeze(0),)).square()
        return (outputs if mask is None else torch.where(torch.isfinite(mask), outputs, 0.0)).sum()

    gradients = vmap(grad(squared), in_dims=(None, 0))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for part in inputs.split(_SAMPLES):
        for name, gradient in gradients(parameters, part).items():
            total[name] += gradient.abs().sum(0)
    return {name: value / len(inputs) for name, value in total.items()}


def fisher_diagonal(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """The Fisher diagonal over ``inputs`` (N, ...) by parameter name; ``mask`` (classes,) is added to the outputs.

    The mean over the inputs of ``sum_c p(c) (d/dw log p(c))^2``, the expectation over the classes of the network's own
    prediction. The network is put in evaluation mode: normalisation layers use their running averages, since samples
    must not mix. Classes at -inf are left out.
    """
    model.eval()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def log_probability(p: dict[str, Tensor], x: Tensor, label: int) -> Tensor:
        outputs = functional_call(model, (p, buffers), (x.unsqueeze(0),))
        return masked(outputs, mask).squeeze(0).log_softmax(-1)[label]

    gradients = vmap(grad_and_value(log_probability), in_dims=(None, 0, None))
    with torch.no_grad():
        classes = (~torch.isneginf(masked(model(inputs[:1]), mask))[0]).nonzero().flatten().tolist()
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for part in inputs.split(_SAMPLES):
        for label in classes:
            found, log_p = gradients(parameters, part, label)
            for name, gradient in found.items():
                total[name] += torch.einsum("n,n...->...", log_p.exp(), gradient.square())
    return {name: value / len(inputs) for name, value in total.items()}
