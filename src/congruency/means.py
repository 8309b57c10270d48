"""Means over steps of what a correction measured, since they were last read; until then nothing waits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from congruency.backends.base import Solution

__all__ = ["RunningMeans"]

_NAMES = ("congruency", "corrected_congruency", "magnitude", "kept")
_MOST_STEPS = 64
_MOST_NUMBERS = 1 << 16


@dataclass
class _Steps:
    """The numbers of many steps, one row each, in memory that is made once.

    A step's results are copied: the next one's may be written to the same place. New memory at every step would move
    the gradients that an allocator gives, and with them all that is prepared for their addresses.
    """

    like: Solution | None
    numbers: Tensor  # (steps, numbers) float64
    flags: Tensor | None  # (steps, flags) bool
    count: int = 0

    @classmethod
    def of(cls, like: Solution | None, numbers: int, flags: int, device: torch.device) -> _Steps:
        steps = max(1, min(_MOST_STEPS, _MOST_NUMBERS // numbers))
        made = torch.empty(steps, numbers, dtype=torch.float64, device=device)
        return cls(like, made, torch.empty(steps, flags, dtype=torch.bool, device=device) if flags else None)

    @property
    def full(self) -> bool:
        return self.count == len(self.numbers)


class RunningMeans:
    """Holds the small results of single steps, and adds them up many at a time: a step costs next to nothing."""

    def __init__(self) -> None:
        self._solved: _Steps | None = None
        self._masked: _Steps | None = None
        self._elements = 0  # of each step that is held
        self._sums: list[Tensor] = []  # of parts of the steps: (2, 4), sums and how many, nan left out

    def note(self, solution: Solution) -> None:
        """Take note of a step that solved problems."""
        if _capturing(solution.gram):
            return
        numbers = (solution.gradient_norm2, solution.products, solution.gram, solution.multipliers)
        flags = [solution.applied, solution.finite.view(1)]
        if solution.gate is not None:
            flags.append(solution.gate.reshape(-1))
        held = self._solved
        if held is None or not _alike(held.like, solution):
            self._fold()
            sizes = sum(part.numel() for part in numbers), sum(part.numel() for part in flags)
            held = self._solved = _Steps.of(solution, *sizes, solution.gram.device)
        assert held.flags is not None
        torch.cat([part.reshape(-1) for part in numbers], out=held.numbers[held.count])
        torch.cat(flags, out=held.flags[held.count])
        held.count += 1
        if held.full:
            self._fold()

    def note_elements(self, agreement: Tensor, elements: int) -> None:
        """Take note of a step with blocks of one element: what ``Backend.agreement`` gave, and how many there are."""
        if _capturing(agreement):
            return
        if self._masked is None or elements != self._elements:
            self._fold()
            self._masked, self._elements = _Steps.of(None, agreement.shape[1], 0, agreement.device), elements
        torch.sum(agreement, 0, out=self._masked.numbers[self._masked.count])
        self._masked.count += 1
        if self._masked.full:
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
        solved, masked, parts = self._solved, self._masked, []
        if solved is not None and solved.count:
            congruency, corrected, magnitude, _ = (
                part.view(solved.count, -1).nanmean(1) for part in _joined(solved).measures()
            )
            parts.append([congruency, corrected, magnitude, torch.full_like(congruency, math.nan)])
            solved.count = 0
        if masked is not None and masked.count:
            kept, product, norm2, length2 = masked.numbers[: masked.count].unbind(1)
            none = torch.full_like(kept, math.nan)
            parts.append([product / (norm2 * length2).sqrt(), none, length2.sqrt(), kept / self._elements])
            masked.count = 0
        for part in parts:
            values = torch.stack(part)  # (4, steps)
            self._sums.append(torch.stack([values.nansum(1), (~values.isnan()).sum(1).to(values.dtype)]))
        if len(self._sums) > _MOST_STEPS:
            self._sums = [torch.stack(self._sums).sum(0)]


def _alike(held: Solution | None, solution: Solution) -> bool:
    """Whether steps of both can be measured together."""
    return (
        held is not None
        and held.signs is solution.signs
        and held.gram.shape == solution.gram.shape
        and (held.gate is None) == (solution.gate is None)
    )


def _joined(held: _Steps) -> Solution:
    """The solutions of several steps as one with as many times the blocks."""
    assert held.like is not None
    assert held.flags is not None
    steps, (blocks, n) = held.count, held.like.products.shape
    numbers, flags = held.numbers[:steps], held.flags[:steps]
    norm2, products, gram, multipliers = numbers.split([blocks, blocks * n, blocks * n * n, blocks * n], 1)
    gate = None
    if held.like.gate is not None:
        gate = flags[:, blocks + 1 :].repeat_interleave(blocks, 0)
    return replace(
        held.like,
        finite=flags[:, blocks].repeat_interleave(blocks).unsqueeze(-1),
        gradient_norm2=norm2.reshape(-1),
        products=products.reshape(-1, n),
        gram=gram.reshape(-1, n, n),
        multipliers=multipliers.reshape(-1, n),
        applied=flags[:, :blocks].reshape(-1),
        gate=gate,
    )


def _capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being recorded: its replays run no Python, and write over what this step measured."""
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
