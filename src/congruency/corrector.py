"""One step, top to bottom: which parameters, which constraints, gram, solve, apply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # as torch.optim does: torch.compiler.disable would import dynamo now
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from congruency._validate import (
    check_choice,
    check_gradient,
    check_optimizer,
    check_parameter,
    check_params,
    check_parts,
    differs,
    is_count,
)  # fmt: skip
from congruency.backends import ParameterSlice, Passes, Problem, Solution
from congruency.constraints.base import ConstraintSource, check_sources
from congruency.distributed import Groups, full, local, reduction_groups

__all__ = ["Blocks", "Corrector", "Stats", "Trigger"]

Trigger = Literal["always", "violated"]
Blocks = Literal["joint", "group", "tensor"]

_STATE_VERSION = 1


@dataclass(frozen=True)
class Stats:
    """What the last step looked like, one entry per constraint, and counts since the start.

    Shapes are (constraints,), or (blocks, constraints) where the corrector solves several blocks. Entries are nan where
    nothing constrained the step, and where a norm is 0. Tensors stay on the device.

    Attributes:
        congruency: cos(g, a_i) of the gradient before the correction with each accumulated gradient (``eqn:cong_k``).
        corrected_congruency: The same of the corrected gradient.
        magnitude: |a_i|: for reference points, the distance of the weights from each.
        multipliers: The dual solution v: the corrected gradient is ``g + sum_i v_i c_i``.
        corrected: Whether the gradient was changed; () or (blocks,) bool.
        steps: Steps since the start.
        corrected_steps: Those of them whose gradient was changed.
        nonfinite_steps: Those of them left alone because a number was not finite.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> dcl = congruency.DCL(optimizer)
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
    steps: int | Tensor
    corrected_steps: Tensor
    nonfinite_steps: Tensor


