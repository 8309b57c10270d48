"""The engine: rows from its sources, their Gram matrix, the quadratic program, the corrected gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # as torch.optim does: torch.compiler.disable would import dynamo now

from congruency.kernels import compiled, device_sweep, host_sweep
from congruency.kernels.rows import DeviceSweep, Piece, Strand
from congruency.sharding import full, local, reduce_sum, reduction_groups
from congruency.solution import HostSolution, Rows, Solution, row_stats, solve, solve_on_host
from congruency.sources import Source, check_parts, differs, is_count

__all__ = ["Blocks", "Corrector", "Stats", "Trigger"]

Trigger = Literal["always", "violated"]
Blocks = Literal["joint", "group", "tensor"]

_STATE_VERSION = 1


@dataclass(frozen=True)
class Stats:
    """What the last step looked like, one entry a row, and counts since the start; tensors stay on the device.

    Shapes are (rows,), or (blocks, rows) where the corrector solves several blocks. Entries are nan where nothing
    constrained the step, and where a norm is 0.
    """

    congruency: Tensor
    """cos(g, a_i) of the gradient before the correction with each accumulated gradient (``eqn:cong_k``)."""
    corrected_congruency: Tensor
    """The same of the corrected gradient."""
    magnitude: Tensor
    """|a_i|: for reference points, how far the weights are from each."""
    multipliers: Tensor
    """The dual solution v: the corrected gradient is ``g + sum_i v_i c_i``."""
    corrected: Tensor
    """Whether the gradient was changed; () or (blocks,) bool."""
    steps: int | Tensor
    corrected_steps: Tensor
    nonfinite_steps: Tensor


class Corrector:
    """Corrects an optimizer's gradients inside every ``optimizer.step()``.

    The corrected gradient is ``argmin 1/2 |x - g|^2  s.t.  <c_i, x> >= 0`` over the rows of all sources together
    (the paper's ``eqn:obj``), solved through its dual: see :func:`congruency.solve_dual`.

    Args:
        optimizer: Any ``torch.optim`` optimizer but LBFGS.
        params: The parameters to correct, all of the optimizer's where None (those added later included).
        constraints: The sources of rows: :class:`~congruency.References`, :class:`~congruency.Directions`, or your
            own :class:`~congruency.Source`. Each brings its own margin.
        trigger: ``"always"`` solves at every step; ``"violated"`` leaves the gradient alone unless some
            ``<c_i, g> < 0``. They differ only where a margin is positive.
        blocks: ``"joint"``: one problem over all parameters; ``"group"`` or ``"tensor"``: one for each parameter
            group or tensor, solved as one batch.
        attach: With False, nothing is hooked: call :meth:`correct` yourself before each ``optimizer.step()``.

    The gradient is corrected as it is when ``optimizer.step()`` is called, or after the closure passed to it has run;
    clipping done before is therefore clipping of the uncorrected gradient. To clip the corrected one, use
    ``attach=False``, ``corrector.correct()``, clip, ``optimizer.step()``.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Iterable[Tensor] | None = None,
        constraints: Iterable[Source] = (),
        *,
        trigger: Trigger = "always",
        blocks: Blocks = "joint",
        attach: bool = True,
    ) -> None:
        self.optimizer = _check_optimizer(optimizer)
        self._chosen = None if params is None else _check_params(params, optimizer)
        self.sources = _check_sources(constraints)
        if trigger not in get_args(Trigger):
            raise ValueError(f"trigger must be one of {', '.join(map(repr, get_args(Trigger)))}, got {trigger!r}")
        if blocks not in get_args(Blocks):
            raise ValueError(f"blocks must be one of {', '.join(map(repr, get_args(Blocks)))}, got {blocks!r}")
        self.trigger: Trigger = trigger
        self.blocks: Blocks = blocks
        self._checked: set[Tensor] = set()
        self._selection()  # reports parameters that cannot be corrected now, not at the first step
        self._counts: dict[str, int | Tensor] = {"steps": 0, "corrected": 0, "nonfinite": 0}
        self._solution: Solution | HostSolution | None = None
        self._layout = _layout(self.sources)  # of the rows at the last step; sources may have moved on since
        self._stacks: dict[tuple[Any, ...], Rows] = {}
        self._handle: Any = None
        if attach:
            self._attach()

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

    @torch.no_grad()
    def correct(self) -> None:
        """Correct the gradients that are there now and count one step. Called for you unless ``attach=False``."""
        selection, blocks = self._selection()
        entries = [(parameter, block) for parameter, block in selection if parameter.grad is not None]
        _check_gradients(entries)
        for source in self.sources:
            source.begin([parameter for parameter, _ in selection])
        active = [source for source in self.sources if source.rows]
        self._layout = _layout(self.sources)
        scale = getattr(self.optimizer, "grad_scale", None)  # set by GradScaler while a fused optimizer steps
        self._solution = None
        finite = self._correct_entries(entries, blocks, active, scale) if entries else True
        for source in self.sources:
            source.finish([parameter for parameter, _ in entries], scale, finite)
        self._count("steps", True, on_device=any(source.gate is not None for source in active))

    def _correct_entries(
        self, entries: _Entries, blocks: int, active: Sequence[Source], scale: Tensor | None
    ) -> Tensor | bool:
        """Correct the gradients of a step; whether they were finite."""
        size = sum(source.rows for source in active)
        places = _by_place(entries, active)
        sweeps = {place: _sweep(pieces, size, blocks, place[0]) for place, pieces in places.items()}
        if list(places) == [_PLAIN_CPU] and (size <= 1 or compiled() is not None):
            return self._correct_on_host(sweeps[_PLAIN_CPU], active, scale)
        sums = _moments(sweeps, size)
        on_host = sums.device.type == "cpu"
        if not active:
            finite = torch.isfinite(sums).all()
        else:
            solution = solve(sums, self._rows(active, sums.device), scale)
            self._solution, finite = solution, solution.finite
            corrected = solution.applied.any()
            self._count("corrected", corrected)
            if not on_host or corrected:
                for (device, _), sweep in sweeps.items():
                    _write(sweep, solution, device)
        self._count("nonfinite", ~finite)
        return bool(finite) if on_host else finite

    def _correct_on_host(self, sweep: Any, active: Sequence[Source], scale: Tensor | None) -> bool:
        """All in the memory of the CPU: with plain numbers, and no tensor made."""
        sums = sweep.moments()
        if not all(map(math.isfinite, chain.from_iterable(sums))):
            self._counts["nonfinite"] += 1
            return False
        if active:
            factor = 1.0 if scale is None else scale.item()
            solution = solve_on_host(sums, self._rows(active, _PLAIN_CPU[0]), factor)
            self._solution = solution
            if any(coefficient is not None for coefficient in solution.coefficients):
                self._counts["corrected"] += 1
                sweep.add_combination(solution.coefficients)
        return True

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

    def _rows(self, active: Sequence[Source], device: torch.device) -> Rows:
        """All sources' rows stacked; made once for each combination of sources."""
        key = (device, *((id(source), source.rows, source.sign, source.margin) for source in active))
        if key not in self._stacks:
            each = [source for source in active for _ in range(source.rows)]
            combination = torch.block_diag(*(source.combination() for source in active))
            signs = torch.tensor([source.sign for source in each], dtype=torch.float64)
            margins = torch.tensor([source.margin for source in each], dtype=torch.float64)
            self._stacks[key] = Rows(
                combination=combination.to(device),
                signs=signs.to(device),
                margins=margins.to(device),
                only_violated=self.trigger == "violated",
                fused=device.type == "cuda" and device_sweep("cuda") is not DeviceSweep,
            )
        rows = self._stacks[key]
        if all(source.gate is None for source in active):
            return rows
        always = torch.ones((), dtype=torch.bool, device=device)
        gates = [(always if source.gate is None else source.gate).expand(source.rows) for source in active]
        return replace(rows, gate=torch.cat(gates) if len(gates) > 1 else gates[0])

    def reset(self) -> None:
        """Forget all references, at a task boundary for example: every source starts as if newly made."""
        for source in self.sources:
            source.reset()
        self._solution = None

    @property
    def stats(self) -> Stats:
        """The last step's numbers and the counts; made when asked for, from what the correction computed anyway."""
        selection, blocks = self._selection()
        device = local(selection[0][0]).device
        solution = self._solution.as_tensors() if isinstance(self._solution, HostSolution) else self._solution
        applied = torch.zeros(blocks, dtype=torch.bool, device=device) if solution is None else solution.applied
        rows, spans = self._layout
        shape = (applied.shape[0], rows)
        parts = [torch.full(shape, math.nan, dtype=torch.float64, device=device) for _ in range(4)]
        if solution is not None:
            for whole, part in zip(parts, row_stats(solution), strict=True):
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

    def state_dict(self, *, full_tensors: bool = False) -> dict[str, Any]:
        """All that is needed to go on bit for bit; ``torch.load(..., weights_only=True)`` reads it back.

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
        return _map_tensors(state, full) if full_tensors else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`, sharded or with full tensors.

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
        _check_same_settings(state["settings"], self._settings())
        if set(state["counts"]) != set(self._counts) or not all(map(is_count, state["counts"].values())):
            raise ValueError(f"the state's counts must be whole numbers of {', '.join(self._counts)}")
        if len(state["sources"]) != len(self.sources):
            raise ValueError(f"the state has {len(state['sources'])} source(s) of rows, here are {len(self.sources)}")
        for source, saved in zip(self.sources, state["sources"], strict=True):
            source.check_state_dict(saved, parameters)

    def _settings(self) -> dict[str, Any]:
        return {
            "trigger": self.trigger,
            "blocks": self.blocks,
            "sources": [source.settings() for source in self.sources],
        }

    def _selection(self) -> tuple[list[tuple[Tensor, int]], int]:
        """The selected parameters, each with the block it is solved in, and how many blocks there are."""
        selection: list[tuple[Tensor, int]] = []
        for i, group in enumerate(self.optimizer.param_groups):
            for parameter in group["params"]:
                if self._chosen is None or parameter in self._chosen:
                    selection.append((parameter, i))
                    if parameter not in self._checked:
                        _check_parameter(parameter, len(selection) - 1)
                        self._checked.add(parameter)
        if self.blocks == "joint":
            return [(parameter, 0) for parameter, _ in selection], 1
        if self.blocks == "group":
            return selection, len(self.optimizer.param_groups)
        return [(parameter, i) for i, (parameter, _) in enumerate(selection)], len(selection)

    def __getstate__(self) -> dict[str, Any]:
        transient: dict[str, Any] = {"_handle": None, "_solution": None, "_stacks": {}}
        return {**self.__dict__, **transient, "_attached": self._handle is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        attached = state.pop("_attached")
        self.__dict__.update(state)
        if attached:  # a copy made together with its optimizer corrects the copy
            self._attach()


_Entries = Sequence[tuple[Tensor, int]]
_PLAIN_CPU: tuple[torch.device, tuple[Any, ...]] = (torch.device("cpu"), ())
_Places = dict[tuple[torch.device, tuple[Any, ...]], list[Piece]]


def _by_place(entries: _Entries, active: Sequence[Source]) -> _Places:
    """The pieces of a step, by the device they are on and the process groups they are sharded over."""
    places: _Places = {}
    for parameter, block in entries:
        assert parameter.grad is not None
        gradient = local(parameter.grad)
        strands = [source.strand(parameter) for source in active]
        _check_strands(strands, gradient)
        place = (gradient.device, reduction_groups(parameter))
        places.setdefault(place, []).append(Piece(gradient, strands, block))
    return places


def _check_strands(strands: Sequence[Strand], gradient: Tensor) -> None:
    """The compiled passes walk all tensors by the gradient's length: another shape must not reach them."""
    for strand in strands:
        for tensor in strand.tensors:
            if tensor.shape != gradient.shape:
                raise ValueError(
                    f"a source of rows gave a tensor of shape {tuple(tensor.shape)} for a parameter whose gradient "
                    f"here has shape {tuple(gradient.shape)}; Source.strand must give tensors of that shape"
                )


