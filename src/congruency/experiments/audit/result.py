"""What an audit came to, before it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from congruency.experiments.audit.audit import Audit, agreement, pooled, scored
from congruency.experiments.audit.images import Named
from congruency.experiments.audit.verdict import Scored

__all__ = ["Result"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Everything a page shows.

    Attributes:
        audits: one a seed.
        images: the set, with its own labels.
        about: a sentence on network and data.
        command: that repeats it.
        flip: the share of labels that were flipped; None for none.
        remarks: sentences to stand under the findings.
        folds: of cleanlab's cross-validation; None where it was left out.
        seconds: it took.
    """

    audits: Sequence[Audit]
    images: Named
    about: str
    command: str
    flip: float | None = None
    remarks: Sequence[str] = ()
    folds: int | None = None
    seconds: float = 0.0

    @property
    def scores(self) -> Scored:
        """``{ranking: {metric: [one value a seed]}}``: how well flips are found, or how like the loss a ranking is."""
        return agreement(self.audits) if self.flip is None else scored(self.audits)

    @property
    def shown(self) -> list[Audit]:
        """What the files list: every seed where each has flips of its own, else all seeds as one."""
        return [pooled(self.audits)] if self.flip is None else list(self.audits)
