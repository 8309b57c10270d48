"""An input layer for each task, the rest of the network shared."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from congruency.continual.learners.base import Learner, masked

__all__ = ["Multimodal"]


class Multimodal(Learner):
    """A first layer for each task, as for tasks that come by other senses; the layers behind it are one network's."""

    def build(self) -> nn.Module:
        networks = [self.setting.make(1.0) for _ in range(self.setting.tasks)]
        parts = [_first_layer_and_rest(network) for network in networks]
        return nn.ModuleDict({"first": nn.ModuleList([first for first, _ in parts]), "rest": parts[0][1]})

    def outputs(self, inputs: Tensor, task: int) -> Tensor:
        first, rest = self.model["first"][task], self.model["rest"]  # type: ignore[index]
        outputs: Tensor = rest(first(inputs.flatten(1) if isinstance(first, nn.Linear) else inputs))
        return outputs

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(masked(self.outputs(inputs, self.task), self.mask), labels)


def _first_layer_and_rest(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    if not isinstance(network, nn.Sequential):
        raise ValueError(
            f"multimodal learning needs a network that is an nn.Sequential, to give each task a first layer, "
            f"got {type(network).__name__}; use the perceptron"
        )
    layers = [layer for layer in network if not isinstance(layer, nn.Flatten)]
    return layers[0], nn.Sequential(*layers[1:])
