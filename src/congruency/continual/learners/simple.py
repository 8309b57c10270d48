"""Learners without a mechanism against forgetting: one network, one network per task, one input layer per task."""

from __future__ import annotations

from torch import Tensor, nn

from congruency.continual.learners.base import Learner

__all__ = ["IndependentLearner", "MultimodalLearner", "SingleLearner"]


class SingleLearner(Learner):
    """Plain SGD on one task after the other: the lower baseline."""


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
