"""What a saliency comparison came to, as a table, a page and files."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch

import congruency
from congruency.files import write_together
from congruency.report import charts
from congruency.report.numbers import NOTHING, p_value, with_margin
from congruency.report.page import Figure, Page, render
from congruency.report.tables import Table, to_markdown
from congruency.studies.saliency.examples import EXAMPLES
from congruency.studies.saliency.experiment import Results
from congruency.studies.saliency.recipes import PAPER, PRINTED, Recipe
from congruency.studies.statistics import Difference, mean_interval, paired_difference, together
from congruency.training import read_record

__all__ = ["compose", "findings", "show", "summary"]

_AT_MOST = 6  # rows in a chart
_SETS = {
    "salicon": "SALICON 2017, scored on its validation set",
    "osie": "OSIE, scored on MIT1003",
    "osie_study": "500 images of OSIE, scored on the other 200",
}
_NOTES = (
    (
        "DCL-W-N",
        "N reference points, renewed every W steps (inf: never), on the last layer. Without a further word the paper's "
        "equations: no step may turn back against the way come. Anchor: its published code, which pulls weights back "
        "toward the reference, with a margin of 0.5. Where the paper's number is given it stands beside both; it was "
        "made with the latter.",
    ),
    ("GEM", "The gradient of one remembered image of the epoch, of the last layer, may not be turned against."),
    ("Against", "The paired difference to the same network and optimizer without a method, seed by seed."),
    (
        "Metrics",
        "NSS, sAUC, AUC and CC, all better when higher, at the images' own size; results.json has the others too. AUC "
        "is exact, against all other pixels of the image; sAUC against the fixations of all other images of the set. "
        "CC is with a density of all fixations, blurred with a Gaussian of one degree (24 pixels of OSIE's 800, 35 on "
        "MIT1003), or of 3 % of the width where that is not known (SALICON).",
    ),
    (
        "Humans",
        "One human: a viewer's fixations, blurred likewise, as the map, scored against all other viewers. The other "
        "humans: theirs as the map, scored against the one. Means over viewers.",
    ),
)
_PAPER_NOTE = (
    "The paper's AUC and sAUC",
    "come from SALICON's evaluation: sampled pixels, thresholds in steps of 0.01. Ours are exact and need not be as "
    "large; compare rows with each other (congruency saliency score --protocol salicon scores any maps its way).",
)
_USUAL_EPOCHS = 10


def show(table: str, recipes: Sequence[Recipe], results: Results, out: Path, command: str) -> tuple[Page, list[Path]]:
    """Write ``index.html`` and ``table.md`` into ``out``, beside the ``results.json`` that the runs have left.

    Args:
        table: One of the paper's, ``"salicon"`` or ``"osie"``; or ``"osie_study"``.
        recipes: The rows, in their order.
        results: What the runs in ``out`` came to.
        out: The folder.
        command: What made them.
    """
    page = compose(table, recipes, results, command, runs_made_on(out))
    told = "\n".join(f"- {text}" for text in page.findings)
    notes = "\n".join(f"- {term}: {meaning}" for term, meaning in page.notes)
    parts = [f"# {page.title}", page.lead, f"    {page.command}", to_markdown(page.table), told, notes, page.made]
    if (out / EXAMPLES).is_file():
        parts.insert(-1, f"![Test images, where people looked, and what networks predict]({EXAMPLES})")
    text = "\n\n".join(parts) + "\n"
    return page, write_together(out, {"index.html": render(page), "table.md": text})


def compose(table: str, recipes: Sequence[Recipe], results: Results, command: str, made_on: str = "") -> Page:
    """The page."""
    return Page(
        title=f"Saliency: networks trained on {_SETS[table]}",
        lead=f"{_trained(recipes)} Within a seed all rows of a network begin with the same weights.",
        command=command,
        table=summary(table, recipes, results),
        findings=findings(recipes, results),
        figures=_figures(recipes, results),
        figures_title="Differences",
        figures_note="Dots: seeds. Bars: means of the paired differences and their 95 % intervals.",
        notes=(*_NOTES, _PAPER_NOTE) if table in PAPER else _NOTES,
        made=(
            f"{made_on}Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d} with PyTorch "
            f"{torch.__version__} and Python {platform.python_version()}. The numbers behind the table are in "
            "results.json beside this page."
        ),
    )


def _trained(recipes: Sequence[Recipe]) -> str:
    """How each backbone was trained, a sentence each."""
    told = {}
    for recipe in recipes:
        start = "from ImageNet weights" if recipe.weights or recipe.pretrained else "from scratch"
        halved = "epoch" if recipe.halve_every == 1 else f"{recipe.halve_every} epochs"
        usual = "" if recipe.epochs == _USUAL_EPOCHS else f" (the paper: {_USUAL_EPOCHS})"
        told[recipe.backbone] = (
            f"{recipe.backbone} {start}: {recipe.epochs} epochs{usual} in batches of {recipe.batch}, the learning rate "
            f"halved every {halved}."
        )
    return " ".join(told.values())


def runs_made_on(out: Path) -> str:
    """On what the runs in a folder were made, as their records say; empty where there is none."""
    found = set()
    for done in sorted(out.glob("runs/*/seed-*/scores.json")):  # of others the record may have no whole line yet
        run = read_record(done.parent).run
        found.add(f"{run['device']}, precision {run['config']['precision']}, PyTorch {run['versions']['torch']}")
    return f"Trained on {'; '.join(sorted(found))}. " if found else ""


def summary(table: str, recipes: Sequence[Recipe], results: Results) -> Table:
    """One line a row: the four metrics, each with its paired difference and, where it has one, the paper's number."""
    paper = PAPER.get(table)
    columns = ["Row", "Seeds"]
    for metric in PRINTED:
        columns += [metric, f"{metric} against", *([] if paper is None else [f"{metric}, paper"])]
    rows = []
    for recipe in recipes:
        if recipe.name not in results:
            continue
        values = results[recipe.name]
        line = [recipe.name, str(len(values["seed"]))]
        for place, metric in enumerate(PRINTED):
            estimate = mean_interval(values[metric])
            line += [
                with_margin(estimate.mean, estimate.margin, 4),
                _told(_difference(recipe, results, metric)),
            ]
            if paper is not None:
                printed = paper.get(recipe.paper_row.removesuffix(" anchor"))
                line.append(NOTHING if printed is None else f"{printed[place][0]:.4f} (sd {printed[place][1]:.4f})")
        rows.append(line)
    for name in (name for name in results if "seed" not in results[name]):  # floor and ceiling, nothing random in them
        line = [name, NOTHING]
        for metric in PRINTED:
            line += [f"{results[name][metric][0]:.4f}" if metric in results[name] else NOTHING, NOTHING]
            line += [] if paper is None else [NOTHING]
        rows.append(line)
    caption = (
        "Means over the seeds, ± their 95 % intervals. Against: the paired difference to the same network and "
        "optimizer without a method, with the p of the t-test."
    )
    return Table(
        caption if paper is None else f"{caption} Paper: mean and standard deviation of its three runs.", columns, rows
    )


