"""The page of a study and its files: ``index.html``, ``table.md``, ``results.json``."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import torch

from congruency._version import __version__
from congruency.files import write_together
from congruency.report import charts
from congruency.report.page import Figure, Page, render
from congruency.report.tables import to_markdown
from congruency.studies.plan import Column, JobT, Study
from congruency.studies.results import RESULTS_FILE, Results, merged_rows, paired, to_json
from congruency.studies.statistics import paired_difference
from congruency.studies.store import Failure
from congruency.studies.summary import findings, summary_table

_ROWS_PER_CHART = 6


def compose(
    study: Study[JobT],
    results: Results,
    *,
    command: str,
    made: str = "",
    figures: Sequence[Figure] | None = None,
    figures_note: str = "",
    failures: Mapping[tuple[str, int], Failure] | None = None,
    repeated: int = 0,
) -> Page:
    """Return the page of a study.

    Args:
        made: How and on which machine it was computed.
        figures: Charts to show; None draws the paired differences.
        figures_note: How to read the charts.
        repeated: How often a run was resumed after an interruption.
    """
    digests = {job.digest(): row.name for row in study.rows for job in row.jobs}
    failed = Counter(digests[digest] for digest, _ in failures or {} if digest in digests)
    own_charts = figures is None
    return Page(
        title=study.title,
        lead=study.lead,
        command=command,
        table=summary_table(study, results, failed),
        findings=findings(study, results, failures, repeated),
        figures=difference_charts(study, results) if figures is None else figures,
        figures_title="Differences" if own_charts else "Curves",
        figures_note=(
            "Dots: seeds. Bars: means of the paired differences and their 95 % intervals."
            if own_charts
            else figures_note
        ),
        notes=study.notes,
        made=provenance(made),
    )


def write(page: Page, results: Results, out: Path, pictures: Mapping[str, str] | None = None) -> list[Path]:
    """Write the page, the table as Markdown and the results into a folder.

    ``pictures`` maps file names of pictures in the folder to captions; the Markdown shows them.
    """
    texts = {"index.html": render(page), "table.md": to_page_markdown(page, pictures), RESULTS_FILE: to_json(results)}
    return write_together(out, texts)


def to_page_markdown(page: Page, pictures: Mapping[str, str] | None = None) -> str:
    """Return the page as Markdown without charts; pictures (captions by file name) come before the last line."""
    listed = "\n".join(f"- {text}" for text in page.findings)
    notes = "\n".join(f"- {term}: {meaning}" for term, meaning in page.notes)
    shown = "\n\n".join(f"![{caption}]({name})" for name, caption in (pictures or {}).items())
    parts = (
        f"# {page.title}", page.lead, f"    {page.command}", to_markdown(page.table), listed, notes, shown, page.made
    )  # fmt: skip
    return "\n\n".join(filter(None, parts)) + "\n"


def difference_charts(study: Study[JobT], results: Results) -> list[Figure]:
    """Return charts of the paired differences per seed, a few rows per chart; rows with diverged runs are left out."""
    made = []
    for column in (column for column in study.columns if column.compared and column.in_table):
        samples = [
            _sample(label, pair, column)
            for label, (row, *_) in merged_rows(study, results).items()
            if row.against is not None
            and (pair := paired(results, row.name, row.against, column.key)) is not None
            and len(pair[0]) > 1
            and all(map(math.isfinite, (*pair[0], *pair[1])))
        ]
        count = math.ceil(len(samples) / _ROWS_PER_CHART)
        each = math.ceil(len(samples) / max(1, count))
        for part in (samples[i * each : (i + 1) * each] for i in range(count)):
            chart = charts.strip_chart(
                part,
                title=f"{column.heading}: paired differences",
                x_label=f"difference, {column.unit or column.heading}",
                group=column.key,
            )
            made.append(Figure(f"{column.heading}: paired differences", chart))
    return made


def _sample(name: str, pair: tuple[list[float], list[float]], column: Column) -> charts.Sample:
    ours, theirs = ([column.scale * value for value in side] for side in pair)
    difference = paired_difference(ours, theirs)
    values = [own - other for own, other in zip(ours, theirs, strict=True)]
    return charts.Sample(name, values, difference.mean, difference.margin)


def provenance(made: str = "", *, numbers: str = RESULTS_FILE) -> str:
    """Return the last line of a page: how it was made, the versions, and the file with its numbers, if any."""
    versions = f"the page with PyTorch {torch.__version__} and Python {platform.python_version()}"
    text = f"Made by congruency {__version__} on {datetime.now():%Y-%m-%d}{f', {made}' if made else ''}; {versions}."
    return f"{text} The numbers behind the table are in {numbers} beside this page." if numbers else text
