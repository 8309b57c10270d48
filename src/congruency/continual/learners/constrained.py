"""Learners that project the gradient: GEM, A-GEM, DCL, and DCL with GEM's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from congruency.constraints.base import ConstraintSource
from congruency.constraints.memory import EpisodicMemory
from congruency.constraints.references import References
from congruency.continual.config import LearnerConfig
from congruency.continual.learners.base import Learner, Setting
from congruency.corrector import Corrector
from congruency.dcl import DCL


class DCLLearner(Learner):
    """Direction Concentration Learning, the paper's form, within each task: references restart with every task."""

    def __init__(self, config: LearnerConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.corrector = DCL(
            self.optimizer, references=config.references, window=config.window, offset=config.offset, mode=config.mode,
            margin=config.reference_margin, floor=None, trigger=config.trigger,
        )  # fmt: skip

    def begin(self, task: int, mask: Tensor | None) -> None:
        super().begin(task, mask)
        self.corrector.reset()


class GEMLearner(Learner):
    """GEM (Lopez-Paz and Ranzato, NeurIPS 2017): one constraint per past task."""

    memory_type = EpisodicMemory

    def __init__(self, config: LearnerConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.memory = self.memory_type(
            self.model, size=setting.memory, policy=setting.policy, margin=config.memory_margin, chunk=setting.chunk
        )
        self.corrector = Corrector(self.optimizer, constraints=self.sources(), trigger=config.trigger)

    def sources(self) -> Sequence[ConstraintSource]:
        """The constraint sources, the memory first."""
        return [self.memory]

    def observe(self, inputs: Tensor, labels: Tensor) -> None:
        self.memory.observe(inputs, labels, self.task, self.mask)
        super().observe(inputs, labels)

    def agreement(self) -> Tensor | None:
        past = self.memory.active
        return self.corrector.stats.corrected_congruency[:past].nanmean() if past else None


class DCLGEMLearner(GEMLearner):
    """GEM's and DCL's constraints in one quadratic program (``eqn:constraints_conn``), each with its own margin."""

    def sources(self) -> Sequence[ConstraintSource]:
        config = self.config
        self.references = References(
            config.references, window=config.window, offset=config.offset, mode=config.mode,
            margin=config.reference_margin, floor=None,
        )  # fmt: skip
        return [self.memory, self.references]

    def begin(self, task: int, mask: Tensor | None) -> None:
        super().begin(task, mask)
        self.references.reset()


class _SampledMemory(EpisodicMemory):
    """One constraint: the gradient on ``size`` samples, drawn with replacement from all past tasks."""

    def seed(self, seed: int, task: int) -> None:
        self._generator = np.random.RandomState([seed, task])

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
        drawn = torch.from_numpy(self._generator.randint(len(inputs), size=self.size)).to(inputs.device)
        parameters = {
            name: p.detach().requires_grad_() for name, p in self._network.named_parameters() if p.requires_grad
        }
        buffers = {name: buffer.clone() for name, buffer in self._network.named_buffers()}
        outputs = functional_call(self._network, (parameters, buffers), (inputs[drawn],))
        gradients = torch.autograd.grad(functional.cross_entropy(outputs, targets[drawn]), list(parameters.values()))
        return {name: gradient.unsqueeze(0) for name, gradient in zip(parameters, gradients, strict=True)}


class AGEMLearner(GEMLearner):
    """A-GEM (Chaudhry et al., ICLR 2019): one constraint, from a new sample of the memory at every step."""

    memory: _SampledMemory
    memory_type = _SampledMemory

    def begin(self, task: int, mask: Tensor | None) -> None:
        super().begin(task, mask)
        if mask is not None:
            raise ValueError("A-GEM draws from all tasks at once, which needs tasks that share their classes")
        self.memory.seed(self.setting.seed, task)
