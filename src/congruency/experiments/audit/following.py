"""Every sample's scores at the end of every epoch of a training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from congruency.experiments.audit.ranking import RANKINGS
from congruency.experiments.audit.scoring import along, among_class, errors, extended, losses
from congruency.modules import head

__all__ = ["Followed", "Follower", "Observed", "last_layer", "matrix", "measure", "observe"]


@dataclass(frozen=True, eq=False)
class Observed:
    """What a network makes of n samples.

    Attributes:
        logits: (n, K), its outputs.
        features: (n, F), what its last layer takes, with a last column of ones where that layer has a bias.
    """

    logits: Tensor
    features: Tensor


@dataclass(frozen=True, eq=False)
class Followed:
    """Scores of n samples over a training.

    Attributes:
        scores: ``way``, ``class``, ``direction`` and ``loss``, each (epochs, n); those that could be measured.
        probabilities: (n, K), at the end.
    """

    scores: dict[str, Tensor]
    probabilities: Tensor

    def ranked(self) -> dict[str, Tensor]:
        """The score of every ranking, (n,): means over the epochs where it is defined, and the last epoch's.

        Of a single epoch there is no mean to follow, only the end.
        """
        found = {}
        for name, ranking in RANKINGS.items():
            values = self.scores.get(ranking.score)
            if values is None or (ranking.followed and len(values) == 1):
                continue
            found[name] = values.nanmean(0) if ranking.followed else values[-1]
        return found


class Follower:
    """Measures all samples whenever it is called with the network, as it is at the end of an epoch.

    Args:
        network: before the first step; its last layer's weights are where the way come begins.
        labels: (n,), as given.
        smoothing: of the labels in the loss.
    """

    def __init__(self, network: nn.Module, labels: Tensor, smoothing: float = 0.0) -> None:
        self._layer = last_layer(network)
        self._start = matrix(self._layer)
        self._labels = labels.cpu()
        self._smoothing = smoothing
        self._epochs: list[dict[str, Tensor]] = []
        self._probabilities: Tensor | None = None

    def __call__(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Measure every image of ``batches``, which come in the order of the labels."""
        seen = observe(model, self._layer, batches)
        way = matrix(self._layer) - self._start
        self._epochs.append(measure(seen, self._labels, way, self._smoothing))
        self._probabilities = seen.logits.softmax(1)

    def followed(self) -> Followed:
        """Everything so far."""
        if self._probabilities is None:
            raise RuntimeError("nothing was followed; call the follower at the end of an epoch")
        names = self._epochs[0]
        scores = {name: torch.stack([epoch[name] for epoch in self._epochs]) for name in names}
        return Followed(scores, self._probabilities)


def last_layer(network: nn.Module) -> nn.Linear:
    """The last layer, which must be linear: gradients of others have no closed form here."""
    layer = head(network)
    if not isinstance(layer, nn.Linear):
        raise ValueError(
            f"the last layer of {type(network).__name__} is {type(layer).__name__}; an audit needs one nn.Linear"
        )
    return layer


@torch.no_grad()
def observe(model: nn.Module, layer: nn.Linear, batches: Iterable[tuple[Tensor, Tensor]]) -> Observed:
    """Outputs and features of all batches, on the CPU; ``layer`` is the network's last one."""
    caught: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(lambda _, inputs, output: caught.append((inputs[0], output)))
    logits, features = [], []
    try:
        for images, _ in batches:
            caught.clear()
            outputs = model(images).float()
            if len(caught) != 1 or not _same(outputs, caught[0]):
                raise ValueError("the network's outputs are not those of its last linear layer; it cannot be audited")
            logits.append(outputs.cpu())
            features.append(_with_ones(caught[0][0].float().cpu(), layer.bias is not None))
    finally:
        hook.remove()
    return Observed(torch.cat(logits), torch.cat(features))


def measure(seen: Observed, labels: Tensor, way: Tensor | None, smoothing: float = 0.0) -> dict[str, Tensor]:
    """The scores of every sample, each (n,): ``way`` (left out where None), ``class``, ``direction``, ``loss``."""
    error = errors(seen.logits, labels, smoothing)
    found = {} if way is None else {"way": along(error, seen.features, way)}
    found["class"] = among_class(error, seen.features, labels)
    found["direction"] = among_class(error, seen.features, labels, unit=True)
    found["loss"] = losses(seen.logits, labels, smoothing)
    return found


def matrix(layer: nn.Linear) -> Tensor:
    """A copy of the layer as one matrix, on the CPU."""
    bias = None if layer.bias is None else layer.bias.detach().cpu()
    return extended(layer.weight.detach().cpu(), bias).clone()


def _with_ones(features: Tensor, wanted: bool) -> Tensor:
    return torch.cat([features, torch.ones_like(features[:, :1])], 1) if wanted else features


def _same(outputs: Tensor, caught: tuple[Tensor, Tensor]) -> bool:
    features, made = caught
    return features.ndim == 2 and made.shape == outputs.shape and torch.equal(made.float(), outputs)
