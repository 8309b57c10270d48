"""``congruency reproduce saliency osie`` from small sets in the official layouts to the table beside the paper's."""

import json
import os

import pytest
import typer
from saliency_data import small_mit1003, small_osie
from typer.testing import CliRunner

from congruency import cli
from congruency.cli.reproduce.saliency import saliency
from congruency.saliency.task import Recipe
from congruency.studies.page import compose, to_page_markdown
from congruency.studies.saliency.study import TRAINING_TIME, saliency_study
from congruency.studies.summary import findings, summary_table
from congruency.training import read_record


def call(app, *words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120", "TERM": "dumb"})


def reproduce(*words):
    app = typer.Typer()
    app.command()(saliency)
    return call(app, *words)


WORDS = ["--backbone", "resnet10t", "--pretrained", "none", "--epochs", 1, "--batch-size", 4, "--device", "cpu"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    small_osie(folder / "osie")
    small_mit1003(folder / "mit1003")
    return folder


@pytest.fixture(scope="module")
def made(root):
    out = root / "out"
    rows = ["--row", "ResNet-50 Adam", "--row", "ResNet-50 Adam DCL"]
    result = reproduce("osie", "--data", root, *rows, "--seeds", 2, *WORDS, "--out", out)
    assert result.exit_code == 0, result.output
    return result, out


def test_the_table_stands_beside_the_papers(made):
    result, out = made
    assert sorted(path.name for path in out.iterdir()) == [
        "attempts.jsonl", "bounds.json", "finished.jsonl", "index.html", "results.json", "runs", "settings.json",
        "table.md",
    ]  # fmt: skip
    text = (out / "table.md").read_text(encoding="utf-8")
    assert "2.4064 (sd 0.0015)" in text
    assert text.count("2.4108 (sd 0.0063)") == 2, "beside both modes of DCL"
    results = json.loads((out / "results.json").read_text())
    trained = [row for row in results if "seed" in results[row]]
    assert set(trained) == {f"SALICON resnet10t Adam{method}" for method in ("", " DCL-inf-1", " DCL-inf-1 anchor")}
    assert all(results[row]["seed"] == [0, 1] for row in trained)
    assert "The page:" in result.output


def test_several_processes_give_the_same_results(root):
    words = ["osie", "--data", root, "--row", "ResNet-50 Adam", "--seeds", 2, *WORDS, "--threads", 1]
    for name, more in (("here", []), ("there", ["--processes", 2])):
        result = reproduce(*words, *more, "--out", root / name)
        assert result.exit_code == 0, result.output
    here, there = (json.loads((root / name / "results.json").read_text()) for name in ("here", "there"))
    for row in (row for row in here if TRAINING_TIME in here[row]):  # which differs between any two runs
        del here[row][TRAINING_TIME], there[row][TRAINING_TIME]
    assert here == there
    attempts = [json.loads(line) for line in (root / "there" / "attempts.jsonl").read_text().splitlines()]
    assert os.getpid() not in {attempt["pid"] for attempt in attempts}
    assert {attempt["seed"] for attempt in attempts} == {0, 1}


def test_the_records_have_their_origin_and_the_validation_loss(made):
    _, out = made
    record = read_record(out / "runs" / "salicon-resnet10t-adam-dcl-inf-1_epochs-1_delay-1_batch-4" / "seed-0")
    origin = [record.run[name] for name in ("data", "table", "row")]
    assert origin == ["OSIE", "osie", "ResNet-50 Adam DCL-inf-1"]
    assert 0 < record.epochs[-1]["evaluation"]["loss"] < 2


def test_a_report_on_them_has_the_scores_and_the_validation_loss(made, tmp_path):
    _, out = made
    result = call(cli.build(), "report", out / "runs", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'data-column="NSS"' in page
    assert "Validation loss" in page


def scored(name, values, seeds=(0, 1, 2)):
    return {name: {"seed": list(seeds), **{metric: list(values) for metric in ("NSS", "sAUC", "AUC", "CC")}}}


RECIPES = [Recipe(method="baseline"), Recipe(method="GEM", halve_every=2)]
BASE, GEM = (recipe.name for recipe in RECIPES)


def test_differences_are_those_of_the_seeds_that_both_have():
    results = scored(BASE, [1.0, 2.0, 3.0]) | scored(GEM, [2.1, 3.0, 9.0], seeds=(1, 2, 7))
    table = summary_table(saliency_study("osie", RECIPES), results)
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert row["NSS against"].startswith("+0.0500 ± ")
    assert row["NSS, paper"] == "2.4456 (sd 0.0037)"
    assert table.caption.startswith("The paper has means and standard deviations of three runs. Means over the seeds")
    sentences = findings(saliency_study("osie", RECIPES), results)
    assert sentences[0] == f"No clear difference: {GEM}."
    assert sentences[1].startswith("0 of 4 comparisons have p < 0.05, where 0.2 would by chance alone; none is left")
    assert findings(saliency_study("osie", RECIPES[:1]), results) == []


def test_clear_changes_are_given_with_their_size():
    results = scored(BASE, [1.0, 2.0, 3.0]) | scored(GEM, [1.1, 2.11, 3.1])
    results[GEM]["CC"] = [1.0, 2.1, 2.9]
    sentences = findings(saliency_study("osie", RECIPES), results)
    sizes = "NSS rises by 0.1033 (p 0.001); sAUC rises by 0.1033 (p 0.001); AUC rises by 0.1033 (p 0.001)"
    assert sentences[0] == f"{GEM}, against {BASE}: {sizes}; no clear change of CC."
    assert sentences[1].startswith("3 of 4 comparisons have p < 0.05, where 0.2 would by chance alone; 3 are left")


def test_the_study_on_osie_alone_has_no_numbers_of_the_paper():
    floor = {"centre Gaussian": {metric: [0.5] for metric in ("NSS", "sAUC", "AUC", "CC")}}
    results = floor | scored(BASE, [1.0, 2.0, 3.0]) | scored(GEM, [1.1, 2.11, 3.1])
    page = compose(saliency_study("osie_study", RECIPES), results, command="congruency saliency osie")
    assert page.table.columns[:4] == ["Row", "Seeds", "NSS", "NSS against"]
    assert not any("paper" in column for column in page.table.columns)
    assert [row[0] for row in page.table.rows] == [BASE, GEM, "centre Gaussian"]
    assert "500 images of OSIE, scored on the other 200" in to_page_markdown(page)
    assert len(page.figures) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mnist"], "'mnist' is not one of 'salicon', 'osie'"),
        (["osie", "--row", "VGG"], "there is no row 'VGG'; the rows are ResNet-50 RMSP"),
        (["osie", "--precision", "64"], "'64' is not one of '32', 'bf16', '16'"),
        (["osie", "--device", "tpu"], "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
        (["osie", "--order", "random"], "'random' is not one of 'seed', 'fixed', 'independent'"),
        (["osie", "--order-seed", 3], "order_seed is for the sample order 'fixed'"),
        (["osie", "--data", "nowhere"], "nowhere is not a folder; --data is the folder where named data sets are"),
    ],
)
def test_wrong_usage_exits_with_2(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    result = reproduce(*words)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("│", " ").split())
    assert not list(tmp_path.iterdir())
