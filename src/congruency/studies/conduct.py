"""Conduct a study from top to bottom: execute and store the pending runs, then show results, table and page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from congruency.report.page import Figure
from congruency.studies.console import plain_warnings, progress
from congruency.studies.executor import Place, Runner, Stopped, execute
from congruency.studies.page import compose, write
from congruency.studies.plan import JobT, Study
from congruency.studies.results import Results, collect
from congruency.studies.store import RunResult, Store
from congruency.studies.summary import show
from congruency.training.processes import STOPPED_EXIT_CODE

FAILED_EXIT_CODE = 1


Finished = Mapping[tuple[str, int], RunResult]
Figures = Callable[[Study[JobT], Results, Finished], tuple[Sequence[Figure], str]]
"""Draws a study's charts from its results and finished runs; also returns a note on reading them."""
Derived = Callable[[Study[JobT], Results, Finished], Results]
"""Adds columns to a study's results that depend on several runs."""


def conduct(
    study: Study[JobT],
    runner: Runner[JobT],
    seeds: Sequence[int],
    out: Path,
    *,
    place: Place,
    settings: Mapping[str, Any],
    command: str,
    remembered: Mapping[str, Any] | None = None,
    made: Callable[[Mapping[str, Any]], str] = lambda settings: "",
    figures: Figures[JobT] | None = None,
    derived: Derived[JobT] | None = None,
    bounds: Results | None = None,
    pictures: Callable[[], Mapping[str, str]] | None = None,
    remarks: Callable[[Results], Sequence[str]] | None = None,
    console: Console | None = None,
) -> int:
    """Execute the runs that are not finished, store them, show the table and write the page.

    Args:
        seeds: Every job is run once per seed.
        out: The study's folder; runs finished there are not repeated.
        settings: Settings that all runs of the folder must share.
        remembered: Stored beside the settings the first time, never compared.
        made: Describes how and on which machine the runs were computed, from the folder's settings.
        figures: Draws the charts; None draws the paired differences.
        derived: Adds columns that depend on several runs.
        bounds: Rows without runs, shown at the end of the table.
        pictures: Called after the runs; writes pictures into the folder and returns their captions by file name, for
            ``table.md``.
        remarks: Returns further findings.

    Returns:
        The exit code: 0, 1 if runs failed, 75 if SIGTERM stopped the command.
    """
    console = console or Console()
    began, store, runs = perf_counter(), Store(out), study.runs(seeds)
    if store.settings() is not None:
        store.check_settings(settings)
    pending = store.pending(runs)
    try:
        with plain_warnings(), progress(console, "runs") as notify:
            outcomes = execute(pending, runner, place, store, notify)
            store.check_settings(settings, remembered)  # stored only after the input was checked
            for run, outcome in outcomes:
                store.add(run, outcome)
    except Stopped:
        console.print("stopped; the same command resumes where it stopped", markup=False)
        return STOPPED_EXIT_CODE
    finished = store.load()
    results = collect(study, finished)
    results = {**(results if derived is None else derived(study, results, finished)), **(bounds or {})}
    charts, note = (None, "") if figures is None else figures(study, results, finished)
    page = compose(
        study, results, command=command, made=made(store.settings() or {}), figures=charts,
        figures_note=note, failures=store.failures(), repeated=store.repeated_attempts(),
    )  # fmt: skip
    page = replace(page, findings=[*page.findings, *([] if remarks is None else remarks(results))])
    paths = write(page, results, out, {} if pictures is None else pictures())
    console.print(page.title, markup=False, highlight=False)
    show(page.table, page.findings, f"{perf_counter() - began:.0f} seconds. The page: {paths[0]}", console)
    return FAILED_EXIT_CODE if {run.key for run in runs} & store.failures().keys() else 0
