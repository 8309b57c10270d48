"""The losses of batched learners, by their derivatives: cross entropy, replayed samples, distillation, penalties.

Each is the loss of the learner of its kind in :mod:`congruency.continual.learners`, for S seeds and M learners at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from congruency.continual.batched_mlp import BatchedMLP
from congruency.continual.config import Kind, LearnerConfig
from congruency.continual.replay import Places, ReplaySlots

__all__ = ["OBJECTIVES", "Batch", "Objective"]

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Inputs (S, n, in), labels (S, n), masks (S, n, classes) or None."""


class Objective:
    """The mean cross entropy of the batch; ``start`` (S, width) are the initial weights, ``size`` samples a memory."""

    def __init__(
        self, network: BatchedMLP, configs: Sequence[LearnerConfig], start: Tensor, seeds: Sequence[int], size: int,
        tasks: int,
    ) -> None:  # fmt: skip
        self.network, self.configs, self.start, self.seeds = network, tuple(configs), start, tuple(seeds)
        self.size, self.tasks = size, tasks
        self.prepare()

    def prepare(self) -> None:
        """Make what the loss keeps from step to step."""

    def per_learner(self, name: str) -> Tensor:
        """(1, M, 1, 1): a setting of every learner."""
        return self.start.new_tensor([getattr(config, name) for config in self.configs])[None, :, None, None]

    def begin(self, task: int, weights: Tensor, inputs: Tensor) -> None:
        """Start a task of inputs (S, N, in); weights (S, M, width)."""

    def batch(self, batch: Batch) -> Batch:
        """The samples that the loss is computed on, those of the batch first."""
        return batch

    def residual(self, outputs: Tensor) -> Tensor | None:
        """The derivative of the loss by the outputs (S, M, classes, n); None for the mean cross entropy of all n."""
        return None

    def penalty(self, weights: Tensor) -> Tensor | None:
        """The gradient of a term that depends on the weights alone, (S, M, width)."""
        return None

    def observe(self) -> None:
        """After the step."""

    def finish(self, weights: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        """End a task: all of its samples, mask (S, classes)."""

    def restore(self, task: int, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        """Give back the samples of a past task after :meth:`load_state_dict`."""

    def state_dict(self) -> dict[str, Tensor]:
        """All that is needed to continue with the next task, except samples."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from :meth:`state_dict`."""


class EWC(Objective):
    """EWC: the penalty ``strength/2 sum_k F_k (w - w_k)^2``, from ``sum_k F_k`` and ``sum_k F_k w_k``."""

    def prepare(self) -> None:
        self._strengths = self.per_learner("strength").squeeze(-1)
        self._importance = self.start.new_zeros(len(self.start), len(self.configs), self.network.width)
        self._pull = torch.zeros_like(self._importance)

    def penalty(self, weights: Tensor) -> Tensor:
        return self._strengths * (self._importance * weights - self._pull)

    def finish(self, weights: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        fisher = self.network.fisher_diagonal(weights, inputs, mask)
        self._importance += fisher
        self._pull += fisher * weights

    def state_dict(self) -> dict[str, Tensor]:
        return {"stiffness": self._importance, "pull": self._pull}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._importance.copy_(state["stiffness"])
        self._pull.copy_(state["pull"])


class MAS(EWC):
    """MAS: the penalty ``strength sum_k O_k (w - w')^2``, w' the weights after the latest task."""

    def finish(self, weights: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        self._importance += 2 * self.network.output_sensitivity(weights, inputs, mask)
        self._pull = self._importance * weights


class ER(Objective):
    """ER: the mean cross entropy over the batch and as many samples of a memory, which the learners of a seed share."""

    draws = 1  # per step

    def prepare(self) -> None:
        replay, order = self.configs[0].replay, self.configs[0].replay_order
        self._slots = [ReplaySlots(self.size, self.tasks, replay, seed, order) for seed in self.seeds]
        self._samples: tuple[Tensor, ...] = ()  # inputs, labels and, where tasks have masks, masks: (S, slots, ...)
        self._now: Batch | None = None
        self._drawn: list[Tensor] = []
        self._seed = self._slot = self._sample = torch.empty(0, dtype=torch.int64)  # of the samples kept last

    def begin(self, task: int, weights: Tensor, inputs: Tensor) -> None:
        for slots in self._slots:
            slots.begin(task)

    def batch(self, batch: Batch) -> Batch:
        self._now = batch
        parts = [batch, *(self._replayed(batch[0].shape[1]) for _ in range(self.draws))]
        found = [part for part in parts if part is not None]
        masks = None if batch[2] is None else torch.cat([part[2] for part in found if part[2] is not None], 1)
        return torch.cat([part[0] for part in found], 1), torch.cat([part[1] for part in found], 1), masks

    def _replayed(self, count: int) -> Batch | None:
        found = [slots.draw(count) for slots in self._slots]
        drawn = [each for each in found if each is not None]
        if not drawn:
            return None
        indices = torch.from_numpy(np.array(drawn)).to(self.start.device)
        self._drawn.append(indices)
        places = (self._seed_index * len(self._slots[0].owners) + indices).flatten()
        samples = (kept.flatten(0, 1).index_select(0, places).unflatten(0, indices.shape) for kept in self._samples)
        inputs, labels, *masks = samples
        return inputs, labels, masks[0] if masks else None

    @property
    def _seed_index(self) -> Tensor:
        return torch.arange(len(self.seeds), device=self.start.device)[:, None]

    def observe(self) -> None:
        assert self._now is not None
        self._keep([slots.observe(self._now[0].shape[1]) for slots in self._slots], *self._now)
        self._drawn = []

    def finish(self, weights: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        masks = None if mask is None else mask.unsqueeze(1).expand(-1, inputs.shape[1], -1)
        self._keep([slots.finish() for slots in self._slots], inputs, labels, masks)

    def restore(self, task: int, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        masks = None if mask is None else mask.unsqueeze(1).expand(-1, inputs.shape[1], -1)
        found = [(slots, (slots.owners == task).nonzero()[0]) for slots in self._slots]
        places = [(own.tolist(), slots.offsets[own].tolist()) for slots, own in found]
        self._keep(places, inputs, labels, masks)

    def _keep(self, places: Sequence[Places], inputs: Tensor, labels: Tensor, masks: Tensor | None) -> None:
        """Put each seed's samples into its slots, those of all seeds at once."""
        new = [inputs, labels] if masks is None else [inputs, labels, masks]
        if not self._samples:
            count = len(self._slots[0].owners)
            self._samples = tuple(v.new_zeros(len(self.seeds), count, *v.shape[2:]) for v in new)
        triples = [(s, *pair) for s, place in enumerate(places) for pair in zip(*place, strict=True)]
        if not triples:
            return
        self._seed, self._slot, self._sample = torch.tensor(triples, device=self.start.device).unbind(1)
        for kept, values in zip(self._samples, new, strict=True):
            kept[self._seed, self._slot] = values[self._seed, self._sample]

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "owners": torch.from_numpy(np.stack([slots.owners for slots in self._slots])),
            "offsets": torch.from_numpy(np.stack([slots.offsets for slots in self._slots])),
            "seen": torch.tensor([slots.seen for slots in self._slots]),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for s, slots in enumerate(self._slots):
            slots.load(state["owners"][s].numpy(), state["offsets"][s].numpy(), int(state["seen"][s]))


class DER(ER):
    """DER: cross entropy of the batch, and ``alpha |h(x) - z|^2 / C`` of replayed samples with their stored outputs z.

    The network's masks are applied here, since the outputs are compared without them.
    """

    def prepare(self) -> None:
        super().prepare()
        runs, classes = (len(self.start), len(self.configs)), self.network.shapes[-1][0]
        self._stored = self.start.new_zeros(*runs, self.size * self.tasks, classes)
        self._outputs = self.start.new_zeros(0)
        self._alpha, self._beta = self.per_learner("strength"), self.per_learner("beta")

    def batch(self, batch: Batch) -> Batch:
        inputs, labels, masks = super().batch(batch)
        self._labels, self._masks = labels, masks
        return inputs, labels, None

    def residual(self, outputs: Tensor) -> Tensor:
        count = outputs.shape[-1] // (1 + len(self._drawn))
        own, *again = outputs.split(count, -1)
        self._outputs = own.mT.clone()
        masks = None if self._masks is None else self._masks.mT.unsqueeze(1)
        labels = self._labels.split(count, 1)
        found = [cross_entropy_residual(own, labels[0], None if masks is None else masks[..., :count])]
        if again:
            seed, learner = self._seed_index[:, None], torch.arange(len(self.configs), device=outputs.device)[:, None]
            wanted = self._stored[seed, learner, self._drawn[0][:, None]].mT
            found.append(self._alpha * 2 * (again[0] - wanted) / (count * outputs.shape[-2]))
        if len(again) > 1:
            of_draw = None if masks is None else masks[..., 2 * count :]
            found.append(self._beta * cross_entropy_residual(again[1], labels[2], of_draw))
        return torch.cat(found, -1)

    def observe(self) -> None:
        self._seed = self._seed[:0]
        super().observe()
        if len(self._seed):
            self._stored[self._seed, :, self._slot] = self._outputs[self._seed, :, self._sample]

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "outputs": self._stored}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._stored.copy_(state["outputs"])


class DERPP(DER):
    """DER++: DER, and ``beta`` times the cross entropy of a second draw."""

    draws = 2


class LwF(Objective):
    """LwF: cross entropy, and ``strength KL(p' | p)`` for every head, p' by the weights from before the task."""

    def prepare(self) -> None:
        self._strengths, self._temperatures = self.per_learner("strength"), self.per_learner("temperature")
        self._heads = self.start.new_zeros(0, len(self.start), self.network.shapes[-1][0])  # masks (heads, S, classes)
        self._before = self.start.new_zeros(0)

    def begin(self, task: int, weights: Tensor, inputs: Tensor) -> None:
        self._position = 0
        if len(self._heads):
            self._before = self.network.logits(weights, inputs).mT.clone()  # (S, M, classes, N)

    def batch(self, batch: Batch) -> Batch:
        self._labels, self._masks = batch[1:]
        return batch[0], batch[1], None

    def residual(self, outputs: Tensor) -> Tensor:
        count = outputs.shape[-1]
        found = cross_entropy_residual(outputs, self._labels, None if self._masks is None else self._masks.mT[:, None])
        for head in self._heads:
            mask, before = head[:, None, :, None], self._before[..., self._position : self._position + count]
            new, old = ((z / self._temperatures + mask).softmax(-2) for z in (outputs, before))
            found += self._strengths / (self._temperatures * count) * (new - old)
        self._position += count
        return found

    def finish(self, weights: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if mask is not None:
            self._heads = torch.cat([self._heads, mask.unsqueeze(0)])
            return
        seen = self._heads if len(self._heads) else self._heads.new_full((1, *self._heads.shape[1:]), -math.inf)
        self._heads = seen.scatter(-1, labels.unsqueeze(0), 0.0)

    def state_dict(self) -> dict[str, Tensor]:
        return {"heads": self._heads}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._heads = state["heads"].to(self._heads)


def cross_entropy_residual(outputs: Tensor, labels: Tensor, masks: Tensor | None) -> Tensor:
    """``(softmax(z + mask) - onehot(y)) / n`` for outputs (S, M, classes, n), labels (S, n), masks that broadcast."""
    found = (outputs if masks is None else outputs + masks).softmax(-2)
    indices = labels[:, None, None].expand(-1, outputs.shape[1], -1, -1)
    return found.scatter_add_(-2, indices, found.new_full((1,), -1.0).expand(indices.shape)) / outputs.shape[-1]


OBJECTIVES: dict[Kind, type[Objective]] = {
    "single": Objective, "ewc": EWC, "mas": MAS, "lwf": LwF, "er": ER, "der": DER, "derpp": DERPP,
}  # fmt: skip
"""The losses by kind."""
