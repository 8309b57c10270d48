import itertools
import math
import random
import warnings

import pytest
import torch
from chart_data import chart_data, lines

import congruency
from congruency.classification.image_options import ImageOptions
from congruency.studies.ablation import ablation_study, curves, from_options, from_recipe, inactive
from congruency.studies.classification.cells import Axes, cell_name, cells
from congruency.studies.page import compose
from congruency.studies.results import comparisons
from congruency.studies.statistics import holm
from congruency.studies.store import Failure


def test_every_combination_is_a_cell_once():
    axes = Axes(windows=(5, None, 5), references=(1, 2), modes=("concentrate", "anchor"), scopes=("head", "all"))
    made = cells(axes)
    wanted = itertools.product((5, None), (1, 2), (("concentrate", 0.0), ("anchor", 0.5)), ("head", "all"))
    assert {(c.window, c.references, (c.mode, c.margin), c.scope) for c in made} == set(wanted)
    assert len(set(map(cell_name, made))) == len(made) == 16
    assert cell_name(made[0]) == "DCL-5-1, concentrate, margin 0, head"
    margins = cells(Axes(windows=(5,), references=(1,), modes=("concentrate", "anchor"), margins=(0.1, 0.2)))
    assert [(c.mode, c.margin, c.offset) for c in margins] == [
        ("concentrate", 0.1, 0), ("concentrate", 0.2, 0), ("anchor", 0.1, 1), ("anchor", 0.2, 1),
    ]  # fmt: skip


def test_further_settings_make_cells_where_they_have_an_effect():
    one = {"windows": (5,), "references": (1,)}
    axes = Axes(**one, modes=("concentrate", "anchor"), floors=(None, 0.1), returning=(True, False))
    named = {cell_name(cell): cell for cell in cells(axes)}
    assert list(named) == [
        "DCL-5-1, concentrate, margin 0, head",
        "DCL-5-1, concentrate, margin 0, head, floor 0.1",
        "DCL-5-1, concentrate, margin 0, head, floor 0.1, returning off",
        "DCL-5-1, anchor, margin 0.5, head",
    ]
    chosen = named["DCL-5-1, concentrate, margin 0, head, floor 0.1, returning off"]
    assert (chosen.floor, chosen.returning) == (0.1, False)
    others = cells(Axes(**one, corrects=("gradient", "update"), blocks=("joint", "row", "element"), floors=(0.1,)))
    assert {(c.correct, c.blocks, c.floor) for c in others} == {
        (correct, blocks, None if blocks == "element" else 0.1)
        for correct in ("gradient", "update")
        for blocks in ("joint", "row", "element")
    }
    study = digits_study(axes)
    charts, _ = curves(study, {row.name: measured([10.0, 11.0]) for row in study.rows}, {})
    assert "Test error by window: concentrate, margin 0, head, floor 0.1" in [each.title for each in charts]
    assert len(charts) == 2 * len(named)


@pytest.mark.parametrize("mode", ["concentrate", "anchor"])
@pytest.mark.parametrize("references", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 2, 3, 5, None])
@pytest.mark.parametrize("floor", [None, 1.0])
def test_inactive_cells_are_those_in_which_dcl_never_corrects(window, references, mode, floor):
    """With a margin every step that has its references is corrected, so that none is missed by chance."""
    floors = {"floors": (floor if mode == "concentrate" else None,)}
    (cell,) = cells(Axes(windows=(window,), references=(references,), modes=(mode,), margins=(0.5,), **floors))
    weight = torch.nn.Parameter(torch.randn(6))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = ("window", "references", "offset", "mode", "margin", "floor")
        dcl = congruency.DCL(optimizer, **{name: getattr(cell, name) for name in names})
    for _ in range(120):
        weight.grad = torch.randn(6)
        optimizer.step()
    assert (int(dcl.stats.corrected_steps) == 0) == bool(inactive(cell))


