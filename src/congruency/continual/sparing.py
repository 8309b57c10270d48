"""GEM of one run on a CPU, sparing with arithmetic: the memory's gradients are made only where they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from congruency.continual.methods import Method
from congruency.continual.stacked_learners import Constrained

__all__ = ["SparingGEM", "spares"]


def spares(methods: Sequence[Method], start: Tensor) -> bool:
    """Whether :class:`SparingGEM` can take these methods of all seeds (S, width)."""
    alone = len(methods) == len(start) == 1 and start.device.type == "cpu"
    return alone and methods[0].kind == "gem" and methods[0].trigger == "violated"


class SparingGEM(Constrained):
    """GEM that does not follow its updates' agreement with the memory.

    A step that violates nothing is the batch's own, and of the memory it asks only whether the inner products of the
    batch's gradient g with the gradients g_k of all past tasks are negative. With what goes into each layer, a (its
    last input is always 1, and the bias that one's weight), and the derivatives by what comes out of it, d, of the
    samples i of the batch and j of task k, those are

        <g, g_k> = sum_layers sum_i sum_j (d_i . d_j) (a_i . a_j):

    few products, for a batch is small. Such a step moves the first layer by the batch's samples alone, so what that
    layer says of the memory moves by ``-lr sum_i d_i (a_i . a_j)`` and is not computed anew. A step that violates a
    constraint makes all gradients from what is there already, and goes on like any other.

    While a task is learned the weights are kept apart, layer by layer and without those of inputs that are 0 in all of
    the task and the memory, which do not move; :meth:`finish` puts them back.
    """

    def begin(self, task: int, inputs: Tensor, batch: int) -> None:
        super().begin(task, inputs, batch)
        if self._past is None:
            return
        (past, answers, masks), sets = self._past, self._count
        self._lit = (inputs[0].abs().sum(0) + past[0].abs().sum(0)).nonzero().flatten()
        kept, own = (functional.pad(x[0].index_select(1, self._lit), (0, 1), value=1.0) for x in (past, inputs))
        self._kept, self._answers = _in_sets(kept.T, sets), answers.view(sets, 1, -1)
        self._masks = None if masks is None else _in_sets(masks[0].T, sets)
        self._batches = own.split(batch)
        # of all batches at once: one large product is faster than many slim ones
        self._overlaps = [_in_sets(part, sets) for part in (own @ kept.T).split(batch)]
        (weight, bias), *others = self.network.layers(self.weights[0, 0])
        pairs = [(weight[:, self._lit], bias), *others]
        self._layers = [torch.cat([weight, bias.unsqueeze(1)], 1) for weight, bias in pairs]
        self._gradients = [layer.new_empty(1 + sets, *layer.shape) for layer in self._layers]
        self._own, self._theirs = _Pass(self._layers, 1, batch), _Pass(self._layers, sets, self._kept.shape[2])
        self._held = False  # whether the memory's pass has what the first layer, as it is now, says

    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if self._past is None:
            super().step(inputs, labels, mask)
            return
        batch, overlap = self._batches[self._clock], self._overlaps[self._clock]
        if self._own.size != len(batch):
            self._own = _Pass(self._layers, 1, len(batch))
        own, theirs, lr = self._own, self._theirs, self.methods[0].lr
        own.enter(batch.T.unsqueeze(0))
        own.run(labels.unsqueeze(0), None if mask is None else mask.unsqueeze(2))
        if not self._held:
            theirs.enter(self._kept)
        theirs.run(self._answers, self._masks)
        self._held = not bool((own.products(theirs, overlap) < 0).any())
        if self._held:
            theirs.first.baddbmm_(own.deltas[0].expand(len(overlap), -1, -1), overlap, alpha=-lr)
            own.descend(lr)
        else:
            own.write([rows[:1] for rows in self._gradients])
            theirs.write([rows[1:] for rows in self._gradients])
            self._correct()
        self._clock += 1

    def finish(self, inputs: Tensor, mask: Tensor | None) -> None:
        if self._past is None:
            return
        for place, (weight, bias) in enumerate(self.network.layers(self.weights[0, 0])):
            learned = self._layers[place]
            weight[:, slice(None) if place else self._lit] = learned[:, :-1]
            bias.copy_(learned[:, -1])

    def agreement(self) -> Tensor:
        return torch.full(self.weights.shape[:2], torch.nan, dtype=torch.float64)

    def _correct(self) -> None:
        moments = torch.zeros(1, 1 + self._count, 1 + self._count, dtype=torch.float64)
        for rows in self._gradients:
            spans = rows.transpose(0, 1)  # float32 adds up what goes into one unit, float64 the rest
            moments += torch.bmm(spans, spans.mT).sum(0, dtype=torch.float64)
        multipliers = self._solve(moments[:, 1:, 1:], moments[:, 0, 1:], self._margins)
        factors = functional.pad(multipliers, (1, 0), value=1.0).mul_(-self.methods[0].lr).to(self.weights.dtype)
        for layer, rows in zip(self._layers, self._gradients, strict=True):
            layer.view(1, -1).addmm_(factors, rows.flatten(1))


class _Pass:
    """Sets of samples forward and backward, in the same places every time.

    ``activations`` (sets, in + 1, n) go into the layers, ``deltas`` (sets, out, n) are the derivatives of the sets'
    mean losses by what comes out of them. The samples lie set after set rather than in one matrix, so that a thread
    finds what it goes on with in its own cache.

    Args:
        layers: Weights with the bias as last column, (out, in + 1).
        sets: How many.
        size: Samples in each, n.
    """

    def __init__(self, layers: list[Tensor], sets: int, size: int) -> None:
        self.size, self._layers = size, layers
        self.first = layers[0].new_empty(sets, len(layers[0]), size)  # what the first layer says
        hidden = [layer.new_ones(sets, layer.shape[1], size) for layer in layers[1:]]
        self.activations = [self.first.new_empty(sets, 0, size), *hidden]  # the inputs come later
        self.deltas = [layer.new_empty(sets, len(layer), size) for layer in layers]
        # views, made once
        self._hidden = [activation[:, :-1] for activation in self.activations]
        self._forward = [layer.expand(sets, -1, -1) for layer in layers]
        self._backward = [layer[:, :-1].T.expand(sets, -1, -1) for layer in layers]
        self._minus = self.first.new_full((1, 1, 1), -1.0).expand(sets, 1, size)

    def enter(self, inputs: Tensor) -> None:
        """The first layer of inputs (sets, in + 1, n) that end in ones."""
        self.activations[0] = inputs
        torch.bmm(self._forward[0], inputs, out=self.first)

    def run(self, labels: Tensor, mask: Tensor | None) -> None:
        """All that comes after :meth:`enter`.

        Args:
            labels: (sets, 1, n).
            mask: (sets, classes, n or 1), added to the outputs.
        """
        values = self.first
        for place in range(1, len(self._layers)):
            torch.clamp_min(values, 0, out=self._hidden[place])
            values = torch.bmm(self._forward[place], self.activations[place])
        delta = self.deltas[-1]
        torch.softmax(values if mask is None else values + mask, 1, out=delta)
        delta.scatter_add_(1, labels, self._minus).div_(self.size)
        for place in range(len(self._layers) - 1, 0, -1):
            before = self.deltas[place - 1]
            torch.bmm(self._backward[place], self.deltas[place], out=before)
            torch.ops.aten.threshold_backward.grad_input(before, self._hidden[place], 0, grad_input=before)

    def products(self, other: _Pass, overlap: Tensor) -> Tensor:
        """(other's sets,): the inner products of this one set's gradient with theirs.

        Args:
            other: Other samples through the same layers.
            overlap: ``a_i . a_j`` of the inputs: (other's sets, own n, other's n).
        """
        total = _product(self.deltas[0][0].T, other.deltas[0]).mul_(overlap)
        for place in range(1, len(self._layers)):
            overlap = _product(self.activations[place][0].T, other.activations[place])
            total.addcmul_(_product(self.deltas[place][0].T, other.deltas[place]), overlap)
        return total.sum((1, 2))

    def write(self, gradients: list[Tensor]) -> None:
        """The gradients of the sets' losses, layer by layer: (sets, out, in + 1)."""
        for rows, activation, delta in zip(gradients, self.activations, self.deltas, strict=True):
            torch.bmm(delta, activation.mT, out=rows)

    def descend(self, lr: float) -> None:
        """One step of plain gradient descent on the loss of one set."""
        for layer, activation, delta in zip(self._layers, self.activations, self.deltas, strict=True):
            layer.addmm_(delta[0], activation[0].T, alpha=-lr)


def _product(one: Tensor, many: Tensor) -> Tensor:
    return torch.bmm(one.expand(len(many), -1, -1), many)


def _in_sets(samples: Tensor, sets: int) -> Tensor:
    """(rows, sets n) -> (sets, rows, n)."""
    return samples.view(len(samples), sets, -1).transpose(0, 1)
