"""An audit as a page with pictures."""

from __future__ import annotations

import math
import platform
from dataclasses import replace
from datetime import datetime
from html import escape
from pathlib import Path

import torch

import congruency
from congruency.experiments.analysis.samples import png
from congruency.experiments.audit.audit import Audit
from congruency.experiments.audit.listing import to_csv, to_json
from congruency.experiments.audit.ranking import BASELINE, CLEANLAB, RANKINGS, area, most, suspicion
from congruency.experiments.audit.result import Result
from congruency.experiments.audit.tables import agreement_table, for_a_screen, found_table
from congruency.experiments.audit.verdict import Scored, findings
from congruency.experiments.evidence import mean_interval
from congruency.files import write_together
from congruency.report import charts
from congruency.report.numbers import fixed
from congruency.report.page import Figure, Page, render
from congruency.report.pictures import picture
from congruency.report.tables import to_markdown

__all__ = ["compose", "write"]

_IN_A_FIGURE = 12  # pictures
_BESIDE = " ranking.csv beside this page has every sample, results.json the numbers of every seed."
_SMALL = 64  # pixels: smaller pictures are shown with their pixels as squares
_EPOCH_SCORES = {
    "way": "congruency (way come)",
    "class": "congruency (class mean)",
    "direction": "congruency (class direction)",
    "loss": "loss",
}


def write(result: Result, out: Path, top: int) -> tuple[Page, list[Path]]:
    """``index.html``, ``table.md``, ``results.json`` and ``ranking.csv`` into a folder."""
    page = compose(result, top)
    texts = {
        "index.html": render(replace(page, table=for_a_screen(page.table))),
        "table.md": _markdown(page),
        "results.json": to_json(result.scores),
        "ranking.csv": to_csv(result),
    }
    return page, write_together(out, texts)


def compose(result: Result, top: int) -> Page:
    """The page; ``top``: how many pictures."""
    scores = result.scores
    curves = _curves(result)
    return Page(
        title="Which labels disagree with what the network learns",
        lead=result.about,
        command=result.command,
        table=found_table(result, scores) if result.flip is not None else agreement_table(scores),
        findings=[*_findings(result, scores), *result.remarks],
        headline=_headline(scores) if result.flip is not None else None,
        figures=[*curves, *_pictures(result, top)],
        figures_title=f"{'Over the training, and the' if curves else 'The'} most incongruent samples",
        figures_note=_figures_note(result),
        notes=_notes(result),
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d}, in {result.seconds:.0f} "
            f"seconds, with PyTorch {torch.__version__} and Python {platform.python_version()}.{_BESIDE}"
        ),
    )


def _findings(result: Result, scores: Scored) -> list[str]:
    if result.flip is not None:
        return findings(scores)
    audit = result.shown[0]
    main = audit.scores[audit.main]
    against = int((main < 0).sum())
    others = int((audit.predicted != audit.given).sum())
    measured = "the way come" if audit.main.startswith("congruency") else "their class's mean gradient"
    return [
        f"{against} of {len(main)} samples have a gradient that points against {measured}; the network itself calls "
        f"{others} by another label than the given one.",
        "How well such a ranking finds wrong labels on this set is not known from this page: audit a network that is "
        "trained on labels flipped for the purpose (--flip 0.2) to see it beside the loss and cleanlab.",
    ]


def _headline(scores: Scored) -> Figure | None:
    if BASELINE not in scores or len(scores[BASELINE]["auc"]) < 2:
        return None
    samples = []
    for name in _SHORT:
        if name in scores:
            values = [100 * (a - b) for a, b in zip(scores[name]["auc"], scores[BASELINE]["auc"], strict=True)]
            difference = mean_interval(values)
            samples.append(charts.Sample(_SHORT[name], values, difference.mean, difference.margin))
    label = "100 times the AUC, less that of the loss"
    return Figure(label, charts.strip_chart(samples, title=label, x_label=label, first=1), "Right of 0: better.")


_SHORT = {
    "congruency": "congruency (way come)",
    "class_congruency": "congruency (class mean)",
    "direction_congruency": "congruency (class direction)",
    CLEANLAB: "cleanlab",
}


def _curves(result: Result) -> list[Figure]:
    """Of flipped labels: the area by each epoch's score alone, and the scores of flipped and other labels."""
    length = len(next(iter(result.audits[0].epochs.values())))
    if result.flip is None or length < 2:
        return []
    areas = charts.line_chart(
        [_series(result, name, score, "area") for score, name in _EPOCH_SCORES.items()],
        title="AUC by epoch", x_label="epoch", y_label="AUC", possible=(0.0, 1.0),
    )  # fmt: skip
    figures = [Figure("How well each epoch's scores find them", areas, "AUC by the score of one epoch alone.")]
    for score, name in _EPOCH_SCORES.items():
        chart = charts.line_chart(
            [_series(result, title, score, title) for title in ("not flipped", "flipped")],
            title=name, x_label="epoch", y_label=name if score == "loss" else "congruency",
            possible=(0.0, math.inf) if score == "loss" else (-1.0, 1.0),
        )  # fmt: skip
        figures.append(Figure(name[0].upper() + name[1:], chart, "Means over the samples."))
    return figures


