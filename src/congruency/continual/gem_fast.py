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

_FEW = 0.4  # share of nonzero entries up to which products with a sparse matrix are faster; dense ones win above 0.55
_SPARSE = {torch.float32} if "fbgemm" in torch.backends.quantized.supported_engines else set()
"""Types whose sparse products are compiled; others are summed entry by entry."""


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

    Most pixels of digits are 0, so that the products with the memory's inputs, the largest ones, are sparse. During a
    task the weights are held layer by layer; :meth:`finish` writes them back.
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
        self._kept: list[tuple[Matrix, Matrix]] = []  # the samples of each past task by sample, and by input

    @staticmethod
    def suits(config: LearnerConfig) -> bool:
        """Whether this learner computes what ``config`` describes."""
        return config.kind in ("gem", "dcl_memory") and config.trigger == "violated"

    def remember(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        super().remember(inputs, labels, mask)
        samples = _with_ones(inputs[0])
        self._kept.append((_matrix(samples), _matrix(samples.T)))

    def begin(self, task: int, inputs: Tensor, batch: int) -> None:
        super().begin(task, inputs, batch)
        if self._past is None:
            return
        (past, labels, masks), sets = self._past, self._count
        own, tasks = _with_ones(inputs[0]), _with_ones(past[0]).view(sets, -1, past.shape[2] + 1)
        self._past_labels = labels.view(sets, 1, -1)
        self._masks = None if masks is None else masks[0].unflatten(0, (sets, -1)).mT
        self._batches, by_sample = own.split(batch), _matrix(own)
        # for all batches at once: one large product is faster than many small ones
        self._overlaps = torch.stack([by_sample @ kept.T.contiguous() for kept in tasks]).split(batch, 1)
        pairs = self.network.layers(self.weights[0, 0])
        self._layers = [torch.cat([weight.T, bias.unsqueeze(0)]) for weight, bias in pairs]
        # the batch's gradient, the memory's, and r - w for the references r
        self._vectors = [layer.new_zeros(1 + sets + self._references, *layer.shape) for layer in self._layers]
        self._recorded = [layer.new_zeros(self._references, *layer.shape) for layer in self._layers]
        self._own, self._memory_pass = _Pass(self._layers, 1, batch), _Pass(self._layers, sets, tasks.shape[1])
        self._current = False  # whether the memory pass holds the outputs of the present first layer

    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if self._past is None:
            super().step(inputs, labels, mask)
            return
        batch, overlap = self._batches[self._step], self._overlaps[self._step]
        if self._own.size != len(batch):
            self._own = _Pass(self._layers, 1, len(batch))
        own, past, lr = self._own, self._memory_pass, self.configs[0].lr
        own.enter([(batch, batch.T)])
        own.run(labels.unsqueeze(0), None if mask is None else mask.unsqueeze(2))
        if not self._current:
            past.enter(self._kept)
        past.run(self._past_labels, self._masks)
        slopes = own.products(past, overlap)
        if self._references:
            slopes = torch.cat([slopes, self._displacement_slopes(batch)])
        self._current = not bool((slopes < 0).any())
        if self._current:
            past.first.baddbmm_(own.deltas[0].expand(len(overlap), -1, -1), overlap, alpha=-lr)
            own.descend(batch, lr)
        else:
            own.write([vectors[:1] for vectors in self._vectors])
            past.write([vectors[1 : 1 + self._count] for vectors in self._vectors])
            self._correct_layers()
        self._step += 1

    def _displacement_slopes(self, batch: Tensor) -> Tensor:
        """Record the references that are due, write ``r - w`` (0 while recording); (references,): ``<g, r - w>``."""
        signs, records = self._signs[self._step, 0], self._records[self._step]
        for vectors, recorded, layer in zip(self._vectors, self._recorded, self._layers, strict=True):
            if records is not None:
                recorded[records[0]] = layer
            torch.sub(recorded, layer, out=vectors[1 + self._count :]).mul_(signs[:, None, None])
        return self._own.slopes(batch, [vectors[1 + self._count :] for vectors in self._vectors])

    def finish(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if self._past is None:
            return
        for (weight, bias), learned in zip(self.network.layers(self.weights[0, 0]), self._layers, strict=True):
            weight.copy_(learned[:-1].T)
            bias.copy_(learned[-1])

    def agreement(self) -> Tensor:
        return torch.full(self.weights.shape[:2], torch.nan, dtype=torch.float64)

    def _correct_layers(self) -> None:
        products = torch.zeros(1, *2 * (len(self._vectors[0]),), dtype=torch.float64)
        for vectors in self._vectors:
            spans = vectors.view(len(vectors), vectors.shape[2], -1).transpose(0, 1)
            products += torch.bmm(spans, spans.mT).sum(0, dtype=torch.float64)  # within a span in float32
        multipliers = self._solve(products[:, 1:, 1:], products[:, 0, 1:], self._margins)
        factors = functional.pad(multipliers, (1, 0), value=1.0).mul_(-self.configs[0].lr).to(self.weights.dtype)
        for layer, vectors in zip(self._layers, self._vectors, strict=True):
            layer.view(1, -1).addmm_(factors, vectors.flatten(1))


class _Sparse:
    """A matrix (rows, columns) with few nonzero entries, in the order of its rows."""

    def __init__(self, matrix: Tensor) -> None:
        entries = matrix.flatten()
        places = (entries != 0).nonzero().squeeze(1)
        rows, columns = matrix.shape
        self._values, self._columns = entries[places], places % columns
        self._starts = torch.searchsorted(places, torch.arange(0, rows * columns, columns))

    def __matmul__(self, dense: Tensor) -> Tensor:
        return functional.embedding_bag(
            self._columns, dense.contiguous(), self._starts, mode="sum", per_sample_weights=self._values
        )


Matrix = Tensor | _Sparse


def _matrix(dense: Tensor) -> Matrix:
    """The matrix in the form whose products are faster."""
    few = dense.dtype in _SPARSE and dense.count_nonzero() <= _FEW * dense.numel()
    return _Sparse(dense) if few else dense


def _with_ones(samples: Tensor) -> Tensor:
    """(n, in) -> (n, in + 1)."""
    return functional.pad(samples, (0, 1), value=1.0)


class _Pass:
    """Forward and backward pass of several sets of samples, in buffers that are reused.

    ``activations`` (sets, in + 1, n) are the inputs of the layers after the first, ``deltas`` (sets, out, n) the
    derivatives of the sets' mean losses by the outputs of all. Sets are separate matrices, so that a thread finds its
    operands in its cache.

    Args:
        layers: Weights with the bias as last row, (in + 1, out).
        sets: Number of sets.
        size: Samples per set, n.
    """

    def __init__(self, layers: list[Tensor], sets: int, size: int) -> None:
        self.size, self._layers = size, layers
        self.first = layers[0].new_empty(sets, layers[0].shape[1], size)  # outputs of the first layer
        self.activations = [layer.new_ones(sets, len(layer), size) for layer in layers[1:]]
        self.deltas = [layer.new_empty(sets, layer.shape[1], size) for layer in layers]
        # views, created once
        self._hidden = [activation[:, :-1] for activation in self.activations]
        self._forward = [layer.T.expand(sets, -1, -1) for layer in layers[1:]]
        self._backward = [layer[:-1].expand(sets, -1, -1) for layer in layers[1:]]
        self._minus = self.first.new_full((1, 1, 1), -1.0).expand(sets, 1, size)

    def enter(self, sets: Sequence[tuple[Matrix, Matrix]]) -> None:
        """Compute the first layer for the inputs of each set, (n, in + 1) and transposed, the last input 1."""
        self._inputs = sets
        for first, (by_sample, _) in zip(self.first, sets, strict=True):
            first.copy_((by_sample @ self._layers[0]).T)

    def run(self, labels: Tensor, mask: Tensor | None) -> None:
        """Compute everything after :meth:`enter`.

        Args:
            labels: (sets, 1, n).
            mask: (sets, classes, n or 1), added to the outputs.
        """
        values = self.first
        for forward, activation, hidden in zip(self._forward, self.activations, self._hidden, strict=True):
            torch.clamp_min(values, 0, out=hidden)
            values = torch.bmm(forward, activation)
        delta = self.deltas[-1]
        torch.softmax(values if mask is None else values + mask, 1, out=delta)
        delta.scatter_add_(1, labels, self._minus).div_(self.size)
        for i in range(len(self._backward) - 1, -1, -1):
            before = self.deltas[i]
            torch.bmm(self._backward[i], self.deltas[i + 1], out=before)
            torch.ops.aten.threshold_backward.grad_input(before, self._hidden[i], 0, grad_input=before)

    def products(self, other: _Pass, overlap: Tensor) -> Tensor:
        """(other's sets,): inner products of this single set's gradient with the other sets' gradients.

        Args:
            other: The pass of the other samples.
            overlap: ``a_i . a_j`` of the inputs: (other's sets, own n, other's n).
        """
        total = _product(self.deltas[0], other.deltas[0]).mul_(overlap)
        pairs = zip(self.activations, other.activations, self.deltas[1:], other.deltas[1:], strict=True)
        for own, others, delta, of_others in pairs:
            total.addcmul_(_product(delta, of_others), _product(own, others))
        return total.sum((1, 2))

    def slopes(self, batch: Tensor, vectors: list[Tensor]) -> Tensor:
        """(k,): inner products of this single set's gradient with k vectors, layer by layer (k, in + 1, out)."""
        total = vectors[0].new_zeros(1)
        for of_layer, inputs, delta in zip(vectors, self._of_layers(batch), self.deltas, strict=True):
            total = total + torch.matmul(inputs.T, of_layer).mul_(delta[0].T).sum((1, 2))
        return total

    def write(self, gradients: list[Tensor]) -> None:
        """Write the gradients of the sets' losses, layer by layer: (sets, in + 1, out)."""
        for gradient, (_, by_input), delta in zip(gradients[0], self._inputs, self.deltas[0], strict=True):
            gradient.copy_(by_input @ delta.T)
        for of_layer, activation, delta in zip(gradients[1:], self.activations, self.deltas[1:], strict=True):
            torch.bmm(activation, delta.mT, out=of_layer)

    def descend(self, batch: Tensor, lr: float) -> None:
        """One plain SGD step on the loss of the single set."""
        for layer, inputs, delta in zip(self._layers, self._of_layers(batch), self.deltas, strict=True):
            layer.addmm_(inputs, delta[0].T, alpha=-lr)

    def _of_layers(self, batch: Tensor) -> list[Tensor]:
        """The inputs (in + 1, n) of every layer for a single set (n, in + 1)."""
        return [batch.T, *(activation[0] for activation in self.activations)]


def _product(one: Tensor, many: Tensor) -> Tensor:
    """(1, d, n), (sets, d, m) -> (sets, n, m)."""
    return torch.bmm(one.mT.expand(len(many), -1, -1), many)
