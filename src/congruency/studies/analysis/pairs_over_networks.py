"""Whether samples of one class agree more than those of two, over several trained networks (Figure 8, with seeds)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from congruency.files import write_together
from congruency.report.numbers import fixed, p_value, with_margin
from congruency.report.page import render
from congruency.report.tables import Table, to_markdown
from congruency.studies.analysis.pairs import Pairs, compose, means
from congruency.studies.analysis.samples import Samples
from congruency.studies.statistics import mean_interval, paired_difference

__all__ = ["findings", "results", "summary", "write"]

WITHIN, BETWEEN = "within a class", "between classes"
_METRICS = ("congruency", "similarity")

Results = dict[str, dict[str, list[float]]]


def results(every: Sequence[Pairs]) -> Results:
    """Means over the pairs of both kinds, one value a network.

    Raises:
        ValueError: The samples are not of several classes, with several samples of each.
    """
    found = [means(pairs) for pairs in every]
    if any(one is None for one in found):
        raise ValueError("several networks are compared by classes: give --classes A B, or more --samples")
    made: Results = {kind: {"seed": [float(i) for i in range(len(every))]} for kind in (WITHIN, BETWEEN)}
    for name in _METRICS:
        for kind, place in ((WITHIN, 0), (BETWEEN, 1)):
            made[kind][name] = [one[name][place] for one in found if one is not None]
    return made


def summary(found: Results) -> Table:
    """Both kinds of pairs by both measures."""
    count = len(found[WITHIN]["seed"])
    rows = []
    for kind in (WITHIN, BETWEEN):
        cells = [_estimate(found[kind][name]) for name in _METRICS]
        rows.append([kind, *cells])
    rows.append(["difference", *(_difference(found, name) for name in _METRICS)])
    return Table(
        f"Means over all pairs, of {count} networks, ± their 95 % intervals; the difference is paired by network. "
        "Congruency: the cosine of two samples' gradients in the last layer. Similarity: that of the images.",
        ["Pairs", "Congruency", "Similarity"],
        rows,
    )


def _estimate(values: Sequence[float]) -> str:
    estimate = mean_interval(values)
    return with_margin(estimate.mean, estimate.margin, 4)


def _difference(found: Results, name: str) -> str:
    difference = paired_difference(found[WITHIN][name], found[BETWEEN][name])
    return f"{with_margin(difference.mean, difference.margin, 4, sign=True)} (p {p_value(difference.p)})"


def findings(found: Results) -> list[str]:
    """What the paired tests say; where all networks gave the same, as they do of the images alone, the means."""
    told = []
    for name in _METRICS:
        inside, between = found[WITHIN][name], found[BETWEEN][name]
        difference = paired_difference(inside, between)
        word = "higher" if difference.mean > 0 else "lower"
        clear = f"is {word} within a class than between classes"
        if math.isnan(difference.p):
            values = f"{fixed(inside[0], 4)} within a class and {fixed(between[0], 4)} between classes"
            told.append(f"{name.capitalize()} is {values}, the same for all networks.")
            continue
        verdict = clear if difference.p < 0.05 else "shows no clear difference"
        told.append(f"{name.capitalize()} {verdict} (p {p_value(difference.p)}).")
    return told


def write(samples: Samples, every: Sequence[Pairs], out: Path, command: str, trained: Sequence[str]) -> list[Path]:
    """``index.html`` with the first network's matrices, ``results.json`` and ``table.md``.

    Args:
        samples: of the first network.
        every: what was found for each.
        out: a folder.
        command: that was typed.
        trained: the commands that trained the networks, where they are known.
    """
    found = results(every)
    table = summary(found)
    page = replace(
        compose(samples, every[0], command), table=table, findings=findings(found),
        figures_note="Of the first network. In the matrices samples stand class by class. Below, a reference and "
        "others: each with its congruency (Cong.) and similarity (Sim.) with the reference.",
    )  # fmt: skip
    commands = "\n".join(f"    {line}" for line in (*trained, command))
    text = [f"# {page.title}", page.lead, commands, to_markdown(table), *page.findings, page.made]
    contents: dict[str, str | bytes] = {
        "index.html": render(page),
        "results.json": json.dumps(found, indent=1) + "\n",
        "table.md": "\n\n".join(part.rstrip() for part in text) + "\n",
    }
    return write_together(out, contents)
