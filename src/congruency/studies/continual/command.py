"""``congruency reproduce`` for the continual-learning tables: run under a progress bar, show, write."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from congruency.report.tables import Table, to_rich
from congruency.studies.console import progress
from congruency.studies.continual.reproduce import Settings, run_rows
from congruency.studies.continual.showing import show
from congruency.studies.continual.tuning import tune as search

__all__ = ["run"]

_WIDE = 190  # columns of a terminal that the whole table needs


def run(*, out: Path, tune: str | None = None, **options: Any) -> None:
    """Run a table, or with ``tune`` the search for a rival's settings; the options are those of :class:`Settings`."""
    console = Console()
    settings = Settings(**options)
    began = perf_counter()
    with progress(console) as tell:
        if tune is not None:
            table = search(tune, settings, out, tell)  # type: ignore[arg-type]
            written = out / f"tuning-{tune}.json"
        else:
            results = run_rows(settings, out, tell)
    if tune is not None:
        console.print(to_rich(table))
        console.print(f"written to {written}", markup=False, highlight=False)
        return
    seconds = perf_counter() - began
    page, paths = show(settings, results, out, shlex.join(["congruency", *sys.argv[1:]]), seconds)
    console.print(to_rich(page.table if console.width >= _WIDE else _narrow(page.table)))
    console.print(f"\n{seconds:.0f} seconds. The page: {paths[1]}", markup=False, highlight=False)


def _narrow(table: Table) -> Table:
    """Means and the accuracy's difference with its p alone, for a narrow terminal."""
    rows = []
    for row in table.rows:
        mean, _, p = row[2].partition(" ± ")
        difference = f"{mean} {p[p.index('(') :]}" if "(" in p else row[2]
        rows.append([row[0], row[1], difference, row[3].partition(" ±")[0], row[5].partition(" ±")[0]])
    caption = table.caption.partition(" Paper:")[0] + " The page has the other columns."
    return Table(caption, ["Row", "Accuracy, %", "against GEM", "BWT", "FWT"], rows)
