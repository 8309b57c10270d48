"""Write the README's table of what helps from the stored results: ``make readme-table``.

Every result at tuned learning rates is in it, with all its methods; of the others, the rows that are named here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from congruency.language import PRESETS, Shape
from congruency.report.numbers import fixed, p_value, with_margin
from congruency.studies.classification.grids import TEST_ERROR
from congruency.studies.classification.tuned import TUNED
from congruency.studies.continual.tables import COLUMNS
from congruency.studies.language.study import VALIDATION_LOSS
from congruency.studies.plan import Column, Row, Study
from congruency.studies.results import comparisons, read_results
from congruency.studies.statistics import mean_interval
from congruency.training.methods import BASELINE, FAMILIES, method_named
from congruency.training.wording import method_name

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
_TABLE = re.compile(r"^(<!-- what helps -->)\n.*?^(<!-- end -->)$", re.M | re.S)
_FAMILIES = ("Language modelling", "Classification", "Fine-tuning", "Continual learning", "Saliency prediction")
_CLEAR = 0.05


@dataclass(frozen=True, kw_only=True)
class Part:
    """Comparisons of one stored result with one row of it.

    Attributes:
        methods: What the table calls each row.
        rising: Whether more is better.
    """

    family: str
    folder: str
    task: str
    column: Column
    methods: dict[str, str]
    against: str = BASELINE
    rising: bool = False


_OF_FAMILIES = {
    "gem": "GEM, last layer",
    "cautious": "Cautious",
    "dcl": "DCL",
    "concentrate": "DCL concentrate, no floor",
    "concentrate-update": "DCL concentrate, no floor, corrects the update",
    "anchor": "DCL anchor",
    "anchor-update": "DCL anchor, corrects the update",
    "anchor-start": "DCL anchor, at the initial weights",
    "l2sp": "L2-SP",
}
"""The families of methods of which tuning chose one."""

_ACCURACY, _NSS = COLUMNS[0], Column(key="NSS", unit="", digits=4)
_NETWORK = "DINet EfficientNet-Lite0 pretrained Adam"
_CONTINUAL = {
    "plain SGD": {"GEM": "GEM"},
    "GEM": {"GEM with DCL-10-1": "+ DCL, window 10", "ER": "ER instead", "DER++": "DER++ instead"},
}
_OTHERS = (
    *(
        Part(
            family="Continual learning", folder=folder, task=f"{task}, {against}, accuracy in %", column=_ACCURACY,
            against=against, rising=True, methods=methods,
        )
        for folder, task in (("mnist_r_tuned", "MNIST rotations"), ("mnist_p_tuned", "MNIST permutations"))
        for against, methods in _CONTINUAL.items()
    ),
    Part(
        family="Saliency prediction", folder="osie", task="OSIE, DINet with EfficientNet-Lite0, NSS", column=_NSS,
        against=_NETWORK, rising=True,
        methods={
            f"{_NETWORK} GEM": "GEM, last layer",
            f"{_NETWORK} DCL-inf-1": "DCL, last layer",
            f"{_NETWORK} DCL-inf-1 anchor": "DCL, last layer, anchor",
        },
    ),
)  # fmt: skip


def filled(markdown: str, results: Path = RESULTS) -> str:
    """Return a page with the table between its two comments as the stored results have it now."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{table(results)}\n{found[2]}", markdown)


def table(results: Path = RESULTS) -> str:
    """Return the table: a line per method of every result that is there, family by family."""
    parts = [*_at_tuned_rates(results), *(part for part in _OTHERS if (results / part.folder).is_dir())]
    lines = ["| task, and the result without | method | difference | n | p |", "|---|---|--:|--:|--:|"]
    for family in _FAMILIES:
        own = [line for part in parts if part.family == family for line in _lines(part, results)]
        lines += [f"| **{family}** | | | | |", *own] if own else []
    return "\n".join(lines)


def _at_tuned_rates(results: Path) -> Iterator[Part]:
    for path in sorted(results.glob("*/settings.json")):
        settings, folder = json.loads(path.read_text("utf-8")), path.parent
        found = read_results(folder) or {}  # none where a comparison was begun and not finished yet
        if settings.get("study") not in ("tuned", "language") or not found or not (folder / "tuning").is_dir():
            continue
        families = FAMILIES if settings.get("screen") else {}
        methods = {
            name: f"{_OF_FAMILIES[name]}, the best of {len(families[name])}"
            if name in families
            else method_name(method_named(name).settings())
            for name in found
            if name != BASELINE
        }
        family, task, column = (_language if settings["study"] == "language" else _classifier)(settings)
        yield Part(family=family, folder=folder.name, task=task, column=column, methods=methods)


def _language(settings: dict[str, Any]) -> tuple[str, str, Column]:
    setup = settings["setup"]
    size = next(name for name, shape in PRESETS.items() if shape == Shape(**setup["shape"]))
    return "Language modelling", f"GPT {size}, AdamW, {setup['steps']} steps, validation loss", VALIDATION_LOSS


def _classifier(settings: dict[str, Any]) -> tuple[str, str, Column]:
    known, changes = TUNED[settings["table"]], settings["changes"]
    optimizer = {"sgd": "SGD", "adamw": "AdamW"}[known.setup.optimizer]
    title, epochs = known.title.removesuffix(" with SGD"), changes.get("epochs", known.setup.epochs)
    family = "Fine-tuning" if known.setup.pretrained else "Classification"
    return family, f"{title}, {optimizer}, {epochs} epochs, error in %", TEST_ERROR


def _lines(part: Part, results: Path) -> list[str]:
    found, column = read_results(results / part.folder) or {}, part.column
    rows = tuple(Row[Any](name=name, jobs=(), against=part.against) for name in part.methods)
    missing = [name for name in (part.against, *part.methods) if name not in found]
    if missing:
        raise ValueError(f"{part.folder} has no row {missing[0]!r}; name another in docs/making/readme_table.py")
    made = comparisons(Study(name="", title="", lead="", rows=rows, columns=(column,)), found)
    without = fixed(column.scale * mean_interval(found[part.against][column.key]).mean, column.digits)
    task = f"[{part.task}](docs/results/{part.folder}/table.md) ({without})"
    lines = []
    for name, method in part.methods.items():
        one = made[name, column.key]
        margin = column.scale * one.difference.margin
        shown = with_margin(column.scale * one.difference.mean, margin, column.digits, sign=True)
        better = (one.difference.mean > 0) == part.rising
        mark = ("**" if better else "*") if one.adjusted < _CLEAR else ""
        lines.append(f"| {task} | {method} | {mark}{shown}{mark} | {one.difference.count} | {p_value(one.adjusted)} |")
        task = ""
    return lines


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(filled(page.read_text("utf-8")), "utf-8")
