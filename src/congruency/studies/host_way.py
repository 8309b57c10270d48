"""DCL done the way the paper did it: everything to host memory, float64 numpy and quadprog. For comparison only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["HostDCL"]


class HostDCL:
    """Corrects gradients against reference points through the host, as a straightforward program would.

    Args:
        params: The parameters, on any device.
        references: How many reference points; the first that many calls record them.
        margin: Lower bound of the multipliers.
    """

    def __init__(self, params: Sequence[Tensor], references: int = 1, margin: float = 0.0) -> None:
        self.params = list(params)
        self.count = references
        self.margin = margin
        self.points: list[NDArray[np.float64]] = []

    @torch.no_grad()
    def correct(self) -> None:
        """Record a reference point, or correct the gradients that are there."""
        weights = self._gather(self.params)
        if len(self.points) < self.count:
            self.points.append(weights)
            return
        gradient = self._gather([p.grad for p in self.params if p.grad is not None])
        rows = np.stack([point - weights for point in self.points])
        corrected = gradient + rows.T @ self._multipliers(rows @ rows.T, rows @ gradient)
        start = 0
        for p in self.params:
            assert p.grad is not None
            part = corrected[start : start + p.numel()].reshape(p.shape)
            p.grad.copy_(torch.from_numpy(part))
            start += p.numel()

    def _multipliers(self, gram: NDArray[np.float64], products: NDArray[np.float64]) -> NDArray[np.float64]:
        import quadprog

        ridge = 1e-12 * np.trace(gram) * np.eye(self.count)  # quadprog needs a positive definite matrix
        bounds = np.full(self.count, self.margin)
        solution: NDArray[np.float64] = quadprog.solve_qp(gram + ridge, -products, np.eye(self.count), bounds)[0]
        return solution

    @staticmethod
    def _gather(tensors: Sequence[Tensor]) -> NDArray[np.float64]:
        return np.concatenate([t.detach().cpu().numpy().astype(np.float64).ravel() for t in tensors])
