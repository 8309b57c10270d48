"""Learners on batched networks: S seeds times M learners take every step together.

Each computes what the learner of its kind in :mod:`congruency.continual.learners` computes one run at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from congruency.backends import backend_for
from congruency.continual.batched_mlp import BatchedMLP, gram
from congruency.continual.batched_objectives import Objective
from congruency.continual.config import LearnerConfig


class BatchedLearner(ABC):
    """All seeds of several learners of one kind; ``start`` (S, width) are each seed's initial weights."""

    def __init__(self, network: BatchedMLP, configs: Sequence[LearnerConfig], start: Tensor) -> None:
        self.network = network
        self.configs = tuple(configs)
        self.weights = start.unsqueeze(1).repeat(1, len(configs), 1)
        self._rates = start.new_tensor([config.lr for config in configs])[None, :, None]

    def begin(self, task: int, inputs: Tensor, batch: int) -> None:
        """Start a task of inputs (S, N, in), learned in their order, ``batch`` per step."""

    @abstractmethod
    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        """Take one step on a batch of every seed: inputs (S, n, in), labels (S, n), mask (S, classes)."""

    def remember(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        """Add samples of the task just learned to the memory: inputs (S, n, in), labels (S, n), mask (S, classes)."""

    def finish(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        """End a task; inputs (S, N, in) and labels (S, N) are all of its samples."""

    def restore(self, task: int, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        """Give back the samples of a past task after :meth:`load_state_dict`."""

    def agreement(self) -> Tensor:
        """(S, M) mean cosine between updates and memory gradients over the steps of the task, or nan."""
        return torch.full(self.weights.shape[:2], torch.nan, dtype=torch.float64)

    def state_dict(self) -> dict[str, Tensor]:
        """All that is needed to continue with the next task, except the memory."""
        return {"weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from :meth:`state_dict`."""
        self.weights.copy_(state["weights"])


class BatchedConstrainedLearner(BatchedLearner):
    """SGD on the gradients of an objective, projected by the constraints of GEM, A-GEM, DCL, or DCL with memory.

    The learners share the kind of their objective. They either all have a memory or none has, and either all or none
    are A-GEM, which draws ``memory`` samples per step by the stream's entry of ``seeds``.
    """

    def __init__(
        self, network: BatchedMLP, configs: Sequence[LearnerConfig], start: Tensor, seeds: Sequence[int], memory: int,
        objective: Objective | None = None,
    ) -> None:  # fmt: skip
        super().__init__(network, configs, start)
        self.objective = objective or Objective(network, configs, start, seeds, memory, 1)
        self._has_memory = configs[0].has_episodes
        self._samples_memory = configs[0].constrained_by == "agem"
        self._seeds, self._draw = tuple(seeds), memory
        self._references = max(config.references * config.has_references for config in configs)
        self._memory: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._points = self.weights.new_zeros(*self.weights.shape[:2], self._references, network.width)
        self._violated_only = torch.tensor([c.trigger == "violated" for c in configs], device=start.device)
        self._on_host = start.device.type == "cpu"

    def begin(self, task: int, inputs: Tensor, batch: int) -> None:
        self._step = 0
        self.objective.begin(task, self.weights, inputs)
        self._past = self._joined_memory()
        self._joint: Tensor | None = None
        self._generators = [np.random.RandomState([seed, task]) for seed in self._seeds]
        count = min(1, len(self._memory)) if self._samples_memory else len(self._memory)
        self._rows: Tensor | None = None  # the gradient and the constraints below it, (S, M, 1 + constraints, width)
        self._count = count
        self._signs, self._records = self._schedule(-(-inputs.shape[1] // batch))
        self._margins = self.weights.new_tensor(
            [[c.memory_margin] * count + [c.reference_margin] * self._references for c in self.configs],
            dtype=torch.float64,
        )
        self._solve = backend_for(self.weights.device.type).solve_dual
        self._cosines = torch.zeros(self.weights.shape[:2], dtype=torch.float64, device=self.weights.device)

    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        masks = None if mask is None else mask.unsqueeze(1).expand(-1, inputs.shape[1], -1)
        x, y, z, sizes = self._with_memory(*self.objective.batch((inputs, labels, masks)))
        penalty = self.objective.penalty(self.weights)
        if self._count + self._references == 0:
            self.network.descend(self.weights, x, y, self._rates.unsqueeze(-1), z, self.objective.residual)
            if penalty is not None:
                self.weights.addcmul_(self._rates, penalty, value=-1.0)
        else:
            if self._rows is None:
                rows = 1 + self._count + self._references
                self._rows = self.weights.new_zeros(*self.weights.shape[:2], rows, self.network.width)
            gradients = self._rows[:, :, : 1 + self._count]
            self.network.gradients(self.weights, x, y, gradients, sizes, z, self.objective.residual)
            if penalty is not None:
                self._rows[:, :, 0] += penalty
            if self._references:
                self._write_reference_constraints(self._rows[:, :, 1 + self._count :])
            self._correct(self._rows.flatten(0, 1))
        self._step += 1
        self.objective.observe()

    def _correct(self, rows: Tensor) -> None:
        """One step: row 0 of (S M, 1 + constraints, width) is the gradient, corrected against those below it."""
        count = self._count
        products = gram(rows)
        multipliers = self._multipliers(products)
        if count:
            self._cosines += _agreement(products, multipliers, count).view(self._cosines.shape)
        factors = torch.cat([torch.ones_like(multipliers[:, :1]), multipliers], 1).to(rows.dtype)
        factors *= -self._rates.expand(*self.weights.shape[:2], 1).flatten(0, 1)
        self.weights.flatten(0, 1).unsqueeze(1).baddbmm_(factors.unsqueeze(1), rows)

    def remember(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if self._has_memory:
            self._memory.append((inputs.clone(), labels.clone(), mask))  # not views, which would hold the whole task

    def finish(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        self.objective.finish(self.weights, inputs, labels, mask)

    def restore(self, task: int, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        self.objective.restore(task, inputs, labels, mask)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), **self.objective.state_dict()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.objective.load_state_dict(state)

    def agreement(self) -> Tensor:
        return (self._cosines / max(self._step, 1)).cpu() if self._count else super().agreement()

    def _multipliers(self, products: Tensor) -> Tensor:
        slopes, constraint_gram = products[:, 0, 1:], products[:, 1:, 1:]
        violated = (slopes < 0).any(-1).view(self.weights.shape[:2])
        if self._on_host and not bool((violated | ~self._violated_only).any()):
            return torch.zeros_like(slopes)
        margins = self._margins.expand(self.weights.shape[0], -1, -1).flatten(0, 1)
        multipliers = self._solve(constraint_gram, slopes, margins)
        return torch.where((violated | ~self._violated_only).flatten()[:, None], multipliers, 0.0)

    def _write_reference_constraints(self, out: Tensor) -> None:
        """Record reference points and write their constraints: ``r - w``, negated for the mode ``"anchor"``."""
        now = self.weights.unsqueeze(2)
        signs, records = self._signs[self._step], self._records[self._step]
        if records is not None:
            self._points = torch.where(records[None, :, :, None], now, self._points)
        torch.sub(self._points, now, out=out).mul_(signs[None, :, :, None])

    def _schedule(self, steps: int) -> tuple[Tensor, list[Tensor | None]]:
        """The sign of the reference constraints at each step, 0 while recording, and which points are recorded."""
        signs = np.zeros((steps, len(self.configs), self._references))
        records = np.zeros(signs.shape, dtype=bool)
        for m, config in enumerate(self.configs):
            if not config.has_references:
                continue
            for step in range(config.offset, steps):
                phase = step - config.offset
                phase = phase if config.window is None else phase % config.window
                if phase < config.references:
                    records[step, m, phase] = True
                else:
                    signs[step, m, : config.references] = 1.0 if config.mode == "concentrate" else -1.0
        return (
            torch.from_numpy(signs).to(self.weights),
            [torch.from_numpy(r).to(self.weights.device) if r.any() else None for r in records],
        )

    def _joined_memory(self) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Inputs (S, K n, in), labels (S, K n) and masks (S, K n, classes) of all past tasks, one after the other."""
        if not self._memory:
            return None
        inputs, labels, masks = zip(*self._memory, strict=True)
        if masks[0] is None:
            return torch.cat(inputs, 1), torch.cat(labels, 1), None
        if self._samples_memory:
            raise ValueError("A-GEM draws from all tasks at once, which needs tasks that share their classes")
        size = inputs[0].shape[1]
        return torch.cat(inputs, 1), torch.cat(labels, 1), torch.stack(masks, 1).repeat_interleave(size, 1)

    def _with_memory(
        self, inputs: Tensor, labels: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, list[tuple[int, int]]]:
        """A batch and the memory side by side, and the sizes of their sets: one forward pass serves both."""
        sizes = [(1, inputs.shape[1])]
        if self._past is None:
            return inputs, labels, masks, sizes
        past = self._sampled_memory() if self._samples_memory else self._past
        sizes.append((self._count, past[0].shape[1] // self._count))
        if past[2] is not None:  # an objective that applies the masks of its samples itself gives none
            own = past[2].new_zeros(*labels.shape, past[2].shape[-1]) if masks is None else masks
            masks = torch.cat([own, past[2]], 1)
        if self._joint is None or self._joint.shape[1] != inputs.shape[1] + past[0].shape[1]:
            self._joint = torch.cat([inputs, past[0]], 1)
        else:  # the memory is in place already
            self._joint[:, : inputs.shape[1]] = inputs
            if self._samples_memory:
                self._joint[:, inputs.shape[1] :] = past[0]
        return self._joint, torch.cat([labels, past[1]], 1), masks, sizes

    def _sampled_memory(self) -> tuple[Tensor, Tensor, None]:
        """A-GEM's sample of the memory, a new one at every step."""
        assert self._past is not None
        inputs, labels, _ = self._past
        drawn = np.stack([generator.randint(inputs.shape[1], size=self._draw) for generator in self._generators])
        indices = torch.from_numpy(drawn).to(inputs.device)
        seed = torch.arange(len(drawn), device=inputs.device)[:, None]
        return inputs[seed, indices], labels[seed, indices], None


class BatchedJointLearner(BatchedLearner):
    """The upper bound: after each task a new network, one epoch over the samples of all tasks so far, shuffled."""

    def __init__(
        self, network: BatchedMLP, configs: Sequence[LearnerConfig], start: Tensor, seeds: Sequence[int]
    ) -> None:
        super().__init__(network, configs, start)
        self._start, self._seeds = self.weights.clone(), tuple(seeds)
        self._samples: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def begin(self, task: int, inputs: Tensor, batch: int) -> None:
        self._task, self._batch = task, batch

    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        """Nothing: :meth:`finish` learns."""

    def finish(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        self.restore(self._task, inputs, labels, mask)
        xs, ys, masks = zip(*self._samples, strict=True)
        x, y = torch.cat(xs, 1), torch.cat(ys, 1)
        z = None if mask is None else torch.cat(masks, 1)
        orders = [np.random.RandomState([seed, self._task]).permutation(x.shape[1]) for seed in self._seeds]
        index = torch.arange(len(x), device=x.device)[:, None]
        self.weights.copy_(self._start)
        for part in torch.from_numpy(np.stack(orders)).to(x.device).split(self._batch, 1):
            own = None if z is None else z[index, part]
            self.network.descend(self.weights, x[index, part], y[index, part], self._rates.unsqueeze(-1), own)

    def restore(self, task: int, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        masks = None if mask is None else mask.unsqueeze(1).expand(-1, inputs.shape[1], -1)
        self._samples.append((inputs, labels, masks))


def _agreement(products: Tensor, multipliers: Tensor, count: int) -> Tensor:
    """(b,): mean cosine between the update and the first ``count`` constraints; zero constraints are left out."""
    slopes, constraint_gram = products[:, 0, 1:], products[:, 1:, 1:]
    updated = slopes + (constraint_gram @ multipliers.unsqueeze(-1)).squeeze(-1)
    length2 = products[:, 0, 0] + (multipliers * (slopes + updated)).sum(-1)
    norms = (constraint_gram.diagonal(dim1=-2, dim2=-1)[:, :count] * length2.clamp(min=0)[:, None]).sqrt()
    cosines = updated[:, :count] / norms
    return torch.where(norms > 0, cosines, torch.nan).nanmean(-1).nan_to_num(0.0)
