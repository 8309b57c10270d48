"""The paper's classification tables as rows to run: every DCL row in both modes, the paper's numbers beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from congruency.classification.task import recipe_setup
from congruency.studies.classification import recipes
from congruency.studies.classification.jobs import Data, Job, Measured, Row, Table
from congruency.studies.classification.recipes import Recipe
from congruency.studies.saliency import timed
from congruency.training.config import Correction

__all__ = ["MODES", "TITLES", "Budget", "paper_table"]

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
    "cost": "What a training image costs: parameters in millions, milliseconds",
    "cost_window": "What a training image costs DCL by its window: milliseconds",
    "cost_references": "What a training image costs DCL by its number of reference points: milliseconds",
}

_WITH_SALICON = "cost"  # the one table with columns of a saliency training
_STEPS = {"paper": 60, "small": 12}  # of a measurement of times
_SHAPES = {"tiny_imagenet": (3, 64, 64), "imagenet": (3, 224, 224)}

_NOTES = (
    (
        "DCL-W-N",
        "N reference points, renewed every W steps (inf: never), on the last layer. Concentrate: the paper's "
        "equations, no step may turn back against the way come. Anchor, margin 0.5: the paper's published code, which "
        "pulls weights back toward the reference. The paper's number stands beside both; it was made with the latter.",
    ),
    ("GEM", "The gradient of one remembered sample of the epoch, of the last layer, may not be turned against."),
    ("Against", "The paired difference to the plain training of the same network, seed by seed, with the t-test's p."),
)
_COST_NOTE = (
    "Milliseconds",
    "(batch time - data time) / batch size, as the paper measures: the median over the steps after the first fifth "
    "and after the references were recorded. The paper's numbers are of another GPU: compare rows with each other, not "
    "with them. A step that leaves the GPU waiting takes as long as the host does, which varies from run to run: read "
    "no difference that lies within the intervals.",
)

_PARAMETERS_NOTE = (
    "Parameters",
    "In millions, of the whole network; GEM and DCL hold one copy of its last layer besides (for the gradient of the "
    "remembered sample, for the reference point) and none of the rest. With the paper's networks that is 42.91 without "
    "and 43.32 with the copy on Tiny ImageNet, 23.512 and 23.516 on SALICON, 25.56 and 27.61 on ImageNet. The paper's "
    "numbers are these less one last layer in every row (ImageNet's cut off, not rounded): its GEM and DCL have as "
    "many as our baseline. SALICON's last layer is a 1x1 convolution of 4097 weights, so few that the paper has 23.51 "
    "in all rows.",
)


def paper_table(name: str, budget: Budget = "paper", *, real_images: bool = False) -> Table:
    """A table of the paper.

    Args:
        name: one of :func:`congruency.studies.classification.recipes.tables`.
        budget: the paper's, or a small one for minutes on a laptop.
        real_images: measure costs on the data set, not on made-up images of its shape.
    """
    if budget not in ("paper", "small"):
        raise ValueError(f"budget must be 'paper' or 'small', got {budget!r}")
    rows = [row for title in recipes.rows(name) for row in _rows(name, title, budget, real_images)]
    cost = name.startswith("cost")
    compared = any(row.against for row in rows)
    return Table(
        name=name,
        title=TITLES[name] + (" (small budget, not the paper's)" if budget == "small" else ""),
        lead=_lead(name, budget, cost and not real_images),
        rows=tuple(rows),
        unit="ms an image" if cost else "error, %",
        notes=(
            *(_NOTES if compared else _NOTES[:1]),
            *((_COST_NOTE,) if cost else ()),
            *((_PARAMETERS_NOTE,) if name == _WITH_SALICON else ()),
        ),
    )


def _rows(table: str, title: str, budget: Budget, real_images: bool) -> list[Row]:
    found = recipes.find(table, title)
    made = [recipe.small() if budget == "small" else recipe for recipe in found]
    paper = {column: figure for recipe in found for column, figure in recipe.paper.items()}
    if table == _WITH_SALICON:
        paper |= timed.PRINTED[found[0].method]
    if found[0].quoted:
        return [Row(name=title, jobs=(), paper=paper)]
    variants: Mapping[str, dict[str, Any]] = MODES if found[0].method == "dcl" else {"": {}}
    return [
        Row(
            name=f"{title}, {mode}" if mode else title,
            jobs=_jobs(made, settings, real_images),
            paper=paper,
            against=_baseline(table, title),
        )
        for mode, settings in variants.items()
    ]


def _jobs(made: Sequence[Recipe], settings: Mapping[str, Any], real_images: bool) -> tuple[Job, ...]:
    """Those of the recipes; in the table of costs SALICON's is the second, as in the paper."""
    jobs = [_job(recipe, settings, real_images) for recipe in made]
    if made[0].table == _WITH_SALICON:
        jobs.insert(1, _salicon(jobs[0], timed.SETUPS[made[0].budget]))
    return tuple(jobs)


