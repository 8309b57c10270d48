"""Elastic weight consolidation, and the diagonal of the Fisher information that it penalises by.

The diagonal is the mean over inputs of ``sum_c p(c) (d/dw log p(c))^2`` for every parameter w, the expectation taken
over the C classes of the network's own prediction. With logits z, ``d/dw log p(c) = sum_k ([c = k] - p(k)) dz(k)/dw``,
and therefore

    sum_c p(c) (d/dw log p(c))^2 = (dz/dw)' (diag(p) - p p') (dz/dw) = sum_j (s_j' dz/dw)^2

for any vectors s_j with ``sum_j s_j s_j' = diag(p) - p p'``. That matrix has rank C - 1, so C - 1 backward passes are
enough.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from congruency.continual.config import LearnerConfig
from congruency.continual.learners.base import Learner, Setting, masked

__all__ = ["EWCLearner", "UnsupportedLayer", "by_layers", "by_samples", "fisher_diagonal"]

_JACOBIANS = 64  # samples per Jacobian computation
_SAMPLES, _FACTORS = 16, 8  # samples and vectors s_j whose derivatives by all layers' outputs are held at a time
_PRODUCTS = 1 << 19  # elements of a layer's per-sample gradients computed at a time, to stay in the processor's cache


class EWCLearner(Learner):
    """EWC (Kirkpatrick et al., PNAS 2017): the penalty ``strength/2 sum_k F_k (w - w_k)^2`` is added to the loss.

    F_k is the Fisher diagonal over task k's samples. Only ``sum_k F_k`` and ``sum_k F_k w_k`` are stored.
    """

    def __init__(self, config: LearnerConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._fisher = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self._fisher_weights = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}

    def backward(self, inputs: Tensor, labels: Tensor) -> None:
        super().backward(inputs, labels)
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                if p.grad is not None:
                    p.grad += self.config.strength * (self._fisher[name] * p - self._fisher_weights[name])

    @torch.no_grad()
    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        fisher = fisher_diagonal(self.model, inputs, self.mask)
        for name, p in self.model.named_parameters():
            self._fisher[name] += fisher[name]
            self._fisher_weights[name] += fisher[name] * p


class UnsupportedLayer(Exception):
    """The network has a layer whose per-sample gradients only automatic differentiation can give."""


def fisher_diagonal(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """The Fisher diagonal over ``inputs`` (N, ...) by parameter name; ``mask`` (classes,) is added to the outputs.

    The network is put in evaluation mode: normalisation layers use their running averages, since samples must not mix.
    Classes at -inf are left out.
    """
    model.eval()
    try:
        return by_layers(model, inputs, mask)
    except UnsupportedLayer:
        return by_samples(model, inputs, mask)


def by_samples(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """For any network: by the Jacobian of every sample's log-probabilities, from ``torch.func``."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def log_probabilities(p: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        found = _logits(functional_call(model, (p, buffers), (x.unsqueeze(0),)), mask).squeeze(0).log_softmax(-1)
        return found, found.exp()

    jacobians = vmap(jacrev(log_probabilities, has_aux=True), in_dims=(None, 0))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for part in inputs.split(_JACOBIANS):
        found, probabilities = jacobians(parameters, part)
        for name, jacobian in found.items():
            total[name] += torch.einsum("nc,nc...->...", probabilities, jacobian.square())
    return {name: value / len(inputs) for name, value in total.items()}


