"""The paper's tables of classification errors as studies: every DCL row in both modes, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from congruency.studies.classification import recipes
from congruency.studies.classification.jobs import Data, ImageJob, extras, settings_of
from congruency.studies.classification.recipes import CLASSES, Recipe
from congruency.studies.plan import Column, Row, Study
from congruency.training.config import Correction

Budget = Literal["paper", "small"]

MODES: Mapping[str, dict[str, Any]] = {
    "concentrate, margin 0": {"mode": "concentrate", "margin": 0.0},
    "anchor, margin 0.5": {"mode": "anchor", "margin": 0.5, "offset": 1},
}
"""The paper's equations, and the published code, which records a reference after the step."""

TITLES = {
    "cifar": "Error on CIFAR-10 and CIFAR-100: three networks, SGD, GEM and DCL",
    "tiny_imagenet": "Error on Tiny ImageNet: three networks fine-tuned from ImageNet, SGD, GEM and DCL",
    "imagenet": "Error on ImageNet: ResNet-50, SGD and DCL",
    "from_scratch": "Tiny ImageNet from scratch and fine-tuned: ResNet-101, SGD, GEM and DCL",
}
SMALL = " (small budget, not the paper's)"

DCL_NOTE = (
    "DCL-W-N",
    "N reference points, renewed every W steps (inf: never), on the last layer. Concentrate: the paper's equations, no "
    "step may go against the accumulated gradient. Anchor, margin 0.5: the paper's published code, which pulls weights "
    "back toward the reference. The paper's number stands beside both; it was obtained with the latter.",
)
NOTES = (
    DCL_NOTE,
    ("GEM", "No step of the last layer may go against the gradient of one remembered sample of the epoch."),
    ("Against", "The paired difference to the baseline of the same network, seed by seed, with the t-test's p-value."),
)


def paper_study(name: str, budget: Budget = "paper") -> Study[ImageJob]:
    """Return a table of errors of the paper, one of :data:`TITLES`; a small budget takes minutes on a laptop."""
    rows = paper_rows(name, budget, lambda made, settings: tuple(error_job(recipe, settings) for recipe in made))
    columns = dict.fromkeys(column for row in rows for column in row.paper)
    return Study(
        name=name,
        title=TITLES[name] + (SMALL if budget == "small" else ""),
        lead=lead(name, budget, small_changes=("as few test images",)),
        rows=rows,
        columns=tuple(Column(key=key, title=f"{key}, %") for key in columns),
        caption="Test errors in percent.",
        notes=NOTES,
        extras=extras(rows),
    )


def paper_rows(
    table: str, budget: Budget, jobs: Callable[[Sequence[Recipe], Mapping[str, Any]], tuple[ImageJob, ...]]
) -> tuple[Row[ImageJob], ...]:
    """Return the rows of a table; ``jobs`` makes those of a row from its recipes and the settings of DCL."""
    rows = []
    for title in recipes.rows(table):
        found = recipes.find(table, title)
        made = [recipe.small() if budget == "small" else recipe for recipe in found]
        paper = {column: number for recipe in found for column, number in recipe.paper.items()}
        variants: Mapping[str, dict[str, Any]] = MODES if found[0].method == "dcl" else {"": {}}
        for mode, settings in variants.items():
            own = () if found[0].quoted else jobs(made, settings)
            name = f"{title}, {mode}" if mode else title
            rows.append(Row(name=name, jobs=own, paper=paper, against=_baseline(found[0]), settings=settings_of(own)))
    return tuple(rows)


def error_job(recipe: Recipe, settings: Mapping[str, Any]) -> ImageJob:
    """Return the run of a recipe, with the settings of DCL."""
    small = recipe.budget == "small"
    data = Data(
        name=recipe.data,
        classes=CLASSES[recipe.data],
        per_class=recipe.per_class,
        test_per_class=recipe.per_class if small else None,
    )
    return ImageJob(
        setup=recipe.setup(pretrained="installed" if small else True),
        method=Correction(**recipe.correction, **settings),
        data=data,
        columns=recipe.columns,
        label=recipe.label,
    )


def _baseline(recipe: Recipe) -> str | None:
    """The row without correction of the same network."""
    plain = (
        other.row
        for other in recipes.RECIPES
        if (other.table, other.model, other.method) == (recipe.table, recipe.model, "baseline") and not other.quoted
    )
    return None if recipe.method == "baseline" else next(plain, None)


def lead(name: str, budget: Budget, remark: str = "", small_changes: Sequence[str] = ()) -> str:
    """Return how a table is made: its assumptions, a remark, and what a small budget changes."""
    found = [recipe for recipe in recipes.RECIPES if recipe.table == name]
    assumed = dict.fromkeys(text for recipe in found for text in recipe.assumed)
    text = "The paper's hyperparameters (its section 5.1.5)."
    if assumed:
        text += f" What it does not say: {'; '.join(assumed)}."
    text += remark
    if budget == "small":
        changes = [*dict.fromkeys(change for recipe in found for change in recipe.small().changes), *small_changes]
        text = f"A small budget that shows how it is done, not the result. {text} Changed: {'; '.join(changes)}."
    return text
