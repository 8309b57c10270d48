"""Many multilayer perceptrons of one shape as one batched computation: S seeds times M methods.

The parameters of all runs are one tensor (S, M, width), each run's in the order of ``torch.nn.Linear``: weight
(out, in) and bias of the first layer, of the second, and so on, filled up with zeros so that each run's begin on a
boundary that matrix products like. The methods of one seed see the same inputs, so that the first layer, where most of
the arithmetic is, is one large matrix product for each seed. Activations are kept with the samples last, (out, N): a
product with many columns is the faster one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["StackedMLP", "inner_products", "write_gradients"]

_SPAN = 1024  # elements of an inner product that are summed in their own precision, at least; the rest is float64
_LONG_SPAN = 8 * _SPAN  # the same where there are many runs


class StackedMLP:
    """ReLU networks with layers of these ``sizes``, inputs first, and the gradients of their mean cross entropy."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.shapes = [(out, into) for into, out in pairwise(sizes)]
        self.parameters = sum(out * into + out for out, into in self.shapes)
        self.width = -(-self.parameters // _SPAN) * _SPAN

    def layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Views of ``flat`` (..., width): weight (..., out, in) and bias (..., out) of every layer."""
        views, start = [], 0
        for out, into in self.shapes:
            middle, stop = start + out * into, start + out * into + out
            views.append((flat[..., start:middle].unflatten(-1, (out, into)), flat[..., middle:stop]))
            start = stop
        return views

    def logits(self, flat: Tensor, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """(S, M, width), (S, N, in) -> (S, M, N, classes); ``mask`` (S, classes) is added."""
        return self._forward(flat, inputs, mask)[-1].mT

    def moved_first_layer(self, flat: Tensor, pixels: Tensor) -> Tensor:
        """The first layers for inputs whose pixels were not moved yet, bias last: (S, M, T, out, in + 1).

        Moving the weights instead of the images lets one matrix product serve all tasks, methods and seeds.

        Args:
            flat: (S, M, width).
            pixels: (S, T, in), where task t of seed s takes each input from; -1 is 0.
        """
        weight, bias = self.layers(flat)[0]
        seeds, methods, out, into = weight.shape
        moved = flat.new_zeros(seeds, methods, pixels.shape[1], out, into + 1)  # what comes from nowhere goes last
        for s, of_tasks in enumerate(pixels.where(pixels >= 0, into)):
            for t, places in enumerate(of_tasks):
                moved[s, :, t].index_add_(-1, places, weight[s])
        moved[..., into] = bias.unsqueeze(2)
        return moved

    def logits_behind(self, first: Tensor, flat: Tensor, inputs: Tensor) -> Tensor:
        """The outputs for all tasks from :meth:`moved_first_layer`: (S, M, T, N, classes).

        Args:
            first: (S, M, T, out, in + 1).
            flat: (S, M, width).
            inputs: (N, in + 1), ones in the last column.
        """
        values = (first.flatten(0, 3) @ inputs.mT).view(*first.shape[:4], -1)
        for weight, bias in self.layers(flat)[1:]:
            values = torch.matmul(weight.unsqueeze(2), values.relu_()).add_(bias[:, :, None, :, None])
        return values.mT

    def gradients(
        self, flat: Tensor, inputs: Tensor, labels: Tensor, out: Tensor, sizes: Sequence[tuple[int, int]],
        mask: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Write the gradients of the mean losses of several sets of samples into ``out`` (S, M, K, width).

        Args:
            flat: (S, M, width).
            inputs: (S, N, in), set after set.
            labels: (S, N).
            out: Written but for its filling.
            sizes: How the samples fall into sets: so many sets of so many samples, then so many of so many, ...
            mask: (S, N, classes), added to the outputs: -inf where a class is not among a sample's.
        """
        *activations, logits = self._forward(flat, inputs, mask)
        delta = logits.softmax(-2)
        places = labels[:, None, None].expand(-1, flat.shape[1], -1, -1)
        delta.scatter_add_(-2, places, delta.new_full((1,), -1.0).expand(places.shape))
        deltas = self._deltas(flat, activations, delta.mul_(_weights(sizes, delta)))
        row = column = 0
        for sets, size in sizes:
            rows, columns = slice(row, row + sets), slice(column, column + sets * size)
            row, column = rows.stop, columns.stop
            for views, of_layer, activation in zip(self.layers(out[:, :, rows]), deltas, activations, strict=True):
                write_gradients(views, activation[..., columns], of_layer[..., columns], sets)

    def squared_gradients(self, flat: Tensor, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The diagonal of the Fisher information over ``inputs`` (S, N, in): (S, M, width).

        Mean over the inputs of ``sum_c p(c) (d/dw log p(c))^2``, the expectation taken over the network's own classes.
        """
        *activations, logits = self._forward(flat, inputs, mask)
        probabilities = logits.softmax(-2)
        total, part = torch.zeros_like(flat), torch.zeros_like(flat).unsqueeze(2)
        squares = [activation.square() for activation in activations]
        for label in range(probabilities.shape[-2]):
            delta = probabilities.clone()
            delta[..., label, :] -= 1.0
            deltas = self._deltas(flat, activations, delta)
            weight = probabilities[..., label : label + 1, :] / inputs.shape[1]
            for views, of_layer, square in zip(self.layers(part), deltas, squares, strict=True):
                write_gradients(views, square, of_layer.square() * weight, 1)
            total += part.squeeze(2)
        return total

    def _forward(self, flat: Tensor, inputs: Tensor, mask: Tensor | None) -> list[Tensor]:
        """The inputs (S, 1, in, N), the activations of all layers (S, M, out, N), the logits."""
        found = [inputs.unsqueeze(1).mT]
        layers = self.layers(flat)
        for i, (weight, bias) in enumerate(layers):
            values = _linear(found[-1], weight, bias)
            if i < len(layers) - 1:
                values.relu_()
            elif mask is not None:
                values += mask.mT.unsqueeze(1) if mask.ndim == 3 else mask[:, None, :, None]
            found.append(values)
        return found

    def _deltas(self, flat: Tensor, activations: list[Tensor], delta: Tensor) -> list[Tensor]:
        """The loss's derivatives by what each layer puts out before its ReLU, first layer first: (S, M, out, N)."""
        found = [delta]
        for (weight, _), activation in zip(self.layers(flat)[:0:-1], activations[:0:-1], strict=True):
            before = torch.matmul(weight.mT, found[0])
            found.insert(0, torch.ops.aten.threshold_backward(before, activation, 0))
        return found


def _weights(sizes: Sequence[tuple[int, int]], like: Tensor) -> Tensor:
    """(N,): one over the size of each sample's set."""
    parts = [like.new_full((sets * size,), 1.0 / size) for sets, size in sizes]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(S, M or 1, in, N), (S, M, out, in), (S, M, out) -> (S, M, out, N)."""
    seeds, methods, out, into = weight.shape
    if inputs.shape[1] == methods:
        values = torch.baddbmm(
            bias.reshape(-1, out, 1), weight.reshape(-1, out, into), inputs.reshape(-1, *inputs.shape[2:])
        )
    else:  # the same inputs for all methods: their outputs one below the other in one product
        values = torch.baddbmm(bias.reshape(seeds, -1, 1), weight.reshape(seeds, -1, into), inputs.squeeze(1))
    return values.view(seeds, methods, out, -1)


def write_gradients(views: tuple[Tensor, Tensor], activation: Tensor, delta: Tensor, sets: int) -> None:
    """A layer's gradients ``delta activation'`` and ``sum delta``, one for each of ``sets`` equal parts of the samples.

    Args:
        views: weight (S, M, sets, out, in) and bias (S, M, sets, out), written.
        activation: What went into the layer, (S, M or 1, in, N).
        delta: (S, M, out, N).
        sets: Parts.
    """
    weight, bias = views
    seeds, methods = delta.shape[:2]
    of_sets = delta.unflatten(-1, (sets, -1)).movedim(3, 2)  # (S, M, sets, out, n)
    inputs = activation.unflatten(-1, (sets, -1)).permute(0, 1, 3, 4, 2)  # (S, M or 1, sets, n, in)
    bias.copy_(of_sets.sum(-1))
    if inputs.shape[1] == methods:  # written in two steps: products into rows that lie apart are slow
        weight.copy_(torch.bmm(of_sets.flatten(0, 2), inputs.flatten(0, 2)).view(weight.shape))
    else:
        below = of_sets.transpose(1, 2).reshape(seeds * sets, -1, of_sets.shape[-1])  # (S sets, M out, n)
        product = torch.bmm(below, inputs.flatten(0, 2))
        weight.copy_(product.view(seeds, sets, methods, *weight.shape[3:]).transpose(1, 2))


def inner_products(vectors: Tensor) -> Tensor:
    """All inner products of n vectors, (b, n, p) -> (b, n, n) in float64."""
    if len(vectors) == 1 and vectors.shape[-1] % _SPAN == 0:
        spans = vectors[0].unflatten(-1, (-1, _SPAN)).transpose(0, 1)
        return torch.bmm(spans, spans.mT).sum(0, dtype=torch.float64).unsqueeze(0)
    parts = vectors.split(_LONG_SPAN, -1)
    total = torch.bmm(parts[0], parts[0].mT).double()
    for part in parts[1:]:
        total += torch.bmm(part, part.mT)
    return total