def by_layers(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """For networks of linear, 2-d convolutional and batch normalisation layers, none used twice; several times faster.

    A forward pass keeps the input of each layer. A backward pass for each s_j gives ``delta``, the derivatives of
    ``sum_n s_j(n)' z(n)`` by its output; samples do not mix, so these are per-sample derivatives. Inputs and deltas
    give the per-sample gradients of the layer's parameters, which are squared and summed.

    Raises:
        UnsupportedLayer: The network has other layers, or uses one twice.
    """
    total = {p: torch.zeros_like(p) for p in model.parameters()}
    for part in inputs.split(_SAMPLES):
        with torch.enable_grad():
            calls, logits = _recorded(model, part, mask)
        for factors in _factors(logits.detach().log_softmax(-1)).split(_FACTORS):
            for call, *found in zip(calls, *(_deltas(logits, calls, factor) for factor in factors), strict=True):
                deltas = [delta for delta in found if delta is not None]
                if deltas:  # empty if the outputs do not depend on the layer, or there is only one class
                    for p, squares in _SQUARES[type(call.layer)](call.layer, call.inputs, torch.stack(deltas, 1)):
                        total[p] += squares
    return {name: total[p] / len(inputs) for name, p in model.named_parameters()}


def _logits(outputs: Tensor, mask: Tensor | None) -> Tensor:
    """Masked outputs of the classes that are not masked out."""
    return outputs if mask is None else masked(outputs, mask)[..., torch.isfinite(mask)]


def _factors(log_p: Tensor) -> Tensor:
    """The vectors s_j, (C - 1, N, C), from log-probabilities (N, C): the columns of the Cholesky factor.

    With ``q_j = sum_{k > j} p_k``, ``s_j = sqrt(p_j / (q_j q_{j-1})) (q_j e_j - sum_{k > j} p_k e_k)``. Computed in
    logarithms, so that vanishing probabilities do no harm; no entry is larger than 1.
    """
    log_q = log_p.flip(-1).logcumsumexp(-1).flip(-1)  # entry j: q_{j-1}
    scale = (log_p[:, :-1] - log_q[:, 1:] - log_q[:, :-1]) / 2
    factors = -(scale.unsqueeze(-1) + log_p.unsqueeze(-2)).exp().triu(1)
    factors.diagonal(dim1=-2, dim2=-1).copy_((scale + log_q[:, 1:]).exp())
    return factors.transpose(0, 1)


@dataclass(frozen=True)
class _Call:
    """A layer's call in a forward pass: its input, and the graph edge of its output."""

    layer: nn.Module
    inputs: Tensor
    output: GradientEdge  # not the tensor, which an in-place operation may have changed since


def _recorded(model: nn.Module, inputs: Tensor, mask: Tensor | None) -> tuple[list[_Call], Tensor]:
    """A forward pass: the call of each layer, and the logits (N, C)."""
    if any(isinstance(module, _BatchNorm) and module.running_mean is None for module in model.modules()):
        raise UnsupportedLayer  # batch statistics mix the samples
    if not all(p.requires_grad for p in model.parameters()):
        raise UnsupportedLayer  # the graph does not show how often a frozen parameter is used
    calls: list[_Call] = []

    def record(layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if len(given) != 1 or not _supported(layer, given[0], len(inputs)) or not output.requires_grad:
            raise UnsupportedLayer
        calls.append(_Call(layer, given[0].detach(), get_gradient_edge(output)))

    layers = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    handles = [layer.register_forward_hook(record) for layer in layers]
    try:
        logits = _logits(model(inputs), mask)
    finally:
        for handle in handles:
            handle.remove()
    called = Counter[Tensor](p for call in calls for p in call.layer.parameters())
    if any(times > 1 or called[p] != 1 for p, times in _uses(logits).items()):
        raise UnsupportedLayer
    return calls, logits


def _supported(layer: nn.Module, inputs: Tensor, samples: int) -> bool:
    """Whether the layer's per-sample gradients are implemented here; a subclass may compute something else."""
    if type(layer) not in _SQUARES or not {name for name, _ in layer.named_parameters()} <= {"weight", "bias"}:
        return False
    if len(inputs) != samples:
        return False
    if isinstance(layer, nn.Linear):
        return inputs.ndim == 2
    if isinstance(layer, nn.Conv2d):
        return inputs.ndim == 4 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return True


def _uses(outputs: Tensor) -> Counter[Tensor]:
    """How often each parameter occurs in the graph of the outputs."""
    found: Counter[Tensor] = Counter()
    nodes = [outputs.grad_fn]
    known = set(nodes)
    while nodes:
        for node, _ in getattr(nodes.pop(), "next_functions", ()):
            if node is None:
                continue
            if node.name() == "torch::autograd::AccumulateGrad":
                found[node.variable] += 1
            elif node not in known:
                known.add(node)
                nodes.append(node)
    return found


def _deltas(logits: Tensor, calls: list[_Call], factor: Tensor) -> tuple[Tensor | None, ...]:
    """The derivatives of ``sum_n factor(n)' z(n)`` by the output of every layer."""
    outputs = [call.output for call in calls]
    return torch.autograd.grad(logits, outputs, factor, retain_graph=True, allow_unused=True)


def _linear(layer: nn.Linear, inputs: Tensor, delta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """``y = W a + b``: the gradients are ``delta a'``, whose squares are products of squares, and ``delta``."""
    squares = delta.square().sum(1)  # (N, out)
    found = [(layer.weight, squares.T @ inputs.square())]
    return found if layer.bias is None else [*found, (layer.bias, squares.sum(0))]


def _normalisation(layer: _BatchNorm, inputs: Tensor, delta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """``y = g x + b``, x the normalised input: the gradients are the sums over space of ``delta x`` and ``delta``."""
    delta = delta.reshape(*delta.shape[:3], -1)  # (N, R, channels, positions)
    x = functional.batch_norm(inputs, layer.running_mean, layer.running_var, eps=layer.eps).reshape(delta[:, 0].shape)
    weight = (delta * x.unsqueeze(1)).sum(-1).square().sum((0, 1))
    return [(layer.weight, weight), (layer.bias, delta.sum(-1).square().sum((0, 1)))]


def _convolution(layer: nn.Conv2d, inputs: Tensor, delta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """``y_l = W a_l + b`` at each position l, a_l its input patch: ``sum_l delta_l a_l'`` and ``sum_l delta_l``.

    Each group of channels is such a layer of its own.
    """
    samples, factors, out = delta.shape[:3]
    delta = delta.reshape(samples, factors, layer.groups, out // layer.groups, -1)
    left = delta.transpose(1, 2).flatten(2, 3)
    right = _patches(layer, inputs).unflatten(1, (layer.groups, -1)).mT
    found = [(layer.weight, _summed_squares(left, right, factors).view_as(layer.weight))]
    return found if layer.bias is None else [*found, (layer.bias, delta.sum(-1).square().sum((0, 1)).flatten())]


def _summed_squares(left: Tensor, right: Tensor, factors: int) -> Tensor:
    """(N, G, R * O, L), (N, G, L, K) -> (G, O * K): squared products, summed over N samples and R factors."""
    samples, groups, height, _ = left.shape
    width = right.shape[-1]
    step = max(1, _PRODUCTS // (groups * height * width))
    buffer = left.new_empty(min(step, samples) * groups, height, width)
    total = left.new_zeros(groups, height // factors * width)
    ones = left.new_ones(factors)
    for a, b in zip(left.split(step), right.split(step), strict=True):
        products = torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out=buffer[: len(a) * groups])
        total += (ones @ products.square_().view(len(a), groups, factors, -1)).sum(0)
    return total


def _patches(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """The input patch at every position, (N, channels * kernel, positions): ``unfold``, several times faster."""
    high, wide = map(int, layer.padding)
    padded = functional.pad(inputs, (wide, wide, high, high))
    kernel, step, gap = layer.kernel_size, layer.stride, layer.dilation
    positions = [(padded.shape[2 + i] - gap[i] * (kernel[i] - 1) - 1) // step[i] + 1 for i in (0, 1)]
    *outer, line, column = padded.stride()
    strides = (*outer, gap[0] * line, gap[1] * column, step[0] * line, step[1] * column)
    return padded.as_strided((*padded.shape[:2], *kernel, *positions), strides).flatten(4).flatten(1, 3)


_SQUARES: dict[type[nn.Module], Any] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _normalisation,
    nn.BatchNorm2d: _normalisation,
}
