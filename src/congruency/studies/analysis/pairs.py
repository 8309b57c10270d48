"""``congruency pairs``: gradient congruency of pairs of samples beside their similarity (Figures 7 and 8).

Compares, in one network or over several, pairs within a class with pairs between classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from congruency.files import write_together
from congruency.measure.pairwise import pairwise_congruency, pairwise_similarity
from congruency.modules import head
from congruency.report.charts import heat_map
from congruency.report.numbers import fixed, listed
from congruency.report.page import Figure, Page, render
from congruency.report.pictures import picture
from congruency.studies.analysis.samples import Samples
from congruency.studies.page import compose as compose_study
from congruency.studies.page import to_page_markdown
from congruency.studies.plan import Column, Row, Study
from congruency.studies.results import RESULTS_FILE, Results, to_json
from congruency.studies.statistics import mean_interval

WITHIN, SIMILAR, BETWEEN = "within a class", "between similar classes", "between classes"
ANY = "between any two"
"""The kind of pairs if no class repeats."""
_MEASURES = ("congruency", "similarity")
_REFERENCES, _ACROSS = 4, 5  # references with pictures, and pictures beside each


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of n samples.

    Attributes:
        congruency: (n, n) cosines of their gradients in the last layer.
        similarity: (n, n) cosines of the normalised images.
    """

    congruency: Tensor
    similarity: Tensor
    labels: Sequence[str]


def compare(samples: Samples) -> Pairs:
    """Return both cosines of every pair; gradients are of the last layer, as in the paper."""
    chosen = list(head(samples.model).parameters())
    nu = pairwise_congruency(samples.model, samples.loss, samples.inputs, samples.targets, chosen)
    return Pairs(nu, pairwise_similarity(samples.seen), samples.labels)


def means(pairs: Pairs, similar: tuple[str, str] | None = None) -> dict[str, dict[str, float]]:
    """Return both cosines' means within a class and between classes, or over all pairs if no class repeats.

    Args:
        similar: Two similar classes, whose pairs have a mean of their own; "between classes" are then the pairs of the
            first one with all others, as in the paper's subsets of Figure 8.
    """
    masks = {kind: mask for kind, mask in _masks(pairs.labels, similar).items() if mask.any()}
    return {
        name: {kind: float(getattr(pairs, name)[mask].nanmean()) for kind, mask in masks.items()} for name in _MEASURES
    }


def _masks(labels: Sequence[str], similar: tuple[str, str] | None) -> dict[str, Tensor]:
    """Return a mask (n, n) for each kind of pairs, with each pair once."""
    of = torch.tensor([labels.index(label) for label in labels])
    upper = torch.ones(len(of), len(of)).triu(1).bool()
    if len(set(labels)) == len(labels):
        return {ANY: upper}
    same = of[:, None] == of
    if similar is None:
        return {WITHIN: same & upper, BETWEEN: ~same & upper}
    first, second = (of == labels.index(label) for label in similar)
    of_the_first, alike = first[:, None] ^ first, second[:, None] | second
    return {WITHIN: same & upper, SIMILAR: of_the_first & alike & upper, BETWEEN: of_the_first & ~alike & upper}


def _figures(samples: Samples, pairs: Pairs) -> list[Figure]:
    matrices = (("Congruency", pairs.congruency), ("Similarity of the images", pairs.similarity))
    maps = [
        Figure(title, heat_map(matrix.tolist(), title=title, x_label="sample", y_label="sample", low=-1.0, high=1.0))
        for title, matrix in matrices
    ]
    return [*maps, *(_row(samples, pairs, reference) for reference in _references(pairs.labels))]


_NOTES = (
    (
        "Congruency of two samples",
        "The cosine of the gradients of two samples with respect to the last layer's weights, at fixed weights: 1, "
        "both samples ask for the same update; 0, for unrelated ones; -1, for opposite ones.",
    ),
    ("Similarity", "The cosine of the normalised images, pixel by pixel: it depends on neither labels nor network."),
)


def _references(labels: Sequence[str]) -> list[int]:
    """Return the first sample of each class, or evenly spaced samples if no class repeats."""
    first = [labels.index(label) for label in dict.fromkeys(labels)]
    if len(first) < len(labels):
        return first[:_REFERENCES]
    return [round(i * (len(labels) - 1) / _REFERENCES) for i in range(_REFERENCES)][: len(labels)]


