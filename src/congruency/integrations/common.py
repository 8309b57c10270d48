"""What all integrations share: options, the choice of parameters, metrics to log."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from congruency.constraints.references import Accumulate, Mode
from congruency.corrector import Blocks, Corrector, Trigger
from congruency.dcl import DCL
from congruency.modules import head

__all__ = ["Options", "Params", "attach", "check_options", "chosen", "metrics", "metrics_of_all", "missing"]

Params = Literal["all", "head"] | Callable[[Any], Iterable[Tensor]]


class Options(TypedDict, total=False):
    """The options of :class:`congruency.DCL`, with its defaults."""

    references: int
    window: int | None
    offset: int
    mode: Mode
    margin: float
    trigger: Trigger
    blocks: Blocks
    accumulate: Accumulate


def missing(framework: str, install: str) -> ImportError:
    """The error for a framework that is not installed."""
    return ImportError(f"this module needs {framework}, which is not installed; install it with: pip install {install}")


def check_options(params: Params, options: Options) -> None:
    """Raise on construction what DCL would raise only when training starts."""
    if not callable(params) and params not in ("all", "head"):
        raise ValueError(f"params must be 'all', 'head' or a function from the model to parameters, got {params!r}")
    known = Options.__annotations__
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"unknown option(s) {', '.join(unknown)}; DCL's options are {', '.join(sorted(known))}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # repeated when training starts
        DCL(torch.optim.SGD([torch.zeros(1)], lr=0.0), attach=False, **options)


def chosen(model: nn.Module, params: Params) -> list[Tensor] | None:
    """The trainable parameters to correct; None means all of the optimizer's."""
    if params == "all":
        return None
    found: Iterable[Any] = head(model).parameters() if params == "head" else params(model)
    listed = list(found)
    for item in listed:
        if not isinstance(item, Tensor):
            raise TypeError(
                f"params(model) must return parameters, as module.parameters(), got a {type(item).__name__}"
            )
    trained = [parameter for parameter in listed if parameter.requires_grad]
    if not trained:
        raise ValueError(f"params={params!r} chose no parameter that trains; unfreeze some, or choose others")
    return trained


def attach(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], params: Params, options: Options
) -> dict[int, DCL]:
    """One DCL per optimizer that has some of the chosen parameters, by the optimizer's index."""
    _refuse_flat_shards(model)
    wanted = chosen(model, params)
    if wanted is None:
        return {i: DCL(optimizer, **options) for i, optimizer in enumerate(optimizers)}
    owned = [{p for group in optimizer.param_groups for p in group["params"]} for optimizer in optimizers]
    orphans = [p for p in wanted if not any(p in those for those in owned)]
    if orphans:
        raise ValueError(
            f"{len(orphans)} of the {len(wanted)} parameters chosen by params={params!r} are in no optimizer, which "
            "would never use their corrected gradients; give them to an optimizer, or choose others"
        )
    parts = [[p for p in wanted if p in those] for those in owned]
    return {i: DCL(optimizers[i], part, **options) for i, part in enumerate(parts) if part}


def metrics(corrector: Corrector) -> dict[str, float]:
    """Means of the last step over constraints and blocks, and the share of corrected steps so far.

    Waits for the device, so call it only for logged steps. Undefined values are left out.
    """
    stats = corrector.stats
    values = {
        "dcl/congruency": stats.congruency.nanmean(),
        "dcl/corrected_congruency": stats.corrected_congruency.nanmean(),
        "dcl/magnitude": stats.magnitude.nanmean(),
        "dcl/corrected_share": stats.corrected_steps.to(torch.float64) / max(int(stats.steps), 1),
    }
    found = torch.stack([value.to(torch.float64) for value in values.values()]).tolist()
    return {name: value for name, value in zip(values, found, strict=True) if math.isfinite(value)}


def metrics_of_all(correctors: Mapping[int, Corrector]) -> dict[str, float]:
    """The same for several optimizers, then named ``dcl/0/congruency`` and so on."""
    if len(correctors) == 1:
        return metrics(*correctors.values())
    return {
        name.replace("dcl/", f"dcl/{i}/"): value
        for i, corrector in correctors.items()
        for name, value in metrics(corrector).items()
    }


def _refuse_flat_shards(model: nn.Module) -> None:
    """FSDP1's flat parameters are plain tensors that differ between processes: inner products would be wrong."""
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
            raise TypeError(
                "the model is sharded by FullyShardedDataParallel (FSDP1), whose flat parameters DCL cannot tell from "
                "whole ones; use FSDP2 (torch.distributed.fsdp.fully_shard) or DDP"
            )
