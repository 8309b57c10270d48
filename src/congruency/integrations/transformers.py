"""DCL and Cautious as callbacks of Hugging Face's Trainer."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import Unpack  # torch needs typing_extensions too

import congruency._torchvision_compat  # noqa: F401  # before transformers, which may import torchvision
from congruency.cautious import Cautious
from congruency.corrector import Corrector, Stats
from congruency.dcl import DCL
from congruency.distributed import local, reduce_sum, reduction_groups, whole
from congruency.files import replacing
from congruency.integrations.common import (
    CautiousOptions,
    Kind,
    Options,
    Params,
    attach,
    check_options,
    metrics,
    missing,
)

try:
    from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-untyped]
    from transformers import TrainerCallback
except ModuleNotFoundError as reason:
    if (reason.name or "").partition(".")[0] not in ("accelerate", "transformers"):
        raise
    raise missing("transformers with Accelerate", "'transformers[torch]'") from None

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

__all__ = ["CautiousCallback", "DCLCallback"]

Folder = str | os.PathLike[str] | None
Self = TypeVar("Self", bound="_CorrectorCallback")
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _CorrectorCallback(TrainerCallback):
    """Base class; subclasses set the correction, its checkpoint key, and what restarts if the state is lost."""

    _kind: Kind
    _key: str
    _lost: str

    def __init__(self, params: Params, resume_from: Folder, options: Options | CautiousOptions) -> None:
        check_options(params, options, self._kind)
        self.params, self.options = params, options
        self.resume_from = None if resume_from is None else Path(resume_from)
        self.corrector: Corrector | None = None
        self._first = False

    @property
    def _file(self) -> str:
        return f"{self._key}.pt"

    def add_to(self: Self, trainer: Trainer) -> Self:
        """Add this callback before a Trainer's other callbacks, so that reporting callbacks receive its metrics."""
        trainer.callback_handler.callbacks.insert(0, self)
        self._first = True
        return self

    @property
    def stats(self) -> Stats:
        """Statistics of the last step, and counts."""
        if self.corrector is None:
            raise RuntimeError("there are no stats before trainer.train()")
        return self.corrector.stats

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        self._detach()
        if args.report_to and not self._first:
            warnings.warn(
                f"{', '.join(args.report_to)} will not show {self._kind.__name__}'s metrics: reporting callbacks run "
                f"before those in Trainer(callbacks=[...]); use {type(self).__name__}(...).add_to(trainer) instead",
                stacklevel=2,
            )
        optimizers = [_inner(objects["optimizer"])]
        self.corrector = attach(objects["model"], optimizers, self.params, self.options, self._kind)[0]
        if state.global_step > 0:
            self._restore(args, state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **objects: Any,
    ) -> None:
        if (
            self.corrector is None or logs is None or "loss" not in logs
        ):  # the logs of an evaluation, or the final summary
            return
        found = metrics(self.corrector)
        logs.update(found)
        state.log_history[-1].update(found)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any) -> None:
        if self.corrector is None or args.save_only_model:
            return
        saved = {self._key: whole(self.corrector.state_dict()), "weights": _fingerprint(self.corrector)}
        folder = _checkpoint(args, state)
        if not args.should_save:
            return
        if not folder.is_dir():
            warnings.warn(f"{self._file} is not saved: there is no {folder}", stacklevel=2)  # as in a search
            return
        with replacing(folder / self._file) as file:
            torch.save(saved, file)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        self._detach()

    def _detach(self) -> None:
        """Detach from the optimizer; keep the corrector for its stats."""
        if self.corrector is not None:
            self.corrector.detach()

    def _restore(self, args: TrainingArguments, state: TrainerState) -> None:
        assert self.corrector is not None
        path = self._state_file(args, state)
        if path is None:
            warnings.warn(
                f"training resumes at step {state.global_step} without {self._kind.__name__}'s state, and {self._lost} "
                f"restart: there is no {_checkpoint(args, state) / self._file}. If the checkpoint is elsewhere, use "
                f"{type(self).__name__}(resume_from=its folder)",
                stacklevel=3,
            )
            return
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved["weights"] != _fingerprint(self.corrector):
            raise ValueError(
                f"the weights are not those that {path} was saved with: it belongs to another checkpoint than the one "
                f"resumed from; give that one's folder: {type(self).__name__}(resume_from=...)"
            )
        self.corrector.load_state_dict(saved[self._key])

    def _state_file(self, args: TrainingArguments, state: TrainerState) -> Path | None:
        if self.resume_from is not None:
            if not (self.resume_from / self._file).is_file():
                raise FileNotFoundError(f"resume_from={str(self.resume_from)!r} holds no {self._file}")
            return self.resume_from / self._file
        named = args.resume_from_checkpoint
        folders = [*([Path(named)] if isinstance(named, str) else []), _checkpoint(args, state)]
        return next((folder / self._file for folder in folders if (folder / self._file).is_file()), None)


