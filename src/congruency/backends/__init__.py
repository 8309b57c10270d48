"""Backends: the two passes over a model's parameters that a correction needs, and the choice of an implementation.

``CONGRUENCY_KERNELS`` sets the choice: ``torch`` for plain torch operations everywhere, ``fused`` for the compiled
backends (an error where they cannot run), ``auto`` (the default) for the compiled ones where they can run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence

# not `import torch`: in this package `torch` is the module of the torch backend
from torch import Tensor, device, version

from congruency.backends.base import Backend, Basis, ElementRule, ParameterSlice, Problem, Solution, kinds_of
from congruency.backends.rows import RowPasses, rows_of
from congruency.backends.torch import TorchBackend
from congruency.distributed import Groups, reduce_sum

__all__ = [
    "Backend", "Basis", "ElementRule", "ParameterSlice", "Passes", "Problem", "RowPasses", "Solution",
    "backend_for", "kinds_of", "rows_of",
]  # fmt: skip


@functools.cache
def backend_for(device_type: str) -> type[Backend]:
    """Return the backend for a device type: compiled C for "cpu", Triton for "cuda", plain torch otherwise."""
    choice = os.environ.get("CONGRUENCY_KERNELS", "auto")
    if choice not in ("auto", "torch", "fused"):
        raise ValueError(f"CONGRUENCY_KERNELS must be auto, torch or fused, got {choice!r}")
    if choice == "torch":
        return TorchBackend
    try:
        if device_type == "cpu":
            from congruency.backends.native import NativeBackend

            return NativeBackend
        if device_type == "cuda" and version.hip is None:  # the kernels have only run on NVIDIA GPUs
            from congruency.backends.triton import TritonBackend

            return TritonBackend
    except ImportError as reason:
        if choice == "fused":
            raise RuntimeError(f"CONGRUENCY_KERNELS=fused, but it cannot be used here: {reason}") from reason
    return TorchBackend


class Passes:
    """The backends of one step: one per place, that is, per device and set of process groups of its parameters.

    Args:
        slices: The parameter slices, each with the process groups that its parameter is sharded over.
        size: Number of basis vectors of every slice.
        blocks: Number of blocks.
        plain: Use plain torch operations everywhere.
    """

    def __init__(
        self, slices: Iterable[tuple[ParameterSlice, Groups]], size: int, blocks: int = 1, *, plain: bool = False
    ) -> None:
        places: dict[tuple[device, Groups], list[ParameterSlice]] = {}
        self._members: dict[tuple[device, Groups], list[int]] = {}  # indices of the slices in each place
        for i, (item, groups) in enumerate(slices):
            places.setdefault((item.target.device, groups), []).append(item)
            self._members.setdefault((item.target.device, groups), []).append(i)
        self.fixed = any(any(held[0].fixed) for held in places.values())
        self._groups, self._size = [groups for _, groups in places], size
        self._backends = [
            (place, (TorchBackend if plain else backend_for(place.type))(held, size, blocks, place))
            for (place, _), held in places.items()
        ]
        self.reusable = all(backend.reusable for _, backend in self._backends)
        self.reusable &= all(item.gradient > -2 for held in places.values() for item in held)
        self._reuse: dict[object, object] = {}
        # the only backend, if there is a single place and nothing to reduce over processes
        self._only = self._backends[0][1] if self._groups == [()] else None

    def release(self) -> None:
        """Drop the slices: see :meth:`Backend.release`."""
        for _, backend in self._backends:
            backend.release()

    def point(self, gradients: tuple[int, ...]) -> bool:
        """Set the addresses of the gradients: see :meth:`Backend.point`."""
        if self._only is not None:
            return self._only.point(gradients)
        parts = [tuple(gradients[i] for i in own) for own in self._members.values()]
        return all(backend.point(part) for (_, backend), part in zip(self._backends, parts, strict=True))

    def program(
        self, problem: Problem, scale: Tensor | None, known: Sequence[Tensor] | None
    ) -> Callable[[], Solution] | None:
        """Return a whole correction as one function, or None: see :meth:`Backend.program`."""
        return None if self._only is None else self._only.program(problem, scale, None if known is None else known[0])

    def grams(self, *, wide: bool = False, known: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the inner products of each place, on its own device and before they are reduced over processes.

        Args:
            wide: See :meth:`Backend.gram`.
            known: An earlier result, from which the inner products among fixed vectors are taken.
        """
        if known is not None and known[0].shape[-1] != 1 + self._size:
            raise ValueError(f"what is known is of {known[0].shape[-1] - 1} basis vectors, here there are {self._size}")
        held: Sequence[Tensor | None] = [None] * len(self._backends) if known is None else known
        return [backend.gram(wide=wide, known=k) for (_, backend), k in zip(self._backends, held, strict=True)]

    def gram(self, *, wide: bool = False, known: Sequence[Tensor] | None = None) -> Tensor:
        """Return the inner products over all places, (blocks, 1 + size, 1 + size), on the first device."""
        return self._gathered(self.grams(wide=wide, known=known))

    def solve(self, gram: Tensor, problem: Problem, scale: Tensor | None) -> Solution:
        """Solve on the first device: see :meth:`Backend.solve`."""
        return self._backends[0][1].solve(gram, problem, scale, self._reuse)

    def apply(self, solution: Solution) -> None:
        """Write the corrected targets of every place."""
        for place, backend in self._backends:
            backend.apply(solution if place == solution.applied.device else solution.on(place))

    def agreement(self, rule: ElementRule, decay: Tensor) -> Tensor:
        """Return (slices, 4) over all processes, on the first device: see :meth:`Backend.agreement`."""
        if self._only is not None:
            return self._only.agreement(rule, decay)
        return self._gathered([b.agreement(rule.on(p), decay.to(p)) for p, b in self._backends])

    def mask(self, rule: ElementRule, decay: Tensor, scale: Tensor | None = None) -> Tensor:
        """Write the corrected elements of every place and return their agreement: see :meth:`Backend.mask`."""
        if self._only is not None:
            return self._only.mask(rule, decay, scale)
        return self._gathered(
            [b.mask(rule.on(p), decay.to(p), None if scale is None else scale.to(p)) for p, b in self._backends]
        )

    def settle(
        self, agreement: Tensor, sizes: Tensor, most: float, counts: Tensor | None, means: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scales and whether all was finite, on the first device: see :meth:`Backend.settle`."""
        return self._backends[0][1].settle(agreement, sizes, most, counts, means, self._reuse)

    def _gathered(self, parts: Sequence[Tensor]) -> Tensor:
        """Reduce over processes and add the places on the first device; a place has zeros for blocks it lacks."""
        first, *rest = (reduce_sum(part, groups) for part, groups in zip(parts, self._groups, strict=True))
        for part in rest:
            first = first + part.to(first.device)
        return first
