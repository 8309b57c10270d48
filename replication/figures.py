"""Charts of a stored result for its page in the documentation, drawn without running anything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from congruency.continual import Scenario
from congruency.report.charts import line_chart
from congruency.report.page import Figure
from congruency.studies.ablation import curves
from congruency.studies.analysis.pairs import BETWEEN
from congruency.studies.classification.grids import TEST_ERROR
from congruency.studies.continual.parts import part_study
from congruency.studies.continual.tables import COLUMNS, FORGETTING, SCORES, StreamSettings, Table
from congruency.studies.continual.tuning import AGAINST, COMPARED
from congruency.studies.curves import learning_curves, setting_series
from congruency.studies.image_tables import TITLES as IMAGE_TABLES
from congruency.studies.image_tables import study_of
from congruency.studies.language.study import VALIDATION_LOSS
from congruency.studies.page import difference_charts
from congruency.studies.plan import Column, Row, Study
from congruency.studies.results import Results, read_results
from congruency.studies.saliency.recipes import PRINTED
from congruency.studies.store import Store
from congruency.training.methods import BASELINE
from replication.rows import definition

_COLUMNS: dict[str, tuple[Column, ...]] = {
    **dict.fromkeys(("mnist_r", "mnist_p", "icifar100_clean", "icifar100_clean_tenth"), COLUMNS),
    "osie": tuple(Column(key=metric, unit="", digits=4) for metric in PRINTED),
    "order_digits": (Column(key="congruency", title="Congruency", unit="", digits=4),),
    "ablation_digits": (TEST_ERROR,),
}
_MARGINS: dict[str, Table] = {"mnist_r_margins": "mnist_r", "mnist_p_margins": "mnist_p"}
_SPLITS: dict[str, Scenario] = {"split_mnist_class": "class", "split_mnist_task": "task"}
_AT_TUNED_RATES = {"tuned": (TEST_ERROR, "test_error"), "language": (VALIDATION_LOSS, "validation_loss")}
"""The compared column of studies at tuned rates, and the name of its curve by step."""


def result_figures(folder: Path) -> list[Figure]:
    """Return the charts of a folder of results; empty if there is nothing to draw.

    These are paired differences by seed; for ablations and costs curves by setting; at tuned rates also curves by step.
    """
    results = read_results(folder)
    if not results:
        return []
    name, study = folder.name, _study(folder)
    if name == "ablation_digits":
        return curves(study, results, {})[0]
    if name.startswith("cost_"):
        return [_by_setting(study, results)]
    if name in ("class_pairs", "class_pairs_cifar10"):
        rows = tuple(Row[Any](name=kind, jobs=(), against=None if kind == BETWEEN else BETWEEN) for kind in results)
        columns = (Column(key="congruency", title="Congruency", unit=""),)
        return _differences(replace(study, rows=rows, columns=columns), results)
    return [*_by_step(folder, study), *_differences(study, results)]


def _differences(study: Study[Any], results: Results) -> list[Figure]:
    whom = {row.against for row in study.rows if row.against is not None}
    other = whom.pop() if len(whom) == 1 else "the row it is compared with"
    note = f"Differences to {other}. Dots: seeds. Bars: means and their 95 % intervals."
    return [replace(figure, note=note) for figure in difference_charts(study, results)]


def _study(folder: Path) -> Study[Any]:
    settings = Store(folder).settings() or {}
    known = definition(folder.name) or Study(name=folder.name, title="", lead="", rows=(), columns=())
    rows: tuple[Row[Any], ...]
    if settings.get("study") in _AT_TUNED_RATES:
        column, _ = _AT_TUNED_RATES[settings["study"]]
        names = read_results(folder) or {}
        rows = tuple(Row(name=name, jobs=(), against=None if name == BASELINE else BASELINE) for name in names)
        return replace(known, rows=rows, columns=(column,))
    if settings.get("table") in IMAGE_TABLES:
        return study_of(settings)
    if folder.name in ("mnist_r_tuned", "mnist_p_tuned"):
        rows = tuple(Row(name=name, jobs=(), against=AGAINST.get(name)) for name in COMPARED)
        return replace(known, rows=rows, columns=(*SCORES, FORGETTING))
    if folder.name in _MARGINS:
        return part_study(StreamSettings(table=_MARGINS[folder.name]), part="margins")
    if folder.name in _SPLITS:
        return part_study(StreamSettings(table="split_mnist", scenario=_SPLITS[folder.name]))
    if folder.name == "order_digits":  # compares one order with the other
        fixed = known.find(sample_order="fixed")
        others = [known.find(**{**row.settings, "sample_order": "independent"})[0].name for row in fixed]
        rows = tuple(replace(row, against=other) for row, other in zip(fixed, others, strict=True))
        known = replace(known, rows=rows)
    return replace(known, columns=_COLUMNS.get(folder.name, ()))


def _by_setting(study: Study[Any], results: Results) -> Figure:
    """Draw the cost over the table's columns, windows or numbers of references."""
    lines = [
        setting_series(row.name, [results[row.name][column.key] for column in study.columns]) for row in study.rows
    ]
    names = [column.key for column in study.columns]
    what = study.columns[0].heading.partition(" ")[0]
    title = f"Milliseconds per image by {what}"
    return Figure(title, line_chart(lines, title=title, x_label=what, y_label="ms", x_names=names))


def _by_step(folder: Path, study: Study[Any]) -> list[Figure]:
    """Draw the learning curves of methods at tuned rates: the compared metric and the training loss."""
    known = _AT_TUNED_RATES.get((Store(folder).settings() or {}).get("study", ""))
    if known is None:
        return []
    column, compared = known
    records = [json.loads(line) for line in (folder / "finished.jsonl").read_text("utf-8").splitlines()]
    runs: dict[str, dict[int, Any]] = {row.name: {} for row in study.rows}
    for record in sorted(records, key=lambda record: record["seed"]):
        if record["row"] in runs:
            runs[record["row"]][record["seed"]] = record["arrays"]
    return learning_curves({name: made for name, made in runs.items() if made}, compared, column.heading)