class DCLCallback(_CorrectorCallback):
    """Corrects the gradients of every optimizer step of ``trainer.train()``, logs congruency, resumes from checkpoints.

        trainer = Trainer(model=model, args=args, train_dataset=data)
        DCLCallback(window=50).add_to(trainer)
        trainer.train()
        trainer.train(resume_from_checkpoint=True)  # resumes bit for bit, references included

    Equivalent to a plain loop with :class:`congruency.DCL` on the optimizer inside Accelerate's wrapper, with gradient
    accumulation (the accumulated gradient is corrected, once), mixed precision and DDP. FSDP2 is untested; FSDP1 and
    DeepSpeed, which flatten the parameters, are not supported. (A custom loop with Accelerate needs no callback: pass
    ``congruency.DCL`` the original optimizer, not the one that ``accelerator.prepare`` returns.)

    Clipping: the Trainer clips to ``max_grad_norm``, by default 1.0, *before* the optimizer's step, so the clipped
    gradient is what is corrected. Only a positive margin can increase its norm again.

    Logged with every training loss (``logging_steps``), in ``trainer.state.log_history`` and to the integrations in
    ``report_to``, as means over the steps since the last time: ``dcl/congruency`` and ``dcl/corrected_congruency`` (the
    cosine before and after the correction), ``dcl/magnitude`` (the distance from the references) and
    ``dcl/corrected_share``. Other steps do not wait for the device. If passed in ``Trainer(callbacks=[...])`` instead
    of added by :meth:`add_to`, it is called after the reporting callbacks, which then do not receive its metrics.

    Checkpoints: the state is a separate file, ``dcl.pt``, in each ``checkpoint-N`` folder. On resuming, it is read
    from ``resume_from``, else ``args.resume_from_checkpoint``, else ``args.output_dir``'s ``checkpoint-N`` of the
    step resumed from; the weights must be those it was saved with. Without it, a warning says that the references
    restart.

    Args:
        params: ``"all"`` of the optimizer's parameters; the ``"head"`` (:func:`congruency.head`: the last layer in
            order of definition); or a function from the model to parameters.
        resume_from: The checkpoint folder, if ``trainer.train`` resumes from one outside of ``args.output_dir``.
        options: Options of :class:`congruency.DCL`: references, window, offset, mode, margin, floor, returning,
            correct, trigger, blocks and accumulate.
    """

    _kind = DCL
    _key = "dcl"
    _lost = "its references"

    def __init__(self, params: Params = "all", *, resume_from: Folder = None, **options: Unpack[Options]) -> None:
        super().__init__(params, resume_from, options)

    @property
    def dcl(self) -> Corrector | None:
        """The DCL of the last or current ``trainer.train()``."""
        return self.corrector


class CautiousCallback(_CorrectorCallback):
    """Makes the optimizer of ``trainer.train()`` cautious: see :class:`congruency.Cautious`.

        CautiousCallback().add_to(trainer)

    Everything else is as for :class:`DCLCallback`. Both can be used together: DCL corrects the gradient first, then
    Cautious the update. Logged are ``cautious/kept``, the share of elements that were kept, and
    ``cautious/congruency``, the cosine of the step's update and gradient. The state, ``cautious.pt`` in each
    ``checkpoint-N`` folder, contains only counts.

    Args:
        params, resume_from: As for :class:`DCLCallback`.
        options: Options of :class:`congruency.Cautious`: rescale, decay and max_rescale.
    """

    _kind = Cautious
    _key = "cautious"
    _lost = "its counts"

    def __init__(
        self, params: Params = "all", *, resume_from: Folder = None, **options: Unpack[CautiousOptions]
    ) -> None:
        super().__init__(params, resume_from, options)


def _inner(optimizer: Any) -> Any:
    """Return the wrapped optimizer, which takes the step; hooks of Accelerate's wrapper would never run."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    assert args.output_dir is not None
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _fingerprint(corrector: Corrector) -> list[int]:
    """Return the sum of each parameter's bits as integers, the same on any device and number of processes."""
    parameters = [parameter for group in corrector.optimizer.param_groups for parameter in group["params"]]
    return torch.stack([_sum_of_bits(parameter.detach()) for parameter in parameters]).tolist()


def _sum_of_bits(parameter: Tensor) -> Tensor:
    bits = local(parameter).contiguous().view(_BITS[parameter.element_size()])
    return reduce_sum(bits.sum(dtype=torch.int64), reduction_groups(parameter)).cpu()
