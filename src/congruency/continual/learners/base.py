"""SGD on a sequence of tasks: the base of all learners, and the baselines that bound them from below and above."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency.cautious import Cautious
from congruency.constraints.memory import Policy
from congruency.continual.config import LearnerConfig
from congruency.continual.learners.constrained import StepConstraints


@dataclass(frozen=True)
class Setting:
    """What all learners of one stream share.

    ``make`` builds the network from the fraction of the hidden units it may have; the same initial weights each time.
    """

    make: Callable[[float], nn.Module]
    tasks: int
    seed: int = 0  # of everything a learner samples
    memory: int = 256  # samples kept per task
    policy: Policy = "first"  # which samples constraints come from: the first of a task, or the last ("ring")
    chunk: int | None = None  # past tasks per batched gradient computation; None computes all at once
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD  # called with the parameters and ``lr=``


class Learner:
    """One network trained by SGD on one task after the other: the lower baseline, and the base of all learners.

    For each task: :meth:`begin`, :meth:`observe` for every batch, :meth:`finish`. A subclass shapes the :meth:`loss`;
    the constraints of its configuration, and Cautious, correct the steps of ``optimizer`` whatever the loss is. So does
    any other correction of that optimizer: ``congruency.DCL(learner.optimizer)``.
    """

    def __init__(self, config: LearnerConfig, setting: Setting) -> None:
        self.config, self.setting = config, setting
        self.task = 0
        self.mask: Tensor | None = None
        self.restart()

    def restart(self) -> None:
        """Build network, optimizer and corrections from the start."""
        self.model = self.build()
        self.optimizer = self.setting.optimizer(self.model.parameters(), lr=self.config.lr)
        self.constraints = (
            None
            if self.config.constrained_by == "none"
            else StepConstraints(
                self.optimizer,
                self.model,
                self.config,
                memory=self.setting.memory,
                policy=self.setting.policy,
                chunk=self.setting.chunk,
                seed=self.setting.seed,
            )
        )
        if self.config.cautious:
            Cautious(self.optimizer)
            if all(group.get("momentum") == 0 for group in self.optimizer.param_groups):
                warnings.warn(
                    "cautious=True changes nothing here: the update of plain SGD is the gradient; give "
                    "Setting(optimizer=...) one with momentum",
                    stacklevel=4,
                )

    def build(self) -> nn.Module:
        """The network to train."""
        return self.setting.make(1.0)

    def begin(self, task: int, mask: Tensor | None = None) -> None:
        """Start a task; ``mask`` (classes,) is added to the outputs, -inf for classes of other tasks."""
        self.task, self.mask = task, mask
        if self.constraints is not None:
            self.constraints.begin(task, mask)

    def observe(self, inputs: Tensor, labels: Tensor) -> None:
        """Take one optimizer step on a batch."""
        if self.constraints is not None:
            self.constraints.observe(inputs, labels, self.task, self.mask)
        self.model.train()
        self.optimizer.zero_grad()
        self.backward(inputs, labels)
        self.optimizer.step()

    def backward(self, inputs: Tensor, labels: Tensor) -> None:
        """Compute the gradients of one step."""
        self.loss(inputs, labels).backward()

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The training loss of a batch."""
        return functional.cross_entropy(masked(self.outputs(inputs, self.task), self.mask), labels)

    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        """End a task; ``inputs`` and ``labels`` are all of its samples."""

    @torch.no_grad()
    def predict(self, inputs: Tensor, task: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Predicted classes (n,) among those of ``task``, and the masked outputs (n, classes).

        Accuracy is computed from the first, the recorded loss is the cross entropy of the second.
        """
        self.model.eval()
        outputs = masked(self.outputs(inputs, task), mask)
        return outputs.argmax(-1), outputs

    def outputs(self, inputs: Tensor, task: int) -> Tensor:
        """Outputs of the network for ``task``, (n, classes)."""
        outputs: Tensor = self.model(inputs)
        return outputs

    def agreement(self) -> Tensor | None:
        """Mean cosine of the last update with the memory's gradients, on the device; None without a memory."""
        return None if self.constraints is None else self.constraints.agreement()


def masked(outputs: Tensor, mask: Tensor | None) -> Tensor:
    """Outputs with the classes of other tasks at -inf."""
    return outputs if mask is None else outputs + mask


class JointLearner(Learner):
    """The upper bound: after each task a new network, one epoch over the samples of all tasks so far, shuffled."""

    def __init__(self, config: LearnerConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._samples: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._batch = 1

    def observe(self, inputs: Tensor, labels: Tensor) -> None:
        self._batch = max(self._batch, len(inputs))  # only seen here; learned by finish()

    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        self._samples.append((inputs, labels, self.mask))
        xs, ys, masks = zip(*self._samples, strict=True)
        x, y = torch.cat(xs), torch.cat(ys)
        known = None
        if self.mask is not None:
            known = torch.cat([mask.expand(len(each), -1) for each, mask in zip(ys, masks, strict=True)])
        order = torch.from_numpy(np.random.RandomState([self.setting.seed, self.task]).permutation(len(x)))
        self.restart()
        for part in order.to(x.device).split(self._batch):
            self.mask = None if known is None else known[part]
            super().observe(x[part], y[part])


class IndependentLearner(Learner):
    """One network per task, each with an equal share of the hidden units; nothing is shared and nothing forgotten."""

    def build(self) -> nn.Module:
        share = 1.0 / self.setting.tasks
        return nn.ModuleList([self.setting.make(share) for _ in range(self.setting.tasks)])

    def outputs(self, inputs: Tensor, task: int) -> Tensor:
        outputs: Tensor = self.model[task](inputs)  # type: ignore[index]
        return outputs


class MultimodalLearner(Learner):
    """One input layer per task, as for tasks of different modalities; all later layers are shared."""

    def build(self) -> nn.Module:
        networks = [self.setting.make(1.0) for _ in range(self.setting.tasks)]
        parts = [_first_layer_and_rest(network) for network in networks]
        return nn.ModuleDict({"first": nn.ModuleList([first for first, _ in parts]), "rest": parts[0][1]})

    def outputs(self, inputs: Tensor, task: int) -> Tensor:
        first, rest = self.model["first"][task], self.model["rest"]  # type: ignore[index]
        outputs: Tensor = rest(first(inputs.flatten(1) if isinstance(first, nn.Linear) else inputs))
        return outputs


def _first_layer_and_rest(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    if not isinstance(network, nn.Sequential):
        raise ValueError(
            f"multimodal learning needs a network that is an nn.Sequential, to give each task a first layer, "
            f"got {type(network).__name__}; use the perceptron"
        )
    layers = [layer for layer in network if not isinstance(layer, nn.Flatten)]
    return layers[0], nn.Sequential(*layers[1:])
