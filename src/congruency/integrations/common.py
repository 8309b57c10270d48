"""Shared parts of the integrations: options, selection of parameters, metrics to log."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from congruency.cautious import Cautious
from congruency.constraints.references import Accumulate, Mode
from congruency.corrector import Blocks, Correct, Corrector, Trigger
from congruency.dcl import DCL
from congruency.modules import head

Params = Literal["all", "head"] | Callable[[Any], Iterable[Tensor]]
Kind = type[DCL] | type[Cautious]


class Options(TypedDict, total=False):
    """The options of :class:`congruency.DCL`; its defaults apply."""

    references: int
    window: int | None
    offset: int
    mode: Mode
    margin: float
    floor: float | None
    returning: bool
    correct: Correct
    trigger: Trigger
    blocks: Blocks
    accumulate: Accumulate


class CautiousOptions(TypedDict, total=False):
    """The options of :class:`congruency.Cautious`; its defaults apply."""

    rescale: bool
    decay: bool
    max_rescale: float | None


def missing(framework: str, install: str) -> ImportError:
    """Return the error for a framework that is not installed."""
    return ImportError(f"this module needs {framework}, which is not installed; install it with: pip install {install}")


def check_options(params: Params, options: Options | CautiousOptions, kind: Kind = DCL) -> None:
    """Raise errors in the options already on construction, not only when training starts."""
    if isinstance(params, nn.Module) or (not callable(params) and params not in ("all", "head")):
        given = repr(params) if isinstance(params, str | int) else f"a {type(params).__name__}"
        hint = f"; for a window write window={params}" if isinstance(params, int) else ""
        raise ValueError(f"params must be 'all', 'head' or a function from the model to parameters, got {given}{hint}")
    known = (Options if kind is DCL else CautiousOptions).__annotations__
    unknown = sorted(set(options) - set(known))
    if unknown:
        named = f"{kind.__name__}'s options are {', '.join(sorted(known))}"
        raise TypeError(f"unknown option(s) {', '.join(unknown)}; {named}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # repeated when training starts
        kind(torch.optim.SGD([torch.zeros(1)], lr=0.0), **options)


def chosen(model: nn.Module, params: Params) -> list[Tensor] | None:
    """Return the trainable parameters to correct; None means all of the optimizer's."""
    if params == "all":
        return None
    found: Iterable[Any] = head(model).parameters() if params == "head" else params(model)
    if isinstance(found, Tensor | nn.Module):
        raise TypeError(f"params(model) must return parameters, as module.parameters(), got a {type(found).__name__}")
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
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    params: Params,
    options: Options | CautiousOptions,
    kind: Kind = DCL,
) -> dict[int, Corrector]:
    """Attach one correction to each optimizer that has chosen parameters; return them by the optimizer's index."""
    _refuse_flat_shards(model)
    wanted = chosen(model, params)
    if wanted is None:
        return {i: kind(optimizer, **options) for i, optimizer in enumerate(optimizers)}
    owned = [{p for group in optimizer.param_groups for p in group["params"]} for optimizer in optimizers]
    orphans = [p for p in wanted if not any(p in those for those in owned)]
    if orphans:
        raise ValueError(
            f"{len(orphans)} of the {len(wanted)} parameters chosen by params={params!r} are in no optimizer, which "
            "would never use their corrected gradients; give them to an optimizer, or choose others"
        )
    parts = [[p for p in wanted if p in those] for those in owned]
    return {i: kind(optimizers[i], part, **options) for i, part in enumerate(parts) if part}


def metrics(corrector: Corrector) -> dict[str, float]:
    """Return means over the steps since the last call; see :meth:`congruency.Corrector.means`.

    For Cautious, which corrects every step, these are the congruency of update and gradient and the share of elements
    kept. Waits for the device, so call it only for logged steps. Undefined values are left out.
    """
    cautious = isinstance(corrector, Cautious)
    left_out = {"steps", *(("magnitude", "corrected_share") if cautious else ())}
    first = "cautious" if cautious else "dcl"
    return {f"{first}/{name}": value for name, value in corrector.means().items() if name not in left_out}


def metrics_of_all(correctors: Mapping[int, Corrector]) -> dict[str, float]:
    """Like :func:`metrics`; with several optimizers the names are ``dcl/0/congruency`` and so on."""
    if len(correctors) == 1:
        return metrics(*correctors.values())
    return {
        name.replace("/", f"/{i}/"): value
        for i, corrector in correctors.items()
        for name, value in metrics(corrector).items()
    }


def _refuse_flat_shards(model: nn.Module) -> None:
    """Raise TypeError for FSDP1: its flat parameters look like whole tensors, so inner products would be wrong."""
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
            raise TypeError(
                "the model is sharded by FullyShardedDataParallel (FSDP1), whose flat parameters look like "
                "whole ones and are not; use FSDP2 (torch.distributed.fsdp.fully_shard) or DDP"
            )
