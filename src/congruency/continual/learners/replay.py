"""Learners that replay samples of the stream: ER, DER and DER++."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from congruency.continual.config import LearnerConfig
from congruency.continual.learners.base import Learner, Setting, masked
from congruency.continual.replay import ReplaySlots


class ERLearner(Learner):
    """Experience replay (Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019).

    Every step is taken on the batch B and as many samples R of the memory: the loss is the mean cross entropy over
    both, ``1/(|B| + |R|) sum_(x, y in B and R) -log p(y | x)``. The memory holds ``setting.memory`` samples per task of
    the stream: a reservoir, or the last samples of each past task (``config.replay``), drawn at random or in shuffled
    passes (``config.replay_order``).
    """

    def __init__(self, config: LearnerConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.slots = ReplaySlots(setting.memory, setting.tasks, config.replay, setting.seed, config.replay_order)
        self._kept: dict[str, Tensor] = {}
        self._outputs = torch.empty(0)  # of the latest batch

    def begin(self, task: int, mask: Tensor | None = None) -> None:
        super().begin(task, mask)
        self.slots.begin(task)

    def observe(self, inputs: Tensor, labels: Tensor) -> None:
        super().observe(inputs, labels)
        self._keep(*self.slots.observe(len(inputs)), inputs, labels)

    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        self._keep(*self.slots.finish(), inputs, labels)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        replayed = self.draw(len(inputs))
        if replayed is None:
            return super().loss(inputs, labels)
        outputs = self.outputs(torch.cat([inputs, replayed["inputs"]]), self.task)
        if self.mask is not None:
            outputs = outputs + torch.cat([self.mask.expand(len(inputs), -1), replayed["masks"]])
        return functional.cross_entropy(outputs, torch.cat([labels, replayed["labels"]]))

    def draw(self, count: int) -> dict[str, Tensor] | None:
        """As many samples of the memory, or the last of a pass: inputs, labels, masks and stored outputs."""
        slots = self.slots.draw(count)
        if slots is None:
            return None
        indices = torch.from_numpy(slots).to(self._kept["labels"].device)
        return {name: values[indices] for name, values in self._kept.items()}

    def _keep(self, slots: list[int], samples: list[int], inputs: Tensor, labels: Tensor) -> None:
        if not slots:
            return
        new = {"inputs": inputs, "labels": labels}
        if self.mask is not None:
            new["masks"] = self.mask.expand(len(inputs), -1)
        if len(self._outputs):
            new["outputs"] = self._outputs
        for name, values in new.items():
            if name not in self._kept:
                self._kept[name] = values.new_zeros(len(self.slots.owners), *values.shape[1:])
            self._kept[name][slots] = values[samples].detach()


class DERLearner(ERLearner):
    """Dark experience replay (Buzzega et al., NeurIPS 2020): past outputs are kept, and kept to.

    With the outputs ``z`` that the network gave to a sample when it entered the reservoir M,

        loss = L(B) + alpha E_((x, z) in M) |h(x) - z|^2 / C,

    L the cross entropy of the batch, h the network's C outputs, alpha the configuration's ``strength``. The expectation
    is over a draw of as many samples as the batch has; the mean over the outputs is that of the authors' code.
    """

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        outputs = self.outputs(inputs, self.task)
        self._outputs = outputs.detach()
        loss = functional.cross_entropy(masked(outputs, self.mask), labels)
        replayed = self.draw(len(inputs))
        if replayed is None:
            return loss
        again = self.outputs(replayed["inputs"], self.task)
        return loss + self.config.strength * functional.mse_loss(again, replayed["outputs"])


class DERPPLearner(DERLearner):
    """DER++ (Buzzega et al., NeurIPS 2020): ``DER's loss + beta E_((x, y) in M) -log p(y | x)``, from another draw."""

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        loss = super().loss(inputs, labels)
        replayed = self.draw(len(inputs))
        if replayed is None:
            return loss
        outputs = masked(self.outputs(replayed["inputs"], self.task), replayed.get("masks"))
        return loss + self.config.beta * functional.cross_entropy(outputs, replayed["labels"])
