"""Run congruency as a torchmetrics metric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

import congruency._torchvision_compat  # noqa: F401  # before torchmetrics, which imports torchvision
from congruency.integrations.common import missing
from congruency.meter import CongruencyMeter, Reference

try:
    from torchmetrics import Metric
except ModuleNotFoundError as reason:
    if (reason.name or "").partition(".")[0] != "torchmetrics":
        raise
    raise missing("torchmetrics", "torchmetrics") from None

__all__ = ["RunCongruency"]

Quantity = Literal["congruency", "magnitude"]


class RunCongruency(Metric):
    """The mean over a run's steps of ``nu_i = cos(g_i, -(w_i - r))`` (``eqn:cong``), or of ``|w_i - r|`` (``eqn:mag``).

        metric = RunCongruency()
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            metric.update(model.parameters())  # after backward(), before step()
            optimizer.step()
        print(metric.compute())
        metric.reset()  # starts the mean over; the reference stays

    Every step is measured by :class:`congruency.CongruencyMeter`, which says which steps count; nothing waits for the
    device before ``compute()``. Over processes the means are those of all processes' steps together: the same number
    under DDP and FSDP2, where all processes measure the same.

    The reference weights (one copy of the parameters) are no metric state: ``reset()`` keeps them, so the start of
    training remains the start over epochs; :meth:`forget` drops them. After ``metric.persistent(True)`` they are in
    ``state_dict()`` beside the sums, and a run goes on where it was.

    Args:
        reference: r is the weights at the first update (``"start"``) or at the update before (``"previous"``).
        quantity: What ``compute()`` gives: the mean ``"congruency"`` or ``"magnitude"``; nan where no step has one.
        options: torchmetrics' own, as for any metric.
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False  # forward() must measure a step once, not twice

    def __init__(self, reference: Reference = "start", quantity: Quantity = "congruency", **options: Any) -> None:
        super().__init__(**options)
        if reference not in get_args(Reference):
            raise ValueError(f"reference must be 'start' or 'previous', got {reference!r}")
        if quantity not in get_args(Quantity):
            raise ValueError(f"quantity must be 'congruency' or 'magnitude', got {quantity!r}")
        self.reference: Reference = reference
        self.quantity: Quantity = quantity
        # Named by the reference: a MetricCollection shares the state of metrics whose states have the same names and,
        # after the first update, the same values.
        self._sums = f"sums_from_{reference}"
        self.add_state(self._sums, torch.zeros(4, dtype=torch.float64), dist_reduce_fx="sum")
        self._meter: CongruencyMeter | None = None
        self._over: list[Tensor] = []
        self._weights: list[Tensor] | None = None  # loaded, and waiting for parameters to belong to

    def update(self, parameters: Iterable[Tensor]) -> None:
        """Measure one step.

        Args:
            parameters: With their gradients, the same at every step. A list, not a generator, where several metrics of
                a ``MetricCollection`` read it.
        """
        meter = self._meter_over(list(parameters))
        meter.update()
        sums: Tensor = getattr(self, self._sums)
        setattr(self, self._sums, sums + meter.state_dict()["totals"].to(sums.device))
        meter.reset()

    def compute(self) -> Tensor:
        """() in float64."""
        sums: Tensor = getattr(self, self._sums)
        congruency, defined, distance, steps = sums.unbind()
        return congruency / defined if self.quantity == "congruency" else distance / steps

    def forget(self) -> None:
        """Forget the reference weights as well, at a task boundary for example: the next update is the first again."""
        self.reset()
        self._meter, self._over, self._weights = None, [], None

    def _meter_over(self, parameters: list[Tensor]) -> CongruencyMeter:
        """The meter; made anew, with the reference it had, where it was made for others (a copy's, a loaded one's)."""
        if self._meter is None or [*map(id, parameters)] != [*map(id, self._over)]:
            meter = CongruencyMeter(parameters, self.reference)
            held = self._reference_weights()
            if held is not None:
                meter.load_state_dict({**meter.state_dict(), "weights": held})
            self._meter, self._over, self._weights = meter, parameters, None
        return self._meter

    def _reference_weights(self) -> list[Tensor] | None:
        if self._meter is None:
            return self._weights
        weights: list[Tensor] | None = self._meter.state_dict()["weights"]
        return weights

    def state_dict(  # type: ignore[override]  # as torchmetrics overrides nn.Module's
        self, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        state = super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        weights = self._reference_weights()
        if self._persistent[self._sums] and weights is not None:
            state[f"{prefix}reference_weights"] = weights
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        loaded = state_dict.pop(f"{prefix}reference_weights", None)
        if loaded is not None:
            self._meter, self._over, self._weights = None, [], loaded
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the reference weights, but not the parameters: those come with its next update.
        return {**super().__getstate__(), "_meter": None, "_over": [], "_weights": self._reference_weights()}
