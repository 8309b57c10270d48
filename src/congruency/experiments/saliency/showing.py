"""What a saliency table of the paper came to, as a table, a page and files."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch

import congruency
from congruency.experiments.evidence import Difference, mean_interval, paired_difference
from congruency.experiments.saliency.experiment import Results
from congruency.experiments.saliency.recipes import PAPER, PRINTED, Recipe
from congruency.report import charts
from congruency.report.files import write_together
from congruency.report.numbers import NOTHING, p_value, with_margin
from congruency.report.page import Figure, Page, render
from congruency.report.tables import Table, to_markdown

__all__ = ["compose", "findings", "show", "summary"]

_AT_MOST = 6  # rows in a chart
_NOTES = (
    (
        "DCL-W-N",
        "N reference points, renewed every W steps (inf: never), on the last layer. Without a further word the paper's "
        "equations: no step may turn back against the way come. Anchor: its published code, which pulls weights back "
        "toward the reference, with a margin of 0.5. The paper's number stands beside both; it was made with the "
        "latter.",
    ),
    ("GEM", "The gradient of one remembered image of the epoch, of the last layer, may not be turned against."),
    ("Against", "The paired difference to the same network and optimizer without a method, seed by seed."),
    (
        "Metrics",
        "NSS, sAUC, AUC and CC, all better when higher, at the images' own size; results.json has the others too.",
    ),
)


def show(table: str, recipes: Sequence[Recipe], results: Results, out: Path, command: str) -> tuple[Page, list[Path]]:
    """Write ``index.html`` and ``table.md`` into ``out``, beside the ``results.json`` that the runs have left."""
    page = compose(table, recipes, results, command)
    told = "\n".join(f"- {text}" for text in page.findings)
    text = (
        f"# {page.title}\n\n{page.lead}\n\n    {page.command}\n\n{to_markdown(page.table)}\n\n{told}\n\n{page.made}\n"
    )
    return page, write_together(out, {"index.html": render(page), "table.md": text})


def compose(table: str, recipes: Sequence[Recipe], results: Results, command: str) -> Page:
    """The page."""
    sets = {"salicon": "SALICON 2017, scored on its validation set", "osie": "OSIE, scored on MIT1003"}
    first = recipes[0]
    return Page(
        title=f"Saliency: networks trained on {sets[table]}",
        lead=(
            f"The paper's rows, on the backbone {first.backbone}, {first.epochs} epochs in batches of {first.batch}. "
            "Within a seed all rows begin with the same weights."
        ),
        command=command,
        table=summary(table, recipes, results),
        findings=findings(recipes, results),
        figures=_figures(recipes, results),
        figures_note="Dots: seeds. Bars: means of the paired differences and their 95 % intervals.",
        notes=_NOTES,
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d} with PyTorch "
            f"{torch.__version__} and Python {platform.python_version()}. The numbers behind the table are in "
            "results.json beside this page."
        ),
    )


def summary(table: str, recipes: Sequence[Recipe], results: Results) -> Table:
    """One line a row: the four metrics, each with its paired difference and the paper's number."""
    columns = ["Row", "Seeds"]
    for metric in PRINTED:
        columns += [metric, f"{metric} against", f"{metric}, paper"]
    rows = []
    for recipe in recipes:
        if recipe.name not in results:
            continue
        values = results[recipe.name]
        line = [recipe.name, str(len(values["seed"]))]
        printed = PAPER[table].get(recipe.paper_row.removesuffix(" anchor"))
        for place, metric in enumerate(PRINTED):
            estimate = mean_interval(values[metric])
            line += [
                with_margin(estimate.mean, estimate.margin, 4),
                _told(_difference(recipe, results, metric)),
                NOTHING if printed is None else f"{printed[place][0]:.4f} (sd {printed[place][1]:.4f})",
            ]
        rows.append(line)
    bounds = [name for name in results if "seed" not in results[name]]
    for name in bounds:  # floor and ceiling, nothing random in them
        line = [name, NOTHING]
        for metric in PRINTED:
            line += [f"{results[name][metric][0]:.4f}" if metric in results[name] else NOTHING, NOTHING, NOTHING]
        rows.append(line)
    caption = (
        "Means over the seeds, ± their 95 % intervals. Against: the paired difference to the same network and "
        "optimizer without a method, with the p of the t-test. Paper: mean and standard deviation of its three runs."
    )
    return Table(caption, columns, rows)


def findings(recipes: Sequence[Recipe], results: Results) -> list[str]:
    """A sentence for every comparison that could be made."""
    told = []
    for recipe in recipes:
        parts = []
        for metric in PRINTED:
            difference = _difference(recipe, results, metric)
            if difference is None or not math.isfinite(difference.p):
                continue
            size = f"{abs(difference.mean):.4f} (p {p_value(difference.p)})"
            way = "rises" if difference.mean > 0 else "falls"
            clear = difference.p < 0.05
            parts.append(f"{metric} {way} by {size}" if clear else f"{metric} shows no clear change")
        if parts:
            told.append(f"{recipe.name}, against {_baseline(recipe)}: {'; '.join(parts)}.")
    return told or ["Too few seeds, or rows, to compare anything; run more of them."]


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
