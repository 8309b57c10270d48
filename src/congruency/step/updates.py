"""Weights before a step, momentum, decay and rates: what correcting an optimizer's update needs."""

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
    """Whether the optimizer applies decoupled weight decay to a parameter group."""
    flags = [bool(group[name]) for name in _DECOUPLED_FLAGS if name in group]
    always = any(kind.__name__ in _ALWAYS_DECOUPLED for kind in type(optimizer).__mro__)  # subclasses too
    return bool(group.get("weight_decay")) and (any(flags) if flags else always)


def check_rates(optimizer: torch.optim.Optimizer, *, margins: bool) -> None:
    """Raise ValueError if weight decay or margins depend on a learning rate that a parameter group does not have."""
    unknown = [group for group in optimizer.param_groups if group.get("lr") is None]
    if unknown and (margins or any(_decays(optimizer, group) for group in unknown)):
        raise ValueError(
            f"{type(optimizer).__name__} has no learning rate in its groups, on which the size of weight decay and of "
            "margins depends; give it one (transformers' Adafactor: lr=..., relative_step=False), or leave both 0"
        )


def decay_factor(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> float | Tensor:
    """Return s in ``w_after = s * w_before - step``, the factor of decoupled weight decay; 1 without it.

    Weight decay that is added to the gradient (SGD, Adam) is part of the step. The factor is a tensor if the learning
    rate is.
    """
    if not _decays(optimizer, group):
        return 1.0
    rate: float | Tensor = group["lr"]
    strength = 1.0 if group.get("fixed_decay") or group.get("unscaled_wd") else rate
    if group.get("corrected_weight_decay"):
        strength = strength * (rate / group.get("max_lr_snapshot", optimizer.defaults["lr"]))
    return 1.0 - strength * float(group["weight_decay"])


def skipped_step(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """Return () 1 if ``GradScaler`` made a fused optimizer skip its step, else 0; None for other optimizers."""
    found: Tensor | None = getattr(optimizer, "found_inf", None)
    return found


def group_factors(optimizer: torch.optim.Optimizer) -> list[float | Tensor]:
    """Return what decoupled weight decay multiplied each group's parameters by; 1 if the step was skipped."""
    factors = [decay_factor(optimizer, group) for group in optimizer.param_groups]
    skipped = skipped_step(optimizer)
    return factors if skipped is None else [1.0 - (1.0 - factor) * (1.0 - skipped.double()) for factor in factors]


def block_rates(optimizer: torch.optim.Optimizer, selection: Selection, rows: bool, device: torch.device) -> Tensor:
    """Return the learning rate of each block, (blocks,), the largest if it has several; 0 in a skipped step."""
    rates = torch.zeros(selection.blocks, dtype=torch.float64, device=device)
    for parameter, group, block in selection.entries:
        rate = optimizer.param_groups[group]["lr"]
        here = slice(block, block + (rows_of(local(parameter)) if rows else 1))
        if isinstance(rate, Tensor):
            rates[here] = torch.maximum(rates[here], rate.to(rates))
        else:
            rates[here].clamp_(min=rate)  # copying the number to the device would synchronize
    skipped = skipped_step(optimizer)
    return rates if skipped is None else rates * (1.0 - skipped.to(rates))


def momentum_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Tensor | None:
    """Return the optimizer's momentum (its running mean of gradients) of a parameter, if it has one."""
    state = optimizer.state.get(parameter, {})
    found = [state[name] for name in ("momentum_buffer", "exp_avg") if isinstance(state.get(name), Tensor)]
    return found[0] if found else None


class WeightsBefore:
    """Copies of the parameters from before the current step."""

    def __init__(self) -> None:
        self._held: dict[Tensor, Tensor] = {}
        self.layout = 0  # stays equal while the copies keep their addresses
        self._saved: Sequence[Tensor] = []
        self._copies: list[Tensor] = []
        self._places: list[int] = []

    def save(self, parameters: Sequence[Tensor]) -> None:
        """Copy the weights, into the same buffers at every step."""
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
        """Raise RuntimeError if the step replaced the parameters."""
        if len(parameters) != len(self._saved) or not all(map(operator.is_, parameters, self._saved)):
            raise RuntimeError(
                "the optimizer replaced its parameters during step(), so its update cannot be corrected; change "
                "param_groups between steps, or use correct='gradient'"
            )

    def of(self, parameter: Tensor) -> Tensor:
        """Return the local part of a parameter's weights before the step."""
        return self._held[parameter]

    def decay(self, parameters: Sequence[Tensor], factors: Sequence[float | Tensor]) -> None:
        """Multiply the copies by their factors in place, so that the update excludes decoupled weight decay."""
        for parameter, factor in zip(parameters, factors, strict=True):
            if isinstance(factor, Tensor) or factor != 1.0:
                self._held[parameter].mul_(factor)


class OverwrittenGradients:
    """Copies of the gradients that an optimizer overwrites in its step, restored after it.

    The foreach implementation of ``SGD(nesterov=True)``, the default on a GPU, adds the momentum to ``p.grad`` in
    place, so that an update compared with the gradient would be compared with itself. For other optimizers nothing is
    copied.
    """

    def __init__(self) -> None:
        self._written: list[Tensor] = []
        self._held: list[tuple[Tensor, Tensor, int, Tensor]] = []  # parameter, gradient, its version, its copy

    def save(self, optimizer: torch.optim.Optimizer, selection: Selection) -> None:
        """Copy the gradients that the step will overwrite."""
        groups = {i for i, group in enumerate(optimizer.param_groups) if _writes_to_gradients(group)}
        self._written = [entry.parameter for entry in selection.entries if entry.group in groups] if groups else []
        given = [(parameter, parameter.grad) for parameter in self._written if parameter.grad is not None]
        self._held = [(p, gradient, gradient._version, local(gradient).clone()) for p, gradient in given]

    def restore(self) -> None:
        """Restore the gradients; raise RuntimeError if a gradient was computed or changed within the step."""
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
    if foreach is None:  # torch chooses: foreach on accelerators
        return any(parameter.device.type != "cpu" for parameter in group["params"])
    return bool(foreach)
