"""The diagonal of the Fisher information of a classifier.

It is the mean over inputs of ``sum_c p(c) (d/dw log p(c))^2`` for every parameter w, the expectation taken over the
network's own C classes. With logits z, ``d/dw log p(c) = sum_k ([c = k] - p(k)) dz(k)/dw``, and therefore

    sum_c p(c) (d/dw log p(c))^2 = (dz/dw)' (diag(p) - p p') (dz/dw) = sum_j (s_j' dz/dw)^2

for any rows s_j with ``sum_j s_j s_j' = diag(p) - p p'``. That matrix has rank C - 1, so one backward pass fewer than
there are classes is enough.
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

from congruency.continual.learners.base import masked

__all__ = ["NotByLayers", "by_layers", "by_samples", "fisher_diagonal"]

_JACOBIANS = 64  # samples whose Jacobians are made at a time
_SAMPLES, _ROWS = 16, 8  # samples and rows s_j whose derivatives by all layers' outputs are kept at a time
_PRODUCTS = 1 << 19  # numbers in the per-sample gradients of a layer made at a time, for the processor's cache


class NotByLayers(Exception):
    """The network has a part whose gradients sample by sample only automatic differentiation knows."""


def fisher_diagonal(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """The diagonal over ``inputs`` (N, ...) by the parameters' names; ``mask`` (classes,) is added to the outputs.

    The network is put in evaluation mode: normalisation layers use their running averages, and samples must not mix.
    Classes at -inf are left out.
    """
    model.eval()
    try:
        return by_layers(model, inputs, mask)
    except NotByLayers:
        return by_samples(model, inputs, mask)


def by_samples(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """For any network: ``torch.func`` makes the Jacobian of every sample's log-probabilities."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def log_probabilities(p: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        found = _logits(functional_call(model, (p, buffers), (x.unsqueeze(0),)), mask).squeeze(0).log_softmax(-1)
        return found, found.exp()

    jacobians = vmap(jacrev(log_probabilities, has_aux=True), in_dims=(None, 0))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for part in inputs.split(_JACOBIANS):
        rows, probabilities = jacobians(parameters, part)
        for name, row in rows.items():
            total[name] += torch.einsum("nc,nc...->...", probabilities, row.square())
    return {name: value / len(inputs) for name, value in total.items()}


