"""The tables and analyses kept under docs/results come out of their results, or of the code, as they are."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from congruency.report.numbers import p_value, with_margin
from congruency.studies.analysis import bound, descent, illustrate, pairs
from congruency.studies.page import to_page_markdown
from congruency.studies.results import paired, read_results, to_json
from congruency.studies.statistics import mean_interval, paired_difference
from replication.rows import definition

RESULTS = Path(__file__).parents[2] / "docs" / "results"
_STEPS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.1, 1.25, 1.5, 1.75, 1.9)


def without_provenance(text):
    return "\n".join(line for line in text.splitlines() if not line.startswith("Made by"))


def test_pairs_of_classes():
    folder = RESULTS / "class_pairs_cifar10"
    kept = (folder / "table.md").read_text(encoding="utf-8")
    lead = kept.splitlines()[2]
    commands = "\n    ".join(line.strip() for line in kept.splitlines() if line.startswith("    "))
    page = pairs.compose(lead, read_results(folder), commands)
    assert without_provenance(to_page_markdown(replace(page, made=""))) == without_provenance(kept).rstrip("\n")
    results = read_results(folder)
    assert json.loads(to_json(results)) == json.loads((folder / "results.json").read_text())


def test_orders_of_the_digits():
    """This table is written by hand, around numbers that are those of the results."""
    results = read_results(RESULTS / "order_digits")
    kept = (RESULTS / "order_digits" / "table.md").read_text(encoding="utf-8")
    study = definition("order_digits")
    rows = study.find(sample_order="fixed")
    assert len(rows) == 4
    for row in rows:
        (other,) = study.find(**{**row.settings, "sample_order": "independent"})
        cells = []
        for name in (row.name, other.name):
            estimate = mean_interval(results[name]["congruency"])
            cells.append(with_margin(estimate.mean, estimate.margin, 4))
        difference = paired_difference(*paired(results, row.name, other.name, "congruency"))
        cells += [with_margin(difference.mean, difference.margin, 4, sign=True), p_value(difference.p)]
        assert f" | {' | '.join(cells)} |" in kept, row.name


def test_the_paths_of_figure_5():
    kept = json.loads((RESULTS / "illustrate" / "results.json").read_text())
    results = descent.illustrate(descent.SURFACES["paper"], list(descent.OPTIMIZERS.values()))
    made = json.loads(illustrate.to_json(results))
    assert made["formula"] == kept["formula"]
    assert made["optimizers"].keys() == kept["optimizers"].keys()
    for name, one in made["optimizers"].items():
        assert one["agree"] == kept["optimizers"][name]["agree"]
        for ours, theirs in zip(one["paths"], kept["optimizers"][name]["paths"], strict=True):
            near = {key: pytest.approx(theirs[key], rel=1e-6, abs=1e-9) for key in ("end", "z", "length", "distance")}
            assert ours == {**theirs, **near}


def test_the_bound_and_the_congruency_it_bounds():
    kept = json.loads((RESULTS / "bound" / "results.json").read_text())
    problems = {name: make() for name, make in bound.PROBLEMS.items()}
    results = {name: (one, [bound.compare(one, size, 40) for size in _STEPS]) for name, one in problems.items()}
    made = json.loads(bound.to_json(results))
    assert made.keys() == kept.keys()
    for name, one in made.items():
        assert one["lipschitz"] == pytest.approx(kept[name]["lipschitz"])
        for ours, theirs in zip(one["steps"], kept[name]["steps"], strict=True):
            assert ours.keys() == theirs.keys()
            for key, values in ours.items():
                assert values == pytest.approx(theirs[key], rel=1e-6, abs=1e-9)