def findings(recipes: Sequence[Recipe], results: Results) -> list[str]:
    """A sentence for every row that can be compared, and one about chance."""
    told = [_finding(recipe, results) for recipe in recipes]
    found = [text for text in told if text]
    if not found:
        return ["Too few seeds, or rows, to compare anything; run more of them."]
    return [*found, _chance(recipes, results)]


def _finding(recipe: Recipe, results: Results) -> str | None:
    differences = {metric: _difference(recipe, results, metric) for metric in PRINTED}
    made = {m: d for m, d in differences.items() if d is not None and math.isfinite(d.p)}
    if not made:
        return None
    clear = [
        f"{metric} {'rises' if d.mean > 0 else 'falls'} by {abs(d.mean):.4f} (p {p_value(d.p)})"
        for metric, d in made.items()
        if d.p < 0.05
    ]
    others = [metric for metric, d in made.items() if d.p >= 0.05]
    parts = [*clear, *([f"no clear change of {', '.join(others)}"] if others else [])]
    return f"{recipe.name}, against the same without a method: {'; '.join(parts)}."


def _chance(recipes: Sequence[Recipe], results: Results) -> str:
    """How many comparisons look clear, and how many would if no method did anything."""
    found = [_difference(recipe, results, metric) for recipe in recipes for metric in PRINTED]
    return together([difference.p for difference in found if difference is not None])


def _baseline(recipe: Recipe) -> str:
    return replace(recipe, method="baseline").name


def _pair(recipe: Recipe, results: Results, metric: str) -> tuple[list[float], list[float]] | None:
    """The values at the seeds that both have."""
    base = _baseline(recipe)
    if recipe.method == "baseline" or recipe.name not in results or base not in results:
        return None
    own, other = (dict(zip(results[name]["seed"], results[name][metric], strict=True)) for name in (recipe.name, base))
    both = sorted(own.keys() & other.keys())
    return ([own[seed] for seed in both], [other[seed] for seed in both]) if both else None


def _difference(recipe: Recipe, results: Results, metric: str) -> Difference | None:
    pair = _pair(recipe, results, metric)
    return None if pair is None else paired_difference(*pair)


def _told(difference: Difference | None) -> str:
    if difference is None or not math.isfinite(difference.mean):
        return NOTHING
    text = with_margin(difference.mean, difference.margin, 4, sign=True)
    return f"{text} (p {p_value(difference.p)})" if math.isfinite(difference.p) else text


def _figures(recipes: Sequence[Recipe], results: Results) -> list[Figure]:
    made = []
    for metric in PRINTED:
        samples = []
        for recipe in recipes:
            pair = _pair(recipe, results, metric)
            if pair is not None and len(pair[0]) > 1:
                values = [own - other for own, other in zip(*pair, strict=True)]
                difference = paired_difference(*pair)
                samples.append(charts.Sample(recipe.name, values, difference.mean, difference.margin))
        for start in range(0, len(samples), _AT_MOST):
            part = samples[start : start + _AT_MOST]
            chart = charts.strip_chart(part, title=metric, x_label=f"difference of {metric}")
            made.append(Figure(f"{metric}, against no method", chart))
    return made
