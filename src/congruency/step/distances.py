"""Distances of the weights from each reference at the previous step, which ``returning`` compares the current with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from congruency._validate import check_parts, is_count
from congruency.constraints.base import ConstraintSource

__all__ = ["Distances"]


class Distances:
    """|a_i|^2 of every constraint at the previous step, per block; 0 where unknown, so that i does not apply.

    It is known if the source constrained the previous step and the same parameters of the block had a gradient.
    """

    def __init__(self) -> None:
        self._held: Tensor | None = None  # (blocks, constraints); inf: not compared
        self._counts: list[int] = []  # active constraints of each source
        self._compared: list[bool] = []  # whether each source compares its distances
        self._entries: object = None  # the parameters that the distances are over
        self._left_out: dict[int, int] = {}  # position -> block of the parameters without a gradient

    def begin(self, entries: object) -> None:
        """Start a step over these parameters; forget distances over other ones."""
        if self._entries is not None and entries is not self._entries:
            self.forget()
        self._entries = entries

    def forget(self) -> None:
        self._held = None

    def pause(self, sources: Sequence[ConstraintSource]) -> None:
        """Skip a step in which nothing is solved; keep the distances if the same constraints are active."""
        if self._counts != [source.active for source in sources]:
            self.forget()

    def before(
        self, sources: Sequence[ConstraintSource], left_out: dict[int, int], blocks: int, device: torch.device
    ) -> Tensor:
        """Return :attr:`congruency.backends.Problem.previous`, (blocks, constraints) float64; solving overwrites it.

        Args:
            sources: All sources of a corrector, in order.
            left_out: Position -> block of the parameters without a gradient in this step.
            blocks: Number of blocks.
            device: Device that solves the problem.
        """
        counts, held = [source.active for source in sources], self._held
        compared = [source.returning and source.floor is not None for source in sources]
        if held is None or counts != self._counts or len(held) != blocks:
            self._held = torch.zeros(blocks, sum(counts), dtype=torch.float64, device=device)
            for wanted, part in zip(compared, self._held.split(counts, 1), strict=True):
                if not wanted:
                    part.fill_(math.inf)  # fill_ does not synchronize
            if held is not None and len(held) == blocks:
                olds, news = held.split(self._counts, 1), self._held.split(counts, 1)
                for old, new, was, wanted in zip(olds, news, self._compared, compared, strict=True):
                    if old.shape == new.shape and was == wanted:
                        new.copy_(old)
            held = self._held
        elif compared != self._compared:
            for part, was, wanted in zip(held.split(counts, 1), self._compared, compared, strict=True):
                if was != wanted:
                    part.fill_(0.0 if wanted else math.inf)
        self._compared = compared
        for block in {block for _, block in left_out.items() ^ self._left_out.items() if block < blocks}:
            held[block].copy_(torch.where(torch.isinf(held[block]), math.inf, 0.0))
        self._counts, self._left_out = counts, left_out
        return held

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers: distributed checkpoints need a tensor to be present always or never."""
        squares = None if self._held is None else self._held.tolist()
        return {"squares": squares, "counts": self._counts, "left_out": sorted(self._left_out.items())}

    def check_state_dict(self, state: Mapping[str, Any], sources: int) -> None:
        """Raise ValueError if :meth:`load_state_dict` cannot load ``state``; change nothing."""
        what = "a state of distances"
        check_parts(state, {"squares": (list, type(None)), "counts": (list, tuple), "left_out": (list, tuple)}, what)
        squares, counts = state["squares"], state["counts"]
        pairs = [pair for pair in state["left_out"] if isinstance(pair, (list, tuple)) and len(pair) == 2]
        if len(pairs) < len(state["left_out"]) or not all(
            map(is_count, [*counts, *(n for pair in pairs for n in pair)])
        ):
            raise ValueError("the state's counts of distances, and parameters left out, must be whole numbers")
        if squares is None:
            return
        of_blocks = [isinstance(row, list) and len(row) == sum(counts) for row in squares]
        if len(counts) != sources or not of_blocks or not all(of_blocks):
            raise ValueError(f"the state's distances of {list(counts)} constraints must be one list of them per block")
        if not all(isinstance(value, float) for row in squares for value in row):
            raise ValueError("the state's distances must be numbers")

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        held = self._held
        squares = None if state["squares"] is None else torch.tensor(state["squares"], dtype=torch.float64)
        if squares is not None and held is not None and held.shape == squares.shape:
            held.copy_(squares)  # in place, since captured CUDA graphs read this tensor
        else:
            self._held = None if squares is None else squares.to(device)
        self._counts, self._left_out = list(state["counts"]), dict(state["left_out"])
        first = iter(state["squares"][0] if state["squares"] else [])
        self._compared = [math.inf not in [*itertools.islice(first, count)] for count in self._counts]
        self._entries = None
