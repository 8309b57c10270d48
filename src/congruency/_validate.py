"""Checks of arguments and of saved states. Errors say what was wrong, what was expected and what to do."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

__all__ = [
    "changes", "check_choice", "check_flag", "check_floor", "check_gradients", "check_margin", "check_optimizer",
    "check_parameter", "check_params", "check_parts", "check_whole", "differs", "installing", "is_count", "warn",
]  # fmt: skip

Choice = TypeVar("Choice", bound=str)
_layout_of = operator.attrgetter("layout")
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_load_state_dict_post_hooks")


def warn(message: str) -> None:
    """Issue a UserWarning located at the innermost caller outside of congruency and torch.

    For warning filters, its module is the one that calls this function.
    """
    frame = sys._getframe(1)
    module: str = frame.f_globals["__name__"]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("congruency", "torch"):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)


def installing(extra: str) -> str:
    """Return how to install an extra, for error messages: the package is on no index yet."""
    return f"pip install '.[{extra}]' in a checkout of congruency, or 'FILE.whl[{extra}]' of its wheel"


def check_choice(name: str, value: Choice, choices: tuple[str, ...]) -> Choice:
    """Validate and return one of several strings."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_flag(name: str, value: bool, hint: str = "") -> bool:
    """Validate and return a bool; any other value would silently count as True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}{hint}")
    return value


def check_whole(name: str, value: int, expected: str = "", *, least: int) -> int:
    """Validate and return a whole number of at least ``least``; ``expected`` describes it in error messages."""
    expected = expected or f"a whole number of at least {least}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be {expected}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be {expected}, got {value}")
    return value


def check_margin(margin: float) -> float:
    """Validate and return a margin."""
    if isinstance(margin, bool) or not isinstance(margin, (int, float)):
        raise TypeError(f"margin must be a number, got {margin!r}")
    if not 0.0 <= margin < float("inf"):
        raise ValueError(f"margin must be finite and at least 0, got {margin}")
    return float(margin)


def check_floor(floor: float | None) -> float | None:
    """Validate and return a floor on congruency, or None."""
    if floor is None:
        return None
    if isinstance(floor, bool) or not isinstance(floor, (int, float)):
        raise TypeError(f"floor must be a number or None, got {floor!r}")
    if not 0.0 < floor <= 1.0:
        raise ValueError(f"floor must be above 0 and at most 1, or None for the paper's form, got {floor}")
    return float(floor)


def check_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Validate and return an optimizer whose steps can be hooked."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {_instead_of(optimizer)}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "LBFGS is not supported: it evaluates its closure several times within one step and builds a curvature "
            "estimate from exact gradients, which corrected ones would break; use a first-order optimizer"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise TypeError(
            "SparseAdam is not supported: it takes sparse gradients, which have no inner product with a displacement "
            "here; build the embedding with sparse=False and use Adam"
        )
    wrapped = {
        name: inner
        for name, inner in vars(optimizer).items()
        if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer
    }
    if not all(hasattr(optimizer, hooks) for hooks in _HOOKS):
        names = " or ".join(f"optimizer.{name}" for name in wrapped) or "of Accelerate: optimizer.optimizer"
        raise TypeError(
            f"{type(optimizer).__name__} has no hooks of its own, since it wraps another optimizer; pass the one "
            f"inside ({names})"
        )
    for name, inner in wrapped.items():
        # ZeroRedundancyOptimizer is stepped itself, and the optimizer inside has only a part of the parameters
        if type(optimizer).__name__ != "ZeroRedundancyOptimizer":
            warn(
                f"{type(optimizer).__name__} wraps another optimizer, {type(inner).__name__}, and what is attached to "
                "the wrapper works only if its own step() is called, which SAM's first_step() and second_step() do "
                f"not; pass the one inside: optimizer.{name}"
            )
    return optimizer


def _instead_of(given: object) -> str:
    if isinstance(getattr(given, "optimizer", None), torch.optim.Optimizer):  # a scheduler, or a wrapper
        return f"{type(given).__name__}; pass its .optimizer"
    if isinstance(given, type) and issubclass(given, torch.optim.Optimizer):
        return f"the class {given.__name__}; make one first: {given.__name__}(model.parameters(), ...)"
    if isinstance(given, torch.nn.Module):
        return f"{type(given).__name__}, a model; pass the optimizer that trains it"
    return f"{type(given).__name__}; without a torch optimizer, project the gradients with congruency.project"


def check_params(params: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> set[Tensor]:
    """Validate and return parameters of an optimizer."""
    if isinstance(params, (Tensor, torch.nn.Module)):
        raise TypeError(
            f"params must be an iterable of parameters, got a {type(params).__name__}; "
            "pass [parameter] or module.parameters()"
        )
    if not hasattr(params, "__iter__"):
        hint = f"; for a window write window={params}" if isinstance(params, int) and params > 1 else ""
        raise TypeError(
            f"params, the second argument, must be an iterable of parameters or None, got {params!r}{hint}; all other "
            "settings are given by name"
        )
    chosen = list(params)
    if not chosen:
        raise ValueError(
            "params is empty; pass at least one parameter, or None for all of the optimizer's (a generator that was "
            "read once, as by the optimizer, is empty: call parameters() again)"
        )
    for item in chosen:
        if not isinstance(item, Tensor):
            raise TypeError(
                f"params must hold tensors, got a {type(item).__name__}; pass module.parameters(), "
                "not named_parameters() or parameter groups"
            )
    owned = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    chosen = [parameter for parameter in chosen if parameter in owned or parameter.requires_grad]  # skip frozen
    if not chosen:
        raise ValueError(
            "params are all frozen (requires_grad=False) and not in the optimizer; choose parameters that train, such "
            "as [p for p in model.parameters() if p.requires_grad]"
        )
    strangers = sum(parameter not in owned for parameter in chosen)
    if strangers:
        raise ValueError(
            f"{strangers} of {len(chosen)} params are not in the optimizer, so it would never use their corrected "
            "gradients; add them to the optimizer first (optimizer.add_param_group) or leave them out"
        )
    return set(chosen)


def check_parameter(parameter: Tensor, position: int) -> None:
    """Raise TypeError for a parameter whose inner products cannot be computed: nested, FSDP1, complex or integer."""
    if parameter.is_nested:
        raise TypeError(f"parameter {position} is a nested tensor; leave it out of params, or use padded parameters")
    if getattr(parameter, "_is_flat_param", False) or getattr(parameter, "_fsdp_flattened", False):
        raise TypeError(
            f"parameter {position} is sharded by FullyShardedDataParallel (FSDP1), which hides that a process has only "
            "a part of it, so that inner products would be wrong; use FSDP2 (torch.distributed.fsdp.fully_shard) or DDP"
        )
    if parameter.is_complex():
        raise TypeError(
            f"parameter {position} is complex ({parameter.dtype}); leave it out of params, or optimize "
            "torch.view_as_real of it"
        )
    if not parameter.is_floating_point():
        raise TypeError(f"parameter {position} has dtype {parameter.dtype}; only floating-point ones can be corrected")


def are_strided(gradients: Sequence[Tensor]) -> bool:
    """Whether no gradient is sparse."""
    return {torch.strided}.issuperset(map(_layout_of, gradients))


def check_gradients(gradients: Sequence[Tensor]) -> None:
    """Raise TypeError if a gradient is sparse."""
    if are_strided(gradients):
        return
    sparse = next(gradient for gradient in gradients if gradient.layout is not torch.strided)
    raise TypeError(
        f"a parameter of shape {tuple(sparse.shape)} has a sparse gradient ({sparse.layout}); build its layer with "
        "sparse=False, or leave the parameter out of params"
    )


def check_parts(state: object, parts: Mapping[str, type | tuple[type, ...]], what: str) -> None:
    """Raise ValueError unless a saved state is a dict with these parts, of these types."""
    if not isinstance(state, Mapping):
        raise ValueError(f"this is not {what}: it must be a dict, got {type(state).__name__}")
    missing = [name for name in parts if name not in state]
    if missing:
        raise ValueError(f"this is not {what}: it has no {', '.join(sorted(missing))}")
    for name, kinds in parts.items():
        if not isinstance(state[name], kinds):
            raise ValueError(f"this is not {what}: its {name} cannot be a {type(state[name]).__name__}")


def is_count(value: object) -> bool:
    """Whether a saved value is a number of steps: whole, not negative, and within 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def changes(saved: Mapping[str, object], here: Mapping[str, object], within: str = "") -> list[str]:
    """Return the settings that differ from saved ones, one line each: ``method.window was 50 and is 20``."""
    found = []
    for name in here:
        before, now = saved.get(name), here[name]
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += changes(before, now, f"{within}{name}.")
        elif before != now:
            found.append(f"{within}{name} was {before!r} and is {now!r}")
    return found


def differs(saved: object, here: object) -> bool:
    """Whether a saved setting differs from the current one; a tensor, which is no setting and has no bool, does."""
    return isinstance(saved, Tensor) or bool(saved != here)
