"""Create optimizers by name: SGD as the paper uses it, and all of timm's."""

from __future__ import annotations

import difflib
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import congruency._torchvision_compat  # noqa: F401

SGD_NAME = "sgd"


def check_optimizer(name: str) -> None:
    """Check that an optimizer exists and needs only gradients.

    Raises:
        ValueError: the name is unknown, or the optimizer needs second derivatives.
    """
    if name == SGD_NAME:
        return
    from timm.optim import get_optimizer_info, list_optimizers  # type: ignore[attr-defined]

    known = [str(each) for each in list_optimizers()]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"similar: {', '.join(near)}" if near else "such as sgd, adamw, lion, nadamw or muon"
        raise ValueError(f"there is no optimizer {name!r}; give a name of timm.optim, {hint}")
    if get_optimizer_info(name).second_order:
        raise ValueError(f"{name} needs second derivatives, which this loop does not compute; choose another")


def create_optimizer(
    name: str,
    model: nn.Module,
    *,
    learning_rate: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    fused: bool = False,
) -> Optimizer:
    """Create an optimizer for the trainable parameters.

        create_optimizer("adamw", network, learning_rate=1e-3, weight_decay=0.05)

    Args:
        name: ``"sgd"``, with weight decay on all parameters, as in the paper; or a name from timm's
            ``list_optimizers()``, without weight decay on biases and norm weights.
        momentum, nesterov: settings of SGD; timm passes the momentum to other optimizers that have one.
        fused: use the fused implementation, if the optimizer has one.
    """
    check_optimizer(name)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == SGD_NAME:
        return SGD(
            trained, lr=learning_rate, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov,
            fused=fused or None,
        )  # fmt: skip
    from timm.optim import create_optimizer_v2, get_optimizer_info  # type: ignore[attr-defined]

    more: dict[str, Any] = {"fused": True} if fused and get_optimizer_info(name).opt_class is AdamW else {}
    made: Optimizer = create_optimizer_v2(
        model, opt=name, lr=learning_rate, weight_decay=weight_decay, momentum=momentum, **more
    )
    return made
