"""Configuration of a run: plain data, validated on construction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from congruency._validate import check_choice, check_floor, check_whole
from congruency.constraints.references import Accumulate, Mode
from congruency.corrector import Blocks, Correct, Trigger
from congruency.seeds import hashed_seed

CorrectionName = Literal["baseline", "dcl", "gem", "cautious", "l2sp"]
Scope = Literal["head", "all"]
Measure = Literal["head", "all", "none"]
Accelerator = Literal["auto", "cpu", "cuda"]
Strategy = Literal["auto", "ddp", "fsdp"]
Precision = Literal["32", "bf16", "16"]
SampleOrder = Literal["seed", "fixed", "independent"]
"""Which runs share their sample order.

- ``"seed"``: runs with the same seed, whatever their correction, so that their differences are paired.
- ``"fixed"``: all runs, whatever their seed and correction: the paper's fixed permutations.
- ``"independent"``: none. Every correction and seed has its own order: the paper's independent stochastic processes.

The order always differs between the epochs of a run. It depends only on the seed given by :func:`order_seed`.
"""

_ONE_OR_NONE = "a whole number of at least 1 or None"
_MARGINS = {"gem": 0.5}  # all other methods: 0
LATER_FIELDS = (
    "floor", "returning", "correct", "blocks", "cautious", "rescale", "mask_decay", "max_rescale", "strength",
    "head_strength",
)  # fmt: skip
"""Fields added after the first records: omitted from records and digests if they have their defaults."""
# Fields that may change when a run is resumed: they affect neither weights nor record lines.
_FREE_TO_CHANGE = {"flush_every", "checkpoint_steps", "checkpoint_epochs", "progress", "tensorboard"}


@dataclass(frozen=True, kw_only=True)
class Correction:
    """How gradients or updates are corrected.

    Finished runs are found on disk by a digest of these fields, so renaming a field loses them.

    Attributes:
        name: ``"baseline"`` (no correction), ``"dcl"``, ``"cautious"``, or ``"gem"``: the paper's GEM for
            classification (section 5.1.5), with a memory of the last layer's features of the first sample(s) of every
            epoch. ``"l2sp"`` is a penalty to compare fine-tuning with: :class:`congruency.training.l2sp.L2SP`.
        scope: Parameters to correct: the last layer's (``"head"``, the paper's choice) or ``"all"``.
        references: DCL's N_r; see :class:`congruency.DCL` for this and the other DCL settings.
        window: DCL's beta_w, None for infinity.
        offset: DCL's beta_o.
        mode: DCL's constraints, ``"concentrate"`` or ``"anchor"``.
        margin: Lower bound of the multipliers; None means 0 for DCL and 0.5, GEM's "memory strength", for GEM.
        trigger: ``"always"``, or only if a constraint is ``"violated"``; None means ``"violated"`` for GEM, as in its
            authors' code, and ``"always"`` otherwise.
        accumulate: DCL's displacements from ``"weights"`` or from ``"gradients"``.
        memory: Samples in GEM's memory, each one constraint.
        floor: DCL's congruency floor. The default here is None, the paper's form, as in existing records.
        returning: DCL's further condition, used with a floor.
        correct: DCL's target, the ``"gradient"`` or the ``"update"``.
        blocks: DCL's blocks.
        cautious: Apply :class:`congruency.Cautious` to the update as well, after DCL or GEM.
        rescale, mask_decay, max_rescale: Options of :class:`congruency.Cautious`, where ``mask_decay`` is ``decay``.
        strength, head_strength: L2-SP's alpha and beta.
    """

    name: CorrectionName = "baseline"
    scope: Scope = "head"
    references: int = 1
    window: int | None = None
    offset: int = 0
    mode: Mode = "concentrate"
    margin: float | None = None
    trigger: Trigger | None = None
    accumulate: Accumulate = "weights"
    memory: int = 1
    floor: float | None = None
    returning: bool = True
    correct: Correct = "gradient"
    blocks: Blocks = "joint"
    cautious: bool = False
    rescale: bool = True
    mask_decay: bool = False
    max_rescale: float | None = None
    strength: float = 0.0
    head_strength: float = 0.01

    def __post_init__(self) -> None:
        check_choice("method", self.name, get_args(CorrectionName))
        check_choice("scope", self.scope, get_args(Scope))
        check_choice("mode", self.mode, get_args(Mode))
        check_choice("trigger", self.effective_trigger, get_args(Trigger))
        check_choice("accumulate", self.accumulate, get_args(Accumulate))
        check_choice("correct", self.correct, get_args(Correct))
        check_choice("blocks", self.blocks, get_args(Blocks))
        check_floor(self.floor)
        check_whole("references", self.references, least=1)
        check_whole("offset", self.offset, least=0)
        check_whole("memory", self.memory, least=1)
        if self.window is not None:
            check_whole("window", self.window, _ONE_OR_NONE, least=1)
        if self.margin is not None and not 0.0 <= self.margin < math.inf:
            raise ValueError(f"margin must be finite and at least 0, or None, got {self.margin}")
        for name in ("strength", "head_strength"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, got {getattr(self, name)}")
        if (self.name == "l2sp") != (self.strength > 0.0) or (self.name == "l2sp" and self.scope != "all"):
            raise ValueError("l2sp, and nothing else, needs a strength above 0, such as 0.01, and scope 'all'")

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON-serialisable values, for records and digests."""
        plain = {each.name: each.default for each in fields(self)}
        return {k: v for k, v in asdict(self).items() if k not in LATER_FIELDS or v != plain[k]}

    @property
    def effective_margin(self) -> float:
        """The margin, or the default of :attr:`name` if None."""
        return _MARGINS.get(self.name, 0.0) if self.margin is None else self.margin

    @property
    def effective_trigger(self) -> Trigger:
        """The trigger, or the default of :attr:`name` if None."""
        if self.trigger is not None:
            return self.trigger
        return "violated" if self.name == "gem" else "always"


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Configuration of one training run.

    Attributes:
        epochs: Number of epochs.
        seed: Seed of python, numpy and torch, hence of the initial weights.
        method: How gradients are corrected.
        accelerator: ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if there is one. ``torchrun`` starts several processes.
        strategy: With several processes: ``"ddp"`` (as ``"auto"``) or ``"fsdp"`` (FSDP2: everything sharded).
        precision: ``"32"``; ``"bf16"`` and ``"16"`` are mixed, ``"16"`` with a gradient scaler.
        compile: Run the network through ``torch.compile``; a string is its mode.
        capture: Replay the forward and backward pass as a CUDA graph, for small networks limited by kernel launches.
            Needs one process on a GPU, one batch per step, and no gradient scaler.
        channels_last: Use the channels-last memory format for the network and 4-d inputs.
        accumulate: Batches per optimizer step (gradient accumulation).
        clip: Maximum gradient norm, None for no clipping. Corrections apply to the clipped gradient.
        tf32: Allow TF32 in float32 products on a GPU.
        measure: Parameters whose congruency and magnitude are measured at every step: the last layer's (``"head"``, as
            in the paper's curves), ``"all"``, or ``"none"``.
        evaluate_every: Epochs between evaluations; the last epoch is always evaluated; 0 for never.
        flush_every: Steps between readbacks of figures from the device; other steps never wait for the device.
        record_steps: Steps between lines of the record; 0 records epochs only.
        checkpoint_steps: Steps between checkpoints, None for checkpoints by epoch only.
        checkpoint_epochs: Epochs between checkpoints; one is always written at the end of the run. With 0, one is
            written after an epoch that ends more than a minute after the last checkpoint, and none at the end.
        progress: Show a progress bar.
        tensorboard: Write TensorBoard logs too.
    """

    epochs: int
    seed: int = 0
    method: Correction = field(default_factory=Correction)
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
        check_choice("accelerator", self.accelerator, get_args(Accelerator))
        check_choice("strategy", self.strategy, get_args(Strategy))
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("measure", self.measure, get_args(Measure))
        for name in ("epochs", "accumulate", "flush_every"):
            check_whole(name, getattr(self, name), least=1)
        for name in ("seed", "evaluate_every", "record_steps", "checkpoint_epochs"):
            check_whole(name, getattr(self, name), least=0)
        if self.checkpoint_steps is not None:
            check_whole("checkpoint_steps", self.checkpoint_steps, _ONE_OR_NONE, least=1)
        if self.clip is not None and not 0.0 < self.clip < math.inf:
            raise ValueError(f"clip must be a positive norm or None, got {self.clip}")
        if self.capture and (self.accumulate > 1 or self.precision == "16" or self.strategy != "auto"):
            raise ValueError(
                "capture is for one process, one batch per step and precision '32' or 'bf16'; leave it off, or change "
                "accumulate, precision or strategy"
            )
        if self.capture and self.compile in ("reduce-overhead", "max-autotune"):
            raise ValueError(
                f"compile mode {self.compile!r} uses CUDA graphs itself; leave capture off, or compile=True"
            )
        sharded = self.strategy == "fsdp"
        if sharded and self.precision == "16":
            raise ValueError("precision '16' needs a gradient scaler, which fsdp has none of; use 'bf16' or '32'")
        if sharded and self.channels_last:
            raise ValueError("channels_last weights cannot be sharded; use strategy 'ddp', or leave channels_last off")
        if sharded and self.method.name == "gem" and self.method.scope == "all":
            raise ValueError("gem over all parameters needs them whole; use scope 'head', or strategy 'ddp'")

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON-serialisable values, for record and checkpoints."""
        return {**asdict(self), "method": self.method.settings()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """Create a configuration from :meth:`as_dict`, as in a record's first line."""
        unknown = sorted(set(values) - {each.name for each in fields(cls)})
        if unknown:
            raise ValueError(f"a configuration has no {', '.join(unknown)}; it was written by another release")
        return cls(**{**values, "method": Correction(**values.get("method", {}))})

    def binding(self) -> dict[str, Any]:
        """Return the fields that must not change when a run is resumed."""
        return {name: value for name, value in self.as_dict().items() if name not in _FREE_TO_CHANGE}


def order_seed(order: SampleOrder, seed: int, method: Correction, fixed: int = 0) -> int:
    """Return the seed of a run's sample order.

    Args:
        order: Which runs share their order.
        seed, method: The run's seed and correction.
        fixed: Seed that all runs use with ``"fixed"``.
    """
    check_choice("order", order, get_args(SampleOrder))
    if fixed < 0:
        raise ValueError(f"the seed of the order must not be negative, got {fixed}")
    if order == "seed":
        return seed
    if order == "fixed":
        return fixed
    return hashed_seed((seed, sorted(method.settings().items())), size=4)
