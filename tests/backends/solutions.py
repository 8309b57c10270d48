"""A solution with nothing but what the second pass reads."""

import torch
from torch import Tensor

from congruency.backends import Solution


def solution_of(coefficients: Tensor, applied: Tensor) -> Solution:
    blocks, n = coefficients.shape
    unread = torch.zeros(blocks, n, dtype=torch.float64)
    return Solution(
        finite=torch.tensor(True), gradient_norm2=unread[:, :0], products=unread, gram=unread, signs=unread[0],
        multipliers=unread, applied=applied, coefficients=coefficients,
    )  # fmt: skip
