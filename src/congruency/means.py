"""Means over steps of what a correction measured, since they were last read; until then nothing waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from congruency.backends.base import Solution

__all__ = ["RunningMeans"]

_NAMES = ("congruency", "corrected_congruency", "magnitude", "kept")
_MOST_STEPS = 64
_MOST_NUMBERS = 1 << 16


class RunningMeans:
    """Holds the small results of single steps, and adds them up many at a time: a step costs next to nothing."""

    def __init__(self) -> None:
        self._solutions: list[Solution | tuple[Solution, Tensor, Tensor]] = []
        self._like: Solution | None = None  # the last that is held
        self._agreements: list[tuple[Tensor, int]] = []
        self._sums: list[Tensor] = []  # of parts of the steps: (2, 4), sums and how many, nan left out

    def note(self, solution: Solution) -> None:
        """Take note of a step that solved problems."""
        held, like = self._solutions, self._like
        if held and like and (like.signs is not solution.signs or like.gram.shape != solution.gram.shape):
            self._fold()
        if not _capturing(solution.gram):
            self._like = solution
            held.append(solution if solution.gram.device.type == "cpu" else _packed(solution))
            if len(held) >= _MOST_STEPS or len(held) * solution.gram.numel() >= _MOST_NUMBERS:
                self._fold()

    def note_elements(self, agreement: Tensor, elements: int) -> None:
        """Take note of a step with blocks of one element: what ``Backend.agreement`` gave, and how many there are."""
        if not _capturing(agreement):
            own = agreement if agreement.device.type == "cpu" else agreement.clone()  # as in _packed
            self._agreements.append((own, elements))
            if len(self._agreements) >= _MOST_STEPS or len(self._agreements) * agreement.numel() >= _MOST_NUMBERS:
                self._fold()

    def read(self) -> dict[str, float]:
        """The means by name, without those that are undefined; they start over. Waits for the device."""
        self._fold()
        sums, self._sums = self._sums, []
        if not sums:
            return {}
        totals, counts = torch.stack(sums).sum(0).tolist()
        return {name: total / n for name, total, n in zip(_NAMES, totals, counts, strict=True) if n}

    def _fold(self) -> None:
        parts = []
        if self._solutions:
            congruency, corrected, magnitude, _ = (
                part.view(len(self._solutions), -1).nanmean(1)
                for part in _joined([_unpacked(one) for one in self._solutions]).measures()
            )
            parts.append([congruency, corrected, magnitude, torch.full_like(congruency, math.nan)])
        if self._agreements:
            kept, product, norm2, length2 = torch.stack([part.sum(0) for part, _ in self._agreements]).unbind(1)
            elements = torch.tensor([n for _, n in self._agreements], dtype=kept.dtype).to(kept.device)
            none = torch.full_like(kept, math.nan)
            parts.append([product / (norm2 * length2).sqrt(), none, length2.sqrt(), kept / elements])
        for part in parts:
            values = torch.stack(part)  # (4, steps)
            self._sums.append(torch.stack([values.nansum(1), (~values.isnan()).sum(1).to(values.dtype)]))
        if len(self._sums) > _MOST_STEPS:
            self._sums = [torch.stack(self._sums).sum(0)]
        self._solutions.clear()
        self._agreements.clear()


def _packed(solution: Solution) -> tuple[Solution, Tensor, Tensor]:
    """A solution with copies of its numbers and flags: on a GPU the next step's are written to the same memory."""
    numbers = (solution.gradient_norm2, solution.products, solution.gram, solution.multipliers)
    flags = [solution.applied, solution.finite.view(1)]
    if solution.gate is not None:
        flags.append(solution.gate.reshape(-1))
    return solution, torch.cat([part.reshape(-1) for part in numbers]), torch.cat(flags)


def _unpacked(held: Solution | tuple[Solution, Tensor, Tensor]) -> Solution:
    if isinstance(held, Solution):
        return held
    solution, numbers, flags = held
    blocks, n = solution.products.shape
    norm2, products, gram, multipliers = numbers.split([blocks, blocks * n, blocks * n * n, blocks * n])
    return replace(
        solution, gradient_norm2=norm2, products=products.view(blocks, n), gram=gram.view(blocks, n, n),
        multipliers=multipliers.view(blocks, n), applied=flags[:blocks], finite=flags[blocks],
        gate=None if solution.gate is None else flags[blocks + 1 :].view_as(solution.gate),
    )  # fmt: skip


def _joined(solutions: Sequence[Solution]) -> Solution:
    """The solutions of several steps as one with as many times the blocks."""
    first = solutions[0]
    blocks = first.gram.shape[0]
    gates = [solution.gate for solution in solutions if solution.gate is not None]
    return replace(
        first,
        finite=torch.stack([solution.finite for solution in solutions]).repeat_interleave(blocks).unsqueeze(-1),
        gradient_norm2=torch.cat([solution.gradient_norm2 for solution in solutions]),
        products=torch.cat([solution.products for solution in solutions]),
        gram=torch.cat([solution.gram for solution in solutions]),
        multipliers=torch.cat([solution.multipliers for solution in solutions]),
        applied=torch.cat([solution.applied for solution in solutions]),
        gate=torch.stack(gates).repeat_interleave(blocks, 0) if gates else None,
    )


def _capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being recorded: its replays run no Python, and write over what this step measured."""
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