def by_closed_testing(ps):
    """Slow and obvious: a hypothesis is left only where Bonferroni rejects every set of hypotheses it is in."""
    sets = [s for size in range(1, len(ps) + 1) for s in itertools.combinations(range(len(ps)), size)]
    return [max(min(1.0, len(s) * min(ps[j] for j in s)) for s in sets if i in s) for i in range(len(ps))]


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_holm_is_closed_testing_with_bonferroni(count):
    chance = random.Random(count)
    for _ in range(5):
        ps = [chance.random() ** 4 for _ in range(count)]
        assert holm(ps) == pytest.approx(by_closed_testing(ps), rel=1e-12)
    with_nan = [math.nan, *ps]
    assert math.isnan(holm(with_nan)[0])
    assert holm(with_nan)[1:] == holm(ps)


AXES = Axes(windows=(2, 5, None), references=(1, 2))
GRID = cells(AXES)


def digits_study(axes):
    return ablation_study(from_options(ImageOptions(source="digits"), {"model": "mlp", "epochs": 2}), axes)


@pytest.fixture(scope="module")
def study():
    return digits_study(AXES)


def measured(errors, corrected=0.5):
    count = len(errors)
    return {
        "seed": [float(seed) for seed in range(count)], "test error": errors, "corrected_share": [corrected] * count,
    }  # fmt: skip


def outcome():
    """Six cells: one clearly better, one equal to the baseline, one that never corrects, one that failed."""
    base = [10.0, 11.0, 9.0, 10.5]
    found = {"baseline": measured(base, 0.0)}
    shifts = {"DCL-2-1": [-2.0, -2.1, -1.9, -2.0], "DCL-5-1": [0.0] * 4, "DCL-2-2": [0.0] * 4,
              "DCL-5-2": [0.3, -0.2, 0.1, -0.3], "DCL-inf-1": [0.5, -0.6, 0.2, 0.1]}  # fmt: skip
    for name, shift in shifts.items():
        errors = [b + s for b, s in zip(base, shift, strict=True)]
        found[f"{name}, concentrate, margin 0, head"] = measured(errors)
    return found


def test_cells_are_rows_with_settings(study):
    assert [row.name for row in study.rows] == ["baseline", *(cell_name(cell) for cell in GRID)]
    (row,) = study.find(window=None, references=2)
    assert row.name == "DCL-inf-2, concentrate, margin 0, head"
    assert (row.settings["mode"], row.settings["margin"], row.settings["scope"]) == ("concentrate", 0.0, "head")
    assert [row.name.split(",")[0] for row in study.rows if row.inactive] == ["DCL-2-2"]
    assert [row.name for row in study.find(method="baseline")] == ["baseline"]


def test_rows_that_never_correct_are_no_comparisons(study):
    found = comparisons(study, outcome())
    by_name = {row.split(",")[0]: one for (row, _), one in found.items()}
    assert list(by_name) == ["DCL-2-1", "DCL-5-1", "DCL-5-2", "DCL-inf-1"]
    assert by_name["DCL-5-1"].p == 1.0, "errors that are all equal are a comparison too"
    assert by_name["DCL-2-1"].adjusted == pytest.approx(4 * by_name["DCL-2-1"].p)