def _row(samples: Samples, pairs: Pairs, reference: int) -> Figure:
    """Show a reference with other samples, from the most congruent to the least."""
    cells = [_cell(samples, reference, "Ref.", "")]
    for other in _beside(pairs, reference):
        nu, similarity = float(pairs.congruency[reference, other]), float(pairs.similarity[reference, other])
        cells.append(_cell(samples, other, f"Cong. {fixed(nu, 4)}", f"Sim. {fixed(similarity, 4)}"))
    columns = "repeat(auto-fill, minmax(7rem, 1fr))"
    style = f"display: grid; margin-top: 0.6rem; grid-template-columns: {columns}; gap: 0.8rem;"
    title = f"Reference: {samples.labels[reference]} (sample {reference + 1})"
    return Figure(title, f'<div style="{style}">{"".join(cells)}</div>')


def _beside(pairs: Pairs, reference: int) -> list[int]:
    """Return samples evenly spaced along the ranking, from the most congruent to the least."""
    row = pairs.congruency[reference].nan_to_num(nan=-2.0)
    ranked = [i for i in row.argsort(descending=True, stable=True).tolist() if i != reference]
    if len(ranked) <= _ACROSS:
        return ranked
    return [ranked[round(i * (len(ranked) - 1) / (_ACROSS - 1))] for i in range(_ACROSS)]


def _cell(samples: Samples, sample: int, first: str, second: str) -> str:
    label = samples.labels[sample]
    shown = picture(
        samples.pictures[sample], f"Sample {sample + 1}, {label}", width=112, crisp=max(samples.inputs.shape[-2:]) < 64
    )
    lines = f"<strong>{escape(label)}</strong><br>{escape(first)}<br>{escape(second) or '&nbsp;'}"
    return f'<div style="font-size: 0.85rem; line-height: 1.35; overflow-wrap: anywhere;">{shown}<br>{lines}</div>'


_STUDY: Study[Any] = Study(
    name="pairs",
    title="Which samples agree on the update",
    lead="",
    rows=(),
    columns=tuple(Column(key=name, title=name.capitalize(), digits=4, unit="") for name in _MEASURES),
    caption="Means over all pairs of samples; one seed per network. Congruency: the cosine of two samples' "
    "gradients in the last layer. Similarity: that of the images.",
    notes=_NOTES,
)
"""The comparison over networks, one seed per network."""

_FIGURES_NOTE = (
    "Of the first network. In the matrices samples are ordered by class. Below, a reference and others: each with its "
    "congruency (Cong.) and similarity (Sim.) with the reference."
)


def results_of(every: Sequence[Pairs], similar: tuple[str, str] | None = None) -> Results:
    """Return the means over each kind of pairs, one value per network."""
    found, seeds = [means(pairs, similar) for pairs in every], [float(i) for i in range(len(every))]
    return {
        kind: {"seed": seeds, **{name: [values[name][kind] for values in found] for name in _MEASURES}}
        for kind in found[0][_MEASURES[0]]
    }


def compose(lead: str, results: Results, command: str, figures: Sequence[Figure] = ()) -> Page:
    """Return the page of one network or several, with the pictures of the first.

    Its findings are the paired tests, and the plain means of measures that are the same for all networks.
    """
    base = BETWEEN if BETWEEN in results else None
    rows = tuple(Row[Any](name=kind, jobs=(), against=None if kind == base else base) for kind in results)
    study = replace(_STUDY, lead=lead, rows=rows)
    page = compose_study(study, results, command=command, figures=figures, figures_note=_FIGURES_NOTE)
    several = ", the same for all networks" if len(next(iter(results.values()))["seed"]) > 1 else ""
    same = [
        f"{column.heading} is {listed([f'{fixed(results[kind][column.key][0], 4)} {kind}' for kind in results])}"
        f"{several}."
        for column in study.columns
        if all(math.isnan(mean_interval(metrics[column.key]).margin) for metrics in results.values())
    ]
    tested = [] if len(same) == len(study.columns) else page.findings
    return replace(page, findings=[*tested, *same], figures_title="Matrices and pictures")


def write(
    samples: Samples,
    every: Sequence[Pairs],
    out: Path,
    command: str,
    trained: Sequence[str],
    similar: tuple[str, str] | None = None,
) -> tuple[Page, list[Path]]:
    """Write ``index.html``, ``results.json`` and ``table.md``; ``samples`` are the first network's.

    ``trained`` are the commands that trained the networks, as far as known.
    """
    results = results_of(every, similar)
    lead = f"{samples.about}. Every two samples: the cosine of their gradients, beside that of the images alone."
    page = compose(lead, results, "\n    ".join([*trained, command]), _figures(samples, every[0]))
    contents = {"index.html": render(page), RESULTS_FILE: to_json(results), "table.md": to_page_markdown(page)}
    return page, write_together(out, contents)
