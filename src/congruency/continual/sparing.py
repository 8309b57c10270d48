"""GEM of one run on a CPU, sparing with arithmetic: the memory's gradients are made only where they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from congruency.continual.methods import Method
from congruency.continual.stacked import StackedMLP, write_gradients
from congruency.continual.stacked_learners import Constrained

__all__ = ["SparingGEM", "spares"]

Layers = list[tuple[Tensor, Tensor]]


def spares(methods: Sequence[Method], start: Tensor) -> bool:
    """Whether :class:`SparingGEM` can take these methods of all seeds (S, width)."""
    alone = len(methods) == len(start) == 1 and start.device.type == "cpu"
    return alone and methods[0].kind == "gem" and methods[0].trigger == "violated"


class SparingGEM(Constrained):
    """GEM that does not follow its updates' agreement with the memory.

    A step that violates nothing is the batch's own, and of the memory it asks only whether the inner products of the
    batch's gradient g with the gradients g_k of all past tasks are negative. With what goes into each layer, a, and the
    derivatives by what comes out of it, d, of the samples i of the batch and j of task k, those are

        <g, g_k> = sum_layers sum_i sum_j (d_i . d_j) (a_i . a_j + 1),

    the 1 for the bias: few products, for a batch is small. Such a step moves the first layer by the batch's samples
    alone, so what that layer says of the memory moves by ``-lr sum_i d_i (a_i . a_j + 1)`` and is not computed anew.
    A step that violates a constraint makes all gradients from what is there already, and goes on like any other.
    """

    def begin(self, task: int, inputs: Tensor, batch: int) -> None:
        super().begin(task, inputs, batch)
        self._layers = self.network.layers(self.weights[0, 0])
        self._held: Tensor | None = None  # (out, N), what the first layer says of the memory
        if self._past is not None:
            past, answers, masks = self._past
            self._inputs, self._answers = past[0].T, answers[0]
            self._masks = None if masks is None else masks[0].T
            # of all batches at once: one large product is faster than many slim ones
            self._overlaps = (inputs[0] @ self._inputs).add_(1.0).split(batch)

    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if self._past is None:
            super().step(inputs, labels, mask)
            return
        layers, batch = self._layers, inputs[0].T
        own = _Pass(layers, batch, _first(layers, batch), labels[0], None if mask is None else mask.T, 1)
        if self._held is None:
            self._held = _first(layers, self._inputs)
        theirs = _Pass(layers, self._inputs, self._held, self._answers, self._masks, self._count)
        overlap = self._overlaps[self._clock]
        if bool((own.products(theirs, overlap) < 0).any()):
            own.write(self.network, self._rows[:, :, :1])
            theirs.write(self.network, self._rows[:, :, 1:])
            self._held = None
            self._correct()
        else:
            self._held.addmm_(own.deltas[0], overlap, alpha=-self.methods[0].lr)
            own.descend(layers, self.methods[0].lr)
        self._clock += 1

    def agreement(self) -> Tensor:
        return torch.full(self.weights.shape[:2], torch.nan, dtype=torch.float64)


class _Pass:
    """Samples once forward and backward: what goes into each layer, ``activations`` (in, N), and ``deltas`` (out, N).

    Args:
        layers: Weights and biases.
        inputs: (in, N).
        first: (out, N), what the first layer makes of them.
        labels: (N,).
        mask: (classes, N or 1), added to the outputs.
        sets: The samples are so many sets of equal size, each with a mean loss of its own.
    """

    def __init__(
        self, layers: Layers, inputs: Tensor, first: Tensor, labels: Tensor, mask: Tensor | None, sets: int
    ) -> None:
        self.sets = sets
        self.activations = [inputs]
        values = first
        for weight, bias in layers[1:]:
            self.activations.append(values.relu())
            values = torch.addmm(bias.unsqueeze(1), weight, self.activations[-1])
        delta = (values if mask is None else values + mask).softmax(0)
        delta.scatter_add_(0, labels.unsqueeze(0), delta.new_full((1, 1), -1.0).expand(1, len(labels)))
        self.deltas = [delta.mul_(sets / len(labels))]
        for (weight, _), activation in zip(layers[:0:-1], self.activations[:0:-1], strict=True):
            before = weight.T @ self.deltas[0]
            self.deltas.insert(0, torch.ops.aten.threshold_backward(before, activation, 0))

    def products(self, other: _Pass, overlap: Tensor) -> Tensor:
        """(other's sets,): the inner products of this one set's gradient with theirs.

        Args:
            other: Other samples through the same layers.
            overlap: ``a_i . a_j + 1`` of the inputs: (own samples, other's).
        """
        total = (self.deltas[0].T @ other.deltas[0]).mul_(overlap)
        for layer in range(1, len(self.deltas)):
            overlap = (self.activations[layer].T @ other.activations[layer]).add_(1.0)
            total.addcmul_(self.deltas[layer].T @ other.deltas[layer], overlap)
        return total.view(len(total), other.sets, -1).sum((0, 2))

    def write(self, network: StackedMLP, rows: Tensor) -> None:
        """The gradients of the sets' losses, into rows (1, 1, sets, width)."""
        for views, activation, delta in zip(network.layers(rows), self.activations, self.deltas, strict=True):
            write_gradients(views, activation[None, None], delta[None, None], self.sets)

    def descend(self, layers: Layers, lr: float) -> None:
        """One step of plain gradient descent on the loss of one set."""
        for (weight, bias), activation, delta in zip(layers, self.activations, self.deltas, strict=True):
            weight.addmm_(delta, activation.T, alpha=-lr)
            bias.sub_(delta.sum(1), alpha=lr)


def _first(layers: Layers, inputs: Tensor) -> Tensor:
    weight, bias = layers[0]
    return torch.addmm(bias.unsqueeze(1), weight, inputs)
