"""The metrics as torchmetrics classes: means over the images of all batches and ranks."""

from typing import Any

import torch
from torch import Tensor

import congruency._torchvision_compat  # noqa: F401  (torchmetrics imports torchvision)
from congruency.saliency.metrics import density, roc
from congruency.saliency.metrics.checks import Protocol, check_protocol

from torchmetrics import Metric  # isort: skip


class ImageMean(Metric):
    """The mean of a per-image score over all images with a ground truth.

    Images without one (no fixations) are excluded and counted in :attr:`left_out`. A score that is nan for another
    reason (nan in the map, a negative count) is included and makes the mean nan. Sums are float64 and random draws
    depend on the image only, so order, batch size and number of ranks change nothing beyond rounding. ``protocol`` is
    passed to the function.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True
    total: Tensor
    scored: Tensor
    seen: Tensor

    def __init__(self, *, protocol: Protocol = "exact", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_protocol(protocol)
        self.protocol: Protocol = protocol
        for state in ("total", "scored", "seen"):
            self.add_state(state, default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """Return the mean; nan if no image had a score."""
        return self.total / self.scored

    @property
    def left_out(self) -> Tensor:
        """The number of images without a ground truth, on this rank."""
        return self.seen - self.scored

    def _add(self, scores: Tensor, defined: Tensor) -> None:
        """Add the scores of images; ``defined`` marks those with a ground truth and is broadcast to the scores."""
        defined = defined.expand(scores.shape)
        self.total += scores.where(defined, 0.0).sum(dtype=torch.float64)
        self.scored += defined.sum()
        self.seen += defined.numel()

    @staticmethod
    def _any(counts: Tensor) -> Tensor:
        return counts.flatten(-2).ne(0).any(-1)

    @staticmethod
    def _varies(maps: Tensor) -> Tensor:
        flat = maps.flatten(-2)
        return flat.amin(-1) != flat.amax(-1)


class NSS(ImageMean):
    """Mean :func:`congruency.saliency.metrics.nss` over images."""

    def update(self, saliency: Tensor, fixations: Tensor) -> None:
        self._add(density.nss(saliency, fixations, protocol=self.protocol), self._any(fixations))


class CC(ImageMean):
    """Mean :func:`congruency.saliency.metrics.cc` over images."""

    def update(self, saliency: Tensor, truth: Tensor) -> None:
        self._add(density.cc(saliency, truth), self._varies(truth))


class KL(ImageMean):
    """Mean :func:`congruency.saliency.metrics.kl` over images; lower is better."""

    higher_is_better = False

    def update(self, saliency: Tensor, truth: Tensor) -> None:
        self._add(density.kl(saliency, truth), self._any(truth))


class SIM(ImageMean):
    """Mean :func:`congruency.saliency.metrics.sim` over images."""

    def update(self, saliency: Tensor, truth: Tensor) -> None:
        self._add(density.sim(saliency, truth, protocol=self.protocol), self._any(truth))


class InformationGain(ImageMean):
    """Mean :func:`congruency.saliency.metrics.information_gain` over images."""

    def update(self, saliency: Tensor, fixations: Tensor, baseline: Tensor) -> None:
        gain = density.information_gain(saliency, fixations, baseline, protocol=self.protocol)
        self._add(gain, self._any(fixations))


class _AUC(ImageMean):
    """Base class of the AUCs, with the seed of the protocol's random draws."""

    def __init__(self, *, protocol: Protocol = "exact", seed: int = 0, **kwargs: Any) -> None:
        super().__init__(protocol=protocol, **kwargs)
        self._draws: dict[str, Any] = {"protocol": protocol, "seed": seed}


class AUCJudd(_AUC):
    """Mean :func:`congruency.saliency.metrics.auc_judd` over images."""

    def update(self, saliency: Tensor, fixations: Tensor) -> None:
        defined = self._any(fixations) & self._any(fixations == 0)
        self._add(roc.auc_judd(saliency, fixations, **self._draws), defined)


class AUCBorji(_AUC):
    """Mean :func:`congruency.saliency.metrics.auc_borji` over images."""

    def update(self, saliency: Tensor, fixations: Tensor) -> None:
        self._add(roc.auc_borji(saliency, fixations, **self._draws), self._any(fixations))


class AUCShuffled(_AUC):
    """Mean :func:`congruency.saliency.metrics.auc_shuffled` over images."""

    def update(self, saliency: Tensor, fixations: Tensor, negatives: Tensor) -> None:
        usable = negatives.ne(0) & fixations.eq(0) if self.protocol == "salicon" else negatives
        defined = self._any(fixations) & self._any(usable)
        self._add(roc.auc_shuffled(saliency, fixations, negatives, **self._draws), defined)
