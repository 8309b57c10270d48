"""Many multilayer perceptrons of one shape as one batched computation: S seeds times M learners.

The parameters of all runs are one tensor (S, M, width), each run's in the order of ``torch.nn.Linear``: weight
(out, in) and bias of the first layer, of the second, and so on, padded with zeros to an aligned width. The learners of
one seed see the same inputs, so that the first layer, where most of the arithmetic is, is one large matrix product per
seed. Activations have the samples last, (out, N), since products with many columns are faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

_SPAN = 1024  # elements of an inner product summed in their own precision; their sums are added in float64
_LONG_SPAN = 8 * _SPAN  # the same for several runs

Layers = list[tuple[Tensor, Tensor]]
"""Weight (..., out, in) and bias (..., out) of every layer."""


class BatchedMLP:
    """ReLU networks with layers of these ``sizes``, inputs first, and the gradients of their mean cross entropy."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.shapes = [(out, into) for into, out in pairwise(sizes)]
        self.parameters = sum(out * into + out for out, into in self.shapes)
        self.width = -(-self.parameters // _SPAN) * _SPAN

    def layers(self, flat: Tensor) -> Layers:
        """Views of ``flat`` (..., width)."""
        views, start = [], 0
        for out, into in self.shapes:
            middle, stop = start + out * into, start + out * into + out
            views.append((flat[..., start:middle].unflatten(-1, (out, into)), flat[..., middle:stop]))
            start = stop
        return views

    def logits(self, flat: Tensor, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """(S, M, width), (S, N, in) -> (S, M, N, classes); ``mask`` (S, classes) is added."""
        return _forward(self.layers(flat), inputs, mask)[-1].mT

    def permuted_first_layer(self, flat: Tensor, sources: Tensor, pixels: int) -> Tensor:
        """The first layers of every task for unpermuted images, bias last: (S, M, T, out, pixels + 1).

        Permuting the weights instead of the images lets one matrix product serve all tasks, learners and seeds.
        ``sources`` (S, T, in) are the pixels of the image that the inputs are; -1 is 0.
        """
        weight, bias = self.layers(flat)[0]
        seeds, learners, out, _ = weight.shape
        permuted = flat.new_zeros(seeds, learners, sources.shape[1], out, pixels + 1)  # -1 goes to the last column
        for s, of_tasks in enumerate(sources.where(sources >= 0, pixels)):
            for t, indices in enumerate(of_tasks):
                permuted[s, :, t].index_add_(-1, indices, weight[s])
        permuted[..., pixels] = bias.unsqueeze(2)
        return permuted

    def logits_from_first_layer(self, first: Tensor, flat: Tensor, inputs: Tensor) -> Tensor:
        """(S, M, T, out, pixels + 1), (S, M, width), (N, pixels + 1) -> (S, M, T, N, classes), for all tasks.

        ``first`` is from :meth:`permuted_first_layer`; the last column of ``inputs`` is ones.
        """
        values = (first.flatten(0, 3) @ inputs.mT).view(*first.shape[:4], -1)
        for weight, bias in self.layers(flat)[1:]:
            values = torch.matmul(weight.unsqueeze(2), values.relu_()).add_(bias[:, :, None, :, None])
        return values.mT

    def gradients(
        self, flat: Tensor, inputs: Tensor, labels: Tensor, out: Tensor, sizes: Sequence[tuple[int, int]],
        mask: Tensor | None = None, residual: Callable[[Tensor], Tensor | None] | None = None,
    ) -> None:  # fmt: skip
        """Write the gradients of the mean losses of several sets of samples into ``out`` (S, M, K, width).

        Args:
            flat: (S, M, width).
            inputs: (S, N, in), set after set.
            labels: (S, N).
            out: Written, except for its padding.
            sizes: The sets in order, as pairs (number of sets, samples in each).
            mask: (S, N, classes), added to the outputs: -inf for classes that are not of the sample's task.
            residual: The derivative of the first set's loss by its outputs (S, M, classes, n), where that loss is not
                the mean cross entropy; None, or what returns None, where it is.
        """
        layers = self.layers(flat)
        activations, delta = _last_delta(layers, inputs, labels, sizes, mask, residual)
        deltas = _deltas(layers, activations, delta)
        row = column = 0
        for sets, size in sizes:
            rows, columns = slice(row, row + sets), slice(column, column + sets * size)
            row, column = rows.stop, columns.stop
            for views, of_layer, activation in zip(self.layers(out[:, :, rows]), deltas, activations, strict=True):
                write_gradients(views, activation[..., columns], of_layer[..., columns], sets)

    def descend(
        self, flat: Tensor, inputs: Tensor, labels: Tensor, rates: Tensor, mask: Tensor | None = None,
        residual: Callable[[Tensor], Tensor | None] | None = None,
    ) -> None:  # fmt: skip
        """Subtract ``rates`` (1, M, 1, 1) times the gradient of the mean loss from ``flat``, which is contiguous.

        The arguments are those of :meth:`gradients`, with one set of samples. The gradient itself is not written
        anywhere: every layer takes its product with the step.
        """
        layers = self.layers(flat)
        activations, delta = _last_delta(layers, inputs, labels, [(1, inputs.shape[1])], mask, residual)
        steps = _deltas(layers, activations, delta.mul_(-rates))
        for (weight, bias), step, activation in zip(layers, steps, activations, strict=True):
            bias += step.sum(-1)
            below = activation.mT.expand(*step.shape[:2], -1, -1)
            weight.view(-1, *weight.shape[2:]).baddbmm_(step.flatten(0, 1), below.flatten(0, 1))

    def fisher_diagonal(self, flat: Tensor, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The diagonal of the Fisher information over ``inputs`` (S, N, in): (S, M, width).

        Mean over the inputs of ``sum_c p(c) (d/dw log p(c))^2``, the expectation over the network's own prediction.
        """
        layers = self.layers(flat)
        *activations, logits = _forward(layers, inputs, mask)
        probabilities = logits.softmax(-2)
        total, part = torch.zeros_like(flat), torch.zeros_like(flat).unsqueeze(2)
        squares = [activation.square() for activation in activations]
        for label in range(probabilities.shape[-2]):
            delta = probabilities.clone()
            delta[..., label, :] -= 1.0
            deltas = _deltas(layers, activations, delta)
            weight = probabilities[..., label : label + 1, :] / inputs.shape[1]
            for views, of_layer, square in zip(self.layers(part), deltas, squares, strict=True):
                write_gradients(views, square, of_layer.square() * weight, 1)
            total += part.squeeze(2)
        return total

    def output_sensitivity(self, flat: Tensor, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mean over ``inputs`` (S, N, in) of ``|d/dw |h(x)|^2|``, h the outputs that are not masked: (S, M, width).

        A sample's gradient of a layer is the product of its delta and its activation, and so is its absolute value.
        """
        layers = self.layers(flat)
        *activations, outputs = _forward(layers, inputs, None)
        if mask is not None:
            outputs = torch.where(torch.isfinite(mask)[:, None, :, None], outputs, 0.0)
        found = torch.zeros_like(flat).unsqueeze(2)
        deltas = _deltas(layers, activations, 2 * outputs / inputs.shape[1])
        for views, of_layer, activation in zip(self.layers(found), deltas, activations, strict=True):
            write_gradients(views, activation.abs(), of_layer.abs(), 1)
        return found.squeeze(2)


def _last_delta(
    layers: Layers, inputs: Tensor, labels: Tensor, sizes: Sequence[tuple[int, int]], mask: Tensor | None,
    residual: Callable[[Tensor], Tensor | None] | None,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """The inputs of all layers, and the derivatives of the sets' losses by the outputs of the last."""
    *activations, logits = _forward(layers, inputs, mask)
    delta = logits.softmax(-2)
    indices = labels[:, None, None].expand(-1, delta.shape[1], -1, -1)
    delta.scatter_add_(-2, indices, delta.new_full((1,), -1.0).expand(indices.shape))
    delta.mul_(_weights(sizes, delta))
    first = slice(sizes[0][1])
    other = None if residual is None else residual(logits[..., first])
    if other is not None:
        delta[..., first] = other
    return activations, delta


def _forward(layers: Layers, inputs: Tensor, mask: Tensor | None) -> list[Tensor]:
    """The inputs (S, 1, in, N), the activations of all layers (S, M, out, N), the logits."""
    found = [inputs.unsqueeze(1).mT]
    for i, (weight, bias) in enumerate(layers):
        values = _linear(found[-1], weight, bias)
        if i < len(layers) - 1:
            values.relu_()
        elif mask is not None:
            values += mask.mT.unsqueeze(1) if mask.ndim == 3 else mask[:, None, :, None]
        found.append(values)
    return found


def _deltas(layers: Layers, activations: list[Tensor], delta: Tensor) -> list[Tensor]:
    """Derivatives of the loss by each layer's output before its ReLU, first layer first: (S, M, out, N)."""
    found = [delta]
    for (weight, _), activation in zip(layers[:0:-1], activations[:0:-1], strict=True):
        before = _product(weight.mT, found[0])
        found.insert(0, torch.ops.aten.threshold_backward(before, activation, 0))
    return found


def _weights(sizes: Sequence[tuple[int, int]], like: Tensor) -> Tensor:
    """(N,): one over the size of each sample's set."""
    parts = [like.new_full((sets * size,), 1.0 / size) for sets, size in sizes]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(S, M or 1, in, N), (S, M, out, in), (S, M, out) -> (S, M, out, N)."""
    seeds, learners, out, into = weight.shape
    if inputs.shape[1] == learners:
        return _product(weight, inputs).add_(bias.unsqueeze(-1))
    # the same inputs for all learners: one product with their weights stacked
    values = torch.baddbmm(bias.reshape(seeds, -1, 1), weight.reshape(seeds, -1, into), inputs.squeeze(1))
    return values.view(seeds, learners, out, -1)


def _product(matrix: Tensor, samples: Tensor) -> Tensor:
    """(..., out, in) @ (..., in, N), computed with the longer side of the result contiguous, which is faster."""
    if samples.shape[-1] < matrix.shape[-2]:
        return torch.matmul(samples.mT, matrix.mT).mT
    return torch.matmul(matrix, samples)


def write_gradients(views: tuple[Tensor, Tensor], activation: Tensor, delta: Tensor, sets: int) -> None:
    """A layer's gradients ``delta activation'`` and ``sum delta`` for each of ``sets`` equal parts of the samples.

    From its input ``activation`` (S, M or 1, in, N) and ``delta`` (S, M, out, N), written into ``views``: weight
    (S, M, sets, out, in) and bias (S, M, sets, out).
    """
    weight, bias = views
    seeds, learners = delta.shape[:2]
    of_sets = delta.unflatten(-1, (sets, -1)).movedim(3, 2)  # (S, M, sets, out, n)
    inputs = activation.unflatten(-1, (sets, -1)).permute(0, 1, 3, 4, 2)  # (S, M or 1, sets, n, in)
    bias.copy_(of_sets.sum(-1))
    if inputs.shape[1] == learners:  # copied, since products written to strided memory are slow
        weight.copy_(torch.bmm(of_sets.flatten(0, 2), inputs.flatten(0, 2)).view(weight.shape))
    else:
        below = of_sets.transpose(1, 2).reshape(seeds * sets, -1, of_sets.shape[-1])  # (S sets, M out, n)
        product = torch.bmm(below, inputs.flatten(0, 2))
        weight.copy_(product.view(seeds, sets, learners, *weight.shape[3:]).transpose(1, 2))


def gram(vectors: Tensor) -> Tensor:
    """Gram matrices of n vectors, (b, n, p) -> (b, n, n) in float64."""
    if len(vectors) == 1 and vectors.shape[-1] % _SPAN == 0:
        spans = vectors[0].unflatten(-1, (-1, _SPAN)).transpose(0, 1)
        return torch.bmm(spans, spans.mT).sum(0, dtype=torch.float64).unsqueeze(0)
    parts = vectors.split(_LONG_SPAN, -1)
    total = torch.bmm(parts[0], parts[0].mT).double()
    for part in parts[1:]:
        total += torch.bmm(part, part.mT)
    return total


def count_and_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """(2, ...) in float64: the number of correct predictions and the sum of cross entropies over N samples.

    For outputs z and label y the cross entropy is ``-log p(y) = m + log sum_c exp(z_c - m) - z_y`` with
    ``m = max_c z_c``. Outputs of -inf, those of masked classes, add nothing.

    Args:
        logits: (..., N, classes); overwritten, to need no further memory.
        labels: (..., N), or what expands to it.
    """
    top, predicted = logits.max(-1)
    own = logits.gather(-1, labels.expand(top.shape).unsqueeze(-1)).squeeze(-1)
    total = logits.sub_(top.unsqueeze(-1)).exp_().sum(-1)
    entropies = total.log_().add_(top).sub_(own)
    return torch.stack([(predicted == labels).sum(-1), entropies.sum(-1, dtype=torch.float64)])