def by_layers(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """For networks of linear, 2-d convolutional and batch normalisation layers, none used twice; several times faster.

    A forward pass keeps what each layer takes in. A backward pass for each row s_j makes ``delta``, the derivatives of
    ``sum_n s_j(n)' z(n)`` by what it puts out: samples do not mix, so sample n's are in its own place. The gradients of
    the layer's parameters follow from the two for every sample, and are squared and added up.

    Raises:
        NotByLayers: The network is not such a one.
    """
    total = {p: torch.zeros_like(p) for p in model.parameters()}
    for part in inputs.split(_SAMPLES):
        with torch.enable_grad():
            calls, logits = _watched(model, part, mask)
        for rows in _rows(logits.detach().log_softmax(-1)).split(_ROWS):
            for call, *found in zip(calls, *(_deltas(logits, calls, row) for row in rows), strict=True):
                deltas = [delta for delta in found if delta is not None]
                if deltas:  # none where the outputs do not depend on the layer, or there is but one class
                    for p, squares in _SQUARES[type(call.layer)](call.layer, call.inputs, torch.stack(deltas, 1)):
                        total[p] += squares
    return {name: total[p] / len(inputs) for name, p in model.named_parameters()}


def _logits(outputs: Tensor, mask: Tensor | None) -> Tensor:
    """The outputs of the classes that the mask leaves, with it added."""
    return outputs if mask is None else masked(outputs, mask)[..., torch.isfinite(mask)]


def _rows(log_p: Tensor) -> Tensor:
    """The rows s_j, (C - 1, N, C), of log-probabilities (N, C): the Cholesky factor of ``diag(p) - p p'``, transposed.

    With ``q_j = sum_{k > j} p_k``, ``s_j = sqrt(p_j / (q_j q_{j-1})) (q_j e_j - sum_{k > j} p_k e_k)``. In logarithms,
    where a class of vanishing probability is a number like another; no entry is larger than 1.
    """
    log_q = log_p.flip(-1).logcumsumexp(-1).flip(-1)  # in place j: q_{j-1}
    scale = (log_p[:, :-1] - log_q[:, 1:] - log_q[:, :-1]) / 2
    rows = -(scale.unsqueeze(-1) + log_p.unsqueeze(-2)).exp().triu(1)
    rows.diagonal(dim1=-2, dim2=-1).copy_((scale + log_q[:, 1:]).exp())
    return rows.transpose(0, 1)


@dataclass(frozen=True)
class _Call:
    """A layer's part in a forward pass: what it took in, and the place in the graph where its output was made."""

    layer: nn.Module
    inputs: Tensor
    output: GradientEdge  # not the tensor, which an in-place function may have changed since


def _watched(model: nn.Module, inputs: Tensor, mask: Tensor | None) -> tuple[list[_Call], Tensor]:
    """A forward pass: what each layer did, and the logits (N, C)."""
    if any(isinstance(module, _BatchNorm) and module.running_mean is None for module in model.modules()):
        raise NotByLayers  # samples are normalised by one another
    if not all(p.requires_grad for p in model.parameters()):
        raise NotByLayers  # the graph does not tell how often a frozen parameter is used
    calls: list[_Call] = []

    def note(layer: nn.Module, taken: tuple[Any, ...], output: Tensor) -> None:
        if len(taken) != 1 or not _fits(layer, taken[0], len(inputs)) or not output.requires_grad:
            raise NotByLayers
        calls.append(_Call(layer, taken[0].detach(), get_gradient_edge(output)))

    layers = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        logits = _logits(model(inputs), mask)
    finally:
        for handle in handles:
            handle.remove()
    called = Counter[Tensor](p for call in calls for p in call.layer.parameters())
    if any(times > 1 or called[p] != 1 for p, times in _uses(logits).items()):
        raise NotByLayers
    return calls, logits


def _fits(layer: nn.Module, inputs: Tensor, samples: int) -> bool:
    """Whether the layer's gradients are known here; subclasses may compute what they like."""
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
    """How often each parameter enters the graph of the outputs, by whatever way."""
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


def _deltas(logits: Tensor, calls: list[_Call], row: Tensor) -> tuple[Tensor | None, ...]:
    """The derivatives of ``sum_n row(n)' z(n)`` by what every layer puts out."""
    outputs = [call.output for call in calls]
    return torch.autograd.grad(logits, outputs, row, retain_graph=True, allow_unused=True)


def _linear(layer: nn.Linear, inputs: Tensor, delta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """``y = W a + b``: the gradients are ``delta a'``, whose squares are products of squares, and ``delta``."""
    squares = delta.square().sum(1)  # (N, out)
    found = [(layer.weight, squares.T @ inputs.square())]
    return found if layer.bias is None else [*found, (layer.bias, squares.sum(0))]


def _normalisation(layer: _BatchNorm, inputs: Tensor, delta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """``y = g x + b``, x the normalised input: the gradients are the sums over space of ``delta x`` and ``delta``."""
    delta = delta.reshape(*delta.shape[:3], -1)  # (N, R, channels, places)
    x = functional.batch_norm(inputs, layer.running_mean, layer.running_var, eps=layer.eps).reshape(delta[:, 0].shape)
    weight = (delta * x.unsqueeze(1)).sum(-1).square().sum((0, 1))
    return [(layer.weight, weight), (layer.bias, delta.sum(-1).square().sum((0, 1)))]


def _convolution(layer: nn.Conv2d, inputs: Tensor, delta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """``y_l = W a_l + b`` in each place l, a_l the patch it sees: ``sum_l delta_l a_l'`` and ``sum_l delta_l``.

    Each group of channels is such a layer of its own.
    """
    samples, rows, out = delta.shape[:3]
    delta = delta.reshape(samples, rows, layer.groups, out // layer.groups, -1)
    left = delta.transpose(1, 2).flatten(2, 3)
    right = _patches(layer, inputs).unflatten(1, (layer.groups, -1)).mT
    found = [(layer.weight, _summed_squares(left, right, rows).view_as(layer.weight))]
    return found if layer.bias is None else [*found, (layer.bias, delta.sum(-1).square().sum((0, 1)).flatten())]


def _summed_squares(left: Tensor, right: Tensor, rows: int) -> Tensor:
    """(N, G, R * O, L), (N, G, L, K) -> (G, O * K): the products' squares, summed over N samples and R rows."""
    samples, groups, height, _ = left.shape
    width = right.shape[-1]
    step = max(1, _PRODUCTS // (groups * height * width))
    room = left.new_empty(min(step, samples) * groups, height, width)
    total = left.new_zeros(groups, height // rows * width)
    ones = left.new_ones(rows)
    for a, b in zip(left.split(step), right.split(step), strict=True):
        products = torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out=room[: len(a) * groups])
        total += (ones @ products.square_().view(len(a), groups, rows, -1)).sum(0)
    return total


def _patches(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """What the kernel sees in every place, (N, channels * kernel, places): ``unfold``, several times faster."""
    high, wide = map(int, layer.padding)
    padded = functional.pad(inputs, (wide, wide, high, high))
    kernel, step, gap = layer.kernel_size, layer.stride, layer.dilation
    places = [(padded.shape[2 + i] - gap[i] * (kernel[i] - 1) - 1) // step[i] + 1 for i in (0, 1)]
    *outer, line, column = padded.stride()
    strides = (*outer, gap[0] * line, gap[1] * column, step[0] * line, step[1] * column)
    return padded.as_strided((*padded.shape[:2], *kernel, *places), strides).flatten(4).flatten(1, 3)


_SQUARES: dict[type[nn.Module], Any] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _normalisation,
    nn.BatchNorm2d: _normalisation,
}