def _series(result: Result, name: str, score: str, what: str) -> charts.Series:
    columns = list(zip(*(_by_epoch(audit, score, what) for audit in result.audits), strict=True))
    estimates = [mean_interval(column) for column in columns]
    epochs = list(range(1, len(columns) + 1))
    return charts.Series(name, epochs, [e.mean for e in estimates], [e.margin for e in estimates])


def _by_epoch(audit: Audit, score: str, what: str) -> list[float]:
    assert audit.flipped is not None
    values = audit.epochs[score]
    if what == "area":
        ranking = next(name for name, one in RANKINGS.items() if one.score == score)
        return [area(suspicion(ranking, {ranking: row}), audit.flipped) for row in values]
    chosen = audit.flipped if what == "flipped" else ~audit.flipped
    means: list[float] = values[:, chosen].nanmean(1).tolist()
    return means


def _pictures(result: Result, top: int) -> list[Figure]:
    audit = result.shown[0]
    places = most(audit.suspicion(audit.main), top).tolist()
    figures = []
    for start in range(0, len(places), _IN_A_FIGURE):
        part = places[start : start + _IN_A_FIGURE]
        cells = "".join(_cell(result, audit, place, start + i + 1) for i, place in enumerate(part))
        style = "display: grid; margin-top: 0.6rem; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)); "
        title = f"Most incongruent, {start + 1} to {start + len(part)}"
        row = "" if start else ' class="new-row"'  # a chart beside them would stand in a card far too high for it
        figures.append(Figure(title, f'<div{row} style="{style}gap: 0.8rem;">{cells}</div>'))
    return figures


def _cell(result: Result, audit: Audit, place: int, rank: int) -> str:
    images = result.images.images
    classes = images.classes
    given, predicted = classes[int(audit.given[place])], classes[int(audit.predicted[place])]
    lines = [f"<strong>{rank}. {escape(given)}</strong>", f"network: {escape(predicted)}"]
    if audit.flipped is not None:
        own = escape(classes[int(images.labels[place])])
        lines.append(f"flipped from {own}" if audit.flipped[place] else "not flipped")
    lines.append(f"Cong. {fixed(float(audit.scores[audit.main][place]), 3)}")
    content = images.images[place]
    shown = picture(png(content), f"Sample {place}, labelled {given}", width=96, crisp=max(content.shape[1:]) < _SMALL)
    style = "font-size: 0.85rem; line-height: 1.35; overflow-wrap: anywhere;"
    return f'<div style="{style}">{shown}<br>{"<br>".join(lines)}</div>'


def _figures_note(result: Result) -> str:
    audit = result.shown[0]
    title = RANKINGS[audit.main].title
    note = (
        f"Pictures: the samples that stand lowest by {title[0].lower()}{title[1:]}, each with its given label in bold "
        "and the network's own."
    )
    if result.flip is None or len(result.audits) == 1:
        return note
    return f"{note} They are of seed {audit.seed}. Curves: means over the seeds; bands: 95 % intervals."


def _notes(result: Result) -> list[tuple[str, str]]:
    audit = result.shown[0]
    notes = [
        (
            "Congruency (way come)",
            "The cosine of a sample's gradient in the last layer with the gradient accumulated since the start of "
            "training, cos(g, -(w - w_start)): 1, the sample asks for what training has done; below 0, for the "
            "opposite. For a linear last layer it is a margin: how far training has raised the given label's output "
            "above those of the labels it competes with, on a scale free of the sample's own size.",
        ),
        (
            "Congruency (class mean), congruency (class direction)",
            "The cosine of a sample's gradient with the mean gradient of the other samples that have the same given "
            "label, wrong ones among them; or with the mean of their gradients' directions, to which samples with "
            "large gradients add no more than others.",
        ),
    ]
    if len(next(iter(audit.epochs.values()))) > 1:
        notes.append(
            (
                "Mean over epochs",
                "Every sample is measured at the end of every epoch, without augmentation, and the mean over the "
                "epochs is ranked; the loss likewise, so that both are followed alike.",
            )
        )
    if result.folds is not None:
        notes.append(
            (
                "cleanlab",
                f"Its label quality from probabilities of networks that did not see the sample, by {result.folds}-fold "
                f"cross-validation: {result.folds} more trainings a seed, each on {result.folds - 1} of "
                f"{result.folds} parts of the samples. Its default score is the probability of the given label, so it "
                "ranks as the loss of unseen samples would.",
            )
        )
    return notes


def _markdown(page: Page) -> str:
    told = "\n".join(f"- {text}" for text in page.findings)
    made = page.made.removesuffix(_BESIDE)
    table = to_markdown(page.table)
    return f"# {page.title}\n\n{page.lead}\n\n    {page.command}\n\n{table}\n\n{told}\n\n{made}\n"