def _salicon(job: Job, setup: timed.TimedSetup) -> Job:
    """A saliency training timed as another job is, with the same method but for its window."""
    return replace(
        job,
        setup=setup,
        method=replace(job.method, window=timed.WINDOW),
        data=Data(name="SALICON", made_up=True, shape=(3, *setup.size)),
        columns={column: _measured(column, cost=True) for column in timed.PRINTED[job.method.name]},
        label="SALICON",
    )


def _job(recipe: Recipe, settings: Mapping[str, Any], real_images: bool) -> Job:
    small = recipe.budget == "small"
    data = Data(
        name=recipe.data,
        classes=recipe.classes,
        per_class=recipe.per_class,
        test_per_class=recipe.per_class if small else None,
    )
    setup = recipe_setup(recipe, pretrained="installed" if small else True)
    cost = recipe.measures == "cost"
    steps = _STEPS[recipe.budget] + recipe.references if cost else None
    if steps is not None:
        setup = replace(setup, epochs=1, milestones=(), pretrained=None, drop_last=True)
        data = replace(data, made_up=not real_images, shape=_SHAPES[recipe.data])
    return Job(
        setup=setup,
        method=Correction(**recipe.correction, **settings),
        data=data,
        columns={column: _measured(column, cost) for column in recipe.paper},
        label=_label(recipe),
        short=cost,
        steps=steps,
    )


def _label(recipe: Recipe) -> str:
    """What tells the trainings of a row apart; empty where there is one."""
    if len(recipes.find(recipe.table, recipe.row)) == 1:
        return ""
    first = next(iter(recipe.paper))
    return first.removeprefix("Top-1 ").removesuffix(" params")


def _measured(column: str, cost: bool) -> Measured:
    if cost:
        return "parameters" if column.endswith("params") else "ms"
    return "top5_error" if column.startswith("Top-5") else "error"


def _baseline(table: str, title: str) -> str | None:
    """The plain training of the same network: its name is the beginning of the others'."""
    if table == "imagenet":
        plain = "ResNet-50 (reproduced)"
    elif table == "cost":
        plain = recipes.rows(table)[0]
    else:
        plain = f"{title.split(' SGD')[0]} SGD"
    return plain if plain != title and plain in recipes.rows(table) else None


def _lead(name: str, budget: Budget, made_up: bool) -> str:
    found = [recipe for recipe in recipes.RECIPES if recipe.table == name]
    assumed = dict.fromkeys(text for recipe in found for text in recipe.assumed)
    text = "The paper's hyperparameters (its section 5.1.5)."
    if assumed:
        text += f" What it does not say: {'; '.join(assumed)}."
    if made_up:
        text += " Times do not depend on what images show: these are random ones of the data set's shape."
    if name == _WITH_SALICON:
        text += f" {timed.SETUPS['paper'].told}"
    if budget == "small":
        changes = list(dict.fromkeys(change for recipe in found for change in recipe.small().changes))
        changes.append(_small_steps() if name.startswith("cost") else "as few test images")
        if name == _WITH_SALICON:
            changes.append(f"for SALICON {timed.SETUPS['small'].differences(timed.SETUPS['paper'])}")
        text = f"A small budget that shows the way, not the result. {text} Changed: {'; '.join(changes)}."
    return text


def _small_steps() -> str:
    return f"{_STEPS['small']} steps for {_STEPS['paper']} after the references were recorded"
