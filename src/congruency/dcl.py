"""The DCL corrector: Direction Concentration Learning."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from congruency.constraints.references import DEFAULT_FLOOR, Accumulate, Mode, References
from congruency.corrector import Blocks, Correct, Corrector, Trigger

__all__ = ["DCL"]


class DCL(Corrector):
    """Direction Concentration Learning (Luo et al., TPAMI 2019) inside every ``optimizer.step()``.

    A gradient that opposes the gradient accumulated since a reference point r_i (an earlier copy of the weights w) is
    replaced by the nearest one that does not: ``argmin 1/2 |x - g|^2  s.t.  <c_i, x> >= 0`` with
    ``c_i = -(w - r_i)`` (``eqn:obj`` and ``eqn:constraints`` in the paper).

    Args:
        optimizer: Any ``torch.optim`` optimizer except LBFGS and SparseAdam.
        params: The parameters to correct, e.g. ``congruency.head(model).parameters()``. Default: all parameters of the
            optimizer.
        references: Number of reference points, the paper's N_r. Memory: one copy of ``params`` per reference point.
        window: Number of steps after which the references are recorded again, the paper's beta_w. With None they are
            kept for the whole run (the paper's infinity).
        offset: Step of the window at which recording starts, the paper's beta_o.
        mode: ``"concentrate"``, the paper's equations; or ``"anchor"``, the opposite constraints ``c_i = +(w - r_i)``
            of the paper's published code (which uses ``margin=0.5``, ``offset=1``). ``"anchor"`` pulls the weights back
            toward the references.
        margin: Lower bound of the multipliers. 0 is the exact projection; a positive margin adds at least
            ``margin * c_i`` to the gradient in every step that reference i constrains.
        floor: In mode ``"concentrate"``, reference i constrains a step only if ``nu_i >= -floor``, where nu_i is the
            congruency; with margin 0 that changes steps with ``-floor <= nu_i < 0``. Weak disagreement is noise and may
            be removed; strong disagreement brings the weights back and must be kept. None is the paper's form, which
            removes both and can diverge with momentum. Mode ``"anchor"`` and ``blocks="element"`` have no floor.
        returning: With a floor, reference i constrains a step only if the weights did not move away from it in the
            previous step. The correction then never removes the force that stops the weights, whatever the momentum.
        correct: Correct the ``"gradient"``, or the ``"update"`` that the optimizer makes from it: see
            :class:`congruency.Corrector`. Both are the same under plain SGD.
        trigger: ``"always"``, or ``"violated"`` to change a gradient only if it violates a constraint. They differ only
            for a positive margin.
        blocks: Solve one problem over all ``params`` (``"joint"``), or one per parameter ``"group"``, ``"tensor"``,
            ``"row"`` or ``"element"``.
        accumulate: Take the accumulated gradient from the ``"weights"`` (``w - r_i``, the paper's practice) or as the
            sum of the ``"gradients"`` that the optimizer used since r_i (its ``eqn:accm_grad``). Under plain SGD they
            agree up to the step size.
        attach: If False, call :meth:`correct` yourself before each ``optimizer.step()``.
        capturable: Keep the step counter on the device, so that a whole training step can be captured in a CUDA graph
            and replayed, including the restarts of the window.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> dcl = congruency.DCL(optimizer, window=50)
        >>> losses = []
        >>> for step in range(100):
        ...     inputs = torch.randn(32, 8)
        ...     loss = (model(inputs) - inputs[:, :2]).square().mean()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()  # uses the corrected gradient
        ...     losses.append(loss.item())
        >>> losses[-1] < 0.1 * losses[0]
        True
        >>> dcl.stats.steps
        100
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Iterable[Tensor] | None = None,
        *,
        references: int = 1,
        window: int | None = None,
        offset: int = 0,
        mode: Mode = "concentrate",
        margin: float = 0.0,
        floor: float | None = DEFAULT_FLOOR,
        returning: bool = True,
        correct: Correct = "gradient",
        trigger: Trigger = "always",
        blocks: Blocks = "joint",
        accumulate: Accumulate = "weights",
        attach: bool = True,
        capturable: bool = False,
    ) -> None:
        self.references = References(
            references, window=window, offset=offset, mode=mode, margin=margin, floor=floor, returning=returning,
            accumulate=accumulate, capturable=capturable,
        )  # fmt: skip
        super().__init__(
            optimizer, params, constraints=[self.references], correct=correct, trigger=trigger, blocks=blocks,
            attach=attach,
        )  # fmt: skip

    def __repr__(self) -> str:
        r = self.references
        settings = f"window={r.window}, references={r.count}, mode={r.mode!r}, margin={r.margin}, floor={r.floor}"
        return f"DCL({settings}, {self._shown()})"
