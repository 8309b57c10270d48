"""Averaged GEM: no step against the gradient of one draw from all that is remembered."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from congruency.constraints.memory import EpisodicMemory
from congruency.continual.learners.gem import GradientMemory

__all__ = ["AveragedMemory"]


class AveragedMemory(GradientMemory):
    """A-GEM (Chaudhry et al., ICLR 2019): one constraint, from samples drawn anew at every step."""

    def make_memory(self) -> EpisodicMemory:
        memory = _Draws(
            self.model, size=self.setting.memory, policy=self.setting.policy, margin=self.method.memory_margin
        )
        memory.draw_as(self.setting.seed, 0)
        return memory

    def begin(self, task: int, mask: Tensor | None) -> None:
        super().begin(task, mask)
        if mask is not None:
            raise ValueError("A-GEM draws from all tasks at once, which needs tasks that share their classes")
        assert isinstance(self.memory, _Draws)
        self.memory.draw_as(self.setting.seed, task)


class _Draws(EpisodicMemory):
    """One row: the gradient on as many samples as one task has, drawn with replacement from all past tasks."""

    def draw_as(self, seed: int, task: int) -> None:
        self._drawn = np.random.RandomState([seed, task])

    @property
    def capacity(self) -> int:
        return min(1, len(self.past))

    @property
    def active(self) -> int:
        return self.capacity

    def gradients(self) -> dict[str, Any]:
        if not self.past:
            return {}
        episodes = [self._episodes[task] for task in self.past]
        inputs, targets = torch.cat([e.inputs for e in episodes]), torch.cat([e.targets for e in episodes])
        places = torch.from_numpy(self._drawn.randint(len(inputs), size=self.size)).to(inputs.device)
        names = [name for name, p in self._network.named_parameters() if p.requires_grad]
        parameters = {
            name: p.detach().requires_grad_() for name, p in self._network.named_parameters() if name in names
        }
        buffers = {name: buffer.clone() for name, buffer in self._network.named_buffers()}
        outputs = functional_call(self._network, (parameters, buffers), (inputs[places],))
        loss = functional.cross_entropy(outputs, targets[places])
        found = torch.autograd.grad(loss, [parameters[name] for name in names])
        return {name: gradient.unsqueeze(0) for name, gradient in zip(names, found, strict=True)}
