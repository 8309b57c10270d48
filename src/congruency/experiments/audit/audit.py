"""An audit from its plan to its numbers: flip labels where asked, train and follow, score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from congruency.datasets import LabelledImages
from congruency.experiments.audit.flipping import flip
from congruency.experiments.audit.following import Followed
from congruency.experiments.audit.quality import label_quality
from congruency.experiments.audit.ranking import (
    CLEANLAB,
    METRICS,
    RANKINGS,
    area,
    overlap,
    precision,
    rank_correlation,
    suspicion,
)
from congruency.experiments.audit.training import Training, follow, held_out_probabilities

__all__ = ["Audit", "Plan", "agreement", "audited", "pooled", "run", "scored"]

Tell = Callable[[str, float, float], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done.

    Attributes:
        training: how a network is trained.
        seeds: of weights, order, augmentation and flips; one audit each.
        flip: the share of labels that are made wrong first; None to leave them as they are.
        folds: of the cross-validation that cleanlab's probabilities come from; None to leave cleanlab out.
    """

    training: Training
    seeds: Sequence[int] = (0,)
    flip: float | None = None
    folds: int | None = 5


@dataclass(frozen=True, eq=False)
class Audit:
    """What one seed, or several together, say of n samples.

    Attributes:
        seed: which; in words where it is several.
        given: (n,), the labels that were trained on.
        flipped: (n,) bool, which of them we made wrong; None where we made none.
        probabilities: (n, K), of the network at the end.
        scores: by the names of :data:`RANKINGS`, each (n,).
        epochs: the scores of every epoch by their own names, each (epochs, n).
    """

    seed: str
    given: Tensor
    flipped: Tensor | None
    probabilities: Tensor
    scores: dict[str, Tensor]
    epochs: dict[str, Tensor]

    @property
    def predicted(self) -> Tensor:
        """(n,), the network's own labels at the end."""
        return self.probabilities.argmax(1)

    @property
    def main(self) -> str:
        """The ranking that orders the page: the first that is there."""
        return next(name for name in RANKINGS if name in self.scores)

    def suspicion(self, name: str) -> Tensor:
        """(n,), by one ranking; the highest is the most suspicious."""
        return suspicion(name, self.scores)


def run(plan: Plan, images: LabelledImages, tell: Tell | None = None) -> list[Audit]:
    """One audit a seed."""
    each = 1 + (plan.folds or 0)
    total = each * len(plan.seeds)
    made = []
    for number, seed in enumerate(plan.seeds):

        def done(count: int, label: str, before: int = each * number) -> None:
            if tell is not None:
                tell(label, before + count, total)

        made.append(_one(plan, images, seed, done))
    return made


def _one(plan: Plan, images: LabelledImages, seed: int, done: Callable[[int, str], None]) -> Audit:
    given, flipped = images.labels, None
    if plan.flip is not None:
        given, flipped = flip(images.labels, plan.flip, len(images.classes), seed)
    learned = replace(images, labels=given)
    followed = follow(plan.training, learned, seed)
    done(1, f"seed {seed}, followed")
    quality = None
    if plan.folds is not None:
        held_out = held_out_probabilities(
            plan.training, learned, seed, plan.folds, lambda n: done(1 + n, f"seed {seed}, fold {n}")
        )
        quality = label_quality(held_out, given)
    return audited(str(seed), given, followed, flipped, quality)


def audited(
    seed: str, given: Tensor, followed: Followed, flipped: Tensor | None = None, quality: Tensor | None = None
) -> Audit:
    """What was followed, with cleanlab's quality where there is one."""
    scores = followed.ranked()
    if quality is not None:
        scores[CLEANLAB] = quality
    return Audit(seed, given, flipped, followed.probabilities, scores, followed.scores)


def pooled(audits: Sequence[Audit]) -> Audit:
    """Seeds that saw the same labels, as one: scores and probabilities are means over the seeds."""
    first = audits[0]
    if any(not torch.equal(one.given, first.given) for one in audits):
        raise ValueError("only audits of the same labels can be put together")
    if len(audits) == 1:
        return first
    return Audit(
        f"mean of {len(audits)}",
        first.given,
        first.flipped,
        torch.stack([one.probabilities for one in audits]).mean(0),
        {name: torch.stack([one.scores[name] for one in audits]).nanmean(0) for name in first.scores},
        {name: torch.stack([one.epochs[name] for one in audits]).nanmean(0) for name in first.epochs},
    )


def scored(audits: Sequence[Audit]) -> dict[str, dict[str, list[float]]]:
    """``{ranking: {metric: [one value a seed]}}``: AUC, and precision among as many samples as were flipped."""
    found: dict[str, dict[str, list[float]]] = {}
    for name in audits[0].scores:
        values: dict[str, list[float]] = {metric: [] for metric in METRICS}
        for audit in audits:
            assert audit.flipped is not None
            suspected = audit.suspicion(name)
            values["auc"].append(area(suspected, audit.flipped))
            values["precision"].append(precision(suspected, audit.flipped, int(audit.flipped.sum())))
        found[name] = values
    return found


def agreement(audits: Sequence[Audit], share: float = 0.05) -> dict[str, dict[str, list[float]]]:
    """Of labels nobody knows the truth about: how far each ranking is that by the loss, one value a seed.

    ``rank_correlation`` is Spearman's; ``overlap`` the part of the most suspicious ``share`` that the loss puts there
    too.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for name in audits[0].scores:
        values: dict[str, list[float]] = {"rank_correlation": [], "overlap": []}
        for audit in audits:
            loss = audit.suspicion("loss" if "loss" in audit.scores else "loss_last")
            suspected = audit.suspicion(name)
            values["rank_correlation"].append(rank_correlation(suspected, loss))
            values["overlap"].append(overlap(suspected, loss, max(1, round(share * len(loss)))))
        found[name] = values
    return found
