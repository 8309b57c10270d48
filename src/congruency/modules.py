"""Find the last layer of a model."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

__all__ = ["head", "unwrap"]


def head(model: nn.Module) -> nn.Module:
    """Return the last layer of a model, whose weights the paper measures and corrects.

    If the model has ``get_classifier()``, like all models of timm, its result is returned. Otherwise (torchvision, your
    own models) it is the last ``nn.Linear`` or convolution with parameters, in the order in which layers are *defined*.
    Note that this is the auxiliary head if a model defines it after the main one, like torchvision's segmentation
    models. ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile`` wrappers are removed first.

    Returns:
        The layer itself, not a copy. Several classifiers (as in distilled transformers) are returned as one
        ``nn.ModuleList``.

    Raises:
        ValueError: If no such layer exists, or if it is frozen while others are trained (as with LoRA).

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        >>> congruency.head(model)
        Linear(in_features=16, out_features=3, bias=True)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> dcl = congruency.DCL(optimizer, congruency.head(model).parameters())
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    model = unwrap(model)
    get_classifier = getattr(model, "get_classifier", None)
    if callable(get_classifier):
        return _trained(_named(get_classifier(), type(model).__name__), model)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | _ConvNd) and _owns_parameters(m)]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no nn.Linear and no convolution with parameters; "
            "choose the parameters yourself, for example model.last.parameters()"
        )
    return _trained(layers[-1], model)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside of (nested) ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile``."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner: Any = model.module
        else:
            inner = getattr(model, "_orig_mod", None)  # of torch.compile; importing its class would import dynamo
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _named(classifier: Any, name: str) -> nn.Module:
    several = isinstance(classifier, tuple | list | nn.ModuleList)
    found = [m for m in (classifier if several else [classifier]) if isinstance(m, nn.Module) and _owns_parameters(m)]
    if not found:
        raise ValueError(
            f"{name}.get_classifier() gives {type(classifier).__name__} without parameters: "
            "the model was made without a classifier; make it with one (timm: num_classes > 0), "
            "or choose the parameters yourself"
        )
    return nn.ModuleList(found) if several and len(found) > 1 else found[0]


def _trained(layer: nn.Module, model: nn.Module) -> nn.Module:
    """Return the layer; raise ValueError if it is frozen in a model that trains, where it would have no effect."""
    trains = [parameter.requires_grad for parameter in model.parameters()]
    if any(trains) and not any(parameter.requires_grad for parameter in layer.parameters()):
        raise ValueError(
            f"the last layer, {type(layer).__name__}, is frozen (requires_grad=False), as under LoRA, and "
            f"{sum(trains)} other parameters train; choose among those: "
            "[p for p in model.parameters() if p.requires_grad]"
        )
    return layer


def _owns_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
