"""The configuration of a continual learner: its loss, its constraints and their settings, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from congruency._validate import check_choice, check_margin, check_whole
from congruency.constraints.memory import Policy
from congruency.constraints.references import Mode, References
from congruency.continual.replay import Replay, ReplayOrder
from congruency.corrector import Trigger

Constraints = Literal["none", "gem", "agem", "dcl", "dcl_memory"]
Kind = Literal[
    "single", "independent", "multimodal", "joint", "ewc", "mas", "icarl", "lwf", "er", "der", "derpp",
    "gem", "agem", "dcl", "dcl_memory",
]  # fmt: skip


@dataclass(frozen=True)
class LearnerConfig:
    """Kind and settings of a learner: a loss, and constraints on the steps that minimise it.

    The kinds ``"gem"``, ``"agem"``, ``"dcl"`` and ``"dcl_memory"`` are plain SGD under these constraints; the others
    shape the loss, and take constraints besides: ``LearnerConfig("ER, DCL", "er", constraints="dcl", window=10)``.

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
        strength: weight of EWC's or MAS's penalty (lambda), of the distillation loss of iCaRL or LwF, or of the stored
            outputs in DER and DER++ (alpha).
        beta: weight of the replayed labels in DER++.
        temperature: of LwF's distillation.
        replay: which samples ER keeps: a ``"reservoir"`` of the stream, or the last of each past task (``"ring"``).
        replay_order: how ER draws from them: at ``"random"``, or in shuffled ``"passes"`` over them, as Avalanche does.
        constraints: on the steps of a kind that has none of its own: a memory's, DCL's, or both.
        cautious: apply :class:`congruency.Cautious` to the optimizer, which must have momentum for that to matter.
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
    beta: float = 0.5
    temperature: float = 2.0
    replay: Replay = "reservoir"
    replay_order: ReplayOrder = "random"
    constraints: Constraints = "none"
    cautious: bool = False

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(Kind))
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        check_choice("trigger", self.trigger, get_args(Trigger))
        check_margin(self.memory_margin)
        check_choice("replay", self.replay, get_args(Replay))
        check_choice("replay_order", self.replay_order, get_args(ReplayOrder))
        check_choice("constraints", self.constraints, get_args(Constraints))
        for name, value in (("strength", self.strength), ("beta", self.beta)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, got {value}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.constraints != "none" and self.kind in (*get_args(Constraints), "independent", "multimodal", "joint"):
            raise ValueError(f"kind {self.kind!r} takes no further constraints, got {self.constraints!r}")
        if self.kind in ("der", "derpp") and self.replay != "reservoir":
            raise ValueError("DER stores outputs while it learns, in a reservoir; replay='ring' is for kind 'er'")
        if self.kind in ("der", "derpp") and self.replay_order != "random":
            raise ValueError("DER draws at random; replay_order='passes' is for kind 'er'")
        if self.has_references:
            References(
                self.references, window=self.window, offset=self.offset, mode=self.mode, margin=self.reference_margin
            )

    @property
    def constrained_by(self) -> Constraints:
        """What constrains the steps."""
        return self.kind if self.kind in ("gem", "agem", "dcl", "dcl_memory") else self.constraints

    @property
    def objective(self) -> Kind:
        """The kind that shapes the loss."""
        return "single" if self.kind in get_args(Constraints) else self.kind

    @property
    def has_references(self) -> bool:
        """Whether reference points constrain the steps."""
        return self.constrained_by in ("dcl", "dcl_memory")

    @property
    def has_episodes(self) -> bool:
        """Whether samples of past tasks constrain the steps."""
        return self.constrained_by in ("gem", "agem", "dcl_memory")

    @property
    def replays(self) -> bool:
        """Whether past samples are learned again."""
        return self.kind in ("er", "der", "derpp")

    @property
    def has_memory(self) -> bool:
        """Whether samples of past tasks are kept."""
        return self.kind == "icarl" or self.has_episodes or self.replays


def memory_slice(policy: Policy, size: int, samples: int) -> slice:
    """The samples of a task, in the order seen, that a memory of ``size`` keeps."""
    check_choice("policy", policy, get_args(Policy))
    check_whole("memory", size, "a whole number of samples per task, at least 1", least=1)
    if size > samples:
        raise ValueError(
            f"a memory of {size} samples per task is larger than a task of {samples} samples; take a smaller memory "
            "(of the command: --memory)"
        )
    return slice(size) if policy == "first" else slice(samples - size, samples)
