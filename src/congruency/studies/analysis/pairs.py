"""``congruency pairs``: how far two samples agree on the update, beside how far they look alike (Figures 7 and 8)."""

from __future__ import annotations

import csv
import io
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import combinations_with_replacement
from pathlib import Path

import torch
from torch import Tensor

import congruency
from congruency.files import write_together
from congruency.measure.pairwise import pairwise_congruency, pairwise_similarity
from congruency.modules import head
from congruency.report.charts import heat_map
from congruency.report.numbers import NOTHING, fixed
from congruency.report.page import Figure, Page, render
from congruency.report.pictures import picture
from congruency.report.tables import Table
from congruency.studies.analysis.samples import Samples

__all__ = ["Kind", "Pairs", "compare", "compose", "findings", "kinds", "means", "summary", "write"]

_ACROSS = 5  # pictures beside a reference


@dataclass(frozen=True, eq=False)
class Pairs:
    """Every two of n samples.

    Attributes:
        congruency: (n, n) cosines of their gradients in the last layer.
        similarity: (n, n) cosines of the raw inputs, as the network sees them.
        labels: of the samples.
    """

    congruency: Tensor
    similarity: Tensor
    labels: Sequence[str]


@dataclass(frozen=True)
class Kind:
    """The pairs of two labels: how many, and mean and standard deviation of both cosines."""

    first: str
    second: str
    count: int
    congruency: tuple[float, float]
    similarity: tuple[float, float]


def compare(samples: Samples) -> Pairs:
    """Both cosines of every pair, gradients by the last layer's parameters, as in the paper."""
    chosen = list(head(samples.model).parameters())
    nu = pairwise_congruency(samples.model, samples.loss, samples.inputs, samples.targets, chosen)
    return Pairs(nu, pairwise_similarity(samples.seen), samples.labels)


def kinds(pairs: Pairs) -> list[Kind]:
    """Pairs within each label, and between every two; a sample is no pair with itself."""
    labels = list(dict.fromkeys(pairs.labels))
    if len(labels) == len(pairs.labels):
        labels = []  # samples without classes: all pairs are of one kind
    of = torch.tensor([labels.index(label) if labels else 0 for label in pairs.labels])
    made = []
    for a, b in combinations_with_replacement(range(max(1, len(labels))), 2):
        mask = ((of[:, None] == a) & (of == b)).triu(1) | ((of[:, None] == b) & (of == a)).triu(1)
        nu, similarity = pairs.congruency[mask], pairs.similarity[mask]
        names = (labels[a], labels[b]) if labels else ("any image", "any other")
        made.append(Kind(*names, int(mask.sum()), _moments(nu), _moments(similarity)))
    return sorted(made, key=lambda kind: kind.first != kind.second)


def _moments(values: Tensor) -> tuple[float, float]:
    kept = values[~values.isnan()].double()
    mean = float(kept.mean()) if len(kept) else float("nan")
    return mean, float(kept.std()) if len(kept) > 1 else float("nan")


def summary(pairs: Pairs, most: int = 30) -> Table:
    """One row a kind of pair; of many classes, the first kinds."""
    rows = []
    for kind in kinds(pairs)[:most]:
        name = f"{kind.first} - {kind.second}"
        rows.append(
            [name, str(kind.count), *(text for pair in (kind.congruency, kind.similarity) for text in _of(pair))]
        )
    caption = (
        "Congruency: the cosine of two samples' gradients in the last layer. Similarity: that of the images as the "
        "network sees them. Means and standard deviations over the pairs."
    )
    return Table(caption, ["Pair", "Pairs", "Congruency", "std", "Similarity", "std"], rows)


def _of(moments: tuple[float, float]) -> list[str]:
    return [fixed(moments[0], 4), fixed(moments[1], 4)]


def means(pairs: Pairs) -> dict[str, tuple[float, float]] | None:
    """Both cosines, mean within a class and mean between classes; None where there are no such pairs."""
    every = kinds(pairs)
    same, other = ([kind for kind in every if (kind.first == kind.second) is alike] for alike in (True, False))
    if not same or not other or not any(kind.count for kind in same):
        return None
    return {name: (_pooled(same, name), _pooled(other, name)) for name in ("congruency", "similarity")}


def findings(pairs: Pairs) -> list[str]:
    """Whether samples of one class agree more than those of two, by both measures."""
    told = [
        f"{name} {fixed(inside, 4)} within a class and {fixed(between, 4)} between classes"
        for name, (inside, between) in (means(pairs) or {}).items()
    ]
    return [f"Mean {'; '.join(told)}."] if told else []


def _pooled(every: Sequence[Kind], name: str) -> float:
    counted = [kind for kind in every if kind.count and getattr(kind, name)[0] == getattr(kind, name)[0]]
    total = sum(kind.count for kind in counted)
    return sum(kind.count * getattr(kind, name)[0] for kind in counted) / total if total else float("nan")


