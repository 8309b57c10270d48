"""One step, top to bottom: which parameters, which constraints, gram, solve, apply."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # as torch.optim does: torch.compiler.disable would import dynamo now
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from congruency._validate import (
    check_choice,
    check_gradients,
    check_optimizer,
    check_parameter,
    check_params,
    check_parts,
    differs,
    is_count,
)  # fmt: skip
from congruency.backends import (
    Basis,
    ElementRule,
    ParameterSlice,
    Passes,
    Problem,
    RowPasses,
    Solution,
    kinds_of,
    rows_of,
)  # fmt: skip
from congruency.constraints.base import ConstraintSource, check_sources
from congruency.constraints.references import References
from congruency.distances import Distances
from congruency.distributed import Groups, full, is_sharded, local, reduction_groups, splits_rows
from congruency.elements import Masking, as_tensor, factors_of, mixes, one_by_one
from congruency.means import RunningMeans
from congruency.updates import WeightsBefore, decay_factor, momentum_of
from congruency.watch import Watch, correction_watch, finite_watch

__all__ = ["Blocks", "Correct", "Corrector", "Stats", "Trigger"]

Correct = Literal["gradient", "update"]
Trigger = Literal["always", "violated"]
Blocks = Literal["joint", "group", "tensor", "row", "element"]

_STATE_VERSION = 3
_MOST_HELD = 8  # prepared steps
_IDLE_STEPS = 10


@dataclass(frozen=True)
class Stats:
    """What the last step looked like, one entry per constraint, and counts since the start.

    Shapes are (constraints,), or (blocks, constraints) where the corrector solves several blocks. Entries are nan where
    nothing constrained the step, and where a norm is 0. Tensors stay on the device. Where updates are corrected, read
    "update" (what the optimizer subtracts from the weights) for "gradient". With blocks of one element, congruency is
    that of all elements together with the first constraint, and what is not in the list below is nan.

    Attributes:
        congruency: cos(g, a_i) of the gradient before the correction with each accumulated gradient (``eqn:cong_k``).
        corrected_congruency: The same of the corrected gradient.
        magnitude: |a_i|: for reference points, the distance of the weights from each.
        multipliers: The dual solution v: the corrected gradient is ``g + sum_i v_i c_i``.
        corrected: Whether the gradient was changed; () or (blocks,) bool.
        kept: The share of elements that were kept as they were, with blocks of one element; ().
        steps: Steps since the start.
        corrected_steps: Those of them whose gradient was changed.
        nonfinite_steps: Those of them left alone because a number was not finite; blocks of one element are corrected
            even then, each by its own numbers.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> dcl = congruency.DCL(optimizer, floor=None)
        >>> for gradient in ([1.0, 0.0], [-1.0, 1.0]):
        ...     weight.grad = torch.tensor(gradient)
        ...     optimizer.step()
        >>> stats = dcl.stats
        >>> round(stats.congruency.item(), 3), stats.corrected_congruency.item(), stats.corrected_steps.item()
        (-0.707, 0.0, 1)
    """

    congruency: Tensor
    corrected_congruency: Tensor
    magnitude: Tensor
    multipliers: Tensor
    corrected: Tensor
    kept: Tensor
    steps: int | Tensor
    corrected_steps: Tensor
    nonfinite_steps: Tensor

    def to_dict(self) -> dict[str, float]:
        """Plain numbers by name, for a logger: means over constraints and blocks, and counts. Waits for the device.

        What is undefined in this step is left out. For means over many steps see :meth:`Corrector.means`.
        """
        means = {name: getattr(self, name).double().nanmean() for name in ("congruency", "corrected_congruency")}
        means |= {"magnitude": self.magnitude.nanmean(), "kept": self.kept}
        found = torch.stack(list(means.values())).tolist()
        counts = {"steps": self.steps, "corrected_steps": self.corrected_steps, "nonfinite_steps": self.nonfinite_steps}
        return {
            **{name: value for name, value in zip(means, found, strict=True) if math.isfinite(value)},
            **{name: float(count) for name, count in counts.items()},
        }


class Corrector:
    """Corrects an optimizer's gradients, or its updates, inside every ``optimizer.step()``.

    The corrected vector is ``argmin 1/2 |x - y|^2  s.t.  <c_i, x> >= 0`` over the constraints of all sources together
    (the paper's ``eqn:obj``), solved through its dual: see :func:`congruency.solve_dual`.

    Args:
        optimizer: Any ``torch.optim`` optimizer but LBFGS and SparseAdam.
        params: The parameters to correct, all of the optimizer's where None (those added later included).
        constraints: The constraint sources: :class:`~congruency.References`, :class:`~congruency.EpisodicMemory`,
            :class:`~congruency.Descent`, :class:`~congruency.Directions`, or your own
            :class:`~congruency.ConstraintSource`. Each has its own margin.
        correct: What y is. ``"gradient"``: the gradient, before the optimizer sees it. ``"update"``: the step that the
            optimizer made, after momentum and preconditioning and without decoupled weight decay, as
            ``y = w_before - w_after``; the momentum buffer is projected with it (not for elements), and a margin acts
            as the learning rate times it, so that both agree under plain SGD. An update costs one copy of the
            parameters.
        trigger: ``"always"`` solves at every step; ``"violated"`` leaves the gradient alone unless some
            ``<c_i, g> < 0``. They differ only where a margin is positive.
        blocks: ``"joint"``: one problem over all parameters; ``"group"``, ``"tensor"``, ``"row"`` or ``"element"``: one
            per parameter group, tensor, row of a tensor (an output unit) or element. For an element the projection is
            a mask: it stays where it agrees with every constraint, and becomes 0 elsewhere.
        attach: With False, nothing is hooked: call :meth:`correct` yourself before each ``optimizer.step()``. Only for
            gradients.

    The gradient is corrected as it is when ``optimizer.step()`` is called, or after the closure passed to it has run;
    clipping done before is therefore clipping of the uncorrected gradient. To clip the corrected one, use
    ``attach=False``, ``corrector.correct()``, clip, ``optimizer.step()``.

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
        self.target: Correct = check_choice("correct", correct, get_args(Correct))
        self.trigger: Trigger = check_choice("trigger", trigger, get_args(Trigger))
        self.blocks: Blocks = check_choice("blocks", blocks, get_args(Blocks))
        for source in self.sources:
            source.check_use(self.target, self.blocks, optimizer)
        if self.target == "update" and not attach:
            raise ValueError(
                "correct='update' needs attach=True: weights are saved before optimizer.step() and corrected after it"
            )
        self._selected = _Selection([], [], 0)
        self._checked: set[Tensor] = set()
        self._selection()  # reports parameters that cannot be corrected now, not at the first step
        self._before = WeightsBefore()
        self._under_way = False
        self._slices: dict[Tensor, tuple[Tensor | None, list[Basis], list[Basis], Groups]] = {}
        self._counts: dict[str, int | Tensor] = {"steps": 0, "corrected": 0, "nonfinite": 0}
        self._tally: Tensor | None = None  # on an accelerator: Problem.counts
        self._distances = Distances()  # Problem.previous
        self._solution: Solution | None = None
        self._agreement: Tensor | None = None
        self._element_count = 0  # how many elements the agreement is of
        self._layout = _layout(self.sources)  # of the constraints at the last step; sources may have changed since
        self._problems: dict[tuple[object, ...], Problem] = {}
        self._held: dict[tuple[object, ...], _Prepared] = {}
        self._constants: dict[tuple[object, ...], Tensor] = {}
        self._decays: tuple[Tensor, Tensor, dict[int, Tensor], dict[int, float]] | None = None
        self._known: tuple[tuple[object, ...], list[Tensor]] | None = None
        concentrates = [source for source in self.sources if source.concentrates]
        watched = concentrates and self.target == "gradient" and self.blocks in ("joint", "group")
        self._watch: Watch | None = correction_watch(concentrates[0].period) if watched else None
        self._finite_watch: Watch | None = finite_watch()
        self._means = RunningMeans()
        self._read_counts = (0, 0)  # steps and corrected steps when the means were last read
        self._idle = 0  # steps in a row without any gradient
        self._stepped = False  # since it was made, reset or loaded
        self._optimizer_loaded = False
        self._handles: list[RemovableHandle] = []
        if attach:
            self._warn_of_another()
            self._attach()

    _masking = Masking()  # how blocks of one element are corrected

    # ---- the step ----

    @torch.no_grad()
    def correct(self) -> None:
        """Correct the gradients that are there now and count one step. Called for you unless ``attach=False``."""
        if self.target == "update":
            raise RuntimeError("this corrector corrects updates: optimizer.step() does it, there is nothing to call")
        if self._handles:
            raise RuntimeError(
                f"this {type(self).__name__} is attached: optimizer.step() corrects the gradient, and correcting it "
                "here too would count as another step; leave out correct(), or make it with attach=False"
            )
        self._correct()

    @torch.no_grad()
    def _correct(self) -> None:
        self._finish(self._begin())

    def _begin(self) -> _Selection:
        """Before the step: which parameters, and the sources record what they need of them."""
        selection = self._selection()
        if self._optimizer_loaded:
            self._warn_of_old_references()
        self._stepped = True
        if self.target == "update":
            # before the optimizer makes a step that cannot be corrected
            check_gradients([g for parameter in selection.parameters if (g := parameter.grad) is not None])
            self._before.save(selection.parameters)
        for source in self.sources:
            source.begin(selection.parameters)
        self._under_way = True
        return selection

    def _finish(self, selection: _Selection) -> None:
        """Which constraints, gram, solve, apply; on the gradients, or on the step that the optimizer has made."""
        # which parameters
        entries, parameters = selection.entries, selection.parameters
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        if len(gradients) < len(parameters):
            entries = [entry for entry in entries if entry.parameter.grad is not None]
            parameters = [entry.parameter for entry in entries]
        check_gradients(gradients)
        if selection.sharded:
            gradients = [local(gradient) for gradient in gradients]
        self._under_way = False

        # which constraints
        active = [source for source in self.sources if source.active]
        self._layout = _layout(self.sources)
        self._solution = self._agreement = None
        self._distances.start(self.sources, solved=bool(entries))

        # gram, solve, apply
        scale: Tensor | None = getattr(self.optimizer, "grad_scale", None)  # set by GradScaler for fused optimizers
        all_finite: Tensor | bool = True
        finite: Tensor | None = None
        if entries and active and self.target == "update":
            self._before.check(selection.parameters)
            if not (self.blocks == "element" and all(source.needs_update for source in active)):
                factors = self._group_factors()
                self._before.decay([entry.parameter for entry in entries], [factors[entry.group] for entry in entries])
        if entries and not active:  # but sources may add up gradients
            finite = self._finite(entries, gradients, selection.blocks)
        elif entries and self.blocks == "element":
            finite = self._mask(entries, gradients, active)
        elif entries:
            prepared = self._prepared(entries, gradients, active, selection.blocks)
            passes = prepared.passes
            known = self._known_products(passes, entries, active)
            update = self.target == "update"
            problem = self._problem(entries, active, selection.blocks, gradients[0].device, update)
            self._solution = None if update else passes.at_once(problem, scale, known)  # of a small model on a GPU
            if update:  # its inner products are among the basis vectors', and it has no scale any more
                gram = passes.gram(known=known)
                self._correct_momentum(entries, active, problem, selection.blocks, known)
                self._solution = passes.solve(gram[:, 1:, 1:].contiguous(), problem, None)
                passes.apply(self._solution.for_update())
            elif self._solution is None:
                self._solution = passes.solve(passes.gram(known=known), problem, scale)
                passes.apply(self._solution)
            finite = self._solution.finite
            if problem.counts is None and any(self._solution.applied.tolist()):
                self._count("corrected", True)
                self._mark_written(entries)
            if self._watch is not None:
                self._watch.note(self._counts["corrected"])
        if finite is not None and finite.device.type == "cpu":
            self._count("nonfinite", not finite)
            all_finite = bool(finite)
        elif finite is not None:
            all_finite = finite
        if finite is not None and self._finite_watch is not None:
            self._finite_watch.note(self._counts["nonfinite"])
        if not entries:
            self._warn_of_no_gradients(len(selection.entries))
        elif self._idle:
            self._idle = 0

        # done
        skipped: Tensor | None = getattr(self.optimizer, "found_inf", None)  # of GradScaler, for fused optimizers
        if skipped is not None:  # for the gradient of any parameter, and an update does not show it
            all_finite = (skipped == 0) & all_finite if skipped.device.type != "cpu" else not skipped and all_finite
        for source in self.sources:  # a fused optimizer has divided the gradients by the scale in its step
            source.finish(parameters, scale if self.target == "gradient" else None, all_finite)
        if self._solution is not None and any(source.gate is not None for source in active):
            assert self._tally is not None
            self._counts["steps"] = self._tally[3]  # which solving has counted
        else:
            self._count("steps", True)

    def _selection(self) -> _Selection:
        """Which parameters: the selected ones, each with its group and block; one list while they stay the same."""
        now = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if self._chosen is not None:
            now = [parameter for parameter in now if parameter in self._chosen]
            if not now:
                raise RuntimeError(
                    "none of the parameters to correct is in the optimizer any more: its param_groups were changed; "
                    f"detach this {type(self).__name__} and make another over the optimizer's present parameters"
                )
        held = self._selected
        if len(now) == len(held.parameters) and all(map(operator.is_, now, held.parameters)):
            return held
        group_of = {p: i for i, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        for position, parameter in enumerate(now):
            if parameter not in self._checked:
                check_parameter(parameter, position)
                if self.blocks == "row" and splits_rows(parameter):
                    raise ValueError(
                        f"blocks='row' needs whole rows on every process, and parameter {position} is sharded over "
                        f"another dimension than its first ({parameter.placements}); use blocks='tensor' or 'element'"
                    )
                self._checked.add(parameter)
        if self.blocks == "joint":
            blocks, total = [0] * len(now), 1
        elif self.blocks == "group":
            blocks, total = [group_of[p] for p in now], len(self.optimizer.param_groups)
        elif self.blocks == "row":
            sizes = [rows_of(local(p)) for p in now]
            blocks, total = [sum(sizes[:i]) for i in range(len(now))], sum(sizes)
        else:
            blocks, total = list(range(len(now))), len(now)
        entries = [_Entry(p, group_of[p], block) for p, block in zip(now, blocks, strict=True)]
        self._selected = _Selection(entries, now, total, any(map(is_sharded, now)))
        self._slices, self._held, self._known = {}, {}, None
        return self._selected

    def _prepared(
        self, entries: Sequence[_Entry], gradients: Sequence[Tensor], active: Sequence[ConstraintSource], blocks: int
    ) -> _Prepared:
        """What the passes read, as it was at an earlier step if it still lies where it did."""
        layouts = [source.layout for source in active]
        key: tuple[object, ...] | None = None
        if None not in layouts and self.blocks != "row":
            held = [entry.parameter for entry in entries]
            weights = [local(parameter) for parameter in held] if self._selected.sharded else held
            key = (
                len(entries), torch.get_num_threads(), self._before.layout, *layouts,
                *map(Tensor.data_ptr, weights), *kinds_of(gradients),
                *(() if len(entries) == len(self._selected.entries) else map(id, held)),
            )  # fmt: skip
            prepared = self._held.get(key)
            if prepared is not None and prepared.passes.point(list(map(Tensor.data_ptr, gradients))):
                return prepared
        made = self._elements(entries, active) if self.blocks == "element" else self._slices_of(entries, active, blocks)
        if key is not None and isinstance(made.passes, Passes) and made.passes.reusable:
            made.passes.release()
            if len(self._held) >= _MOST_HELD:
                self._held.clear()
            self._held[key] = made._replace(slices=())  # without them: a gradient that is held is not freed
        return made

    def _finite(self, entries: Sequence[_Entry], gradients: Sequence[Tensor], blocks: int) -> Tensor:
        """Whether the gradients of a step without constraints are finite, ()."""
        passes: Passes | RowPasses
        if self.target == "gradient" and self.blocks != "element":
            passes = self._prepared(entries, gradients, [], blocks).passes
        else:
            places = [reduction_groups(entry.parameter) for entry in entries]
            slices = [ParameterSlice(gradient, [], 0) for gradient in gradients]
            passes = Passes(zip(slices, places, strict=True), 0)
        finite = torch.isfinite(passes.gram()).all()
        if finite.device.type != "cpu":
            self._count("nonfinite", ~finite)
        return finite

    def _known_products(
        self, passes: Passes | RowPasses, entries: Sequence[_Entry], active: Sequence[ConstraintSource]
    ) -> list[Tensor] | None:
        """Inner products among fixed vectors, computed anew when one was recorded or another parameter takes part.

        In float64, so that they depend on nothing but these vectors: a run that resumes finds the same bits.
        """
        if isinstance(passes, RowPasses) or not passes.fixed:
            return None
        some = None if len(entries) == len(self._selected.entries) else tuple(id(entry.parameter) for entry in entries)
        key = (some, *((id(source), source.active, source.recorded) for source in active))
        if self._known is None or self._known[0] != key:
            grams = passes.grams(wide=True)
            held = [] if self._known is None else self._known[1]
            if [gram.shape for gram in held] == [gram.shape for gram in grams]:
                torch._foreach_copy_(held, grams)  # in place: launches are prepared for where they lie
            else:
                held = [gram.clone() for gram in grams]
            self._known = (key, held)
        return self._known[1]

    def _slices_of(self, entries: Sequence[_Entry], active: Sequence[ConstraintSource], blocks: int) -> _Prepared:
        """Each target with its basis vectors, and the process groups it is sharded over."""
        slices = []
        for parameter, _, block in entries:
            bases, groups = self._bases(parameter, active)
            if self.target == "update":  # the step, w_before - w, comes first: see Solution.for_update
                now, before = local(parameter), self._before.of(parameter)
                item = _placed(ParameterSlice(now, [Basis([now, before], chained=True), *bases], block), parameter)
            else:
                assert parameter.grad is not None
                item = ParameterSlice(local(parameter.grad), bases, block)
            slices.append((item, groups))
        size = sum(source.active for source in active) + (self.target == "update")
        return _Prepared(self._passes(slices, size, blocks), slices)

    def _passes(self, slices: Sequence[tuple[ParameterSlice, Groups]], size: int, blocks: int) -> Passes | RowPasses:
        return (
            RowPasses([item for item, _ in slices], size, blocks)
            if self.blocks == "row"
            else Passes(slices, size, blocks)
        )

    def _correct_momentum(
        self, entries: Sequence[_Entry], active: Sequence[ConstraintSource], problem: Problem, blocks: int,
        known: list[Tensor] | None,
    ) -> None:  # fmt: skip
        """Project the optimizer's momentum too: what a step may not do, the next must not have stored up."""
        slices = []
        for parameter, _, block in entries:
            momentum = momentum_of(self.optimizer, parameter)
            if momentum is not None:
                bases, groups = self._bases(parameter, active)
                slices.append((ParameterSlice(local(momentum), bases, block), groups))
        if not slices:
            return
        previous = None if problem.previous is None else problem.previous.clone()  # the step itself needs it still
        own = replace(problem, margins=torch.zeros_like(problem.margins), previous=previous, counts=None, means=None)
        passes = self._passes(slices, sum(source.active for source in active), blocks)
        if len(slices) < len(entries):
            known = None
        elif known is not None:  # the same vectors, without the step
            known = [torch.cat([gram[:, :, :1], gram[:, :, 2:]], 2) for gram in known]
            known = [torch.cat([gram[:, :1], gram[:, 2:]], 1) for gram in known]
        passes.apply(passes.solve(passes.gram(known=known), own, None))

    def _mark_written(self, entries: Sequence[_Entry]) -> None:
        """Have autograd know what the compiled passes wrote: a graph that saved one of these must not be used again."""
        targets = (p if self.target == "update" else p.grad for p, _, _ in entries)
        torch.autograd.graph.increment_version([local(target) for target in targets if target is not None])

    def _bases(self, parameter: Tensor, active: Sequence[ConstraintSource]) -> tuple[list[Basis], Groups]:
        """A parameter's basis vectors, checked when they are new, and the process groups it is sharded over."""
        own = [source.basis(parameter) for source in active]
        before = self._before.of(parameter) if self.target == "update" else None
        seen = self._slices.get(parameter)
        if seen is not None and seen[0] is before and len(seen[1]) == len(own) and all(map(operator.is_, own, seen[1])):
            return seen[2], seen[3]
        shape = local(parameter).shape
        for source, basis in zip(active, own, strict=True):
            if basis.size != source.active:
                raise ValueError(
                    f"{type(source).__name__} has {source.active} active constraint(s) and gave {basis.size} basis "
                    "vector(s); ConstraintSource.basis must give one per active constraint"
                )
            # The compiled passes walk all tensors by the gradient's length: another shape must not reach them.
            for tensor in basis.tensors:
                if tensor.shape != shape:
                    raise ValueError(
                        f"a constraint source gave a tensor of shape {tuple(tensor.shape)} for a parameter whose "
                        f"gradient here has shape {tuple(shape)}; ConstraintSource.basis must give tensors of "
                        "that shape"
                    )
        bases = [
            basis if source.recorded is not None else basis._replace(fixed=0)
            for basis, source in zip(own, active, strict=True)
        ]
        if before is not None:  # the weights that the step started from, where a basis names the parameter
            now = local(parameter)
            bases = [basis._replace(tensors=[before if _same(t, now) else t for t in basis.tensors]) for basis in bases]
        groups = reduction_groups(parameter)
        if all(source.layout is not None and not source.needs_update for source in active):  # hold no gradient
            self._slices[parameter] = (before, own, bases, groups)
        return bases, groups

    def _problem(
        self, entries: Sequence[_Entry], active: Sequence[ConstraintSource], blocks: int, device: torch.device,
        update: bool,
    ) -> Problem:  # fmt: skip
        """Which constraints: those of all sources stacked; made once per combination of sources."""
        key = (device, blocks, *((id(source), source.active, source.sign, source.margin) for source in active))
        problem = self._problems.get(key)
        if problem is None:
            each = [source for source in active for _ in range(source.active)]
            # a floor of 1 excludes nothing, and rounding must not decide at nu = -1 (rows of one element)
            floors = [math.inf if source.floor in (None, 1.0) else source.floor for source in each]
            problem = Problem(
                combination=torch.block_diag(*(source.combination() for source in active)).to(device),
                signs=torch.tensor([source.sign for source in each], dtype=torch.float64).to(device),
                margins=torch.tensor([source.margin for source in each], dtype=torch.float64).to(device),
                only_violated=self.trigger == "violated",
                floors=torch.tensor(floors, dtype=torch.float64).to(device) if any(s.floor for s in each) else None,
                counts=self._device_counts(device),
                means=self._means.on(device),
            )
        if problem.floors is not None:
            left_out = {}
            if len(entries) < len(every := self._selected.entries):
                here = {entry.parameter for entry in entries}
                left_out = {place: entry.block for place, entry in enumerate(every) if entry.parameter not in here}
            lengths = self._distances.before(self.sources, left_out, blocks, device)
            if problem.previous is not lengths:
                problem = replace(problem, previous=lengths)
        gates = [source.gate for source in active if source.gate is not None]
        if gates and (len(active) > 1 or problem.gate is None or problem.gate.data_ptr() != gates[0].data_ptr()):
            always = torch.ones((), dtype=torch.bool, device=device)
            each_gate = [(always if source.gate is None else source.gate).expand(source.active) for source in active]
            problem = replace(problem, gate=torch.cat(each_gate) if len(each_gate) > 1 else each_gate[0])
        self._problems[key] = problem
        if update and any(source.margin for source in active):
            problem = replace(problem, margins=problem.margins * self._rates(entries, blocks, device).unsqueeze(-1))
        return problem

    def _rates(self, entries: Sequence[_Entry], blocks: int, device: torch.device) -> Tensor:
        """(blocks,) the learning rate of each block, the greatest where there are several; 0 in a skipped step."""
        rates = torch.zeros(blocks, dtype=torch.float64, device=device)
        for parameter, group, block in entries:
            rate = self.optimizer.param_groups[group]["lr"]
            here = slice(block, block + (rows_of(local(parameter)) if self.blocks == "row" else 1))
            rates[here] = torch.maximum(rates[here], torch.as_tensor(rate, dtype=torch.float64, device=device))
        skipped: Tensor | None = getattr(self.optimizer, "found_inf", None)
        return rates if skipped is None else rates * (1.0 - skipped.to(rates))

    def _group_factors(self) -> list[float | Tensor]:
        """What decoupled weight decay multiplied each group's parameters by in this step; 1 where it was skipped."""
        factors = [decay_factor(self.optimizer, group) for group in self.optimizer.param_groups]
        skipped: Tensor | None = getattr(self.optimizer, "found_inf", None)  # of GradScaler, for fused optimizers
        return factors if skipped is None else [1.0 - (1.0 - factor) * (1.0 - skipped) for factor in factors]

    def _elements(self, entries: Sequence[_Entry], active: Sequence[ConstraintSource]) -> _Prepared:
        """Each target with every constraint as one vector, for blocks of one element, and the rule that corrects it."""
        update = self.target == "update"
        made = any(
            mixes(basis, source)
            for basis, source in zip(self._bases(entries[0].parameter, active)[0], active, strict=True)
        )
        signs = [source.sign * factor for source in active for factor in factors_of(source.combination())]
        slices = []
        for i, (parameter, _, _) in enumerate(entries):
            bases, groups = self._bases(parameter, active)
            single = [part for basis, source in zip(bases, active, strict=True) for part in one_by_one(basis, source)]
            if update:
                before = Basis([self._before.of(parameter)])
                item = _placed(ParameterSlice(local(parameter), [before, *single], i), parameter)
            else:
                assert parameter.grad is not None
                item = ParameterSlice(local(parameter.grad), single, i)
            slices.append((item, groups))
        device = slices[0][0].target.device
        margins = [source.margin for source in active for _ in range(source.active)]
        rates = [1.0] * len(entries)
        if any(margins) and update:  # 0 in a skipped step
            skipped = float(getattr(self.optimizer, "found_inf", 0.0))
            rates = [float(self.optimizer.param_groups[entry.group]["lr"]) * (1.0 - skipped) for entry in entries]
        elif any(margins):  # what the gradients are still multiplied by, if anything
            rates = [float(getattr(self.optimizer, "grad_scale", None) or 1.0)] * len(entries)
        rule = ElementRule(
            signs=self._constant(signs, device),
            margins=torch.outer(*(torch.tensor(part, dtype=torch.float64) for part in (rates, margins))),
            update=update,
            only_violated=self.trigger == "violated",
            strict=self._masking.strict,
            mask_decay=self._masking.mask_decay,
        )
        # what is made here, not only looked up, must not be taken for what lies there at the next step
        passes = Passes(slices, len(signs) + update, len(entries), plain=made or any(margins))
        sizes = [parameter.numel() for parameter, _, _ in entries]
        return _Prepared(passes, slices, rule, self._constant(sizes, device), sum(sizes))

    def _constant(self, values: Sequence[float], device: torch.device) -> Tensor:
        """(n,) float64 on the device, copied there once: a copy waits, and cannot be captured in a CUDA graph."""
        key = (device, *values)
        if key not in self._constants:
            self._constants[key] = torch.tensor(values, dtype=torch.float64).to(device)
        return self._constants[key]

    def _mask(
        self, entries: Sequence[_Entry], gradients: Sequence[Tensor], active: Sequence[ConstraintSource]
    ) -> Tensor:
        """Blocks of one element: keep what opposes no constraint; whether all was finite."""
        prepared = self._prepared(entries, gradients, active, 0)
        passes, rule, sizes = prepared.passes, prepared.rule, prepared.sizes
        assert isinstance(passes, Passes)
        assert rule is not None
        assert sizes is not None
        decay = self._decay_of(entries, sizes, rule.update and all(source.needs_update for source in active))
        rescale, counts = self._masking.rescale, self._device_counts(sizes.device)
        means = self._means.on(sizes.device)
        self._agreement = passes.agreement(rule, decay) if rescale else passes.mask(rule, decay)
        scale, finite = passes.settle(self._agreement, sizes, self._masking.most_rescale, counts, means)
        if rescale:
            passes.mask(rule, decay, scale)
        self._element_count = prepared.elements
        if counts is None:
            self._mark_written(entries)
            self._count("corrected", sum(self._agreement[:, 0].tolist()) < self._element_count)
        return finite

    def _decay_of(self, entries: Sequence[_Entry], sizes: Tensor, decays: bool) -> Tensor:
        """(slices,) what decoupled weight decay multiplied each parameter by; numbers always lie in one place."""
        factors = self._group_factors() if decays else [1.0] * len(self.optimizer.param_groups)
        if any(isinstance(factor, Tensor) for factor in factors):
            return as_tensor([factors[entry.group] for entry in entries], sizes.device)
        if self._decays is None or self._decays[0] is not sizes:
            of = [entry.group for entry in entries]
            spans = {group: slice(of.index(group), len(of) - of[::-1].index(group)) for group in set(of)}
            decay = torch.empty_like(sizes)
            self._decays = (sizes, decay, {group: decay[span] for group, span in spans.items()}, {})
        _, decay, parts, last = self._decays
        captured = sizes.device.type == "cuda" and torch.cuda.is_current_stream_capturing()  # nothing is written yet
        for group, part in parts.items():
            if captured or last.get(group) != factors[group]:  # by a schedule; filling waits for no device
                part.fill_(factors[group])
                last[group] = math.nan if captured else float(factors[group])
        return decay

    def _device_counts(self, device: torch.device) -> Tensor | None:
        """Where solving counts steps: on the device, if it is none that the host can read without waiting."""
        if device.type == "cpu":
            return None
        if self._tally is None:
            self._tally = torch.zeros(4, dtype=torch.int64, device=device)
            for place, what in ((0, "corrected"), (1, "nonfinite"), (3, "steps")):
                self._tally[place].fill_(self._counts[what])  # in place from now on
            self._counts["corrected"], self._counts["nonfinite"] = self._tally[0], self._tally[1]
        return self._tally

    def _count(self, what: str, happened: Tensor | bool) -> None:
        """Count on the host where the host knows, on the device, in place, where it does not."""
        if isinstance(happened, Tensor):
            if happened.device.type == "cpu":
                happened = bool(happened)
            else:
                self._device_counts(happened.device)
        self._counts[what] += happened

    # ---- when the step is taken ----

    def _attach(self) -> None:
        self._handles = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_load_state_dict_post_hook(self._after_load),
        ]
        if self.target == "update":
            self._handles.append(self.optimizer.register_step_post_hook(self._after_step))

    def detach(self) -> None:
        """Leave the optimizer exactly as it was before; may be called twice."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @_disable_dynamo
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Correct now, or, where a closure will make the gradients, right after the closure."""
        if self.target == "update":
            with torch.no_grad():
                self._begin()
            return None
        if len(args) > 1 and args[1] is not None:
            return (args[0], self._corrected_closure(args[1]), *args[2:]), kwargs
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._corrected_closure(kwargs["closure"])}
        self._correct()
        return None

    @_disable_dynamo
    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Correct the step that has just been made, if its beginning was seen."""
        if self._under_way:
            with torch.no_grad():
                self._finish(self._selection())

    def _corrected_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def corrected() -> Any:
            result = closure()
            self._correct()
            return result

        return corrected

    def _after_load(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer_loaded = self._stepped  # not where this corrector was reset or loaded before the optimizer

    # ---- what is probably a mistake ----

    def _warn_of_another(self) -> None:
        """Two of a kind on the same parameters: a notebook's cell that was run twice."""
        mine = set(self._selection().parameters)
        for hook in self.optimizer._optimizer_step_pre_hooks.values():
            other = getattr(hook, "__self__", None)
            if type(other) is type(self) and other is not self and mine & set(other._selection().parameters):
                name = type(self).__name__
                warnings.warn(
                    f"this optimizer has a {name} for these parameters already, and both will correct every step; make "
                    f"the optimizer anew before a second {name} (in a notebook: run that cell too), or detach() the "
                    "first",
                    stacklevel=4,
                )
                return

    def _warn_of_old_references(self) -> None:
        """The optimizer went back to a checkpoint and the references did not."""
        self._optimizer_loaded = False
        if any(isinstance(source, References) for source in self.sources):
            warnings.warn(
                "the optimizer's state was loaded in the middle of a run, and this corrector's was not: its references "
                f"are still the weights from before. Call {type(self).__name__}.load_state_dict with the state of the "
                "same checkpoint, or reset() to record new references",
                stacklevel=5,
            )

    def _warn_of_no_gradients(self, count: int) -> None:
        """Nothing to correct, many times in a row: the optimizer's parameters are not those that are trained."""
        self._idle += 1
        if self._idle == _IDLE_STEPS:
            warnings.warn(
                f"none of the {count} parameters to correct had a gradient in the last {_IDLE_STEPS} steps, so that "
                "nothing was corrected. Call backward() before step(). If the model's parameters were replaced after "
                "the optimizer was made (a new layer, load_state_dict(assign=True)), make the optimizer and this "
                "corrector again",
                stacklevel=5,
            )

    # ---- what it knows ----

    @property
    def stats(self) -> Stats:
        """The last step's numbers and the counts; made when asked for, from what the correction computed anyway."""
        selection = self._selection()
        device = local(selection.entries[0].parameter).device
        joint = self.blocks in ("joint", "element")
        solution = self._solution
        blocks = 1 if joint else selection.blocks
        applied = torch.zeros(blocks, dtype=torch.bool, device=device) if solution is None else solution.applied
        constraints, spans = self._layout
        shape = (applied.shape[0], constraints)
        parts = [torch.full(shape, math.nan, dtype=torch.float64, device=device) for _ in range(4)]
        kept = torch.full((), math.nan, dtype=torch.float64, device=device)
        if solution is not None:
            for whole, part in zip(parts, solution.measures(), strict=True):
                for here, active in spans:
                    whole[:, here] = part[:, active]
        if self._agreement is not None:
            count, product, norm2, length2 = self._agreement.sum(0)
            parts[0][:, :1], parts[2][:, :1] = product / (norm2 * length2).sqrt(), length2.sqrt()
            kept = count / self._element_count  # not of the gradients that are there now: zero_grad may have run
            applied = (kept < 1).unsqueeze(0)
        if joint:
            parts = [part[0] for part in parts]
            applied = applied[0]
        congruency, corrected_congruency, magnitude, multipliers = parts
        return Stats(
            congruency=congruency,
            corrected_congruency=corrected_congruency,
            magnitude=magnitude,
            multipliers=multipliers,
            corrected=applied.clone(),  # the next step takes its place in memory
            kept=kept,
            steps=self._counts["steps"],
            corrected_steps=torch.as_tensor(self._counts["corrected"], device=device),
            nonfinite_steps=torch.as_tensor(self._counts["nonfinite"], device=device),
        )

    def differs_from_start(self, params: Sequence[Tensor]) -> str | None:
        """Why :meth:`measured` is not the agreement of these gradients with the displacement from the start, if so."""
        (source, *others), mine = self.sources, self._selection().parameters
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
        """|g|^2, <a, g> and |a|^2 of the last step, before its correction, with the first accumulated gradient a.

        nan where it was not finite; while references are recorded, a is 0 and the rest is not known, which is 0 too.
        """
        solution = self._solution
        if solution is None:
            zero = torch.zeros((), dtype=torch.float64, device=local(self._selection().entries[0].parameter).device)
            return zero, zero, zero
        known = [solution.gradient_norm2.sum(), solution.products[:, 0].sum(), solution.gram[:, 0, 0].sum()]
        norm2, product, length2 = (torch.where(solution.finite, value, math.nan) for value in known)
        return norm2, product, length2

    def means(self) -> dict[str, float]:
        """Means over the steps since this was last called, as plain numbers by name, for a logger.

        Congruency before and after the correction, magnitude and the share of elements that were kept, each over
        constraints, blocks and the steps where it is defined (left out if there are none); ``corrected_share`` of the
        ``steps``. Single steps, those that a CUDA graph replays included, are summed without waiting for the device;
        this waits.
        """
        steps, corrected = int(self._counts["steps"]), int(self._counts["corrected"])
        before, self._read_counts = self._read_counts, (steps, corrected)
        found, since = self._means.read(), steps - before[0]
        share = {"corrected_share": (corrected - before[1]) / since} if since > 0 else {}
        return {**found, **share, "steps": float(since)}

    def reset(self) -> None:
        """Start every constraint source over, as if newly made: at a task boundary, for example."""
        for source in self.sources:
            source.reset()
        self._stepped = self._optimizer_loaded = False
        self._solution = self._agreement = None
        self._distances.forget()

    def state_dict(self, *, full_tensors: bool = False) -> dict[str, Any]:
        """All that is needed to resume bit for bit; ``torch.load(..., weights_only=True)`` reads it back.

        Tensors are the live ones, not copies, as in ``optimizer.state_dict()``.

        Args:
            full_tensors: Gather sharded references into whole tensors on every process (a collective call).
        """
        parameters = self._selection().parameters
        state = {
            "version": _STATE_VERSION,
            "settings": self._settings(),
            "counts": {what: int(count) for what, count in self._counts.items()},
            "distances": self._distances.state_dict(),
            "sources": [source.state_dict(parameters) for source in self.sources],
        }
        return pytree.tree_map_only(Tensor, full, state) if full_tensors else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`, sharded or with full tensors.

        Raises:
            ValueError: The state is of other settings, shapes or parameters. Nothing is changed then.
        """
        parameters = self._selection().parameters
        self._check_state(state, parameters)
        with torch.no_grad():
            for source, saved in zip(self.sources, state["sources"], strict=True):
                source.load_state_dict(saved, parameters)
        for what, count in state["counts"].items():
            held = self._counts[what]
            if isinstance(held, Tensor):
                held.fill_(count)  # in place: a captured step counts in this very tensor
            else:
                self._counts[what] = int(count)
        self._distances.load_state_dict(state["distances"], local(parameters[0]).device)
        self._solution = self._agreement = None
        self._stepped = self._optimizer_loaded = False
        self._means.reset()
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
        if set(state["counts"]) != set(self._counts) or not all(map(is_count, state["counts"].values())):
            raise ValueError(f"the state's counts must be whole numbers of {', '.join(self._counts)}")
        self._distances.check_state_dict(state["distances"], len(self.sources))
        for source, saved in zip(self.sources, state["sources"], strict=True):
            source.check_state_dict(saved, parameters)

    def _settings(self) -> dict[str, Any]:
        sources = [source.settings() for source in self.sources]
        settings = {"correct": self.target, "trigger": self.trigger, "blocks": self.blocks}
        return {**settings, "sources": sources}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(constraints={self.sources}, {self._shown()})"

    def _shown(self) -> str:
        """What every corrector's ``repr`` ends with; reading the counts waits for the device."""
        steps, corrected = int(self._counts["steps"]), int(self._counts["corrected"])
        settings = f"correct={self.target!r}, trigger={self.trigger!r}, blocks={self.blocks!r}"
        return f"{settings}, step {steps}, {corrected} corrected"

    def __getstate__(self) -> dict[str, Any]:
        transient: dict[str, Any] = {
            "_handles": [],
            "_solution": None,
            "_problems": {},
            "_slices": {},
            "_held": {},
            "_constants": {},
            "_decays": None,
            "_known": None,
            "_watch": None,
            "_finite_watch": None,
            "_means": RunningMeans(),
        }
        return {**self.__dict__, **transient, "_attached": bool(self._handles)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        attached = state.pop("_attached")
        self.__dict__.update(state)
        if attached:  # a copy made together with its optimizer corrects the copy
            self._attach()


class _Entry(NamedTuple):
    """A selected parameter, the group it is in, and the first block that it belongs to."""

    parameter: Tensor
    group: int
    block: int


class _Selection(NamedTuple):
    """The selected parameters, how many blocks they make, and whether any is sharded over processes."""

    entries: list[_Entry]
    parameters: list[Tensor]
    blocks: int
    sharded: bool = False


class _Prepared(NamedTuple):
    """What a step reads and writes, ready for the backends; used again while no tensor but a gradient moves."""

    passes: Passes | RowPasses
    slices: Sequence[tuple[ParameterSlice, Groups]]  # what the passes know the addresses of
    rule: ElementRule | None = None
    sizes: Tensor | None = None
    elements: int = 0


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both are the same memory: the local part of a sharded parameter is a new tensor each time."""
    return a is b or (a.data_ptr() == b.data_ptr() and a.numel() > 0 and a.shape == b.shape)


def _placed(item: ParameterSlice, parameter: Tensor) -> ParameterSlice:
    """A slice of an update, with the place that the gradient has among its tensors."""
    assert parameter.grad is not None
    gradient = local(parameter.grad)
    places = [i for i, tensor in enumerate(item.tensors) if _same(tensor, gradient)]
    return item._replace(gradient=-2 if len(places) > 1 else places[0] if places else -1)


def _layout(sources: Sequence[ConstraintSource]) -> tuple[int, list[tuple[slice, slice]]]:
    """How many constraints there are, and where the active ones stand among all and among themselves."""
    start = active = 0
    spans = []
    for source in sources:
        spans.append((slice(start, start + source.active), slice(active, active + source.active)))
        start += source.capacity
        active += source.active
    return start, spans


def _check_same_settings(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    check_parts(saved, {}, "a state of a Corrector (its settings)")
    for name in (name for name in here if name != "sources"):
        if differs(saved.get(name), here[name]):
            raise ValueError(
                f"{name} was {saved.get(name)!r} when this state was saved and is {here[name]!r} here; "
                "use the same settings, or start without the state"
            )