def _sweep(pieces: Sequence[Piece], size: int, blocks: int, device: torch.device) -> Any:
    """Both passes over the pieces of one place, by whatever is fastest there."""
    if device.type == "cpu":
        return host_sweep()(pieces, size, blocks)
    return device_sweep(device.type)(pieces, size, blocks, device)


def _moments(sweeps: Mapping[tuple[torch.device, tuple[Any, ...]], Any], size: int) -> Tensor:
    """The inner products over all places, on the first device; only these few numbers travel."""
    total: Tensor | None = None
    for (device, groups), sweep in sweeps.items():
        part = sweep.moments()
        if device.type == "cpu":
            part = torch.tensor(part, dtype=torch.float64).view(-1, 1 + size, 1 + size)
        part = reduce_sum(part, groups)
        total = part if total is None else total + part.to(total.device)
    assert total is not None
    return total


def _write(sweep: Any, solution: Solution, device: torch.device) -> None:
    if device.type == "cpu":
        wanted = solution.applied.tolist()
        coefficients = solution.coefficients.tolist()
        sweep.add_combination([a if on else None for a, on in zip(coefficients, wanted, strict=True)])
    else:
        sweep.add_combination(solution.coefficients.to(device), solution.applied.to(device))


def _layout(sources: Sequence[Source]) -> tuple[int, list[tuple[slice, slice]]]:
    """How many rows there are, and where those that constrain this step stand among all and among themselves."""
    start = active = 0
    spans = []
    for source in sources:
        spans.append((slice(start, start + source.rows), slice(active, active + source.rows)))
        start += source.capacity
        active += source.rows
    return start, spans


