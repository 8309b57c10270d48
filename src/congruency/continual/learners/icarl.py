"""iCaRL: exemplars chosen by herding, distillation of what was known, the nearest class mean as the answer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency.continual.learners.base import Learner, Setting, masked
from congruency.continual.methods import Method
from congruency.modules import head

__all__ = ["ExemplarMeans"]


class ExemplarMeans(Learner):
    """iCaRL (Rebuffi et al., CVPR 2017) for tasks that bring classes of their own.

    The memory holds ``setting.memory`` exemplars a task, its classes sharing them evenly. At every step a draw of as
    many exemplars as the batch has is learned beside it, towards what the network answered for them when their task
    ended (weighted by ``method.strength``). An input belongs to the class, of its task's, whose exemplars' mean feature
    is nearest. Nearness is no probability: the loss that runs record is the cross entropy of the network's outputs.
    """

    def __init__(self, method: Method, setting: Setting) -> None:
        super().__init__(method, setting)
        self._features = _Features(self.model)
        self._drawn = np.random.RandomState([setting.seed, 0])
        self._inputs: list[Tensor] = []
        self._answers: list[Tensor] = []
        self._masks: list[Tensor] = []
        self._exemplars: dict[int, Tensor] = {}
        self._means: dict[int, Tensor] = {}

    def begin(self, task: int, mask: Tensor | None) -> None:
        super().begin(task, mask)
        if mask is None:
            raise ValueError("iCaRL is for tasks that bring classes of their own; this stream's tasks share them")
        self._drawn = np.random.RandomState([self.setting.seed, task])
        self._means = {}

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        own = super().loss(inputs, labels)
        if not self._inputs:
            return own
        known, answers, masks = (torch.cat(part) for part in (self._inputs, self._answers, self._masks))
        places = torch.from_numpy(self._drawn.randint(len(known), size=len(inputs))).to(inputs.device)
        found = (self.model(known[places]) + masks[places]).log_softmax(-1)
        wanted = answers[places]
        distance = torch.where(wanted > 0, wanted * (wanted.clamp(min=1e-12).log() - found), 0.0).sum(-1).mean()
        return own + self.method.strength * distance

    @torch.no_grad()
    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        self.model.eval()
        assert self.mask is not None
        classes = torch.isfinite(self.mask).nonzero().flatten().tolist()
        each = max(1, self.setting.memory // len(classes))
        for label in classes:
            own = inputs[labels == label]
            if len(own):
                self._exemplars[label] = own[herded(self._unit_features(own), each)]
        chosen = torch.cat([self._exemplars[label] for label in classes if label in self._exemplars])
        self._inputs.append(chosen)
        self._masks.append(self.mask.expand(len(chosen), -1))
        self._answers.append(masked(self.model(chosen), self.mask).softmax(-1))
        self._means = {}

    @torch.no_grad()
    def answers(self, inputs: Tensor, task: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        guesses, outputs = super().answers(inputs, task, mask)
        classes = [] if mask is None else torch.isfinite(mask).nonzero().flatten().tolist()
        if not classes or any(label not in self._exemplars for label in classes):
            return guesses, outputs
        features = _unit(self._features.kept)  # of the pass that made the outputs
        for label in classes:
            if label not in self._means:
                self._means[label] = self._unit_features(self._exemplars[label]).mean(0)
        means = functional.normalize(torch.stack([self._means[label] for label in classes]), dim=-1)
        nearest = torch.cdist(features, means).argmin(-1)
        return torch.tensor(classes, device=inputs.device)[nearest], outputs

    def _unit_features(self, inputs: Tensor) -> Tensor:
        return _unit(self._features(inputs))


def _unit(features: Tensor) -> Tensor:
    return functional.normalize(features.flatten(1), dim=-1)


def herded(features: Tensor, count: int) -> Tensor:
    """Places of ``count`` vectors (n, d), chosen one by one to keep the mean of the chosen nearest to that of all."""
    mean, chosen = features.mean(0), []
    total = torch.zeros_like(mean)
    left = torch.ones(len(features), dtype=torch.bool, device=features.device)
    for k in range(min(count, len(features))):
        distances = (mean - (total + features) / (k + 1)).norm(dim=-1)
        best = int(torch.where(left, distances, torch.inf).argmin())
        chosen.append(best)
        left[best] = False
        total = total + features[best]
    return torch.tensor(chosen, device=features.device)


class _Features:
    """What goes into the last layer of a network, for given inputs."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self.kept = model, torch.empty(0)
        head(model).register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.kept = inputs[0]

    def __call__(self, inputs: Tensor) -> Tensor:
        self._model(inputs)
        return self.kept
