"""DCL as a callback of Hugging Face's Trainer."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import Unpack  # torch needs typing_extensions too

import congruency._torchvision_compat  # noqa: F401  # before transformers, which may import torchvision
from congruency.corrector import Stats
from congruency.dcl import DCL
from congruency.distributed import local, reduce_sum, reduction_groups, whole
from congruency.files import replacing
from congruency.integrations.common import Options, Params, attach, check_options, metrics, missing

try:
    from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-untyped]
    from transformers import TrainerCallback
except ModuleNotFoundError as reason:
    if (reason.name or "").partition(".")[0] not in ("accelerate", "transformers"):
        raise
    raise missing("transformers with Accelerate", "'transformers[torch]'") from None

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

__all__ = ["DCLCallback"]

STATE_FILE = "dcl.pt"
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class DCLCallback(TrainerCallback):
    """Corrects the gradients of every optimizer step of ``trainer.train()``, logs congruency, resumes from checkpoints.

        trainer = Trainer(model=model, args=args, train_dataset=data)
        DCLCallback(window=50).add_to(trainer)
        trainer.train()
        trainer.train(resume_from_checkpoint=True)  # resumes bit for bit, references included

    Equivalent to a plain loop with :class:`congruency.DCL` on the optimizer inside Accelerate's wrapper, with gradient
    accumulation (the accumulated gradient is corrected, once), mixed precision and DDP. FSDP2 is untested; FSDP1 and
    DeepSpeed flatten the parameters and are refused. (Your own loop with Accelerate needs no callback: give
    ``congruency.DCL`` the original optimizer, not the one that ``accelerator.prepare`` returns.)

    Clipping: the Trainer clips to ``max_grad_norm``, by default 1.0, *before* the optimizer's step, so the clipped
    gradient is what is corrected. Only a positive margin can increase its norm again.

    Logged with every training loss (``logging_steps``), in ``trainer.state.log_history`` and to the integrations in
    ``report_to``: ``dcl/congruency`` and ``dcl/corrected_congruency`` (the step's cosine before and after the
    correction, mean over references), ``dcl/magnitude`` (the distance from the references) and ``dcl/corrected_share``
    (of all steps so far). Other steps do not wait for the device. Given in ``Trainer(callbacks=[...])`` instead of by
    :meth:`add_to`, it is called after the reporting callbacks, which then do not see its metrics.

    Checkpoints: the state is a separate file, ``dcl.pt``, in each ``checkpoint-N`` folder. On resuming, it is read
    from ``resume_from``, else ``args.resume_from_checkpoint``, else ``args.output_dir``'s ``checkpoint-N`` of the
    step resumed from; the weights must be those it was saved with. Without it, a warning says that the references
    restart.

    Args:
        params: ``"all"`` of the optimizer's parameters; the ``"head"`` (:func:`congruency.head`: the last layer in
            order of definition); or a function from the model to parameters.
        resume_from: The checkpoint folder, if ``trainer.train`` is given one outside of ``args.output_dir``.
        options: Those of :class:`congruency.DCL`: references, window, offset, mode, margin, trigger, blocks and
            accumulate.
    """

    def __init__(
        self, params: Params = "all", *, resume_from: str | os.PathLike[str] | None = None, **options: Unpack[Options]
    ) -> None:
        check_options(params, options)
        self.params, self.options = params, options
        self.resume_from = None if resume_from is None else Path(resume_from)
        self.dcl: DCL | None = None
        self._first = False

    def add_to(self, trainer: Trainer) -> DCLCallback:
        """Add this callback before a Trainer's others, so that those that report receive its metrics."""
        trainer.callback_handler.callbacks.insert(0, self)
        self._first = True
        return self

    @property
    def stats(self) -> Stats:
        """Statistics of the last step, and counts."""
        if self.dcl is None:
            raise RuntimeError("there are no stats before trainer.train()")
        return self.dcl.stats

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        self._detach()
        if args.report_to and not self._first:
            warnings.warn(
                f"{', '.join(args.report_to)} will not show DCL's metrics: reporting callbacks run before those in "
                "Trainer(callbacks=[...]); use DCLCallback(...).add_to(trainer) instead",
                stacklevel=2,
            )
        self.dcl = attach(objects["model"], [_inner(objects["optimizer"])], self.params, self.options)[0]
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
        if self.dcl is None or logs is None or "loss" not in logs:  # the logs of an evaluation, or the final summary
            return
        found = metrics(self.dcl)
        logs.update(found)
        state.log_history[-1].update(found)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any) -> None:
        if self.dcl is None or args.save_only_model:
            return
        saved = {"dcl": whole(self.dcl.state_dict()), "weights": _fingerprint(self.dcl)}
        folder = _checkpoint(args, state)
        if not args.should_save:
            return
        if not folder.is_dir():
            warnings.warn(f"DCL's state is not saved: there is no {folder}", stacklevel=2)  # as in a search
            return
        with replacing(folder / STATE_FILE) as file:
            torch.save(saved, file)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        self._detach()

    def _detach(self) -> None:
        """Detach from the optimizer; keep the DCL for its stats."""
        if self.dcl is not None:
            self.dcl.detach()

    def _restore(self, args: TrainingArguments, state: TrainerState) -> None:
        assert self.dcl is not None
        path = self._state_file(args, state)
        if path is None:
            warnings.warn(
                f"training resumes at step {state.global_step} without DCL's state, and its references restart: there "
                f"is no {_checkpoint(args, state) / STATE_FILE}. If the checkpoint is elsewhere, use "
                "DCLCallback(resume_from=its folder)",
                stacklevel=3,
            )
            return
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if saved["weights"] != _fingerprint(self.dcl):
            raise ValueError(
                f"the weights are not those that {path} was saved with: it belongs to another checkpoint than the one "
                "resumed from; give that one's folder: DCLCallback(resume_from=...)"
            )
        self.dcl.load_state_dict(saved["dcl"])

    def _state_file(self, args: TrainingArguments, state: TrainerState) -> Path | None:
        if self.resume_from is not None:
            if not (self.resume_from / STATE_FILE).is_file():
                raise FileNotFoundError(f"resume_from={str(self.resume_from)!r} holds no {STATE_FILE}")
            return self.resume_from / STATE_FILE
        named = args.resume_from_checkpoint
        folders = [*([Path(named)] if isinstance(named, str) else []), _checkpoint(args, state)]
        return next((folder / STATE_FILE for folder in folders if (folder / STATE_FILE).is_file()), None)


def _inner(optimizer: Any) -> Any:
    """The wrapped optimizer, which takes the step: hooks of Accelerate's wrapper would never run."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    assert args.output_dir is not None
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _fingerprint(dcl: DCL) -> list[int]:
    """The sum of each parameter's bits as integers: the same on any device and any number of processes."""
    parameters = [parameter for group in dcl.optimizer.param_groups for parameter in group["params"]]
    return torch.stack([_sum_of_bits(parameter.detach()) for parameter in parameters]).tolist()


def _sum_of_bits(parameter: Tensor) -> Tensor:
    bits = local(parameter).contiguous().view(_BITS[parameter.element_size()])
    return reduce_sum(bits.sum(dtype=torch.int64), reduction_groups(parameter)).cpu()
