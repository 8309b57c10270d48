"""The learners on stacked networks: S seeds times M methods take every step together.

Each does what the learner of the same name in :mod:`congruency.continual.learners` does one run at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from congruency.backends import backend_for
from congruency.continual.methods import Method
from congruency.continual.stacked import StackedMLP, inner_products

__all__ = ["Consolidating", "Constrained", "StackedLearner"]


class StackedLearner(ABC):
    """All seeds of some methods of one kind.

    Args:
        network: The shape of the networks.
        methods: One for each run of a seed.
        start: (S, width), the first weights of every seed, shared by its methods.
    """

    def __init__(self, network: StackedMLP, methods: Sequence[Method], start: Tensor) -> None:
        self.network = network
        self.methods = tuple(methods)
        self.weights = start.unsqueeze(1).repeat(1, len(methods), 1)
        self._rates = start.new_tensor([method.lr for method in methods])[None, :, None]

    def begin(self, task: int, inputs: Tensor, batch: int) -> None:
        """A task begins, which learns inputs (S, N, in) in their order, ``batch`` of them in a step."""

    @abstractmethod
    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        """Learn one batch of every seed: inputs (S, n, in), labels (S, n), mask (S, classes)."""

    def remember(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        """Keep samples of the task just learned: inputs (S, n, in), labels (S, n), mask (S, classes)."""

    def finish(self, inputs: Tensor, mask: Tensor | None) -> None:
        """A task is over; inputs (S, N, in) are all it had."""

    def agreement(self) -> Tensor:
        """(S, M) mean cosine between updates and memory gradients over the steps since the task began, or nan."""
        return torch.full(self.weights.shape[:2], torch.nan, dtype=torch.float64)

    def state_dict(self) -> dict[str, Tensor]:
        """All that is needed to go on at the next task, but for what was remembered."""
        return {"weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state at a task boundary."""
        self.weights.copy_(state["weights"])


class Consolidating(StackedLearner):
    """EWC: a quadratic penalty holds each weight to where past tasks left it, by its Fisher information.

    The penalty ``strength/2 sum_k F_k (w - w_k)^2`` needs only ``sum_k F_k`` and ``sum_k F_k w_k``.
    """

    def __init__(self, network: StackedMLP, methods: Sequence[Method], start: Tensor) -> None:
        super().__init__(network, methods, start)
        self._strengths = start.new_tensor([method.strength for method in methods])[None, :, None]
        self._stiffness, self._pull = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self._buffer = torch.zeros_like(self.weights).unsqueeze(2)

    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        spread = None if mask is None else mask.unsqueeze(1).expand(-1, inputs.shape[1], -1)
        sizes = [(1, inputs.shape[1])]
        self.network.gradients(self.weights, inputs, labels, self._buffer, sizes, spread)
        penalty = self._strengths * (self._stiffness * self.weights - self._pull)
        self.weights -= self._rates * (self._buffer.squeeze(2) + penalty)

    def finish(self, inputs: Tensor, mask: Tensor | None) -> None:
        fisher = self.network.squared_gradients(self.weights, inputs, mask)
        self._stiffness += fisher
        self._pull += fisher * self.weights

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "stiffness": self._stiffness, "pull": self._pull}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._stiffness.copy_(state["stiffness"])
        self._pull.copy_(state["pull"])


