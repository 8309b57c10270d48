"""What a run is told before it starts: plain data, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from congruency.constraints.references import Accumulate, Mode
from congruency.corrector import Trigger

__all__ = ["Method", "MethodName", "Precision", "Scope", "Strategy", "TrainingConfig"]

MethodName = Literal["baseline", "dcl", "gem"]
Scope = Literal["head", "all"]
Measure = Literal["head", "all", "none"]
Accelerator = Literal["auto", "cpu", "cuda"]
Strategy = Literal["auto", "ddp", "fsdp"]
Precision = Literal["32", "bf16", "16"]

_MARGINS = {"baseline": 0.0, "dcl": 0.0, "gem": 0.5}
# What may differ between a run and its resumption: nothing here changes a weight or a line of the record.
_FREE_TO_CHANGE = {"flush_every", "checkpoint_steps", "checkpoint_epochs", "progress", "tensorboard"}


@dataclass(frozen=True, kw_only=True)
class Method:
    """How gradients are corrected: not at all, by the way come, or by a memory.

    Attributes:
        name: ``"baseline"``, ``"dcl"``, or ``"gem"``: the paper's classification GEM (its section 5.1.5), a memory of
            the last layer's features of the epoch's first sample(s), renewed every epoch.
        scope: Which parameters: the last layer's (``"head"``, the paper's choice) or ``"all"``.
        references: DCL's N_r; see :class:`congruency.DCL` for this and the next ones.
        window: DCL's beta_w, None for infinity.
        offset: DCL's beta_o.
        mode: DCL's rows.
        margin: Lower bound of the multipliers; None takes 0 for DCL and 0.5, GEM's "memory strength", for GEM.
        trigger: ``"always"``, or only where a constraint is ``"violated"``; None takes the first for DCL and, as its
            authors do, the second for GEM.
        accumulate: DCL's rows from ``"weights"`` or from ``"gradients"``.
        memory: GEM's memory: how many samples, each a constraint of its own.
    """

    name: MethodName = "baseline"
    scope: Scope = "head"
    references: int = 1
    window: int | None = None
    offset: int = 0
    mode: Mode = "concentrate"
    margin: float | None = None
    trigger: Trigger | None = None
    accumulate: Accumulate = "weights"
    memory: int = 1

    def __post_init__(self) -> None:
        _one_of("method", self.name, MethodName)
        _one_of("scope", self.scope, Scope)
        _one_of("mode", self.mode, Mode)
        if self.trigger is not None:
            _one_of("trigger", self.trigger, Trigger)
        _one_of("accumulate", self.accumulate, Accumulate)
        _at_least("references", self.references, 1)
        _at_least("offset", self.offset, 0)
        _at_least("memory", self.memory, 1)
        if self.window is not None:
            _at_least("window", self.window, 1, "or None")
        if self.margin is not None and not 0.0 <= self.margin < math.inf:
            raise ValueError(f"margin must be finite and at least 0, or None, got {self.margin}")

    @property
    def strength(self) -> float:
        """The margin, the method's own where none was given."""
        return _MARGINS[self.name] if self.margin is None else self.margin

    @property
    def occasion(self) -> Trigger:
        """The trigger, the method's own where none was given."""
        if self.trigger is not None:
            return self.trigger
        return "violated" if self.name == "gem" else "always"


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """One run of the loop.

    Attributes:
        epochs: How many times through the data.
        seed: Of everything random: python, numpy, torch, the weights.
        method: How gradients are corrected.
        accelerator: ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU where there is one. Several processes are started by
            ``torchrun``; without it there is one.
        strategy: With several processes: ``"ddp"`` (which ``"auto"`` takes) or ``"fsdp"`` (FSDP2: everything sharded).
        precision: ``"32"``; ``"bf16"`` and ``"16"`` are mixed, ``"16"`` with a gradient scaler.
        compile: Run the network through ``torch.compile``; a name is its mode.
        capture: Replay the network's passes forward and back as a CUDA graph: for networks too small to hide the time
            that the host takes to start their kernels. One process on a GPU, one batch a step, no gradient scaler.
        channels_last: Network and four-dimensional inputs in the memory format that convolutions on a GPU like.
        accumulate: Batches whose gradients make one step.
        clip: The largest norm of a gradient, None for any. Clipped is what the method then corrects.
        tf32: Let float32 products on a GPU be rounded to TF32.
        measure: Whose congruency and magnitude are measured at every step: the last layer's (as in the paper's curves),
            all parameters', or none's.
        evaluate_every: Epochs between evaluations; the last epoch is always evaluated; 0 for never.
        flush_every: Steps between readings of the device's figures: those in between never wait for the device.
        record_steps: Write the line of every so many-th step into the record; 0 for epochs only.
        checkpoint_steps: Steps between checkpoints, None for none but those of the epochs.
        checkpoint_epochs: Epochs between checkpoints; the end of the run always makes one. 0 for none but SIGTERM's,
            for runs too short to be worth resuming.
        progress: Show a progress bar.
        tensorboard: Write TensorBoard's logs too.
    """

    epochs: int
    seed: int = 0
    method: Method = field(default_factory=Method)
    accelerator: Accelerator = "auto"
    strategy: Strategy = "auto"
    precision: Precision = "32"
    compile: bool | str = False
    capture: bool = False
    channels_last: bool = False
    accumulate: int = 1
    clip: float | None = None
    tf32: bool = False
    measure: Measure = "head"
    evaluate_every: int = 1
    flush_every: int = 50
    record_steps: int = 1
    checkpoint_steps: int | None = None
    checkpoint_epochs: int = 1
    progress: bool = False
    tensorboard: bool = False

    def __post_init__(self) -> None:
        _one_of("accelerator", self.accelerator, Accelerator)
        _one_of("strategy", self.strategy, Strategy)
        _one_of("precision", self.precision, Precision)
        _one_of("measure", self.measure, Measure)
        for name in ("epochs", "accumulate", "flush_every"):
            _at_least(name, getattr(self, name), 1)
        for name in ("seed", "evaluate_every", "record_steps", "checkpoint_epochs"):
            _at_least(name, getattr(self, name), 0)
        if self.checkpoint_steps is not None:
            _at_least("checkpoint_steps", self.checkpoint_steps, 1, "or None")
        if self.clip is not None and not 0.0 < self.clip < math.inf:
            raise ValueError(f"clip must be a positive norm or None, got {self.clip}")
        self._check_together()

    def _check_together(self) -> None:
        if self.capture and (self.accumulate > 1 or self.precision == "16" or self.strategy != "auto"):
            raise ValueError(
                "capture is for one process, one batch a step and precision '32' or 'bf16'; leave it off, or change "
                "accumulate, precision or strategy"
            )
        if self.capture and self.compile in ("reduce-overhead", "max-autotune"):
            raise ValueError(
                f"compile mode {self.compile!r} makes CUDA graphs itself; leave capture off, or compile=True"
            )
        if self.strategy != "fsdp":
            return
        if self.precision == "16":
            raise ValueError("precision '16' needs a gradient scaler, which fsdp has none of; use 'bf16' or '32'")
        if self.channels_last:
            raise ValueError("channels_last weights cannot be sharded; use strategy 'ddp', or leave channels_last off")
        if self.method.name == "gem" and self.method.scope == "all":
            raise ValueError("gem over all parameters needs them whole; use scope 'head', or strategy 'ddp'")

    def as_dict(self) -> dict[str, Any]:
        """For the record and the checkpoints: JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """The configuration that :meth:`as_dict` describes, as a record's first line holds it."""
        known = {each.name for each in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"a configuration has no {', '.join(unknown)}; it was written by another release")
        return cls(**{**values, "method": Method(**values.get("method", {}))})

    def binding(self) -> dict[str, Any]:
        """What a resumed run must share with the run it continues."""
        return {name: value for name, value in self.as_dict().items() if name not in _FREE_TO_CHANGE}


def _one_of(name: str, value: Any, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(choices)))}, got {value!r}")


def _at_least(name: str, value: Any, least: int, besides: str = "") -> None:
    wanted = f"a whole number of at least {least} {besides}".strip()
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be {wanted}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be {wanted}, got {value}")
