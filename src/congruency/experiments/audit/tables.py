"""The tables of an audit: how well rankings find flipped labels, or how like the loss they are."""

from __future__ import annotations

import math
import re

from congruency.experiments.audit.ranking import RANKINGS
from congruency.experiments.audit.result import Result
from congruency.experiments.audit.verdict import Scored
from congruency.experiments.evidence import mean_interval, paired_difference
from congruency.report.numbers import NOTHING, fixed, p_value, with_margin
from congruency.report.tables import Table

__all__ = ["agreement_table", "for_a_screen", "found_table", "narrow"]

_WITH_MARGIN = re.compile(r" ± [0-9.]+")


def found_table(result: Result, scores: Scored) -> Table:
    """How well each ranking finds what was flipped, beside the loss."""
    assert result.flip is not None
    rows = []
    for name, values in scores.items():
        row = [RANKINGS[name].title]
        for metric in ("auc", "precision"):
            estimate = mean_interval(values[metric])
            row += [with_margin(estimate.mean, estimate.margin, 4), _against(name, metric, scores)]
        rows.append(row)
    share = f"{100 * result.flip:g} %"
    seeds = len(result.audits)
    counted = "Of one seed." if seeds == 1 else f"Means over {seeds} seeds, ± their 95 % intervals."
    caption = (
        f"{counted} AUC: the chance that a flipped label ranks above one that is not (0.5 is chance). Precision at "
        f"{share}: flipped labels among the {share} most suspicious (chance: {result.flip:.2f}). Against the loss: "
        "paired differences, with the p of the t-test, to the loss at the end for congruencies at the end, and to its "
        "mean over epochs for all other rows."
    )
    columns = ["Ranking", "AUC", "AUC against the loss", f"Precision at {share}", "Precision against the loss"]
    return Table(caption, columns, rows)


def narrow(table: Table) -> Table:
    """For a terminal: without the differences, which the findings tell."""
    kept = [place for place, name in enumerate(table.columns) if "against" not in name]
    rows = [[row[place] for place in kept] for row in table.rows]
    return Table(table.caption.partition(" Against the loss:")[0], [table.columns[place] for place in kept], rows)


def for_a_screen(table: Table) -> Table:
    """As wide as a screen: the differences without their intervals, which the findings tell, and with short names."""
    told = [place for place, name in enumerate(table.columns) if "against" in name]
    rows = []
    for row in table.rows:
        cells = [_WITH_MARGIN.sub("", cell) if place in told else cell for place, cell in enumerate(row)]
        rows.append([cells[0].replace(", mean over epochs", ", mean"), *cells[1:]])
    return Table(f"Rows called mean: over the epochs. {table.caption}" if told else table.caption, table.columns, rows)


def _against(name: str, metric: str, scores: Scored) -> str:
    against = RANKINGS[name].against
    if against is None or against not in scores:
        return NOTHING
    difference = paired_difference(scores[name][metric], scores[against][metric])
    told = with_margin(difference.mean, difference.margin, 4, sign=True)
    return f"{told} (p {p_value(difference.p)})" if math.isfinite(difference.p) else told


def agreement_table(scores: Scored) -> Table:
    """How like the loss each ranking is, where nobody knows which labels are wrong."""
    rows = [
        [RANKINGS[name].title, *(fixed(mean_interval(values[m]).mean, 3) for m in ("rank_correlation", "overlap"))]
        for name, values in scores.items()
    ]
    caption = (
        "How far each ranking is the one by the loss: Spearman's correlation of the ranks, and the part of the most "
        "suspicious 5 % that the loss puts there too. Which labels are wrong nobody knows here."
    )
    return Table(caption, ["Ranking", "Rank correlation with the loss", "Shared with the loss's first 5 %"], rows)
