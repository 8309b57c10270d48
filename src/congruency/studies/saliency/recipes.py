"""Recipes of the saliency studies: the paper's two tables with its numbers, and our comparison on OSIE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from congruency.saliency.task import Optimizer, Recipe
from congruency.training import SampleOrder

__all__ = [
    "NETWORK_METHODS", "PAPER", "PRINTED", "Printed", "Table", "osie_recipes", "paper_numbers", "paper_recipes",
    "table_recipes",
]  # fmt: skip

Table = Literal["salicon", "osie"]
Printed = tuple[float, float]

PRINTED = ("NSS", "sAUC", "AUC", "CC")
"""The metrics in the paper's tables."""

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
"""The paper's numbers by row: for each metric the mean and standard deviation over its three runs."""


def paper_numbers(table: str, recipe: Recipe) -> dict[str, Printed]:
    """Return the paper's numbers for a recipe by metric, the same for both modes of DCL; empty if it has none."""
    correction = recipe.correction
    if correction.name == "dcl":
        recipe = replace(recipe, method=f"DCL-{correction.window or 'inf'}-{correction.references}")
    return dict(zip(PRINTED, PAPER.get(table, {}).get(recipe.paper_row, ()), strict=False))


def paper_recipes(table: Table) -> list[Recipe]:
    """Return the recipes of one of the paper's saliency tables, with DCL in both modes.

    ``"salicon"`` trains on SALICON 2017's training set and is scored on its validation set; ``"osie"`` trains on OSIE
    and is scored on MIT1003. The backbones start from timm's ImageNet weights.
    """
    if table not in PAPER:
        raise ValueError(f"the paper's saliency tables are 'salicon' and 'osie', got {table!r}")
    window = "DCL-500-1" if table == "salicon" else "DCL-120-1"
    rows: list[tuple[str, Optimizer, str]] = [
        ("salicon", "rmsprop", "DCL-inf-1"),
        ("salicon", "adam", "DCL-inf-1"),
        ("dinet", "adam", window),
    ]
    return [
        Recipe(model=model, backbone="resnet50", optimizer=optimizer, method=method, pretrained=True)
        for model, optimizer, dcl in rows
        for method in ("baseline", "GEM", dcl, f"{dcl} anchor")
    ]


def table_recipes(
    table: Table,
    rows: Sequence[str] = (),
    *,
    weights: str | Path | None = None,
    pretrained: bool = True,
    **changes: Any,
) -> list[Recipe]:
    """Return recipes of one of the paper's saliency tables, selected by row name or prefix; all if none is given.

    The backbone starts from a file of ``weights``, from timm's (``pretrained``), or, unlike the paper, from scratch.
    ``changes`` are changed attributes of :class:`Recipe`, such as ``epochs``.
    """
    start: dict[str, Any] = {"weights": None if weights is None else str(weights)}
    start["pretrained"] = pretrained and weights is None
    recipes = paper_recipes(table)
    known = [recipe.paper_row for recipe in recipes]
    chosen: set[str] = set() if rows else set(known)
    for name in rows:
        found = {row for row in known if row == name} or {row for row in known if row.startswith(name)}
        if not found:
            raise ValueError(f"there is no row {name!r}; the rows are {'; '.join(known)}")
        chosen |= found
    return [replace(recipe, **start, **changes) for recipe in recipes if recipe.paper_row in chosen]


def osie_recipes(
    *,
    models: Sequence[str],
    optimizers: Sequence[Any],
    methods: Sequence[str],
    lite: str | Path | None,
    scratch: bool,
    epochs: int,
    scratch_epochs: int,
    backbone: str | None = None,
    delay: int = 1,
    sample_order: SampleOrder = "seed",
    order_seed: int = 0,
) -> list[Recipe]:
    """Return all combinations of model, optimizer and method, on pretrained EfficientNet-Lite0 and from scratch.

    ``backbone`` is the one trained from scratch; None is each model's default, DINet's ResNet-50, SALICON's VGG-16.
    The learning rate is halved every epoch, as in the paper, or every ``epochs // 10`` epochs in longer runs.
    """
    starts: list[dict[str, Any]] = []
    if lite is not None:
        starts.append({"backbone": "tf_efficientnet_lite0", "weights": str(lite), "epochs": epochs})
    if scratch:
        starts.append({"backbone": backbone, "epochs": scratch_epochs})
    if not starts:
        raise ValueError("there is nothing to train: give the weights of EfficientNet-Lite0, or train from scratch")
    return [
        Recipe(
            model=model, optimizer=optimizer, method=method, halve_every=max(1, start["epochs"] // 10), delay=delay,
            sample_order=sample_order, order_seed=order_seed, **start,
        )
        for start in starts
        for model in models
        for optimizer in optimizers
        for method in methods
    ]  # fmt: skip


NETWORK_METHODS = (
    "baseline", "GEM", "Cautious", "DCL-inf-1", "DCL-inf-1 floor", "DCL-inf-1 update", "DCL-inf-1 anchor", "DCL-20-1",
    "DCL-120-1", "DCL-500-1", "DCL-inf-5", "DCL-inf-10", "DCL-20-1 anchor", "DCL-120-1 anchor", "DCL-500-1 anchor",
    "DCL-inf-5 anchor", "DCL-inf-10 anchor",
)  # fmt: skip
"""Corrections of gradient and update, then varied windows and numbers of references (the paper's Figure 9)."""