def _map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_tensors(item, function) for item in value]
    return value


def _check_same_settings(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    check_parts(saved, {"sources": (list, tuple)}, "a state of a Corrector (its settings)")
    if len(saved["sources"]) != len(here["sources"]):
        raise ValueError(
            f"the state has {len(saved['sources'])} source(s) of rows, here there are {len(here['sources'])}"
        )
    pairs = [(saved, here), *zip(saved["sources"], here["sources"], strict=True)]
    for old, new in pairs:
        check_parts(old, {}, "a state of a Corrector (its settings)")
        for name in sorted(new.keys() - {"sources"}):
            if differs(old.get(name), new[name]):
                raise ValueError(
                    f"{name} was {old.get(name)!r} when this state was saved and is {new[name]!r} here; "
                    "use the same settings, or start without the state"
                )


def _check_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "LBFGS is not supported: it evaluates its closure several times within one step and builds a curvature "
            "estimate from exact gradients, which corrected ones would break; use a first-order optimizer"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise TypeError(
            f"{type(optimizer).__name__} has no step hooks of its own, since it wraps another optimizer; pass the one "
            "inside (of Accelerate: optimizer.optimizer)"
        )
    return optimizer


def _check_params(params: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> set[Tensor]:
    if isinstance(params, (Tensor, torch.nn.Module)):
        raise TypeError(
            f"params must be an iterable of parameters, got a {type(params).__name__}; "
            "pass [parameter] or module.parameters()"
        )
    chosen = list(params)
    if not chosen:
        raise ValueError("params is empty; pass at least one parameter, or None for all of the optimizer's")
    for item in chosen:
        if not isinstance(item, Tensor):
            raise TypeError(
                f"params must hold tensors, got a {type(item).__name__}; pass module.parameters(), "
                "not named_parameters() or parameter groups"
            )
    owned = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    strangers = sum(parameter not in owned for parameter in chosen)
    if strangers:
        raise ValueError(
            f"{strangers} of {len(chosen)} params are not in the optimizer, so it would never use their corrected "
            "gradients; add them to the optimizer first (optimizer.add_param_group) or leave them out"
        )
    return set(chosen)


def _check_sources(constraints: Iterable[Source]) -> list[Source]:
    if isinstance(constraints, Source):
        raise TypeError("constraints must be an iterable of sources; pass [source]")
    sources = list(constraints)
    if not sources:
        raise ValueError("constraints is empty; pass at least one source of rows, e.g. congruency.References()")
    for source in sources:
        if not isinstance(source, Source):
            raise TypeError(f"constraints must hold congruency.Source objects, got a {type(source).__name__}")
    return sources


def _check_parameter(parameter: Tensor, position: int) -> None:
    if parameter.is_complex():
        raise TypeError(
            f"parameter {position} is complex ({parameter.dtype}); leave it out of params, or optimize "
            "torch.view_as_real of it"
        )
    if not parameter.is_floating_point():
        raise TypeError(f"parameter {position} has dtype {parameter.dtype}; only floating-point ones can be corrected")


def _check_gradients(entries: _Entries) -> None:
    for parameter, _ in entries:
        gradient = parameter.grad
        if gradient is not None and gradient.layout != torch.strided:
            raise TypeError(
                f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient ({gradient.layout}); build its "
                "layer with sparse=False, or leave the parameter out of params"
            )