class Corrector:
    """Corrects an optimizer's gradients inside every ``optimizer.step()``.

    The corrected gradient is ``argmin 1/2 |x - g|^2  s.t.  <c_i, x> >= 0`` over the constraints of all sources together
    (the paper's ``eqn:obj``), solved through its dual: see :func:`congruency.solve_dual`.

    Args:
        optimizer: Any ``torch.optim`` optimizer but LBFGS.
        params: The parameters to correct, all of the optimizer's where None (those added later included).
        constraints: The constraint sources: :class:`~congruency.References`, :class:`~congruency.EpisodicMemory`,
            :class:`~congruency.Directions`, or your own :class:`~congruency.ConstraintSource`. Each has its own margin.
        trigger: ``"always"`` solves at every step; ``"violated"`` leaves the gradient alone unless some
            ``<c_i, g> < 0``. They differ only where a margin is positive.
        blocks: ``"joint"``: one problem over all parameters; ``"group"`` or ``"tensor"``: one per parameter group or
            tensor, solved as one batch.
        attach: With False, nothing is hooked: call :meth:`correct` yourself before each ``optimizer.step()``.

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
        trigger: Trigger = "always",
        blocks: Blocks = "joint",
        attach: bool = True,
    ) -> None:
        self.optimizer = check_optimizer(optimizer)
        self._chosen = None if params is None else check_params(params, optimizer)
        self.sources = check_sources(constraints)
        self.trigger: Trigger = check_choice("trigger", trigger, get_args(Trigger))
        self.blocks: Blocks = check_choice("blocks", blocks, get_args(Blocks))
        self._checked: set[Tensor] = set()
        self._selection()  # reports parameters that cannot be corrected now, not at the first step
        self._counts: dict[str, int | Tensor] = {"steps": 0, "corrected": 0, "nonfinite": 0}
        self._solution: Solution | None = None
        self._layout = _layout(self.sources)  # of the constraints at the last step; sources may have changed since
        self._problems: dict[tuple[object, ...], Problem] = {}
        self._handle: RemovableHandle | None = None
        if attach:
            self._attach()

    # ---- the step ----

    @torch.no_grad()
    def correct(self) -> None:
        """Correct the gradients that are there now and count one step. Called for you unless ``attach=False``."""
        # which parameters
        selection, blocks = self._selection()
        entries = [(parameter, block) for parameter, block in selection if parameter.grad is not None]
        for parameter, _ in entries:
            check_gradient(parameter)

        # which constraints
        for source in self.sources:
            source.begin([parameter for parameter, _ in selection])
        active = [source for source in self.sources if source.active]
        self._layout = _layout(self.sources)

        # gram, solve, apply
        scale: Tensor | None = getattr(self.optimizer, "grad_scale", None)  # set by GradScaler for fused optimizers
        all_finite: Tensor | bool = True
        self._solution = None
        if entries:
            passes = Passes(_slices(entries, active), sum(source.active for source in active), blocks)
            gram = passes.gram()
            if active:
                self._solution = passes.solve(gram, self._problem(active, gram.device), scale)
                passes.apply(self._solution)
                self._count("corrected", self._solution.applied.any())
            finite = torch.isfinite(gram).all() if self._solution is None else self._solution.finite
            self._count("nonfinite", ~finite)
            all_finite = bool(finite) if finite.device.type == "cpu" else finite

        # done
        for source in self.sources:
            source.finish([parameter for parameter, _ in entries], scale, all_finite)
        self._count("steps", True, on_device=any(source.gate is not None for source in active))

    def _selection(self) -> tuple[list[tuple[Tensor, int]], int]:
        """Which parameters: the selected ones, each with the block it belongs to, and how many blocks there are."""
        selection: list[tuple[Tensor, int]] = []
        for i, group in enumerate(self.optimizer.param_groups):
            for parameter in group["params"]:
                if self._chosen is None or parameter in self._chosen:
                    selection.append((parameter, i))
                    if parameter not in self._checked:
                        check_parameter(parameter, len(selection) - 1)
                        self._checked.add(parameter)
        if self.blocks == "joint":
            return [(parameter, 0) for parameter, _ in selection], 1
        if self.blocks == "group":
            return selection, len(self.optimizer.param_groups)
        return [(parameter, i) for i, (parameter, _) in enumerate(selection)], len(selection)

    def _problem(self, active: Sequence[ConstraintSource], device: torch.device) -> Problem:
        """Which constraints: those of all sources stacked; made once per combination of sources."""
        key = (device, *((id(source), source.active, source.sign, source.margin) for source in active))
        if key not in self._problems:
            each = [source for source in active for _ in range(source.active)]
            self._problems[key] = Problem(
                combination=torch.block_diag(*(source.combination() for source in active)).to(device),
                signs=torch.tensor([source.sign for source in each], dtype=torch.float64).to(device),
                margins=torch.tensor([source.margin for source in each], dtype=torch.float64).to(device),
                only_violated=self.trigger == "violated",
            )
        problem = self._problems[key]
        if all(source.gate is None for source in active):
            return problem
        always = torch.ones((), dtype=torch.bool, device=device)
        gates = [(always if source.gate is None else source.gate).expand(source.active) for source in active]
        return replace(problem, gate=torch.cat(gates) if len(gates) > 1 else gates[0])

    def _count(self, what: str, happened: Tensor | bool, on_device: bool = False) -> None:
        """Count on the host where the host knows, on the device, in place, where it does not."""
        if isinstance(happened, Tensor) and happened.device.type == "cpu":
            happened = bool(happened)
        count = self._counts[what]
        if not isinstance(count, Tensor) and (on_device or isinstance(happened, Tensor)):
            device = local(self._selection()[0][0][0]).device
            count = torch.full((), count, dtype=torch.int64, device=device)
        count += happened
        self._counts[what] = count

    # ---- when the step is taken ----

    def _attach(self) -> None:
        self._handle = self.optimizer.register_step_pre_hook(self._before_step)

    def detach(self) -> None:
        """Leave the optimizer exactly as it was before; may be called twice."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    @_disable_dynamo
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Correct now, or, where a closure will make the gradients, right after the closure."""
        if len(args) > 1 and args[1] is not None:
            return (args[0], self._corrected_closure(args[1]), *args[2:]), kwargs
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._corrected_closure(kwargs["closure"])}
        self.correct()
        return None

    def _corrected_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def corrected() -> Any:
            result = closure()
            self.correct()
            return result

        return corrected

    # ---- what it knows ----

    @property
    def stats(self) -> Stats:
        """The last step's numbers and the counts; made when asked for, from what the correction computed anyway."""
        selection, blocks = self._selection()
        device = local(selection[0][0]).device
        solution = self._solution
        applied = torch.zeros(blocks, dtype=torch.bool, device=device) if solution is None else solution.applied
        constraints, spans = self._layout
        shape = (applied.shape[0], constraints)
        parts = [torch.full(shape, math.nan, dtype=torch.float64, device=device) for _ in range(4)]
        if solution is not None:
            for whole, part in zip(parts, solution.measures(), strict=True):
                for here, active in spans:
                    whole[:, here] = part[:, active]
        if self.blocks == "joint":
            parts = [part[0] for part in parts]
            applied = applied[0]
        congruency, corrected_congruency, magnitude, multipliers = parts
        return Stats(
            congruency=congruency,
            corrected_congruency=corrected_congruency,
            magnitude=magnitude,
            multipliers=multipliers,
            corrected=applied,
            steps=self._counts["steps"],
            corrected_steps=torch.as_tensor(self._counts["corrected"], device=device),
            nonfinite_steps=torch.as_tensor(self._counts["nonfinite"], device=device),
        )

    def reset(self) -> None:
        """Start every constraint source over, as if newly made: at a task boundary, for example."""
        for source in self.sources:
            source.reset()
        self._solution = None

    def state_dict(self, *, full_tensors: bool = False) -> dict[str, Any]:
        """All that is needed to resume bit for bit; ``torch.load(..., weights_only=True)`` reads it back.

        Tensors are the live ones, not copies, as in ``optimizer.state_dict()``.

        Args:
            full_tensors: Gather sharded references into whole tensors on every process (a collective call).
        """
        parameters = [parameter for parameter, _ in self._selection()[0]]
        state = {
            "version": _STATE_VERSION,
            "settings": self._settings(),
            "counts": {what: int(count) for what, count in self._counts.items()},
            "sources": [source.state_dict(parameters) for source in self.sources],
        }
        return pytree.tree_map_only(Tensor, full, state) if full_tensors else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`, sharded or with full tensors.

        Raises:
            ValueError: The state is of other settings, shapes or parameters. Nothing is changed then.
        """
        parameters = [parameter for parameter, _ in self._selection()[0]]
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
        self._solution = None

    def _check_state(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        what = "a state of a Corrector"
        parts: dict[str, type | tuple[type, ...]] = {"version": object, "settings": Mapping, "counts": Mapping}
        check_parts(state, parts | {"sources": (list, tuple)}, what)
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
        for source, saved in zip(self.sources, state["sources"], strict=True):
            source.check_state_dict(saved, parameters)

    def _settings(self) -> dict[str, Any]:
        sources = [source.settings() for source in self.sources]
        return {"trigger": self.trigger, "blocks": self.blocks, "sources": sources}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(constraints={self.sources}, {self._shown()})"

    def _shown(self) -> str:
        """What every corrector's ``repr`` ends with; reading the counts waits for the device."""
        steps, corrected = int(self._counts["steps"]), int(self._counts["corrected"])
        return f"trigger={self.trigger!r}, blocks={self.blocks!r}, step {steps}, {corrected} corrected"

    def __getstate__(self) -> dict[str, Any]:
        transient: dict[str, Any] = {"_handle": None, "_solution": None, "_problems": {}}
        return {**self.__dict__, **transient, "_attached": self._handle is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        attached = state.pop("_attached")
        self.__dict__.update(state)
        if attached:  # a copy made together with its optimizer corrects the copy
            self._attach()


def _slices(
    entries: Sequence[tuple[Tensor, int]], active: Sequence[ConstraintSource]
) -> Iterator[tuple[ParameterSlice, Groups]]:
    """What the passes read: each gradient with its basis vectors, and the process groups it is sharded over."""
    for parameter, block in entries:
        assert parameter.grad is not None
        gradient = local(parameter.grad)
        bases = [source.basis(parameter) for source in active]
        for source, basis in zip(active, bases, strict=True):
            if basis.size != source.active:
                raise ValueError(
                    f"{type(source).__name__} has {source.active} active constraint(s) and gave {basis.size} basis "
                    "vector(s); ConstraintSource.basis must give one per active constraint"
                )
        # The compiled passes walk all tensors by the gradient's length: another shape must not reach them.
        for tensor in (tensor for basis in bases for tensor in basis.tensors):
            if tensor.shape != gradient.shape:
                raise ValueError(
                    f"a constraint source gave a tensor of shape {tuple(tensor.shape)} for a parameter whose gradient "
                    f"here has shape {tuple(gradient.shape)}; ConstraintSource.basis must give tensors of that shape"
                )
        yield ParameterSlice(gradient, bases, block), reduction_groups(parameter)


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
    for name in sorted(here.keys() - {"sources"}):
        if differs(saved.get(name), here[name]):
            raise ValueError(
                f"{name} was {saved.get(name)!r} when this state was saved and is {here[name]!r} here; "
                "use the same settings, or start without the state"
            )
