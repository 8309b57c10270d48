"""Statistics of the last step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from congruency.backends import Solution
from congruency.step.counts import Counts
from congruency.step.problem import Spans

__all__ = ["Stats", "stats_of"]


@dataclass(frozen=True)
class Stats:
    """Statistics of the last step, one entry per constraint, and counts since the start.

    Shapes are (constraints,), or (blocks, constraints) if the corrector solves several blocks. Entries are nan if
    nothing constrained the step or a norm is 0. Tensors stay on the device. If updates are corrected, "gradient" below
    stands for the update (what the optimizer subtracts from the weights). With ``blocks="element"``, congruency is that
    of all elements together with the first constraint, and values that do not apply are nan.

    Attributes:
        congruency: cos(g, a_i) of the gradient before the correction with each accumulated gradient (``eqn:cong_k``).
        corrected_congruency: The same for the corrected gradient.
        magnitude: |a_i|: for reference points, the distance of the weights from each.
        multipliers: The dual solution v: the corrected gradient is ``g + sum_i v_i c_i``.
        corrected: Whether the gradient was changed; () or (blocks,) bool.
        kept: With ``blocks="element"``, the share of elements that were kept; ().
        steps: Number of steps since the start.
        corrected_steps: Number of steps whose gradient was changed.
        nonfinite_steps: Number of steps that were not corrected because a value was not finite. With
            ``blocks="element"`` the other elements are still corrected, and :class:`congruency.Cautious` does not apply
            an update that is nan.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> dcl = congruency.DCL(optimizer, floor=None)
        >>> for gradient in ([1.0, 0.0], [-1.0, 1.0]):
        ...     weight.grad = torch.tensor(gradient)
        ...     optimizer.step()
        >>> stats = dcl.stats
        >>> round(stats.congruency.item(), 3), stats.corrected_congruency.item(), stats.corrected_steps.item()
        (-0.707, 0.0, 1)
    """

    congruency: Tensor
    corrected_congruency: Tensor
    magnitude: Tensor
    multipliers: Tensor
    corrected: Tensor
    kept: Tensor
    steps: int | Tensor
    corrected_steps: Tensor
    nonfinite_steps: Tensor

    def to_dict(self) -> dict[str, float]:
        """Return plain numbers by name, for a logger: means over constraints and blocks, and counts.

        Undefined values are omitted. Synchronizes with the device. For means over steps see :meth:`Corrector.means`.
        """
        means = {name: getattr(self, name).double().nanmean() for name in ("congruency", "corrected_congruency")}
        means |= {"magnitude": self.magnitude.nanmean(), "kept": self.kept}
        found = torch.stack(list(means.values())).tolist()
        counts = {"steps": self.steps, "corrected_steps": self.corrected_steps, "nonfinite_steps": self.nonfinite_steps}
        return {
            **{name: value for name, value in zip(means, found, strict=True) if math.isfinite(value)},
            **{name: float(count) for name, count in counts.items()},
        }


def stats_of(
    solution: Solution | None, agreement: Tensor | None, elements: int, spans: Spans, counts: Counts,
    blocks: int | None, device: torch.device,
) -> Stats:  # fmt: skip
    """Return the statistics of a step from what its correction computed.

    Args:
        solution: The solution of the step, if a problem was solved.
        agreement: For blocks of one element, (slices, 4): see :meth:`congruency.backends.Backend.agreement`.
        elements: Number of elements that the agreement covers.
        spans: Where the active constraints are among all: see :func:`congruency.step.problem.spans_of`.
        counts: Counts of all steps.
        blocks: Number of blocks to show; None for a single block, without a dimension for it.
        device: Device of the parameters.
    """
    constraints, places = spans
    applied = (
        torch.zeros(1 if blocks is None else blocks, dtype=torch.bool, device=device)
        if solution is None
        else solution.applied
    )
    shape = (applied.shape[0], constraints)
    parts = [torch.full(shape, math.nan, dtype=torch.float64, device=device) for _ in range(4)]
    kept = torch.full((), math.nan, dtype=torch.float64, device=device)
    if solution is not None:
        for whole, part in zip(parts, solution.measures(), strict=True):
            for here, active in places:
                whole[:, here] = part[:, active]
    if agreement is not None:
        count, product, norm2, length2 = agreement.sum(0)
        parts[0][:, :1], parts[2][:, :1] = product / (norm2 * length2).sqrt(), length2.sqrt()
        kept = count / elements  # of the step's elements: zero_grad() may have removed gradients since
        applied = (kept < 1).unsqueeze(0)
    if blocks is None:
        parts, applied = [part[0] for part in parts], applied[0]
    congruency, corrected_congruency, magnitude, multipliers = parts
    return Stats(
        congruency=congruency,
        corrected_congruency=corrected_congruency,
        magnitude=magnitude,
        multipliers=multipliers,
        corrected=applied.clone(),  # the next step overwrites it
        kept=kept,
        steps=counts.steps,
        corrected_steps=torch.as_tensor(counts.corrected, device=device),
        nonfinite_steps=torch.as_tensor(counts.nonfinite, device=device),
    )
