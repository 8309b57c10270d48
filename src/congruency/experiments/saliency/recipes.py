"""The rows of the saliency tables: which network, optimizer and method, and the paper's settings for them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import nn

from congruency.training import Method

__all__ = ["METHODS", "Optimizer", "Recipe", "paper_recipes"]

Optimizer = Literal["adam", "rmsprop"]

METHODS: dict[str, Method] = {
    "baseline": Method(),
    "GEM": Method(name="gem"),
    "DCL-inf-1": Method(name="dcl"),
    "DCL-500-1": Method(name="dcl", window=500),
    "DCL-120-1": Method(name="dcl", window=120),
    "DCL-inf-1 anchor": Method(name="dcl", mode="anchor", margin=0.5, offset=1),
    "DCL-500-1 anchor": Method(name="dcl", window=500, mode="anchor", margin=0.5, offset=1),
    "DCL-120-1 anchor": Method(name="dcl", window=120, mode="anchor", margin=0.5, offset=1),
}
"""The methods of the paper's tables: its equations, and (anchor) what its published code computes.

GEM remembers one sample's features before the last layer, the first of each epoch (the paper's section 5.1.5).
"""

_RATES: dict[str, float] = {"adam": 2e-4, "rmsprop": 5e-4}
_OPTIMIZER_NAMES = {"adam": "Adam", "rmsprop": "RMSP"}
_MODEL_NAMES = {"salicon": "", "dinet": "DINet "}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One row of a table; the defaults are the paper's.

    Attributes:
        model: ``"salicon"`` or ``"dinet"``.
        backbone: A timm network.
        weights: A file of weights for the backbone, None to train it from scratch.
        pretrained: Fetch timm's weights for it.
        optimizer: ``"adam"`` (learning rate 2e-4) or ``"rmsprop"`` (5e-4, momentum 0.9); weight decay 1e-5 in both.
        method: One of ``METHODS``; it corrects the last layer.
        epochs: Times through the data; the paper's 12,500 steps on SALICON are 10.
        halve_every: Epochs between halvings of the learning rate.
        batch: Images of a step.
        loss: See :func:`congruency.saliency.losses.make_loss`.
        lr: The learning rate, if not the optimizer's above.
    """

    model: str = "dinet"
    backbone: str = "resnet50"
    weights: str | None = None
    pretrained: bool = False
    optimizer: Optimizer = "adam"
    method: str = "baseline"
    epochs: int = 10
    halve_every: int = 1
    batch: int = 8
    loss: str = "l1"
    lr: float | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in _RATES:
            raise ValueError(f"optimizer must be 'adam' or 'rmsprop', got {self.optimizer!r}")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.halve_every < 1:
            raise ValueError(f"halve_every must be at least 1 epoch, got {self.halve_every}")

    @property
    def name(self) -> str:
        """The row, as the paper names them: model, optimizer, method."""
        backbone = {"resnet50": "ResNet-50", "tf_efficientnet_lite0": "EfficientNet-Lite0"}.get(
            self.backbone, self.backbone
        )
        start = " pretrained" if self.weights or self.pretrained else ""
        method = "" if self.method == "baseline" else f" {self.method}"
        return f"{_MODEL_NAMES[self.model]}{backbone}{start} {_OPTIMIZER_NAMES[self.optimizer]}{method}"

    @property
    def paper_row(self) -> str:
        """The row of the paper's table that this one repeats; the anchor mode is named besides."""
        model = "DINet" if self.model == "dinet" else "ResNet-50"
        method = "" if self.method == "baseline" else f" {self.method}"
        return f"{model} {_OPTIMIZER_NAMES[self.optimizer]}{method}"

    @property
    def folder(self) -> str:
        """A folder's name for the row, with everything in it that changes what is trained."""
        usual = {field.name: field.default for field in fields(self)}
        changed = [
            f"{key}-{getattr(self, key)}"
            for key in ("epochs", "halve_every", "batch", "loss", "lr")
            if getattr(self, key) != usual[key]
        ]
        return "_".join([self.name.lower().replace(" ", "-"), *changed]).replace("*", "x")

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer for a network."""
        lr = _RATES[self.optimizer] if self.lr is None else self.lr
        if self.optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=1e-5)
        return torch.optim.RMSprop(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-5)


def paper_recipes(table: Literal["salicon", "osie"]) -> list[Recipe]:
    """The rows of the paper's two saliency tables, DCL in both modes.

    ``"salicon"`` trains on SALICON 2017's training set and is scored on its validation set; ``"osie"`` trains on OSIE
    and is scored on MIT1003. The backbones start from timm's ImageNet weights, which must be fetched or given.
    """
    if table not in ("salicon", "osie"):
        raise ValueError(f"the paper's saliency tables are 'salicon' and 'osie', got {table!r}")
    window = "DCL-500-1" if table == "salicon" else "DCL-120-1"
    rows: list[tuple[str, Optimizer, str]] = [
        ("salicon", "rmsprop", "DCL-inf-1"),
        ("salicon", "adam", "DCL-inf-1"),
        ("dinet", "adam", window),
    ]
    return [
        Recipe(model=model, optimizer=optimizer, method=method, pretrained=True)
        for model, optimizer, dcl in rows
        for method in ("baseline", "GEM", dcl, f"{dcl} anchor")
    ]
