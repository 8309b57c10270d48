"""The weights before a step, so that the step an optimizer has made can be corrected."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from congruency.backends import rows_of
from congruency.distributed import PLAIN, local
from congruency.step.selection import Selection

__all__ = [
    "OverwrittenGradients", "WeightsBefore", "block_rates", "check_rates", "decay_factor", "group_factors",
    "momentum_of", "skipped_step",
]  # fmt: skip

# Optimizers of torch.optim and timm.optim whose weight decay is always decoupled; others say so in their groups.
_ALWAYS_DECOUPLED = {
    "Adafactor", "AdafactorBigVision", "AdamW", "AdamWLegacy", "LaProp", "Lion", "Mars", "Muon", "NAdamW",
    "RAdamLegacy", "SGDW",
}  # fmt: skip
_DECOUPLED_FLAGS = ("decoupled_weight_decay", "decoupled_decay", "decoupled", "no_prox")


def _decays(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether the optimizer multiplies the weights of a group by a factor, beside the step."""
    flags = [bool(group[name]) for name in _DECOUPLED_FLAGS if name in group]
    always = any(kind.__name__ in _ALWAYS_DECOUPLED for kind in type(optimizer).__mro__)  # subclasses too
    return bool(group.get("weight_decay")) and (any(flags) if flags else always)


def check_rates(optimizer: torch.optim.Optimizer, *, margins: bool) -> None:
    """Refuse an optimizer without a learning rate of its groups, where weight decay or margins depend on that."""
    unknown = [group for group in optimizer.param_groups if group.get("lr") is None]
    if unknown and (margins or any(_decays(optimizer, group) for group in unknown)):
        raise ValueError(
            f"{type(optimizer).__name__} has no learning rate in its groups, on which the size of weight decay and of "
            "margins depends; give it one (transformers' Adafactor: lr=..., relative_step=False), or leave both 0"
        )


