"""DCL as a plugin of Avalanche's strategies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from typing_extensions import Unpack  # torch needs typing_extensions too

import congruency._torchvision_compat  # noqa: F401  # before avalanche, which imports torchvision
from congruency.constraints.base import ConstraintSource
from congruency.constraints.memory import EpisodicMemory
from congruency.constraints.references import References
from congruency.corrector import Corrector, Stats
from congruency.integrations.common import Options, Params, check_options, chosen, metrics, missing

try:
    from avalanche.core import SupervisedPlugin
    from avalanche.evaluation.metric_results import MetricValue
    from avalanche.models import MultiTaskModule
    from avalanche.training.plugins import GEMPlugin
except ModuleNotFoundError as reason:
    if (reason.name or "").partition(".")[0] != "avalanche":
        raise
    raise missing("Avalanche", "avalanche-lib") from None

__all__ = ["DCLPlugin"]

_KEPT = ("memory_x", "memory_y", "memory_tid")
_COMMON = ("correct", "trigger", "blocks")  # options of the corrector, not of a constraint source


class DCLPlugin(SupervisedPlugin):  # type: ignore[misc]  # Avalanche is not installed for type checking
    """Corrects the gradients of every step of a strategy; references restart with every experience.

        strategy = Naive(model=model, optimizer=optimizer, criterion=criterion, plugins=[DCLPlugin(window=30)])
        for experience in benchmark.train_stream:
            strategy.train(experience)

    Without a memory, this is equivalent to a plain loop with :class:`congruency.DCL` that calls ``reset()`` at each new
    experience.

    With a memory, DCL's constraints and one per past experience enter *one* quadratic program (the paper's
    ``eqn:constraints_conn``), as in
    ``Corrector(optimizer, constraints=[References(...), EpisodicMemory(model)])``:

        memory = GEMPlugin(patterns_per_experience=256, memory_strength=0.5)
        strategy = Naive(..., plugins=[DCLPlugin(window=30, memory=memory)])

    The memory is Avalanche's own: its GEMPlugin chooses at the end of each experience which patterns to keep, and its
    ``memory_strength`` is the margin of those constraints. Do not give it to the strategy as well: there it would
    project the gradient before DCL sees it, which is not the joint method. The gradients on the memory come from one
    batched call (:class:`congruency.EpisodicMemory`), with the strategy's criterion.

    Logged at the end of every epoch, through the strategy's evaluator and its loggers: ``dcl/congruency``,
    ``dcl/corrected_congruency``, ``dcl/magnitude`` and ``dcl/corrected_share``, means over the epoch's steps.

    A checkpoint between experiences must include the memory: ``plugin.state_dict()``. A pickled strategy includes it.

    Args:
        params: ``"all"`` of the optimizer's parameters; the ``"head"`` (:func:`congruency.head`); or a function from
            the model to parameters.
        memory: Avalanche's GEMPlugin, or None for DCL alone.
        options: Options of :class:`congruency.DCL`: references, window, offset, mode, margin, floor, returning,
            correct, trigger, blocks and accumulate. ``trigger`` also applies to the memory; GEM uses ``"violated"``.
    """

    def __init__(self, params: Params = "all", *, memory: Any = None, **options: Unpack[Options]) -> None:
        super().__init__()
        check_options(params, options)
        if memory is not None and not isinstance(memory, GEMPlugin):
            raise TypeError(f"memory must be Avalanche's GEMPlugin or None, got a {type(memory).__name__}")
        self.params, self.options, self.memory = params, options, memory
        self.corrector: Corrector | None = None
        self._last: Stats | None = None

    @property
    def stats(self) -> Stats:
        """Statistics of the last step, DCL's references first, then past experiences; counts restart per experience."""
        found = self._last if self.corrector is None else self.corrector.stats
        if found is None:
            raise RuntimeError("there are no stats before strategy.train()")
        return found

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Attach a new corrector, once model and optimizer are adapted to the experience, such as by new units."""
        self._detach()
        common: Any = {name: value for name, value in self.options.items() if name in _COMMON}
        self.corrector = Corrector(
            strategy.optimizer, chosen(strategy.model, self.params), constraints=self._sources(strategy), **common
        )

    def after_training_epoch(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Publish the metrics to the strategy's loggers."""
        if self.corrector is not None:
            for name, value in metrics(self.corrector).items():
                step = strategy.clock.train_iterations
                strategy.evaluator.publish_metric_value(MetricValue(self, name, value, step))

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Detach from the optimizer and update the memory."""
        self._detach()
        if self.memory is not None:
            past = len(self.memory.memory_x)
            self.memory.update_memory(strategy.experience.dataset, past, strategy.train_mb_size)

    def _sources(self, strategy: Any) -> list[ConstraintSource]:
        rest: Any = {k: v for k, v in self.options.items() if k not in ("references", *_COMMON)}
        references = References(self.options.get("references", 1), **rest)
        return [references] if self.memory is None else [references, self._episodes(strategy, self.memory)]

    def _episodes(self, strategy: Any, memory: Any) -> EpisodicMemory:
        """Return Avalanche's memory as a constraint source."""
        if memory in strategy.plugins:
            raise ValueError(
                "the memory is also a plugin of the strategy, so it would project the gradient before DCL; pass it "
                "only to DCLPlugin"
            )
        if isinstance(strategy.model, MultiTaskModule):
            raise TypeError(
                "a memory needs a model that is called with inputs alone, this one (a MultiTaskModule) needs task "
                "labels too; use DCLPlugin without a memory, or a model with one head"
            )
        episodes = EpisodicMemory(
            strategy.model, strategy._criterion, size=memory.patterns_per_experience, margin=memory.memory_strength
        )
        for task in memory.memory_x:
            inputs, targets = memory.memory_x[task], memory.memory_y[task]
            episodes.observe(inputs.to(strategy.device), targets.to(strategy.device), task)
        nothing = torch.empty(0)
        episodes.observe(nothing, nothing, len(memory.memory_x))  # the current experience is a new task
        return episodes

    def _detach(self) -> None:
        if self.corrector is not None:
            self.corrector.detach()
            self._last, self.corrector = self.corrector.stats, None

    def state_dict(self) -> dict[str, Any]:
        """Return the content of the memory, for ``torch.save``."""
        return {} if self.memory is None else {name: dict(getattr(self.memory, name)) for name in _KEPT}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`, between experiences."""
        expected = set() if self.memory is None else set(_KEPT)
        if set(state) != expected:
            raise ValueError(
                f"the state was saved {'with' if state else 'without'} a memory, here DCL is "
                f"{'alone' if self.memory is None else 'joined with one'}; use the same settings"
            )
        for name in expected:
            setattr(self.memory, name, dict(state[name]))
