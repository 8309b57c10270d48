"""The saliency studies as plain data: one row per recipe, compared with the same network without correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from congruency.report.numbers import counted
from congruency.saliency.task import Recipe
from congruency.studies.plan import Column, Row, Study
from congruency.studies.saliency.recipes import PRINTED, paper_numbers

__all__ = ["TITLES", "TRAINING_TIME", "SaliencyJob", "StudyName", "saliency_study"]

StudyName = Literal["salicon", "osie", "osie_study"]
"""The paper's two tables, and the comparison on OSIE alone."""

TITLES: dict[StudyName, str] = {
    "salicon": "Saliency: networks trained on SALICON 2017, scored on its validation set",
    "osie": "Saliency: networks trained on OSIE, scored on MIT1003",
    "osie_study": "Saliency: networks trained on 500 images of OSIE, scored on the other 200",
}
TRAINING_TIME = "training time"
"""Column key of the seconds of a run's epochs, without scoring."""

_NOTES = (
    (
        "DCL-W-N",
        "N reference points, renewed every W steps (inf: never), on the last layer. Without a further word the paper's "
        "equations: no step may oppose the accumulated gradient. Anchor: its published code, which pulls weights back "
        "toward the reference, with a margin of 0.5. Where the paper's number is given it stands beside both; it was "
        "made with the latter.",
    ),
    ("GEM", "A step of the last layer may not oppose the gradient of one remembered image of the epoch."),
    ("Against", "The paired difference to the same network and optimizer without a correction, seed by seed."),
    (
        "Metrics",
        "NSS, sAUC, AUC and CC, all better when higher, at the images' own size; results.json has the others too. AUC "
        "is exact, against all other pixels of the image; sAUC against the fixations of all other images of the set. "
        "CC is with a density of all fixations, blurred with a Gaussian of one degree (24 pixels of OSIE's 800, 35 on "
        "MIT1003), or of 3 % of the width where that is not known (SALICON).",
    ),
    (
        "Floors",
        "Maps that know nothing of the image: uniform; a Gaussian with the mean and covariance of the training set's "
        "fixations; the training set's mean map, with a blur and a uniform share fitted by cross-validation.",
    ),
    (
        "Human ceiling",
        "The density of infinitely many viewers, blurred likewise, against the truth that the networks are scored "
        "against: all viewers. It is extrapolated in the number of viewers: NSS and the AUCs from leaving one viewer "
        "out, CC from split halves and quarters, a correction for attenuation like that of Spearman and Brown.",
    ),
)
_FURTHER = {
    "floor": (
        "DCL-W-N floor",
        "The paper's equations where the disagreement is weak; a gradient that strongly opposes the accumulated one is "
        "left alone, as DCL does by default.",
    ),
    "update": ("DCL-W-N update", "The step of the optimizer is projected instead of the gradient."),
    "Cautious": (
        "Cautious",
        "No element of a step, in any layer, may oppose its gradient; the others are scaled up in its place.",
    ),
}
_PAPER_NOTE = (
    "The paper's AUC and sAUC",
    "come from SALICON's evaluation: sampled pixels, thresholds in steps of 0.01. Ours are exact and need not be as "
    "large; compare rows with each other (congruency saliency score --protocol salicon scores any maps its way).",
)
_PAPER_EPOCHS = 10


@dataclass(frozen=True)
class SaliencyJob:
    """A run of a saliency study, without its seed."""

    recipe: Recipe

    @property
    def label(self) -> str:
        return ""

    @property
    def columns(self) -> Mapping[str, str]:
        return {metric: metric for metric in PRINTED}

    def digest(self) -> str:
        """Return the folder name of the recipe's runs, which identified runs in older releases."""
        return self.recipe.folder


def saliency_study(name: StudyName, recipes: Sequence[Recipe]) -> Study[SaliencyJob]:
    """Return the study of these recipes, with the paper's numbers if it has them."""
    in_paper = any(paper_numbers(name, recipe) for recipe in recipes)
    further = [note for word, note in _FURTHER.items() if any(recipe.method.endswith(word) for recipe in recipes)]
    return Study(
        name=name,
        title=TITLES[name],
        lead=f"{_training(recipes)} Within a seed all rows of a network begin with the same weights.",
        rows=tuple(_row(name, recipe) for recipe in recipes),
        columns=tuple(Column(key=metric, unit="", digits=4) for metric in PRINTED),
        caption="The paper has means and standard deviations of three runs." if in_paper else "",
        extras=(Column(key=TRAINING_TIME, title="Training, s", unit="s", digits=0, compared=False, speed=True),),
        notes=(*_NOTES, *further, _PAPER_NOTE) if in_paper else (*_NOTES, *further),
    )


def _row(study: StudyName, recipe: Recipe) -> Row[SaliencyJob]:
    correction = recipe.correction
    return Row(
        name=recipe.name,
        jobs=(SaliencyJob(recipe),),
        paper=paper_numbers(study, recipe),
        against=None if correction.name == "baseline" else replace(recipe, method="baseline").name,
        settings={
            "model": recipe.model, "backbone": recipe.backbone, "pretrained": not recipe.from_scratch,
            "optimizer": recipe.optimizer, "epochs": recipe.epochs, "sample_order": recipe.sample_order,
            "method": correction.name, "correct": correction.correct, "floor": correction.floor,
            "mode": correction.mode if correction.name == "dcl" else None,
            "window": correction.window, "references": correction.references, "margin": correction.effective_margin,
        },
    )  # fmt: skip


def _training(recipes: Sequence[Recipe]) -> str:
    """Describe how each backbone was trained, one sentence per backbone."""
    sentences = {}
    for recipe in recipes:
        start = "from scratch" if recipe.from_scratch else "from ImageNet weights"
        halved = "epoch" if recipe.halve_every == 1 else f"{recipe.halve_every} epochs"
        in_paper = "" if recipe.epochs == _PAPER_EPOCHS else f" (the paper: {_PAPER_EPOCHS})"
        after = f" after {recipe.delay + recipe.halve_every} at the first" if recipe.delay else ""
        sentences[recipe.backbone] = (
            f"{recipe.backbone} {start}: {counted(recipe.epochs, 'epoch')}{in_paper} in batches of {recipe.batch}, the "
            f"learning rate halved every {halved}{after}."
        )
    seen = dict.fromkeys(
        f"{recipe.network}: images of {recipe.preprocessing}, loss {recipe.effective_loss}."
        for recipe in recipes
        if recipe.model != "dinet4"  # older results do not state its size
    )
    return " ".join([*sentences.values(), *seen])