def decay_factor(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> float | Tensor:
    """s in ``w_after = s * w_before - step``: what decoupled weight decay multiplies the weights by, 1 without it.

    Weight decay that is added to the gradient (SGD, Adam) is part of the step. The learning rate, and so the factor,
    may be a tensor.
    """
    if not _decays(optimizer, group):
        return 1.0
    rate: float | Tensor = group["lr"]
    strength = 1.0 if group.get("fixed_decay") or group.get("unscaled_wd") else rate
    if group.get("corrected_weight_decay"):
        strength = strength * (rate / group.get("max_lr_snapshot", optimizer.defaults["lr"]))
    return 1.0 - strength * float(group["weight_decay"])


def skipped_step(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """() 1 where ``GradScaler`` had a fused optimizer skip its step, 0 where not; None for other optimizers."""
    found: Tensor | None = getattr(optimizer, "found_inf", None)
    return found


def group_factors(optimizer: torch.optim.Optimizer) -> list[float | Tensor]:
    """What decoupled weight decay multiplied each group's parameters by in this step; 1 where it was skipped."""
    factors = [decay_factor(optimizer, group) for group in optimizer.param_groups]
    skipped = skipped_step(optimizer)
    return factors if skipped is None else [1.0 - (1.0 - factor) * (1.0 - skipped.double()) for factor in factors]


def block_rates(optimizer: torch.optim.Optimizer, selection: Selection, rows: bool, device: torch.device) -> Tensor:
    """(blocks,) the learning rate of each block, the greatest where there are several; 0 in a skipped step."""
    rates = torch.zeros(selection.blocks, dtype=torch.float64, device=device)
    for parameter, group, block in selection.entries:
        rate = optimizer.param_groups[group]["lr"]
        here = slice(block, block + (rows_of(local(parameter)) if rows else 1))
        if isinstance(rate, Tensor):
            rates[here] = torch.maximum(rates[here], rate.to(rates))
        else:
            rates[here].clamp_(min=rate)  # a copy of a number to the device would wait
    skipped = skipped_step(optimizer)
    return rates if skipped is None else rates * (1.0 - skipped.to(rates))


def momentum_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Tensor | None:
    """The running mean of gradients that the optimizer steps along, if it has one."""
    state = optimizer.state.get(parameter, {})
    found = [state[name] for name in ("momentum_buffer", "exp_avg") if isinstance(state.get(name), Tensor)]
    return found[0] if found else None


class WeightsBefore:
    """A copy of the parameters as they were before the step that is under way, one per parameter."""

    def __init__(self) -> None:
        self._held: dict[Tensor, Tensor] = {}
        self.layout = 0  # equal as long as the copies lie where they did
        self._saved: Sequence[Tensor] = []
        self._copies: list[Tensor] = []
        self._places: list[int] = []

    def save(self, parameters: Sequence[Tensor]) -> None:
        """Copy the weights; the memory is kept for the next step."""
        own = list(parameters if {*map(type, parameters)} <= PLAIN else map(local, parameters))
        places = list(map(Tensor.data_ptr, own))
        if self._saved is not parameters or places != self._places:
            self._held = {p: torch.empty_like(part) for p, part in zip(parameters, own, strict=True)}
            self._copies = list(self._held.values())
            self._saved, self._places = parameters, places
            self.layout += 1
        if parameters:
            torch._foreach_copy_(self._copies, own)

    def check(self, parameters: Sequence[Tensor]) -> None:
        """Refuse a step that replaced the parameters it began with."""
        if len(parameters) != len(self._saved) or not all(map(operator.is_, parameters, self._saved)):
            raise RuntimeError(
                "the optimizer replaced its parameters during step(), so its update cannot be corrected; change "
                "param_groups between steps, or use correct='gradient'"
            )

    def of(self, parameter: Tensor) -> Tensor:
        """This process's part of the weights before the step."""
        return self._held[parameter]

    def decay(self, parameters: Sequence[Tensor], factors: Sequence[float | Tensor]) -> None:
        """Multiply the copies by their factors, in place: the update is what the optimizer adds to those."""
        for parameter, factor in zip(parameters, factors, strict=True):
            if isinstance(factor, Tensor) or factor != 1.0:
                self._held[parameter].mul_(factor)


class OverwrittenGradients:
    """The gradients that an optimizer overwrites in its step, put back after it.

    The foreach form of ``SGD(nesterov=True)``, the default on a GPU, adds the momentum to ``p.grad`` in place; what
    compares an update with the gradient must not compare it with itself. Others cost nothing here.
    """

    def __init__(self) -> None:
        self._written: list[Tensor] = []
        self._held: list[tuple[Tensor, Tensor, int, Tensor]] = []  # parameter, gradient, its version, what it was

    def save(self, optimizer: torch.optim.Optimizer, selection: Selection) -> None:
        """Copy the gradients that the step will overwrite."""
        groups = {i for i, group in enumerate(optimizer.param_groups) if _writes_to_gradients(group)}
        self._written = [entry.parameter for entry in selection.entries if entry.group in groups] if groups else []
        given = [(parameter, parameter.grad) for parameter in self._written if parameter.grad is not None]
        self._held = [(p, gradient, gradient._version, local(gradient).clone()) for p, gradient in given]

    def restore(self) -> None:
        """Put them back; those that a closure computed within the step are lost."""
        known = {p for p, gradient, version, _ in self._held if gradient is p.grad and gradient._version <= version + 1}
        if any(parameter.grad is not None and parameter not in known for parameter in self._written):
            raise RuntimeError(
                "SGD(nesterov=True) with foreach overwrites the gradients, and those that a closure computes, or a "
                "correction attached later changes, are not known before that; pass foreach=False to the optimizer, or "
                "make what corrects gradients before what corrects updates"
            )
        for _, gradient, _, before in self._held:
            local(gradient).copy_(before)
        self._held = []


def _writes_to_gradients(group: Mapping[str, Any]) -> bool:
    if not group.get("nesterov") or group.get("fused") or "foreach" not in group:  # Muon has no foreach form
        return False
    foreach = group["foreach"]
    if foreach is None:  # torch's own choice
        return any(parameter.device.type != "cpu" for parameter in group["params"])
    return bool(foreach)
