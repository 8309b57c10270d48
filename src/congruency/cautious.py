"""The Cautious corrector: cautious optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from congruency._validate import check_flag
from congruency.constraints.descent import Descent
from congruency.corrector import Corrector
from congruency.step.elements import Masking
from congruency.step.watch import Watch

__all__ = ["Cautious"]

_UNUSED = (
    "Cautious changed nothing in {steps} steps: no element of an update opposed its gradient. An optimizer without "
    "momentum, such as RMSprop, Adagrad or Adafactor by default, only rescales the gradient. Use one with momentum, "
    "such as AdamW, or remove Cautious (docs/troubleshooting.md)"
)


class Cautious(Corrector):
    """Make an optimizer cautious (Liang et al., 2024): remove from each update what opposes the current gradient.

    The elements of the optimizer's step, after momentum and preconditioning, are applied only if their sign agrees with
    that of the gradient. This is the projection of the update onto ``g_j x_j >= 0`` for each element j. The kept
    elements of a tensor are divided by their share of the tensor, so that the step keeps its size.

    Args:
        optimizer: Any ``torch.optim``-style optimizer except LBFGS and SparseAdam.
        params: The parameters whose updates to correct. Default: all parameters of the optimizer.
        rescale: Divide the kept elements by their share of the tensor (at least 0.001).
        decay: Mask decoupled weight decay too: apply it only to elements that the update also moves toward 0.
        max_rescale: Upper bound of the rescaling factor, which can become large for tensors of few elements.
            Default: no bound.

    Memory: one copy of the parameters, and one copy of the gradients if the optimizer overwrites them, as the foreach
    implementation of ``SGD(nesterov=True)`` does.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        >>> cautious = congruency.Cautious(optimizer)
        >>> losses = []
        >>> for step in range(100):
        ...     inputs = torch.randn(32, 8)
        ...     loss = (model(inputs) - inputs[:, :2]).square().mean()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()  # the update is corrected inside
        ...     losses.append(loss.item())
        >>> losses[-1] < 0.7 * losses[0]
        True
        >>> 0 < cautious.stats.kept.item() <= 1
        True
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Iterable[Tensor] | None = None,
        *,
        rescale: bool = True,
        decay: bool = False,
        max_rescale: float | None = None,
    ) -> None:
        if max_rescale is not None:
            if isinstance(max_rescale, bool) or not isinstance(max_rescale, (int, float)):
                raise TypeError(f"max_rescale must be a number, or None for no bound, got {max_rescale!r}")
            if not max_rescale >= 1.0:
                raise ValueError(f"max_rescale must be at least 1, or None for no bound, got {max_rescale!r}")
            if rescale is False:
                raise ValueError("max_rescale has no effect with rescale=False; pass only one of them")
        self.rescale = check_flag("rescale", rescale, "; max_rescale bounds the factor")
        self.decay = check_flag("decay", decay, "; the optimizer's weight_decay sets its strength")
        self.max_rescale = max_rescale
        self._masking = Masking(strict=True, mask_decay=decay, rescale=rescale, max_rescale=max_rescale)
        super().__init__(optimizer, params, constraints=[Descent()], correct="update", blocks="element")
        self._watch = Watch(1000, math.inf, "", _UNUSED)

    def _settings(self) -> dict[str, Any]:
        own = {"rescale": self.rescale, "decay": self.decay, "max_rescale": self.max_rescale}
        return {**super()._settings(), **own}

    def __repr__(self) -> str:
        settings = f"rescale={self.rescale}, decay={self.decay}, max_rescale={self.max_rescale}"
        return f"Cautious({settings}, {self._shown()})"
