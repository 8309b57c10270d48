"""iCaRL: exemplars chosen by herding, distillation of earlier outputs, nearest-class-mean classification."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from congruency.continual.config import LearnerConfig
from congruency.continual.learners.base import Learner, Setting, masked
from congruency.modules import head


class ICaRLLearner(Learner):
    """iCaRL (Rebuffi et al., CVPR 2017) for tasks with disjoint classes, whether or not the task is given.

    The memory holds ``setting.memory`` exemplars per task, shared evenly by its classes. Every step adds a distillation
    loss, weighted by ``config.strength``, on as many exemplars as the batch has samples: the KL divergence from the
    network's outputs at the end of their task. An input is assigned to the class, of its task or of all so far, whose
    mean exemplar feature is nearest. Distances are no probabilities: the recorded loss is the cross entropy of the
    network's outputs.
    """

    def __init__(self, config: LearnerConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._features = torch.empty(0)  # input of the last layer in the latest forward pass
        head(self.model).register_forward_pre_hook(self._keep_features)
        self._generator = np.random.RandomState([setting.seed, 0])
        self._inputs: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._masks: list[Tensor] = []
        self._exemplars: dict[int, Tensor] = {}
        self._means: dict[int, Tensor] = {}

    def _keep_features(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]

    def begin(self, task: int, mask: Tensor | None = None) -> None:
        super().begin(task, mask)
        self._generator = np.random.RandomState([self.setting.seed, task])
        self._means = {}

    def observe(self, inputs: Tensor, labels: Tensor) -> None:
        if self.mask is None and not self._exemplars.keys().isdisjoint(labels.tolist()):
            raise ValueError("iCaRL is for tasks that bring classes of their own; this stream's tasks share them")
        super().observe(inputs, labels)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        loss = super().loss(inputs, labels)
        if not self._inputs:
            return loss
        known, targets, masks = (torch.cat(part) for part in (self._inputs, self._targets, self._masks))
        drawn = torch.from_numpy(self._generator.randint(len(known), size=len(inputs))).to(inputs.device)
        log_p = (self.model(known[drawn]) + masks[drawn]).log_softmax(-1)
        wanted = targets[drawn]
        divergence = torch.where(wanted > 0, wanted * (wanted.clamp(min=1e-12).log() - log_p), 0.0).sum(-1).mean()
        return loss + self.config.strength * divergence

    @torch.no_grad()
    def finish(self, inputs: Tensor, labels: Tensor) -> None:
        self.model.eval()
        mask = inputs.new_zeros(self.model(inputs[:1]).shape[-1]) if self.mask is None else self.mask
        classes = (labels.unique() if self.mask is None else torch.isfinite(mask).nonzero().flatten()).tolist()
        each = max(1, self.setting.memory // len(classes))
        for label in classes:
            own = inputs[labels == label]
            if len(own):
                self._exemplars[label] = own[herding(self._unit_features(own), each)]
        chosen = torch.cat([self._exemplars[label] for label in classes if label in self._exemplars])
        self._inputs.append(chosen)
        self._masks.append(mask.expand(len(chosen), -1))
        self._targets.append(masked(self.model(chosen), mask).softmax(-1))
        self._means = {}

    @torch.no_grad()
    def predict(self, inputs: Tensor, task: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        predicted, outputs = super().predict(inputs, task, mask)
        classes = sorted(self._exemplars) if mask is None else torch.isfinite(mask).nonzero().flatten().tolist()
        if not classes or any(label not in self._exemplars for label in classes):
            return predicted, outputs
        features = _unit(self._features)  # of the forward pass that gave the outputs
        for label in classes:
            if label not in self._means:
                self._means[label] = self._unit_features(self._exemplars[label]).mean(0)
        means = functional.normalize(torch.stack([self._means[label] for label in classes]), dim=-1)
        nearest = torch.cdist(features, means).argmin(-1)
        return torch.tensor(classes, device=inputs.device)[nearest], outputs

    def _unit_features(self, inputs: Tensor) -> Tensor:
        self.model(inputs)
        return _unit(self._features)


def _unit(features: Tensor) -> Tensor:
    return functional.normalize(features.flatten(1), dim=-1)


def herding(features: Tensor, count: int) -> Tensor:
    """Indices of ``count`` vectors of (n, d), chosen one by one so that their mean stays nearest to the mean of all."""
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
