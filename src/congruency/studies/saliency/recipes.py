"""The rows of the saliency tables: which network, optimizer and method, and the paper's settings for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import nn

from congruency.training import Correction, SampleOrder
from congruency.training.config import order_seed

__all__ = [
    "METHODS",
    "PAPER",
    "PRINTED",
    "Optimizer",
    "Printed",
    "Recipe",
    "method_named",
    "paper_recipes",
    "pick",
]

Optimizer = Literal["adam", "rmsprop"]
Printed = tuple[float, float]

METHODS: dict[str, Correction] = {
    "baseline": Correction(),
    "GEM": Correction(name="gem"),
    "DCL-inf-1": Correction(name="dcl"),
    "DCL-500-1": Correction(name="dcl", window=500),
    "DCL-120-1": Correction(name="dcl", window=120),
    "DCL-inf-1 anchor": Correction(name="dcl", mode="anchor", margin=0.5, offset=1),
    "DCL-500-1 anchor": Correction(name="dcl", window=500, mode="anchor", margin=0.5, offset=1),
    "DCL-120-1 anchor": Correction(name="dcl", window=120, mode="anchor", margin=0.5, offset=1),
}
"""The methods of the paper's tables: its equations, and (anchor) what its published code computes.

GEM remembers one sample's features before the last layer, the first of each epoch (the paper's section 5.1.5).
"""

_DCL = re.compile(r"DCL-(inf|[1-9]\d*)-([1-9]\d*)( anchor)?")


def method_named(name: str) -> Correction:
    """One of :data:`METHODS`, or any ``"DCL-W-N"`` and ``"DCL-W-N anchor"``: a window (or inf) and N references."""
    if name in METHODS:
        return METHODS[name]
    found = _DCL.fullmatch(name)
    if found is None:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, or DCL-W-N of your own, got {name!r}")
    window, references, anchor = found.groups()
    usual = METHODS[f"DCL-inf-1{anchor or ''}"]
    return replace(usual, window=None if window == "inf" else int(window), references=int(references))


PRINTED = ("NSS", "sAUC", "AUC", "CC")
"""The metrics that the paper prints."""

PAPER: dict[str, dict[str, tuple[Printed, Printed, Printed, Printed]]] = {
    "salicon": {
        "ResNet-50 RMSP": ((1.7933, 0.0083), (0.8311, 0.0017), (0.8393, 0.0039), (0.8472, 0.0048)),
        "ResNet-50 RMSP GEM": ((1.7522, 0.0150), (0.8267, 0.0017), (0.8341, 0.0016), (0.8291, 0.0033)),
        "ResNet-50 RMSP DCL-inf-1": ((1.8226, 0.0014), (0.8376, 0.0017), (0.8445, 0.0016), (0.8569, 0.0032)),
        "ResNet-50 Adam": ((1.7978, 0.0019), (0.8328, 0.0007), (0.8405, 0.0011), (0.8495, 0.0004)),
        "ResNet-50 Adam GEM": ((1.7962, 0.0034), (0.8344, 0.0021), (0.8399, 0.0009), (0.8494, 0.0034)),
        "ResNet-50 Adam DCL-inf-1": ((1.8019, 0.0024), (0.8360, 0.0023), (0.8430, 0.0023), (0.8548, 0.0038)),
        "DINet Adam": ((1.8786, 0.0063), (0.8426, 0.0008), (0.8489, 0.0008), (0.8799, 0.0010)),
        "DINet Adam GEM": ((1.8746, 0.0067), (0.8423, 0.0014), (0.8492, 0.0012), (0.8791, 0.0030)),
        "DINet Adam DCL-500-1": ((1.8857, 0.0006), (0.8430, 0.0002), (0.8493, 0.0002), (0.8804, 0.0009)),
    },
    "osie": {
        "ResNet-50 RMSP": ((2.4047, 0.0055), (0.7612, 0.0019), (0.8455, 0.0028), (0.7595, 0.0002)),
        "ResNet-50 RMSP GEM": ((2.3960, 0.0057), (0.7566, 0.0045), (0.8412, 0.0055), (0.7500, 0.0037)),
        "ResNet-50 RMSP DCL-inf-1": ((2.4252, 0.0053), (0.7620, 0.0018), (0.8469, 0.0027), (0.7658, 0.0016)),
        "ResNet-50 Adam": ((2.4064, 0.0015), (0.7597, 0.0012), (0.8429, 0.0021), (0.7618, 0.0005)),
        "ResNet-50 Adam GEM": ((2.3685, 0.0065), (0.7594, 0.0007), (0.8427, 0.0017), (0.7524, 0.0011)),
        "ResNet-50 Adam DCL-inf-1": ((2.4108, 0.0063), (0.7613, 0.0007), (0.8442, 0.0008), (0.7617, 0.0007)),
        "DINet Adam": ((2.4406, 0.0058), (0.7570, 0.0005), (0.8442, 0.0016), (0.7534, 0.0005)),
        "DINet Adam GEM": ((2.4456, 0.0037), (0.7571, 0.0005), (0.8432, 0.0003), (0.7540, 0.0006)),
        "DINet Adam DCL-120-1": ((2.4566, 0.0007), (0.7611, 0.0011), (0.8476, 0.0008), (0.7597, 0.0008)),
    },
}
"""The paper's numbers, row by row: of each metric the mean and the standard deviation over its three runs."""

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
        method: See :func:`method_named`; it corrects the last layer.
        epochs: Times through the data; the paper's 12,500 steps on SALICON are 10.
        halve_every: Epochs between halvings of the learning rate.
        batch: Images of a step.
        loss: See :func:`congruency.saliency.losses.make_loss`.
        lr: The learning rate, if not the optimizer's above.
        sample_order: Which runs see the images in the same order, see :data:`congruency.training.SampleOrder`.
        order_seed: Of the one order, where it is fixed.
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
    sample_order: SampleOrder = "seed"
    order_seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in _MODEL_NAMES:
            raise ValueError(f"there is no saliency model {self.model!r}; choose one of {', '.join(_MODEL_NAMES)}")
        if self.optimizer not in _RATES:
            raise ValueError(f"optimizer must be 'adam' or 'rmsprop', got {self.optimizer!r}")
        method_named(self.method)
        if self.halve_every < 1:
            raise ValueError(f"halve_every must be at least 1 epoch, got {self.halve_every}")
        if self.order_seed and self.sample_order != "fixed":
            raise ValueError("order_seed is for the sample order 'fixed'; the other orders follow the seed")
        self.seed_of_order(0)  # which refuses an order that there is not

    @property
    def name(self) -> str:
        """The row, as the paper names them: model, optimizer, method."""
        backbone = {"resnet50": "ResNet-50", "tf_efficientnet_lite0": "EfficientNet-Lite0"}.get(
            self.backbone, self.backbone
        )
        start = " pretrained" if self.weights or self.pretrained else ""
        method = "" if self.method == "baseline" else f" {self.method}"
        order = "" if self.sample_order == "seed" else f", {self.sample_order} order"
        return f"{_MODEL_NAMES[self.model]}{backbone}{start} {_OPTIMIZER_NAMES[self.optimizer]}{method}{order}"

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
            for key in ("epochs", "halve_every", "batch", "loss", "lr", "order_seed")
            if getattr(self, key) != usual[key]
        ]
        return "_".join([self.name.lower().replace(", ", "-").replace(" ", "-"), *changed]).replace("*", "x")

    def seed_of_order(self, seed: int) -> int:
        """The seed of the order in which the run of a seed sees the images."""
        return order_seed(self.sample_order, seed, method_named(self.method), self.order_seed)

    def make_optimizer(self, model: nn.Module, *, fused: bool = False) -> torch.optim.Optimizer:
        """The optimizer for a network; ``fused`` has torch do its step in one kernel where it knows how."""
        lr = _RATES[self.optimizer] if self.lr is None else self.lr
        if self.optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=1e-5, fused=fused or None)
        return torch.optim.RMSprop(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-5)


def pick(recipes: Sequence[Recipe], names: Sequence[str]) -> list[Recipe]:
    """The rows called so, as the paper names them, or all whose names begin so; all where none is named."""
    if not names:
        return list(recipes)
    known = [recipe.paper_row for recipe in recipes]
    chosen: set[str] = set()
    for name in names:
        found = {row for row in known if row == name} or {row for row in known if row.startswith(name)}
        if not found:
            raise ValueError(f"there is no row {name!r}; the rows are {'; '.join(known)}")
        chosen |= found
    return [recipe for recipe in recipes if recipe.paper_row in chosen]


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
