"""What a row of a continual-learning table is: a way of learning and its settings, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from congruency._validate import check_margin
from congruency.constraints.memory import Policy
from congruency.constraints.references import Mode, References
from congruency.corrector import Trigger

__all__ = ["Kind", "Method", "Policy", "memory_places"]

Kind = Literal["single", "independent", "multimodal", "ewc", "icarl", "gem", "agem", "dcl", "dcl_memory"]


@dataclass(frozen=True)
class Method:
    """A way of learning a stream.

    Attributes:
        name: what tables call it.
        kind: which learner.
        lr: step size of plain SGD.
        memory_margin: least multiplier of every memory row, GEM's memory strength.
        mode: of the reference rows, as in :class:`congruency.DCL`; so are the next four.
        trigger: when the quadratic program is solved; GEM does so only when a constraint is violated.
        strength: of the penalty of EWC, of iCaRL's distillation.
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
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.trigger not in get_args(Trigger):
            raise ValueError(f"trigger must be one of {', '.join(map(repr, get_args(Trigger)))}, got {self.trigger!r}")
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


def memory_places(policy: Policy, size: int, samples: int) -> slice:
    """Which of a task's samples, in the order in which they were seen, stay in a memory of ``size``."""
    if policy not in get_args(Policy):
        raise ValueError(f"policy must be one of {', '.join(map(repr, get_args(Policy)))}, got {policy!r}")
    if size < 1:
        raise ValueError(f"a memory must hold at least one sample a task, got size {size}")
    if size > samples:
        raise ValueError(
            f"a memory of {size} samples a task is larger than a task of {samples} samples; take a smaller memory"
        )
    return slice(size) if policy == "first" else slice(samples - size, samples)
