"""DCL and Cautious as callbacks of Lightning's Trainer."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import Unpack  # torch needs typing_extensions too

import congruency._torchvision_compat  # noqa: F401  # before lightning, which imports torchvision through torchmetrics
from congruency.cautious import Cautious
from congruency.corrector import Corrector, Stats
from congruency.dcl import DCL
from congruency.distributed import whole
from congruency.integrations.common import (
    CautiousOptions,
    Kind,
    Options,
    Params,
    attach,
    check_options,
    metrics_of_all,
    missing,
)

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["CautiousCallback", "DCLCallback"]


def _framework(imported: Mapping[str, Any] = sys.modules) -> str:
    """Return the package to use: ``lightning``, unless only ``pytorch_lightning`` is imported or installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in names:
        if imported.get(name) is not None:
            return name
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return name
    raise missing("Lightning", "lightning")


if not TYPE_CHECKING:
    Callback = importlib.import_module(_framework()).Callback


class _CorrectorCallback(Callback):
    """Base class; subclasses set the correction, its checkpoint key, and what restarts if the state is lost."""

    _kind: Kind
    _key: str
    _lost: str

    def __init__(self, params: Params, options: Options | CautiousOptions) -> None:
        check_options(params, options, self._kind)
        self.params, self.options = params, options
        self.correctors: dict[int, Corrector] = {}
        self._fitting = self._restored = False
        self._steps = 0  # optimizer steps until the previous batch
        self._loaded: dict[str, Any] | None = None

    @property
    def stats(self) -> Stats:
        """Statistics of the only optimizer's correction; with several, see ``callback.correctors[i].stats``."""
        if len(self.correctors) != 1:
            raise RuntimeError(
                f"there are {len(self.correctors)} correctors, not one; use callback.correctors[i].stats, after fit "
                "began"
            )
        (corrector,) = self.correctors.values()
        return corrector.stats

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._loaded, self._restored = None, False  # drop a state loaded by an earlier validation

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._detach()
        self.correctors = attach(pl_module, trainer.optimizers, self.params, self.options, self._kind)
        self._fitting, self._steps = True, trainer.global_step
        self._restore()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path and not self._restored:
            warnings.warn(
                f"the fit resumes without {self._kind.__name__}'s state, and {self._lost} restart: "
                f"{trainer.ckpt_path} has none",
                stacklevel=2,
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Log as Lightning's monitors do; LightningModule.log would repeat the last value of an undefined metric.
        made_a_step = trainer.global_step != self._steps  # False for most batches with accumulate_grad_batches
        self._steps = trainer.global_step
        if not made_a_step or not trainer._logger_connector.should_update_logs or trainer.barebones:
            return
        found = metrics_of_all(self.correctors)
        for logger in trainer.loggers:
            logger.log_metrics(found, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in found.items()})

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._detach()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._detach()

    def _detach(self) -> None:
        """Detach from the optimizers; keep the correctors for their stats and for checkpoints after the fit."""
        self._fitting = False
        for corrector in self.correctors.values():
            corrector.detach()

    def state_dict(self) -> dict[str, Any]:
        if not self.correctors:
            return self._loaded or {}
        return {self._key: {i: whole(each.state_dict()) for i, each in self.correctors.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Called before the optimizers exist, or, with sharded models, after.
        self._loaded = state_dict
        if self._fitting:
            self._restore()

    def _restore(self) -> None:
        if self._loaded is None:
            return
        name, saved, self._loaded = self._kind.__name__, self._loaded[self._key], None
        if set(saved) != set(self.correctors):
            raise ValueError(
                f"the checkpoint holds {name}'s state for optimizer(s) {sorted(saved)}, here it corrects "
                f"{sorted(self.correctors)}; use the same optimizers and params, or a checkpoint without {name}"
            )
        for i, corrector in self.correctors.items():
            corrector.load_state_dict(saved[i])
        self._restored = True


class DCLCallback(_CorrectorCallback):
    """Corrects the gradients of every optimizer step of a fit, logs congruency, resumes from checkpoints.

        trainer = lightning.Trainer(callbacks=[DCLCallback(window=50)])
        trainer.fit(model, data)
        trainer.fit(model, data, ckpt_path="last.ckpt")  # resumes bit for bit, references included

    Equivalent to a plain loop with :class:`congruency.DCL`, with automatic and manual optimization, several optimizers
    (one problem each), ``accumulate_grad_batches`` (the accumulated gradient is corrected, once), mixed precision, DDP
    and FSDP2 (``ModelParallelStrategy``). FSDP1 and DeepSpeed, which flatten the parameters, are not supported.

    Clipping: Lightning clips right after the backward pass, so the *clipped* gradient is what is corrected. Only a
    positive margin can increase its norm again. To clip the corrected gradient, use manual optimization and
    ``congruency.DCL(..., attach=False)``.

    Logged every ``log_every_n_steps`` steps to all loggers of the Trainer, once per optimizer step, as means over the
    steps since the last time: ``dcl/congruency`` and ``dcl/corrected_congruency`` (the cosine before and after the
    correction), ``dcl/magnitude`` (the distance from the references) and ``dcl/corrected_share``; with several
    optimizers ``dcl/0/congruency`` and so on. With ``blocks="element"`` there is ``dcl/kept``, the share of elements
    that were kept. Undefined values (congruency, while references are recorded) are not logged. Other steps do not wait
    for the device. The latest values are in ``trainer.callback_metrics``.

    Checkpoints contain the full references, for any number of processes: one copy of the parameters per reference.

    Args:
        params: ``"all"`` of each optimizer's parameters; the ``"head"`` (:func:`congruency.head` of the
            LightningModule: the last layer in order of definition); or a function from the LightningModule to
            parameters.
        options: Options of :class:`congruency.DCL`: references, window, offset, mode, margin, floor, returning,
            correct, trigger, blocks and accumulate.
    """

    _kind = DCL
    _key = "dcls"
    _lost = "its references"

    def __init__(self, params: Params = "all", **options: Unpack[Options]) -> None:
        super().__init__(params, options)

    @property
    def dcls(self) -> dict[int, Corrector]:
        """The DCL of each optimizer, by the optimizer's index."""
        return self.correctors


class CautiousCallback(_CorrectorCallback):
    """Makes every optimizer of a fit cautious: see :class:`congruency.Cautious`.

        trainer = lightning.Trainer(callbacks=[CautiousCallback()])

    Everything else is as for :class:`DCLCallback`. Both can be used together: DCL corrects the gradient first, then
    Cautious the update. Logged are ``cautious/kept``, the share of elements that were kept, and
    ``cautious/congruency``, the cosine of the step's update and gradient.

    Args:
        params: As for :class:`DCLCallback`.
        options: Options of :class:`congruency.Cautious`: rescale, decay and max_rescale.
    """

    _kind = Cautious
    _key = "cautious"
    _lost = "its counts"

    def __init__(self, params: Params = "all", **options: Unpack[CautiousOptions]) -> None:
        super().__init__(params, options)
