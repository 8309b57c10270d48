"""The configuration of a continual learner: its kind and settings, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from congruency._validate import check_choice, check_margin
from congruency.constraints.memory import Policy
from congruency.constraints.references import Mode, References
from congruency.corrector import Trigger

Kind = Literal["single", "independent", "multimodal", "ewc", "icarl", "gem", "agem", "dcl", "dcl_memory"]


@dataclass(frozen=True)
class LearnerConfig:
    """Kind and settings of a learner.

    Finished runs are found on disk by a digest of these fields: renaming one makes them unfindable.

    Attributes:
        name: label in tables.
        kind: which learner.
        lr: learning rate of plain SGD.
        memory_margin: margin of the memory's constraints, GEM's memory strength.
        mode: mode of the reference constraints, as in :class:`congruency.DCL`; so are the next four.
        references: number of reference points.
        window: steps between restarts of the references, None for never.
        offset: step at which recording starts.
        reference_margin: margin of the reference constraints.
        trigger: when the quadratic program is solved; GEM does so only if a constraint is ``"violated"``.
        strength: weight of EWC's penalty (its lambda), or of iCaRL's distillation loss.
    """

    name: str
    kind: Kind
    lr: float = 0.1
    memory_margin: float = 0.0
    mode: Mode = "concentrate"
    references: int = 1
    window: int | None = None
    offset: int = 0
    reference_margin: float = 0.0
    trigger: Trigger = "violated"
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(Kind))
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        check_choice("trigger", self.trigger, get_args(Trigger))
        check_margin(self.memory_margin)
        if self.has_references:
            References(
                self.references, window=self.window, offset=self.offset, mode=self.mode, margin=self.reference_margin
            )

    @property
    def has_references(self) -> bool:
        """Whether reference points constrain the steps."""
        return self.kind in ("dcl", "dcl_memory")

    @property
    def has_memory(self) -> bool:
        """Whether samples of past tasks are kept."""
        return self.kind in ("icarl", "gem", "agem", "dcl_memory")


def memory_slice(policy: Policy, size: int, samples: int) -> slice:
    """The samples of a task, in the order seen, that a memory of ``size`` keeps."""
    check_choice("policy", policy, get_args(Policy))
    if size < 1:
        raise ValueError(f"a memory must hold at least one sample per task, got size {size}")
    if size > samples:
        raise ValueError(
            f"a memory of {size} samples per task is larger than a task of {samples} samples; take a smaller memory"
        )
    return slice(size) if policy == "first" else slice(samples - size, samples)
