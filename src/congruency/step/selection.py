"""The parameters that a corrector corrects, with their parameter groups and blocks."""

from __future__ import annotations

import operator
from collections.abc import Set
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from congruency._validate import check_gradients, check_parameter
from congruency.backends import rows_of
from congruency.distributed import is_sharded, local, splits_rows

__all__ = ["Blocks", "Entry", "Selection", "Selector"]

Blocks = Literal["joint", "group", "tensor", "row", "element"]


class Entry(NamedTuple):
    """A selected parameter, its parameter group, and its (first) block."""

    parameter: Tensor
    group: int
    block: int


class Selection(NamedTuple):
    """The selected parameters, the number of blocks, and whether any parameter is sharded over processes."""

    entries: list[Entry]
    parameters: list[Tensor]
    blocks: int
    sharded: bool = False

    def trained(self) -> tuple[Selection, list[Tensor], tuple[int, ...]]:
        """Return the parameters that have a gradient, the local parts of these gradients, and their addresses.

        The selection is ``self`` if all have one. Raises TypeError for a sparse gradient.
        """
        gradients = [gradient for parameter in self.parameters if (gradient := parameter.grad) is not None]
        parts = [local(gradient) for gradient in gradients] if self.sharded else gradients
        try:
            addresses = tuple(map(Tensor.data_ptr, parts))
        except RuntimeError:  # only strided tensors have an address
            check_gradients(gradients)
            raise
        if len(gradients) == len(self.parameters):
            return self, parts, addresses
        entries = [entry for entry in self.entries if entry.parameter.grad is not None]
        return self._replace(entries=entries, parameters=[entry.parameter for entry in entries]), parts, addresses

    def left_out(self, trained: Selection) -> dict[int, int]:
        """Return position -> block of the non-empty parameters that are not in ``trained``."""
        if trained is self:
            return {}
        there = set(trained.parameters)
        return {i: e.block for i, e in enumerate(self.entries) if e.parameter not in there and e.parameter.numel()}


class Selector:
    """Selects parameters of an optimizer, whose groups may change between steps.

    Args:
        optimizer: The optimizer.
        chosen: The parameters to select; None: all parameters of the optimizer.
        blocks: Which slices of the parameters form a block.
        owner: The name of the corrector's class, for error messages.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, chosen: Set[Tensor] | None, blocks: Blocks, owner: str
    ) -> None:
        self._optimizer, self._chosen, self._blocks, self._owner = optimizer, chosen, blocks, owner
        self._last = Selection([], [], 0)
        self._seen: list[Tensor] = []  # the parameters that _last was made of
        self._sizes: list[int] = []  # the sizes of their parameter groups
        self._checked: set[Tensor] = set()

    def select(self) -> Selection:
        """Return the current selection, the same object while the parameters stay the same."""
        now = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        if self._chosen is not None:
            now = [parameter for parameter in now if parameter in self._chosen]
            if not now:
                raise RuntimeError(
                    "none of the parameters to correct is in the optimizer any more: its param_groups were changed; "
                    f"detach this {self._owner} and make another over the optimizer's present parameters"
                )
        last, sizes = self._seen, [len(group["params"]) for group in self._optimizer.param_groups]
        if sizes != self._sizes or len(now) != len(last) or not all(map(operator.is_, now, last)):
            self._check(now)
            self._last = self._made(list(dict.fromkeys(now)))  # torch allows a parameter twice in a group
            self._seen, self._sizes = now, sizes
        return self._last

    def _made(self, now: list[Tensor]) -> Selection:
        groups = self._optimizer.param_groups
        group_of = {parameter: i for i, group in enumerate(groups) for parameter in group["params"]}
        if self._blocks == "joint":
            blocks, total = [0] * len(now), 1
        elif self._blocks == "group":
            blocks, total = [group_of[p] for p in now], len(groups)
        elif self._blocks == "row":
            sizes = [rows_of(local(p)) for p in now]
            blocks, total = [sum(sizes[:i]) for i in range(len(now))], sum(sizes)
        else:
            blocks, total = list(range(len(now))), len(now)
        entries = [Entry(p, group_of[p], block) for p, block in zip(now, blocks, strict=True)]
        return Selection(entries, now, total, any(map(is_sharded, now)))

    def _check(self, now: list[Tensor]) -> None:
        for position, parameter in enumerate(now):
            if parameter in self._checked:
                continue
            check_parameter(parameter, position)
            if self._blocks == "row" and splits_rows(parameter):
                raise ValueError(
                    f"blocks='row' needs whole rows on every process, and parameter {position} is sharded over "
                    f"another dimension than its first ({parameter.placements}); use blocks='tensor' or 'element'"
                )
            self._checked.add(parameter)