def test_the_page_says_what_is_clear_what_failed_and_what_never_corrects(study):
    digest = study.rows[-1].jobs[0].digest()
    failed = {(digest, 0): Failure("Traceback\nOSError: no room"), (digest, 3): Failure("KeyError: 1")}
    page = compose(study, outcome(), command="congruency ablate", made="on paper", failures=failed)
    lines = {row[0].split(",")[0]: row for row in page.table.rows}
    assert page.table.columns == [
        "Row", "Seeds", "Test error, %", "Test error against", "Holm's p", "corrected, %",
    ]  # fmt: skip
    assert lines["DCL-inf-2"] == [cell_name(GRID[-1]), "0, 2 failed", "-", "-", "-", "-"]
    assert lines["baseline"][1:] == ["4", "10.12 ± 1.36", "-", "-", "0"]
    assert lines["DCL-2-1"][3].startswith("-2.00 ± 0.1")
    assert lines["DCL-2-2"][3:5] == ["identical to the baseline", "-"]
    sentences = " ".join(page.findings)
    better = "DCL-2-1, concentrate, margin 0, head"
    assert f"{better}, against baseline: Test error falls by 2.00 points (p < 0.001)." in sentences
    assert "1 of 4 comparisons have p < 0.05, where 0.2 would by chance alone; 1 is left after" in sentences
    assert (
        "by construction: DCL-2-2, concentrate, margin 0, head (the window is over before all references" in sentences
    )
    assert "Failed: DCL-inf-2, concentrate, margin 0, head, seed 0: OSError: no room" in sentences
    assert "resumed" not in sentences


def test_curves_have_every_cell_by_window_and_by_references(study):
    (by_window, by_references), _ = curves(study, outcome(), {})
    assert by_window.title == "Test error by window: concentrate, margin 0, head"
    for chart, x_label, places in (
        (by_window.chart, "window, steps", ("2", "5", "inf")),
        (by_references.chart, "reference points", ("1", "2")),
    ):
        data = chart_data(chart)
        assert (data["x_label"], tuple(data["names"])) == (x_label, places)
        assert [one["bars"] for one in data["series"]].count(False) == 1, "the baseline alone is a band"
    shown = lines(by_window.chart)
    assert {name: round(values["2"], 2) for name, values in shown.items()} == {
        "baseline": 10.12, "1 reference": 8.12, "2 references": 10.12,
    }  # fmt: skip
    assert chart_data(by_window.chart)["series"][1]["margin"][0] == pytest.approx(1.24, abs=0.01)
    assert shown["2 references"]["inf"] is None, "what failed leaves a gap"


def test_more_lines_than_colours_go_into_a_second_chart():
    figures, _ = curves(digits_study(Axes(windows=(5, None), references=tuple(range(1, 8)))), {}, {})
    assert [figure.title.split(":")[0] for figure in figures] == ["Test error by window"] * 2 + [
        "Test error by references"
    ]


@pytest.mark.parametrize(
    ("name", "model", "sets"),
    [
        ("cifar/ResNeXt-29 SGD", "resnext29_16x64", ["cifar10", "cifar100"]),
        ("tiny_imagenet/ResNet-101 SGD DCL-60-1", "resnet101", ["tiny_imagenet"]),
        ("imagenet", "resnet50", ["imagenet"]),
        ("cifar10_grid", "resnet9_small", ["cifar10"]),
        ("cifar10_grid/DCL-5-1", "resnet9_small", ["cifar10"]),
    ],
)
def test_a_recipe_is_a_row_of_a_table_without_its_method(name, model, sets):
    base = from_recipe(name, None, {})
    assert [job.data.name for job in base.jobs] == sets
    assert all(job.setup.model == model and job.method.name == "baseline" and not job.short for job in base.jobs)


def test_a_recipe_with_changes():
    changes = {"epochs": 2, "per_class": 7}
    base = from_recipe("cifar/DenseNet-100-12 SGD", "digits", changes)
    assert {(job.setup.epochs, job.data.per_class, job.setup.model) for job in base.jobs} == {(2, 7, "densenet100_12")}
    assert base.title.endswith(", digits instead of its images")
    assert base.lead.endswith(" Changed by options: epochs 2, 7 training images per class.")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar", "several runs"),
        ("cifar/ResNeXt-29 SDG", "similar:"),
        ("nothing", "no table of classification is called 'nothing'"),
        ("imagenet/ResNet-50 (original)", "quotes 'imagenet/ResNet-50 \\(original\\)' from elsewhere"),
        ("cost_window", "several runs|measures times"),
        ("cost_references/DCL", "measures times, not errors"),
    ],
)
def test_what_is_no_recipe_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        from_recipe(name, None, {})
