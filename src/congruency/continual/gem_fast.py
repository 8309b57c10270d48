"""GEM of one run on a CPU with less arithmetic: memory gradients are computed only when a constraint is violated.

:func:`congruency.continual.run_together` uses it for ``agreement=False``; ``tests/continual/test_gem_fast.py`` compares
it with the learners of one run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from congruency.continual.batched_learners import BatchedConstrainedLearner
from congruency.continual.batched_mlp import BatchedMLP
from congruency.continual.config import LearnerConfig

__all__ = ["FastGEM"]


class FastGEM(BatchedConstrainedLearner):
    """GEM, alone or with DCL, that does not measure the agreement of its updates with the memory.

    A step that violates no constraint uses the batch's gradient g alone; of the memory it needs only the signs of the
    inner products of g with the gradients g_k of all past tasks. With the inputs a of each layer (extended by a 1,
    whose weight is the bias) and the derivatives d by its outputs, for samples i of the batch and j of task k, these
    are

        <g, g_k> = sum_layers sum_i sum_j (d_i . d_j) (a_i . a_j),

    few products, since a batch is small; with the displacement from a reference r they are
    ``<g, r - w> = sum_layers sum_i d_i . (r - w) a_i``. Such a step moves the first layer by the batch's samples alone,
    so that layer's outputs on the memory change by ``-lr sum_i d_i (a_i . a_j)`` and are not recomputed. A step that
    violates a constraint computes all gradients from the activations already available, and corrects as usual.

    During a task the weights are held layer by layer, without those of inputs that are 0 in all of the task and the
    memory, which do not move; :meth:`finish` writes them back.
    """

    def __init__(
        self, network: BatchedMLP, configs: Sequence[LearnerConfig], start: Tensor, seeds: Sequence[int], memory: int
    ) -> None:
        if len(configs) != 1 or len(start) != 1 or start.device.type != "cpu":
            raise ValueError(
                "FastGEM is for one learner and one seed on the CPU, "
                f"got {len(configs)} and {len(start)} on {start.device}"
            )
        if not self.suits(configs[0]):
            raise ValueError(
                "FastGEM is for kinds 'gem' and 'dcl_memory' with trigger 'violated', "
                f"got {configs[0].kind!r} with {configs[0].trigger!r}"
            )
        super().__init__(network, configs, start, seeds, memory)

    @staticmethod
    def suits(config: LearnerConfig) -> bool:
        """Whether this learner computes what ``config`` describes."""
        return config.kind in ("gem", "dcl_memory") and config.trigger == "violated"

    def begin(self, task: int, inputs: Tensor, batch: int) -> None:
        super().begin(task, inputs, batch)
        if self._past is None:
            return
        (past, labels, masks), sets = self._past, self._count
        self._active = torch.maximum(*(x[0].abs().amax(0) for x in (inputs, past))).nonzero().flatten()
        kept, own = (functional.pad(x[0].index_select(1, self._active), (0, 1), value=1.0) for x in (past, inputs))
        self._kept, self._kept_labels = _in_sets(kept.T, sets), labels.view(sets, 1, -1)
        self._masks = None if masks is None else _in_sets(masks[0].T, sets)
        self._batches = own.split(batch)
        # for all batches at once: one large product is faster than many small ones
        self._overlaps = [_in_sets(part, sets) for part in (own @ kept.T).split(batch)]
        (weight, bias), *others = self.network.layers(self.weights[0, 0])
        pairs = [(weight[:, self._active], bias), *others]
        self._layers = [torch.cat([weight, bias.unsqueeze(1)], 1) for weight, bias in pairs]
        # the batch's gradient, the memory's, and r - w for the references r
        self._vectors = [layer.new_zeros(1 + sets + self._references, *layer.shape) for layer in self._layers]
        self._recorded = [layer.new_zeros(self._references, *layer.shape) for layer in self._layers]
        self._own, self._memory_pass = _Pass(self._layers, 1, batch), _Pass(self._layers, sets, self._kept.shape[2])
        self._current = False  # whether the memory pass holds the outputs of the present first layer

    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if self._past is None:
            super().step(inputs, labels, mask)
            return
        batch, overlap = self._batches[self._step], self._overlaps[self._step]
        if self._own.size != len(batch):
            self._own = _Pass(self._layers, 1, len(batch))
        own, past, lr = self._own, self._memory_pass, self.configs[0].lr
        own.enter(batch.T.unsqueeze(0))
        own.run(labels.unsqueeze(0), None if mask is None else mask.unsqueeze(2))
        if not self._current:
            past.enter(self._kept)
        past.run(self._kept_labels, self._masks)
        slopes = torch.cat([own.products(past, overlap), self._displacement_slopes()])
        self._current = not bool((slopes < 0).any())
        if self._current:
            past.first.baddbmm_(own.deltas[0].expand(len(overlap), -1, -1), overlap, alpha=-lr)
            own.descend(lr)
        else:
            own.write([vectors[:1] for vectors in self._vectors])
            past.write([vectors[1 : 1 + self._count] for vectors in self._vectors])
            self._correct_layers()
        self._step += 1

    def _displacement_slopes(self) -> Tensor:
        """Record the references that are due, write ``r - w`` (0 while recording); (references,): ``<g, r - w>``."""
        if not self._references:
            return self.weights.new_zeros(0)
        signs, records = self._signs[self._step, 0], self._records[self._step]
        for vectors, recorded, layer in zip(self._vectors, self._recorded, self._layers, strict=True):
            if records is not None:
                recorded[records[0]] = layer
            torch.sub(recorded, layer, out=vectors[1 + self._count :]).mul_(signs[:, None, None])
        return self._own.slopes([vectors[1 + self._count :] for vectors in self._vectors])

    def finish(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if self._past is None:
            return
        for i, (weight, bias) in enumerate(self.network.layers(self.weights[0, 0])):
            learned = self._layers[i]
            weight[:, slice(None) if i else self._active] = learned[:, :-1]
            bias.copy_(learned[:, -1])

    def agreement(self) -> Tensor:
        return torch.full(self.weights.shape[:2], torch.nan, dtype=torch.float64)

    def _correct_layers(self) -> None:
        products = torch.zeros(1, *2 * (len(self._vectors[0]),), dtype=torch.float64)
        for vectors in self._vectors:
            by_unit = vectors.transpose(0, 1)  # summed in float32 over the inputs of a unit, then in float64
            products += torch.bmm(by_unit, by_unit.mT).sum(0, dtype=torch.float64)
        multipliers = self._solve(products[:, 1:, 1:], products[:, 0, 1:], self._margins)
        factors = functional.pad(multipliers, (1, 0), value=1.0).mul_(-self.configs[0].lr).to(self.weights.dtype)
        for layer, vectors in zip(self._layers, self._vectors, strict=True):
            layer.view(1, -1).addmm_(factors, vectors.flatten(1))


class _Pass:
    """Forward and backward pass of several sets of samples, in buffers that are reused.

    ``activations`` (sets, in + 1, n) are the inputs of the layers, ``deltas`` (sets, out, n) the derivatives of the
    sets' mean losses by their outputs. Sets are separate matrices, so that a thread finds its operands in its cache.

    Args:
        layers: Weights with the bias as last column, (out, in + 1).
        sets: Number of sets.
        size: Samples per set, n.
    """

    def __init__(self, layers: list[Tensor], sets: int, size: int) -> None:
        self.size, self._layers = size, layers
        self.first = layers[0].new_empty(sets, len(layers[0]), size)  # outputs of the first layer
        hidden = [layer.new_ones(sets, layer.shape[1], size) for layer in layers[1:]]
        self.activations = [self.first.new_empty(sets, 0, size), *hidden]  # inputs are set by enter()
        self.deltas = [layer.new_empty(sets, len(layer), size) for layer in layers]
        # views, created once
        self._hidden = [activation[:, :-1] for activation in self.activations]
        self._forward = [layer.expand(sets, -1, -1) for layer in layers]
        self._backward = [layer[:, :-1].T.expand(sets, -1, -1) for layer in layers]
        self._minus = self.first.new_full((1, 1, 1), -1.0).expand(sets, 1, size)

    def enter(self, inputs: Tensor) -> None:
        """Compute the first layer for inputs (sets, in + 1, n) whose last row is ones."""
        self.activations[0] = inputs
        torch.bmm(self._forward[0], inputs, out=self.first)

    def run(self, labels: Tensor, mask: Tensor | None) -> None:
        """Compute everything after :meth:`enter`.

        Args:
            labels: (sets, 1, n).
            mask: (sets, classes, n or 1), added to the outputs.
        """
        values = self.first
        for i in range(1, len(self._layers)):
            torch.clamp_min(values, 0, out=self._hidden[i])
            values = torch.bmm(self._forward[i], self.activations[i])
        delta = self.deltas[-1]
        torch.softmax(values if mask is None else values + mask, 1, out=delta)
        delta.scatter_add_(1, labels, self._minus).div_(self.size)
        for i in range(len(self._layers) - 1, 0, -1):
            before = self.deltas[i - 1]
            torch.bmm(self._backward[i], self.deltas[i], out=before)
            torch.ops.aten.threshold_backward.grad_input(before, self._hidden[i], 0, grad_input=before)

    def products(self, other: _Pass, overlap: Tensor) -> Tensor:
        """(other's sets,): inner products of this single set's gradient with the other sets' gradients.

        Args:
            other: The pass of the other samples.
            overlap: ``a_i . a_j`` of the inputs: (other's sets, own n, other's n).
        """
        total = _product(self.deltas[0][0].T, other.deltas[0]).mul_(overlap)
        for i in range(1, len(self._layers)):
            overlap = _product(self.activations[i][0].T, other.activations[i])
            total.addcmul_(_product(self.deltas[i][0].T, other.deltas[i]), overlap)
        return total.sum((1, 2))

    def slopes(self, vectors: list[Tensor]) -> Tensor:
        """(k,): inner products of this single set's gradient with k vectors, layer by layer (k, out, in + 1)."""
        parts = zip(vectors, self.activations, self.deltas, strict=True)
        return sum((torch.matmul(v, a[0]).mul_(d[0]).sum((1, 2)) for v, a, d in parts), vectors[0].new_zeros(1))

    def write(self, gradients: list[Tensor]) -> None:
        """Write the gradients of the sets' losses, layer by layer: (sets, out, in + 1)."""
        for gradient, activation, delta in zip(gradients, self.activations, self.deltas, strict=True):
            torch.bmm(delta, activation.mT, out=gradient)

    def descend(self, lr: float) -> None:
        """One plain SGD step on the loss of the single set."""
        for layer, activation, delta in zip(self._layers, self.activations, self.deltas, strict=True):
            layer.addmm_(delta[0], activation[0].T, alpha=-lr)


def _product(one: Tensor, many: Tensor) -> Tensor:
    return torch.bmm(one.expand(len(many), -1, -1), many)


def _in_sets(samples: Tensor, sets: int) -> Tensor:
    """(d, sets * n) -> (sets, d, n)."""
    return samples.view(len(samples), sets, -1).transpose(0, 1)