def compose(samples: Samples, pairs: Pairs, command: str) -> Page:
    """The page: matrices, and pictures beside their references."""
    words = (("Congruency", pairs.congruency), ("Similarity of the images", pairs.similarity))
    figures = [
        Figure(title, heat_map(matrix.tolist(), title=title, x_label="sample", y_label="sample", low=-1.0, high=1.0))
        for title, matrix in words
    ]
    figures += [_row(samples, pairs, reference) for reference in _references(pairs.labels)]
    return Page(
        title="Which samples agree on the update",
        lead=f"{samples.about}. Every two samples: the cosine of their gradients, beside that of the images alone.",
        command=command,
        table=summary(pairs),
        findings=findings(pairs),
        figures=figures,
        figures_title="Matrices and pictures",
        figures_note=(
            "In the matrices samples stand class by class. Below, a reference and others: each with its congruency "
            "(Cong.) and similarity (Sim.) with the reference."
        ),
        notes=_NOTES,
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d} with PyTorch "
            f"{torch.__version__} and Python {platform.python_version()}."
        ),
    )


_NOTES = (
    (
        "Congruency of two samples",
        "The network's weights are held, each sample makes its gradient of the last layer's weights alone, and the "
        "cosine of two of them is taken: 1, both samples ask for the same update; 0, they do not touch each other's; "
        "-1, they ask for opposite ones.",
    ),
    (
        "Similarity",
        "The cosine of the normalised images, pixel by pixel: it knows nothing of labels or of the network.",
    ),
)


def _references(labels: Sequence[str], most: int = 4) -> list[int]:
    """The first sample of each class; of samples without classes, evenly chosen ones."""
    first = [labels.index(label) for label in dict.fromkeys(labels)]
    if len(first) < len(labels):
        return first[:most]
    return [round(i * (len(labels) - 1) / most) for i in range(most)][: len(labels)]


def _row(samples: Samples, pairs: Pairs, reference: int) -> Figure:
    """A reference and samples beside it, from the most congruent to the least."""
    cells = [_cell(samples, reference, "Ref.", "")]
    for other in _beside(pairs, reference):
        nu, similarity = float(pairs.congruency[reference, other]), float(pairs.similarity[reference, other])
        cells.append(_cell(samples, other, f"Cong. {_signed(nu)}", f"Sim. {_signed(similarity)}"))
    columns = "repeat(auto-fill, minmax(7rem, 1fr))"
    style = f"display: grid; margin-top: 0.6rem; grid-template-columns: {columns}; gap: 0.8rem;"
    title = f"Reference: {samples.labels[reference]} (sample {reference + 1})"
    return Figure(title, f'<div style="{style}">{"".join(cells)}</div>')


def _beside(pairs: Pairs, reference: int, count: int = _ACROSS) -> list[int]:
    """From the most congruent sample to the least, evenly along the ranking."""
    row = pairs.congruency[reference].nan_to_num(nan=-2.0)
    ranked = [i for i in row.argsort(descending=True, stable=True).tolist() if i != reference]
    if len(ranked) <= count:
        return ranked
    return [ranked[round(i * (len(ranked) - 1) / (count - 1))] for i in range(count)]


def _cell(samples: Samples, sample: int, first: str, second: str) -> str:
    label = samples.labels[sample]
    shown = picture(samples.pictures[sample], f"Sample {sample + 1}, {label}", width=112, crisp=_is_small(samples))
    lines = f"<strong>{escape(label)}</strong><br>{escape(first)}<br>{escape(second) or '&nbsp;'}"
    return f'<div style="font-size: 0.85rem; line-height: 1.35; overflow-wrap: anywhere;">{shown}<br>{lines}</div>'


def _is_small(samples: Samples) -> bool:
    return max(samples.inputs.shape[-2:]) < 64


def _signed(value: float) -> str:
    return fixed(value, 4) if value == value else NOTHING


def to_csv(matrix: Tensor, labels: Sequence[str]) -> str:
    """A matrix for a spreadsheet: a row and a column a sample."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = [f"{i + 1} {label}" for i, label in enumerate(labels)]
    writer.writerow(["", *names])
    writer.writerows(
        [name, *(f"{value:.6f}" for value in row)] for name, row in zip(names, matrix.tolist(), strict=True)
    )
    return buffer.getvalue()


def to_json(pairs: Pairs) -> str:
    """The kinds of pairs."""
    made = [
        {
            "pair": [kind.first, kind.second], "count": kind.count,
            "congruency": [_or_none(value) for value in kind.congruency],
            "similarity": [_or_none(value) for value in kind.similarity],
        }
        for kind in kinds(pairs)
    ]  # fmt: skip
    return json.dumps(made, indent=1) + "\n"


def _or_none(value: float) -> float | None:
    return value if value == value else None


def write(samples: Samples, pairs: Pairs, out: Path, command: str) -> list[Path]:
    """``index.html``, ``results.json`` and both matrices as CSV into a folder."""
    contents: dict[str, str | bytes] = {
        "index.html": render(compose(samples, pairs, command)),
        "results.json": to_json(pairs),
        "congruency.csv": to_csv(pairs.congruency, pairs.labels),
        "similarity.csv": to_csv(pairs.similarity, pairs.labels),
    }
    return write_together(out, contents)