class Constrained(StackedLearner):
    """Plain SGD, GEM, A-GEM, DCL and DCL with memory: SGD on gradients corrected against rows.

    The methods are all with memory or all without, and all of them A-GEM or none.
    """

    def __init__(
        self, network: StackedMLP, methods: Sequence[Method], start: Tensor, seeds: Sequence[int], sample: int
    ) -> None:
        super().__init__(network, methods, start)
        self._has_memory = methods[0].has_memory
        self._averages = methods[0].kind == "agem"
        self._seeds, self._sample = tuple(seeds), sample
        self._most = max(method.references * method.has_references for method in methods)
        self._memory: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._points = self.weights.new_zeros(*self.weights.shape[:2], self._most, network.width)
        self._violated_only = torch.tensor([m.trigger == "violated" for m in methods], device=start.device)
        self._on_host = start.device.type == "cpu"

    def begin(self, task: int, inputs: Tensor, batch: int) -> None:
        self._clock = 0
        self._past = self._joined_memory()
        self._joint: Tensor | None = None
        self._drawn = [np.random.RandomState([seed, task]) for seed in self._seeds]
        count = min(1, len(self._memory)) if self._averages else len(self._memory)
        self._rows = self.weights.new_zeros(*self.weights.shape[:2], 1 + count + self._most, self.network.width)
        self._count = count
        self._signs, self._records = self._timetable(-(-inputs.shape[1] // batch))
        self._margins = self.weights.new_tensor(
            [[m.memory_margin] * count + [m.reference_margin] * self._most for m in self.methods], dtype=torch.float64
        )
        self._solve = backend_for(self.weights.device.type).solve_dual
        self._cosines = torch.zeros(self.weights.shape[:2], dtype=torch.float64, device=self.weights.device)

    def step(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        rows, count = self._rows, self._count
        x, y, z, sizes = self._with_memory(inputs, labels, mask)
        self.network.gradients(self.weights, x, y, rows[:, :, : 1 + count], sizes, z)
        if self._most:
            self._refer()
        self._clock += 1
        if rows.shape[2] == 1:
            self.weights -= self._rates * rows[:, :, 0]
        else:
            self._correct()

    def _correct(self) -> None:
        """One step by the gradients in the first rows, corrected against the rows below."""
        flat, count = self._rows.flatten(0, 1), self._count
        moments = inner_products(flat)
        multipliers = self._multipliers(moments)
        if count:
            self._cosines += _agreement(moments, multipliers, count).view(self._cosines.shape)
        factors = torch.cat([torch.ones_like(multipliers[:, :1]), multipliers], 1).to(flat.dtype)
        factors *= -self._rates.expand(*self.weights.shape[:2], 1).flatten(0, 1)
        self.weights.flatten(0, 1).unsqueeze(1).baddbmm_(factors.unsqueeze(1), flat)

    def remember(self, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if self._has_memory:
            self._memory.append((inputs, labels, mask))

    def agreement(self) -> Tensor:
        return (self._cosines / max(self._clock, 1)).cpu() if self._count else super().agreement()

    def _multipliers(self, moments: Tensor) -> Tensor:
        products, gram = moments[:, 0, 1:], moments[:, 1:, 1:]
        violated = (products < 0).any(-1).view(self.weights.shape[:2])
        if self._on_host and not bool((violated | ~self._violated_only).any()):
            return torch.zeros_like(products)
        margins = self._margins.expand(self.weights.shape[0], -1, -1).flatten(0, 1)
        multipliers = self._solve(gram, products, margins)
        return torch.where((violated | ~self._violated_only).flatten()[:, None], multipliers, 0.0)

    def _refer(self) -> None:
        """Record and write the rows of the reference points: ``r - w``, turned about for the mode ``"anchor"``."""
        now = self.weights.unsqueeze(2)
        signs, records = self._signs[self._clock], self._records[self._clock]
        if records is not None:
            self._points = torch.where(records[None, :, :, None], now, self._points)
        torch.sub(self._points, now, out=self._rows[:, :, 1 + self._count :]).mul_(signs[None, :, :, None])

    def _timetable(self, steps: int) -> tuple[Tensor, list[Tensor | None]]:
        """For each step what the reference rows are multiplied by, 0 where idle, and which points are recorded."""
        signs = np.zeros((steps, len(self.methods), self._most))
        records = np.zeros(signs.shape, dtype=bool)
        for m, method in enumerate(self.methods):
            if not method.has_references:
                continue
            for step in range(method.offset, steps):
                phase = step - method.offset
                phase = phase if method.window is None else phase % method.window
                if phase < method.references:
                    records[step, m, phase] = True
                else:
                    signs[step, m, : method.references] = 1.0 if method.mode == "concentrate" else -1.0
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
        if self._averages:
            raise ValueError("A-GEM draws from all tasks at once, which needs tasks that share their classes")
        size = inputs[0].shape[1]
        return torch.cat(inputs, 1), torch.cat(labels, 1), torch.stack(masks, 1).repeat_interleave(size, 1)

    def _with_memory(
        self, inputs: Tensor, labels: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, list[tuple[int, int]]]:
        """A batch and what is remembered side by side, and how they fall into sets: one forward pass serves both."""
        spread = None if mask is None else mask.unsqueeze(1).expand(-1, inputs.shape[1], -1)
        sizes = [(1, inputs.shape[1])]
        if self._past is None:
            return inputs, labels, spread, sizes
        past = self._drawn_memory() if self._averages else self._past
        sizes.append((self._count, past[0].shape[1] // self._count))
        masks = None if past[2] is None or spread is None else torch.cat([spread, past[2]], 1)
        if self._joint is None or self._joint.shape[1] != inputs.shape[1] + past[0].shape[1]:
            self._joint = torch.cat([inputs, past[0]], 1)
        else:  # what is remembered is there already
            self._joint[:, : inputs.shape[1]] = inputs
            if self._averages:
                self._joint[:, inputs.shape[1] :] = past[0]
        return self._joint, torch.cat([labels, past[1]], 1), masks, sizes

    def _drawn_memory(self) -> tuple[Tensor, Tensor, None]:
        """A-GEM's draw from all that is remembered, anew at every step."""
        assert self._past is not None
        inputs, labels, _ = self._past
        drawn = np.stack([state.randint(inputs.shape[1], size=self._sample) for state in self._drawn])
        places = torch.from_numpy(drawn).to(inputs.device)
        seed = torch.arange(len(drawn), device=inputs.device)[:, None]
        return inputs[seed, places], labels[seed, places], None


def _agreement(moments: Tensor, multipliers: Tensor, count: int) -> Tensor:
    """(b,): mean cosine between the update and the first ``count`` rows; a row of length 0 is left out."""
    products, gram = moments[:, 0, 1:], moments[:, 1:, 1:]
    turned = (gram @ multipliers.unsqueeze(-1)).squeeze(-1)
    updated = products + turned
    length2 = moments[:, 0, 0] + (multipliers * (products + updated)).sum(-1)
    norms = (gram.diagonal(dim1=-2, dim2=-1)[:, :count] * length2.clamp(min=0)[:, None]).sqrt()
    cosines = updated[:, :count] / norms
    return torch.where(norms > 0, cosines, torch.nan).nanmean(-1).nan_to_num(0.0)
