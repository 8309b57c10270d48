"""The corrector: projects gradients or updates inside ``optimizer.step()``.

One step reads top to bottom in :meth:`Corrector._begin` and :meth:`Corrector._finish`: select the parameters and the
active constraints, compute the Gram matrix, solve the dual problem, apply its solution.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # as torch.optim does: torch.compiler.disable would import dynamo now
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from congruency._validate import (
    check_choice,
    check_gradients,
    check_optimizer,
    check_params,
    check_parts,
    differs,
    is_count,
    warn,
)
from congruency.backends import Passes, Problem, RowPasses, Solution
from congruency.constraints.base import ConstraintSource, check_sources
from congruency.constraints.references import References
from congruency.distributed import full, local
from congruency.step.counts import COUNTED, Counts, RunningMeans
from congruency.step.elements import ElementGather, GatheredElements, Masking
from congruency.step.gather import Gather, Gathered
from congruency.step.problem import Problems, settings_of, sizes_of, spans_of
from congruency.step.selection import Blocks, Selection, Selector
from congruency.step.stats import Stats, stats_of
from congruency.step.updates import (
    OverwrittenGradients,
    WeightsBefore,
    block_rates,
    check_rates,
    group_factors,
    skipped_step,
)
from congruency.step.watch import Watch, correction_watch, finite_watch

__all__ = ["Blocks", "Correct", "Corrector", "Stats", "Trigger"]

Correct = Literal["gradient", "update"]
Trigger = Literal["always", "violated"]

_STATE_VERSION = 3
_IDLE_STEPS = 10
_IDLE_MEANS = 3


class Corrector:
    """Corrects an optimizer's gradients, or its updates, inside every ``optimizer.step()``.

    The corrected vector is ``argmin 1/2 |x - y|^2  s.t.  <c_i, x> >= 0`` over the constraints of all sources together
    (the paper's ``eqn:obj``), solved through its dual: see :func:`congruency.solve_dual`.

    Args:
        optimizer: Any ``torch.optim`` optimizer except LBFGS and SparseAdam.
        params: The parameters to correct. Default: all parameters of the optimizer, including those added later.
        constraints: The constraint sources: :class:`~congruency.References`, :class:`~congruency.EpisodicMemory`,
            :class:`~congruency.Descent`, :class:`~congruency.Directions`, or your own
            :class:`~congruency.ConstraintSource`. Each has its own margin.
        correct: The vector y to correct. ``"gradient"``: the gradient, before the optimizer uses it. ``"update"``: the
            step that the optimizer made, ``y = w_before - w_after``, after momentum and preconditioning and without
            decoupled weight decay. The momentum buffer is projected too (except with ``blocks="element"``), and
            margins are multiplied by the learning rate, so that both choices agree under plain SGD. ``"update"`` needs
            one copy of the parameters.
        trigger: ``"always"`` solves at every step; ``"violated"`` changes the gradient only if some
            ``<c_i, g> < 0``. They differ only if a margin is positive.
        blocks: ``"joint"``: one problem over all parameters; ``"group"``, ``"tensor"``, ``"row"`` or ``"element"``: one
            per parameter group, tensor, row of a tensor (an output unit) or element. For elements the projection is a
            mask: an element that agrees with every constraint is kept, any other becomes 0.
        attach: If False, no hook is registered: call :meth:`correct` yourself before each ``optimizer.step()``. Only
            for gradients.

    The gradient is corrected as it is when ``optimizer.step()`` is called, or after the closure passed to it has run.
    Clipping before ``step()`` therefore clips the uncorrected gradient. To clip the corrected one, pass
    ``attach=False``, call ``corrector.correct()``, clip, and call ``optimizer.step()``.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> memory = congruency.EpisodicMemory(model, torch.nn.functional.mse_loss, size=16)
        >>> corrector = congruency.Corrector(optimizer, constraints=[congruency.References(window=10), memory])
        >>> losses = []
        >>> for step in range(60):
        ...     inputs = torch.randn(16, 8)
        ...     memory.observe(inputs, inputs[:, :2], task=step // 30)  # two tasks
        ...     loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :2])
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()  # with the gradient corrected against references and memory
        ...     losses.append(loss.item())
        >>> losses[-1] < losses[0]
        True
        >>> corrector.stats.steps
        60
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Iterable[Tensor] | None = None,
        *,
        constraints: Iterable[ConstraintSource],
        correct: Correct = "gradient",
        trigger: Trigger = "always",
        blocks: Blocks = "joint",
        attach: bool = True,
    ) -> None:
        self.optimizer = check_optimizer(optimizer)
        self._chosen = None if params is None else check_params(params, optimizer)
        self.sources = check_sources(constraints)
        self._target: Correct = check_choice("correct", correct, get_args(Correct))
        self._trigger: Trigger = check_choice("trigger", trigger, get_args(Trigger))
        self._blocks: Blocks = check_choice("blocks", blocks, get_args(Blocks))
        for source in self.sources:
            source.check_use(self.target, self.blocks, optimizer)
        if self.target == "update" and not attach:
            raise ValueError(
                "correct='update' needs attach=True: weights are saved before optimizer.step() and corrected after it"
            )
        if self.target == "update":
            check_rates(optimizer, margins=any(source.margin for source in self.sources))
        self._selector = Selector(optimizer, self._chosen, self.blocks, type(self).__name__)
        self._selector.select()  # raise here, not at the first step, if a parameter cannot be corrected
        self._counts, self._means = Counts(), RunningMeans()
        self._problems = Problems(self.trigger == "violated", self._counts, self._means)
        self._before = WeightsBefore() if self.target == "update" else None
        self._overwritten = OverwrittenGradients()
        self._gather: Gather
        if self.blocks == "element":
            only_violated = self.trigger == "violated"
            self._gather = ElementGather(self._before, optimizer, only_violated, self._masking)
        else:
            self._gather = Gather(self._before, rows=self.blocks == "row")
        self._sizes = sizes_of(self.sources)  # of the last step; sources may have changed since
        self._solution: Solution | None = None
        self._agreement: Tensor | None = None
        self._elements = 0  # number of elements that the agreement covers
        self._plan: _Plan | None = None  # plan of the previous step, if it can be reused
        self._checked: Selection | None = None  # selection whose gradients were all present and passed their check
        self._under_way = False  # True between _begin and _finish
        self._nests = _overrides_step(self.optimizer)
        self._depth = 0  # of the stack in the outermost of nested steps; 0 outside
        concentrates = all(source.concentrates for source in self.sources)  # else others may correct every step
        watched = concentrates and self.target == "gradient" and self.blocks in ("joint", "group")
        self._watch: Watch | None = correction_watch(self.sources[0].period) if watched else None
        self._finite_watch: Watch | None = finite_watch()
        self._read_counts = (0, 0)  # steps and corrected steps at the last call of means()
        self._idle = 0  # consecutive steps without any gradient
        self._idle_means = 0  # calls of means() before the first step
        self._stepped = False  # whether a step was taken since creation, reset() or load_state_dict()
        self._optimizer_loaded = False
        self._handles: list[RemovableHandle] = []
        if attach:
            self._warn_of_another()
            self._attach()

    _masking = Masking()  # options for blocks="element"; Cautious sets its own

    # a change of these settings would come too late, so there is no setter

    @property
    def target(self) -> Correct:
        """What is corrected, the argument ``correct``."""
        return self._target

    @property
    def trigger(self) -> Trigger:
        """When the gradient is changed."""
        return self._trigger

    @property
    def blocks(self) -> Blocks:
        """The slices of the parameters that have a problem of their own."""
        return self._blocks

    # ---- the step ----

    def correct(self) -> None:
        """Correct the current gradients and count one step. Called by ``optimizer.step()`` unless ``attach=False``."""
        if self.target == "update":
            raise RuntimeError("this corrector corrects updates inside optimizer.step(); do not call correct()")
        if self._handles:
            raise RuntimeError(
                f"this {type(self).__name__} is attached: optimizer.step() corrects the gradient, and correct() would "
                "count as another step; leave out correct(), or create it with attach=False"
            )
        self._correct()

    def _correct(self) -> None:
        with torch.set_grad_enabled(False):  # cheaper than no_grad(), noticeably so at every step
            self._finish(self._begin())

    def _begin(self) -> Selection:
        """Select the parameters and let the sources record what they need, before the optimizer's step."""
        selection = self._selector.select()
        if self._optimizer_loaded:
            self._warn_of_old_references()
        self._stepped = self._under_way = True
        self._solution = self._agreement = None
        if self._before is not None:
            if selection is not self._checked:  # raise before the optimizer makes a step that cannot be corrected
                gradients = [g for parameter in selection.parameters if (g := parameter.grad) is not None]
                check_gradients(gradients)
                self._checked = selection if len(gradients) == len(selection.parameters) else None
            self._before.save(selection.parameters)
            self._overwritten.save(self.optimizer, selection)
        for source in self.sources:
            source.begin(selection.parameters)
        return selection

    def _finish(self, selection: Selection) -> None:
        """Correct the gradients, or the update that the optimizer has made: constraints, gram, solve, apply."""
        self._under_way = False
        plan, self._plan = self._plan, None

        # parameters that have a gradient in this step
        trained, gradients, addresses = selection.trained()
        self._gather.begin(selection)
        self._problems.distances.begin(selection.entries)

        # constraints that are active in this step
        active = [source for source in self.sources if source.active]
        self._sizes = sizes_of(self.sources)

        # gram, solve, apply
        scale: Tensor | None = getattr(self.optimizer, "grad_scale", None)  # set by GradScaler for fused optimizers
        finite: Tensor | None = None
        if not gradients:
            self._problems.distances.pause(self.sources)
            self._warn_of_no_gradients(len(selection.entries))
        elif not active:  # nothing to correct, but sources may accumulate gradients and need to know if they are finite
            self._problems.distances.forget()
            finite = self._all_finite(trained, gradients, addresses)
        else:
            gathered = self._gather.step(trained, gradients, addresses, active)
            if self._before is not None:
                finite = self._correct_update(self._before, selection, trained, gathered, active)
            elif self.blocks == "element":
                finite = self._mask(trained, gathered, active)
            else:
                finite = self._correct_gradients(plan, selection, trained, gathered, active, scale)
        if gradients:
            self._idle = 0

        # counts, warnings and the sources' state
        all_finite = self._noted(finite)
        for source in self.sources:  # after the step of a fused optimizer the gradients are unscaled
            source.finish(trained.parameters, scale if self._before is None else None, all_finite)
        gated = [source for source in active if source.gate is not None]
        self._counts.add_step(solved=self._solution is not None, gated=bool(gated))

    def _all_finite(self, trained: Selection, gradients: Sequence[Tensor], addresses: tuple[int, ...]) -> Tensor:
        """Return whether the gradients of a step without constraints are finite, a bool tensor of shape ()."""
        finite = torch.isfinite(self._gather.gradients(trained, gradients, addresses).gram()).all()
        if self._counts.tally(finite.device) is not None:  # the solver, which would count it, does not run
            self._counts.nonfinite += ~finite
        return finite

    def _correct_gradients(
        self, plan: _Plan | None, selection: Selection, trained: Selection, gathered: Gathered,
        active: Sequence[ConstraintSource], scale: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Gram, solve, apply on the gradients, by the previous step's plan if it still fits; return whether finite."""
        state = [(one.recorded, settings_of(one)) for one in self.sources]
        if plan is None or plan.gathered is not gathered or plan.scale is not scale or plan.state != state:
            passes, known = gathered.passes, self._gather.known(gathered, trained, active)
            problem = self._problems.of(self.sources, selection.left_out(trained), trained.blocks, gathered.device)
            program = passes.program(problem, scale, known) or partial(_gram_solve_apply, passes, problem, scale, known)
            plan = _Plan(gathered, scale, state, program)
        if not gathered.slices and not [one for one in active if one.gate is not None]:  # gates are read at every step
            self._plan = plan  # without slices it keeps no gradient alive
        return self._solved(plan.program(), trained)

    def _correct_update(
        self, before: WeightsBefore, selection: Selection, trained: Selection, gathered: Gathered,
        active: Sequence[ConstraintSource],
    ) -> Tensor:  # fmt: skip
        """Gram, solve, apply on the update ``before - w`` and on the momentum; return whether all was finite."""
        if self.blocks != "element" or not all(source.needs_update for source in active):  # else the mask handles decay
            factors = group_factors(self.optimizer)
            before.decay(trained.parameters, [factors[entry.group] for entry in trained.entries])
        if self.blocks == "element":
            return self._mask(trained, gathered, active)
        passes, known = gathered.passes, self._gather.known(gathered, trained, active)
        problem = self._problems.of(self.sources, selection.left_out(trained), trained.blocks, gathered.device)
        gram = passes.gram(known=known)
        momentum = self._gather.momentum(self.optimizer, trained, active, known)
        if momentum is not None:  # otherwise the next step would repeat what is removed from this one
            previous = None if problem.previous is None else problem.previous.clone()  # solving overwrites it
            exact = replace(
                problem, margins=torch.zeros_like(problem.margins), previous=previous, counts=None, means=None
            )
            its_passes, its_known = momentum
            its = its_passes.solve(its_passes.gram(known=its_known), exact, None)
            skipped = skipped_step(self.optimizer)
            its_passes.apply(
                its if skipped is None else replace(its, applied=its.applied & (skipped == 0).to(its.applied.device))
            )
        if any(source.margin for source in active):
            rates = block_rates(self.optimizer, trained, self.blocks == "row", gathered.device)
            problem = replace(problem, margins=problem.margins * rates.unsqueeze(-1))
        # drop the weights' row and column: the update, the first basis vector, takes the gradient's place
        solution = passes.solve(gram[:, 1:, 1:].contiguous(), problem, None)
        passes.apply(solution.for_update())
        return self._solved(solution, trained)

    def _solved(self, solution: Solution, trained: Selection) -> Tensor:
        """Store the solution for the statistics, count the correction, and return whether all was finite."""
        self._solution = solution
        if solution.applied.device.type == "cpu" and any(solution.applied.tolist()):
            self._counts.corrected += 1
            self._mark_written(trained)
        self._note_corrected()
        return solution.finite

    def _mask(self, trained: Selection, gathered: Gathered, active: Sequence[ConstraintSource]) -> Tensor:
        """Correct blocks of one element by a mask, without a Gram matrix; return whether all was finite."""
        gather = self._gather
        assert isinstance(gather, ElementGather)
        assert isinstance(gathered, GatheredElements)
        passes, rule, sizes = gathered.passes, gathered.rule, gathered.sizes
        assert isinstance(passes, Passes)
        decay = gather.decay(gathered, active)
        counts, means = self._counts.tally(sizes.device), self._means.on(sizes.device)
        rescale = self._masking.rescale
        self._agreement = passes.agreement(rule, decay) if rescale else passes.mask(rule, decay)
        factors, finite = passes.settle(self._agreement, sizes, self._masking.most_rescale, counts, means)
        if rescale:
            passes.mask(rule, decay, factors)
        self._elements = gathered.elements
        if counts is None:
            self._mark_written(trained)
            self._counts.corrected += sum(self._agreement[:, 0].tolist()) < self._elements
        self._note_corrected()
        return finite

    def _note_corrected(self) -> None:
        if self._watch is not None:
            self._watch.note(self._counts.corrected)

    def _mark_written(self, trained: Selection) -> None:
        """Increment the version counters of the tensors written by compiled code, so that autograd sees the change."""
        written = trained.parameters if self._before is not None else [p.grad for p in trained.parameters]
        torch.autograd.graph.increment_version([local(tensor) for tensor in written if tensor is not None])

    def _noted(self, finite: Tensor | None) -> Tensor | bool:
        """Return whether the step was finite, for the sources, and count it if it was not."""
        all_finite: Tensor | bool = True
        if finite is not None:
            if finite.device.type == "cpu":
                all_finite = bool(finite)
                self._counts.nonfinite += not all_finite
            else:
                all_finite = finite
            if self._finite_watch is not None:
                self._finite_watch.note(self._counts.nonfinite)
        skipped = skipped_step(self.optimizer)
        if skipped is not None:  # covers all gradients, and the update of a skipped step is finite
            all_finite = (skipped == 0) & all_finite if skipped.device.type != "cpu" else not skipped and all_finite
        return all_finite

    # ---- optimizer hooks ----

    def _attach(self) -> None:
        self._handles = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_load_state_dict_post_hook(self._after_load),
        ]
        if self.target == "update" or self._nests:
            self._handles.append(self.optimizer.register_step_post_hook(self._after_step))

    def detach(self) -> None:
        """Remove the correction from the optimizer. Calling it again has no effect."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._depth = 0

    @_disable_dynamo
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Correct the gradients now, or after the closure if there is one. For updates, save the weights."""
        if self.target == "update":
            with torch.no_grad():
                self._begin()
            return None
        if self._nests:
            depth = _stack_depth()
            if 0 < self._depth < depth:  # else the last step has ended, perhaps by an exception
                return None
            self._depth = depth
        if len(args) > 1 and args[1] is not None:
            return (args[0], self._corrected_closure(args[1]), *args[2:]), kwargs
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._corrected_closure(kwargs["closure"])}
        self._correct()
        return None

    @_disable_dynamo
    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Correct the update that was just made, if :meth:`_before_step` ran before it."""
        if self._nests and _stack_depth() <= self._depth:
            self._depth = 0
        if self._under_way and self._before is not None:
            selection = self._selector.select()
            self._before.check(selection.parameters)
            with torch.no_grad():
                self._overwritten.restore()
                self._finish(selection)

    def _corrected_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def corrected() -> Any:
            result = closure()
            self._correct()
            return result

        return corrected

    def _after_load(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer_loaded = self._stepped  # False if this corrector was reset or loaded before the optimizer

    # ---- warnings about likely mistakes ----

    def _warn_of_another(self) -> None:
        """Warn if a corrector of the same class is attached to some of these parameters (a cell that was run twice)."""
        mine = set(self._selector.select().parameters)
        for hook in self.optimizer._optimizer_step_pre_hooks.values():
            other = getattr(hook, "__self__", None)
            if type(other) is type(self) and other is not self and mine & set(other._selector.select().parameters):
                name = type(self).__name__
                warn(
                    f"this optimizer already has a {name} for these parameters, and both will correct every step; "
                    f"create a new optimizer before a second {name} (in a notebook: run that cell too), or detach() "
                    "the first"
                )
                return

    def _warn_of_old_references(self) -> None:
        """Warn if the optimizer was loaded from a checkpoint and the references were not."""
        self._optimizer_loaded = False
        if any(isinstance(source, References) for source in self.sources):
            warn(
                "the optimizer's state was loaded in the middle of a run, but not this corrector's: its references "
                f"are still the weights from before. Call {type(self).__name__}.load_state_dict with the state of the "
                "same checkpoint, or reset() to record new references"
            )

    def _warn_of_no_gradients(self, count: int) -> None:
        """Warn after many steps in a row without a gradient: probably other parameters than these are trained."""
        self._idle += 1
        if self._idle == _IDLE_STEPS:
            warn(
                f"none of the {count} parameters to correct had a gradient in the last {_IDLE_STEPS} steps, so nothing "
                "was corrected. Call backward() before step(), call zero_grad() before backward(), and check that the "
                "parameters require gradients. If the model's parameters were replaced after the optimizer was created "
                "(a new layer, to_empty(), load_state_dict(assign=True), fully_shard), create the optimizer and this "
                "corrector again"
            )

    def _warn_of_no_steps(self) -> None:
        """Warn if means() is called repeatedly before the first step, for example if another optimizer steps."""
        self._idle_means += 1
        if self._idle_means == _IDLE_MEANS:
            name = type(self).__name__
            warn(
                f"this {name} has not seen a step yet: "
                + (
                    "step() of its optimizer was never called; pass the optimizer whose step() runs"
                    if self._handles
                    else f"with attach=False call {name}.correct() before each optimizer.step()"
                )
            )

    # ---- statistics and state ----

    @property
    def stats(self) -> Stats:
        """Statistics of the last step, and counts since the start. Needs no extra pass over the parameters."""
        selection = self._selector.select()
        device = local(selection.parameters[0]).device
        blocks = None if self.blocks in ("joint", "element") else selection.blocks
        spans = spans_of(self._sizes)
        return stats_of(self._solution, self._agreement, self._elements, spans, self._counts, blocks, device)

    def differs_from_start(self, params: Sequence[Tensor]) -> str | None:
        """Return why :meth:`measured` does not give the congruency of ``params`` since the start; None if it does."""
        (source, *others), mine = self.sources, self._selector.select().parameters
        settings = source.settings()
        wanted = {"source": "references", "references": 1, "window": None, "offset": 0, "accumulate": "weights"}
        if others or any(settings.get(name) != value for name, value in wanted.items()) or source.gate is not None:
            return f"its constraints are {self.sources}"
        if self.target != "gradient" or self.blocks != "joint":
            return f"it corrects with correct={self.target!r}, blocks={self.blocks!r}"
        if set(mine) != set(params):
            return "it corrects other parameters"
        return None

    def measured(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return |g|^2, <a, g> and |a|^2 of the last step before its correction, a the first accumulated gradient.

        All are nan if the step was not finite, and 0 if nothing was solved (while references are recorded).
        """
        solution = self._solution
        if solution is None:
            zero = torch.zeros((), dtype=torch.float64, device=local(self._selector.select().parameters[0]).device)
            return zero, zero, zero
        known = [solution.gradient_norm2.sum(), solution.products[:, 0].sum(), solution.gram[:, 0, 0].sum()]
        norm2, product, length2 = (torch.where(solution.finite, value, math.nan) for value in known)
        return norm2, product, length2

    def means(self) -> dict[str, float]:
        """Return means over the steps since the last call, as plain numbers by name, for a logger.

        The entries are congruency before and after the correction, magnitude and the share of kept elements, each
        averaged over constraints, blocks and the steps in which it is defined (omitted if there are none); the number
        of ``steps``; and ``corrected_share``, the share of steps that were corrected. Sums are kept on the device, also
        for steps replayed by a CUDA graph; only this call synchronizes with it.
        """
        steps, corrected = int(self._counts.steps), int(self._counts.corrected)
        if not steps:
            self._warn_of_no_steps()
        before, self._read_counts = self._read_counts, (steps, corrected)
        found, since = self._means.read(), steps - before[0]
        share = {"corrected_share": (corrected - before[1]) / since} if since > 0 else {}
        return {**found, **share, "steps": float(since)}

    def reset(self) -> None:
        """Reset every constraint source to its initial state, for example when a new task begins."""
        for source in self.sources:
            source.reset()
        self._stepped = self._optimizer_loaded = False
        self._problems.distances.forget()
        self._solution = self._agreement = self._plan = None

    def state_dict(self, *, full_tensors: bool = False) -> dict[str, Any]:
        """Return the state needed to resume bit for bit; ``torch.load(..., weights_only=True)`` can read it.

        Tensors are not copied, as in ``optimizer.state_dict()``.

        Args:
            full_tensors: Gather sharded references into whole tensors on every process (a collective call).
        """
        parameters = self._selector.select().parameters
        state = {
            "version": _STATE_VERSION,
            "settings": self._settings(),
            "counts": self._counts.to_dict(),
            "distances": self._problems.distances.state_dict(),
            "sources": [source.state_dict(parameters) for source in self.sources],
        }
        return pytree.tree_map_only(Tensor, full, state) if full_tensors else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`, sharded or with full tensors.

        Raises:
            ValueError: If the state has other settings, shapes or parameters. In this case nothing is changed.
        """
        parameters = self._selector.select().parameters
        self._check_state(state, parameters)
        with torch.no_grad():
            for source, saved in zip(self.sources, state["sources"], strict=True):
                source.load_state_dict(saved, parameters)
        self._counts.load(state["counts"])
        self._problems.distances.load_state_dict(state["distances"], local(parameters[0]).device)
        self._solution = self._agreement = self._plan = None
        self._stepped = self._optimizer_loaded = False
        self._means.reset()
        for watch, what in ((self._watch, "corrected"), (self._finite_watch, "nonfinite")):
            if watch is not None:
                watch.start(state["counts"][what])
        self._read_counts = (state["counts"]["steps"], state["counts"]["corrected"])

    def _check_state(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        what = "a state of a Corrector"
        parts: dict[str, type | tuple[type, ...]] = {"version": object, "settings": Mapping, "counts": Mapping}
        check_parts(state, parts | {"distances": Mapping, "sources": (list, tuple)}, what)
        if differs(state["version"], _STATE_VERSION):
            raise ValueError(
                f"the state has version {state['version']}, this release reads version {_STATE_VERSION}; "
                "load it with the release that saved it"
            )
        check_parts(state["settings"], {"sources": (list, tuple)}, f"{what} (its settings)")
        for sources in (state["settings"]["sources"], state["sources"]):
            if len(sources) != len(self.sources):
                raise ValueError(
                    f"the state has {len(sources)} constraint source(s), here there are {len(self.sources)}"
                )
        here = self._settings()
        _check_same_settings(state["settings"], here)
        for old, new in zip(state["settings"]["sources"], here["sources"], strict=True):
            _check_same_settings(old, new)
        if set(state["counts"]) != set(COUNTED) or not all(map(is_count, state["counts"].values())):
            raise ValueError(f"the state's counts must be whole numbers of {', '.join(COUNTED)}")
        self._problems.distances.check_state_dict(state["distances"], len(self.sources))
        for source, saved in zip(self.sources, state["sources"], strict=True):
            source.check_state_dict(saved, parameters)

    def _settings(self) -> dict[str, Any]:
        sources = [source.settings() for source in self.sources]
        settings = {"correct": self.target, "trigger": self.trigger, "blocks": self.blocks}
        return {**settings, "sources": sources}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(constraints={self.sources}, {self._shown()})"

    def _shown(self) -> str:
        """Return the end of every corrector's ``repr``; reading the counts synchronizes with the device."""
        steps, corrected = int(self._counts.steps), int(self._counts.corrected)
        settings = f"correct={self.target!r}, trigger={self.trigger!r}, blocks={self.blocks!r}"
        return f"{settings}, step {steps}, {corrected} corrected"

    def __getstate__(self) -> dict[str, Any]:
        transient: dict[str, Any] = dict.fromkeys(("_solution", "_plan", "_watch", "_finite_watch"))
        return {**self.__dict__, **transient, "_handles": [], "_attached": bool(self._handles)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        attached = state.pop("_attached")
        self.__dict__.update(state)
        if attached:  # attach to the copy of the optimizer that was made together with this one
            self._attach()


@dataclass(frozen=True)
class _Plan:
    """The program of a step on gradients, repeated in later steps while only the tensors' values change."""

    gathered: Gathered
    scale: Tensor | None
    state: Sequence[tuple[object, ...]]  # ``recorded`` and settings of all sources
    program: Callable[[], Solution]


def _gram_solve_apply(
    passes: Passes | RowPasses, problem: Problem, scale: Tensor | None, known: list[Tensor] | None
) -> Solution:
    solution = passes.solve(passes.gram(known=known), problem, scale)
    passes.apply(solution)
    return solution


def _overrides_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the class overrides another optimizer's ``step()``; calling that one too makes torch run hooks twice."""
    return sum("step" in vars(kind) for kind in type(optimizer).__mro__ if kind is not torch.optim.Optimizer) > 1


def _stack_depth() -> int:
    """Return how many calls deep the caller is."""
    depth, frame = 0, sys._getframe(1)
    while (below := frame.f_back) is not None:
        depth, frame = depth + 1, below
    return depth


def _check_same_settings(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    check_parts(saved, {}, "a state of a Corrector (its settings)")
    for name in (name for name in here if name != "sources"):
        if differs(saved.get(name), here[name]):
            raise ValueError(
                f"{name} was {saved.get(name)!r} when this state was saved and is {here[name]!r} here; "
                "use the same settings, or start without the state"
            )
