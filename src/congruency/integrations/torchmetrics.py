"""The congruency of a run as a torchmetrics metric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

import congruency._torchvision_compat  # noqa: F401  # before torchmetrics, which imports torchvision
from congruency._validate import check_choice
from congruency.integrations.common import missing
from congruency.measure.meter import CongruencyMeter, Reference

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
        metric.reset()  # restarts the mean; the reference is kept

    Every step is measured by :class:`congruency.CongruencyMeter`, which defines the steps that count; nothing waits for
    the device before ``compute()``. With several processes the mean is over the steps of all, which are equal under DDP
    and FSDP2.

    The reference weights (one copy of the parameters) are not a metric state: ``reset()`` keeps them, so that the start
    of training remains the reference over epochs; :meth:`forget` drops them. After ``metric.persistent(True)``,
    ``state_dict()`` contains them and the sums, so that a run can be resumed.

    Args:
        reference: r is the weights at the first update (``"start"``) or at the previous update (``"previous"``).
        quantity: The mean that ``compute()`` returns, ``"congruency"`` or ``"magnitude"``; nan if no step defines it.
        options: Options of any torchmetrics metric.
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False  # forward() must measure a step once, not twice

    def __init__(self, reference: Reference = "start", quantity: Quantity = "congruency", **options: Any) -> None:
        super().__init__(**options)
        self.reference: Reference = check_choice("reference", reference, get_args(Reference))
        self.quantity: Quantity = check_choice("quantity", quantity, get_args(Quantity))
        # The name includes the reference: a MetricCollection shares the states of metrics if these have the same names
        # and, after the first update, the same values.
        self._sums = f"sums_from_{reference}"
        self.add_state(self._sums, torch.zeros(4, dtype=torch.float64), dist_reduce_fx="sum")
        self._meter: CongruencyMeter | None = None
        self._measured: list[Tensor] = []
        self._weights: list[Tensor] | None = None  # loaded reference, until update() provides the parameters

    def update(self, parameters: Iterable[Tensor]) -> None:
        """Measure one step.

        Args:
            parameters: Parameters with gradients, the same at every step. For a ``MetricCollection``, whose metrics all
                read them, a list instead of a generator.
        """
        if isinstance(parameters, nn.Module):
            name = type(parameters).__name__
            raise TypeError(f"parameters must be parameters, got the {name} itself; pass model.parameters()")
        meter = self._meter_of(list(parameters))
        meter.update()
        sums: Tensor = getattr(self, self._sums)
        setattr(self, self._sums, sums + meter.state_dict()["totals"].to(sums.device))
        meter.reset()

    def compute(self) -> Tensor:
        """Return the mean, () in float64."""
        sums: Tensor = getattr(self, self._sums)
        congruency, defined, distance, steps = sums.unbind()
        return congruency / defined if self.quantity == "congruency" else distance / steps

    def forget(self) -> None:
        """Reset and also drop the reference weights, for example at a task boundary; the next update is a first one."""
        self.reset()
        self._meter, self._measured, self._weights = None, [], None

    def _meter_of(self, parameters: list[Tensor]) -> CongruencyMeter:
        """Return the meter, or a new one with the same reference if the parameters differ, as after copy or load."""
        if self._meter is None or [*map(id, parameters)] != [*map(id, self._measured)]:
            meter = CongruencyMeter(parameters, self.reference)
            held = self._reference_weights()
            if held is not None:
                meter.load_state_dict({**meter.state_dict(), "weights": held})
            self._meter, self._measured, self._weights = meter, parameters, None
        return self._meter

    def _reference_weights(self) -> list[Tensor] | None:
        if self._meter is None:
            return self._weights
        weights: list[Tensor] | None = self._meter.state_dict()["weights"]
        return weights

    def state_dict(  # type: ignore[override]  # torchmetrics overrides nn.Module's signature
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
            self._meter, self._measured, self._weights = None, [], loaded
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the reference weights but not the parameters, which its next update provides.
        return {**super().__getstate__(), "_meter": None, "_measured": [], "_weights": self._reference_weights()}
