"""What is to be audited, from one word on the command line: a checkpoint, a recipe of the paper, or a network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from congruency.classification.models import check
from congruency.datasets import SETS
from congruency.experiments.classification.recipes import Recipe, find
from congruency.experiments.classification.tables import TITLES
from congruency.training import Correction

__all__ = ["Network", "subject"]

_PLAIN: dict[str, Any] = {"epochs": 30, "batch_size": 128, "learning_rate": 0.1, "schedule": "cosine"}
"""What ``congruency train`` does where nothing is said."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network to train.

    Attributes:
        title: what a page calls it.
        settings: attributes of :class:`congruency.experiments.classification.task.Setup`.
        method: how gradients are corrected.
        per_class: only so many training images of every class, where the recipe says so.
        size: the side that the network sees, where the recipe says so.
    """

    title: str
    settings: dict[str, Any]
    method: Correction = field(default_factory=Correction)
    per_class: int | None = None
    size: int | None = None

    def changed(self, size: int | None, **settings: Any) -> Network:
        """The same with another size or other settings, where they are not None."""
        given = {name: value for name, value in settings.items() if value is not None}
        return replace(self, settings={**self.settings, **given}, size=size or self.size)


def subject(name: str, data: str, epochs: int | None = None) -> Path | Network:
    """The checkpoint or the network that a name stands for.

    Args:
        name: a path that exists; ``TABLE/ROW``, a recipe of the paper (``cifar/DenseNet-100-12 SGD``); or a network.
        data: the set; of a recipe for several sets, the one for this set is taken.
        epochs: instead of the recipe's; the milestones of its rate move along.
    """
    if Path(name).exists():
        return Path(name)
    table, slash, row = name.partition("/")
    if slash and table in TITLES:
        return _of_recipe(_recipe(table, row, data), epochs)
    if name.endswith(".pt") or Path(name).is_absolute() or name.startswith((".", "~")):
        raise FileNotFoundError(f"the checkpoint {name} is missing; give a run's folder or a checkpoint in it")
    try:
        check(name)
    except ValueError as reason:
        raise ValueError(
            f"{name} is no run or checkpoint that is there, and no network: {reason}; a recipe of the paper is given "
            "as TABLE/ROW, such as 'cifar/DenseNet-100-12 SGD'"
        ) from None
    settings = {**_PLAIN, "model": name}
    return Network(title=name, settings=settings if epochs is None else {**settings, "epochs": epochs})


def _recipe(table: str, row: str, data: str) -> Recipe:
    found = find(table, row)
    trained = [recipe for recipe in found if recipe.measures == "error"]
    if not trained:
        raise ValueError(f"{table}/{row} measures times, it trains nothing to its end; choose a recipe that does")
    fitting = [recipe for recipe in trained if recipe.data == data]
    if not fitting and data in SETS:
        known = ", ".join(dict.fromkeys(recipe.data for recipe in trained))
        raise ValueError(f"{table}/{row} is a recipe for {known}, not for {data}; give such a --data, or a network")
    return (fitting or trained)[0]


def _of_recipe(recipe: Recipe, epochs: int | None) -> Network:
    length = epochs or recipe.epochs
    settings: dict[str, Any] = {
        "model": recipe.model,
        "epochs": length,
        "batch_size": recipe.batch_size,
        "learning_rate": recipe.learning_rate,
        "momentum": recipe.momentum,
        "weight_decay": recipe.weight_decay,
        "milestones": tuple(round(length * milestone / recipe.epochs) for milestone in recipe.milestones),
        "decay": recipe.decay,
        "pretrained": True if recipe.pretrained else None,
    }
    return Network(
        title=f"{recipe.row} ({recipe.table})",
        settings=settings,
        method=Correction(**recipe.correction),
        per_class=recipe.per_class,
        size=recipe.size,
    )
