"""Training losses for saliency maps, and weighted sums of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_TINY = 1e-8


@dataclass(frozen=True)
class Target:
    """The ground truth of a batch: (B, H, W) densities and (B, H, W) fixation counts."""

    density: Tensor
    fixations: Tensor


def l1_loss(saliency: Tensor, target: Target) -> Tensor:
    """``sum_p |p_p - q_p|`` of the maps divided by their sums, in [0, 2]; half of it, ``"0.5*l1"``, is DINet's loss."""
    return _mean((_normalised(saliency) - _normalised(target.density)).abs().sum((-2, -1)), target.density)


def cosine_loss(saliency: Tensor, target: Target) -> Tensor:
    """``1 - sum_p p_p q_p / (|p| |q|)``, in [0, 1]; independent of the maps' scales."""
    s, q = (x.flatten(-2) for x in (saliency, target.density))
    return _mean(1 - torch.nn.functional.cosine_similarity(s, q, dim=-1, eps=_TINY), target.density)


def bhattacharyya_loss(saliency: Tensor, target: Target) -> Tensor:
    """``-log sum_p sqrt(p_p q_p)`` of the maps divided by their sums, at least 0."""
    overlap = (_normalised(saliency) * _normalised(target.density) + _TINY**2).sqrt().sum((-2, -1))
    return _mean(-overlap.clamp(max=1.0).log(), target.density)


def kl_loss(saliency: Tensor, target: Target) -> Tensor:
    """``KL(q || p) = sum_p q_p log(q_p / p_p)`` of density q and saliency p, in nats."""
    p, q = _normalised(saliency), _normalised(target.density)
    return _mean((torch.xlogy(q, q) - q * (p + _TINY).log()).sum((-2, -1)), target.density)


def cc_loss(saliency: Tensor, target: Target) -> Tensor:
    """``1 - CC``, in [0, 2]."""
    s, q = (x - x.mean((-2, -1), keepdim=True) for x in (saliency, target.density))
    norms = (s.square().sum((-2, -1)) * q.square().sum((-2, -1)) + _TINY**2).sqrt()
    return _mean(1 - (s * q).sum((-2, -1)) / norms, target.density)


def nss_loss(saliency: Tensor, target: Target) -> Tensor:
    """``-NSS``: the negative mean z-score at the fixations (ddof 0)."""
    centred = saliency - saliency.mean((-2, -1), keepdim=True)
    deviation = (centred.square().mean((-2, -1)) + _TINY**2).sqrt()
    count = target.fixations.sum((-2, -1))
    value = -(centred * target.fixations).sum((-2, -1)) / (deviation * count.clamp(min=1))
    return _mean(value, target.fixations)


LOSSES: dict[str, Callable[[Tensor, Target], Tensor]] = {
    "l1": l1_loss, "cosine": cosine_loss, "bhattacharyya": bhattacharyya_loss, "kl": kl_loss, "cc": cc_loss,
    "nss": nss_loss,
}  # fmt: skip


class SaliencyLoss:
    """A weighted sum of losses: ``sum_k weight_k loss_k(saliency, target)``, averaged over the batch.

    Images without fixations contribute a loss of 0 and no gradient.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        unknown = [name for name in weights if name not in LOSSES]
        if unknown or not weights:
            given = ", ".join(map(repr, unknown)) or "none"
            raise ValueError(f"losses must be among {', '.join(LOSSES)}, got {given}")
        self.weights = dict(weights)

    def __call__(self, saliency: Tensor, target: Target | Mapping[str, Tensor]) -> Tensor:
        """Return the loss of non-negative (B, H, W) saliency; the target may be a dict with the fields of Target."""
        if not isinstance(target, Target):
            target = Target(target["density"], target["fixations"])
        total = saliency.new_zeros(())
        for name, weight in self.weights.items():
            total = total + weight * LOSSES[name](saliency, target)
        return total

    def __str__(self) -> str:
        return "+".join(name if weight == 1 else f"{weight:g}*{name}" for name, weight in self.weights.items())


def make_loss(text: str = "l1") -> SaliencyLoss:
    """Create a loss from its name: ``"l1"``, or a sum such as ``"kl+0.5*cc+nss"``."""
    weights: dict[str, float] = {}
    for part in text.replace(" ", "").split("+"):
        weight, star, name = part.rpartition("*")
        try:
            number = float(weight) if star else 1.0
        except ValueError:
            raise ValueError(f"the loss {text!r} has a weight that is not a number: {weight!r}") from None
        if not 0 < number < math.inf:
            raise ValueError(f"the loss {text!r} has a weight that is not a positive number: {weight!r}")
        weights[name] = weights.get(name, 0.0) + number
    return SaliencyLoss(weights)


def _normalised(maps: Tensor) -> Tensor:
    return maps / (maps.sum((-2, -1), keepdim=True) + _TINY)


def _mean(values: Tensor, truth: Tensor) -> Tensor:
    return values.where(truth.flatten(-2).amax(-1) > 0, 0.0).mean()
