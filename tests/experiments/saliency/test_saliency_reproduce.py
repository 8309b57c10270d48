"""``congruency reproduce osie`` from small sets in the official layouts, to the table with the paper's numbers."""

import json

import pytest
from saliency_data import small_mit1003, small_osie, small_salicon
from typer.testing import CliRunner

from congruency import cli
from congruency.experiments.saliency.command import find_set
from congruency.experiments.saliency.recipes import METHODS, Recipe, paper_recipes, pick
from congruency.experiments.saliency.showing import findings, show, summary
from congruency.saliency import data
from congruency.saliency.batches import SaliencyBatches
from congruency.training import order_seed, read_record


def call(*words):
    return CliRunner().invoke(cli.build(), [str(word) for word in words], env={"COLUMNS": "120", "TERM": "dumb"})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets")
    small_osie(root / "osie")
    small_mit1003(root / "mit1003")
    out = root / "out"
    words = ["--model", "resnet10t", "--pretrained", "none", "--epochs", 1, "--batch-size", 4, "--device", "cpu"]
    rows = ["--rows", "ResNet-50 Adam", "--rows", "ResNet-50 Adam DCL"]
    result = call("reproduce", "osie", "--data", root, *rows, "--seeds", 2, *words, "--out", out)
    assert result.exit_code == 0, result.output
    return result, out


def test_the_table_stands_beside_the_papers(made):
    result, out = made
    assert sorted(path.name for path in out.iterdir()) == [
        "bounds.json", "index.html", "results.json", "runs", "table.md",
    ]  # fmt: skip
    text = (out / "table.md").read_text(encoding="utf-8")
    assert "2.4064 (sd 0.0015)" in text
    assert text.count("2.4108 (sd 0.0063)") == 2, "beside both modes of DCL"
    results = json.loads((out / "results.json").read_text())
    trained = [row for row in results if "seed" in results[row]]
    assert set(trained) == {f"resnet10t Adam{method}" for method in ("", " DCL-inf-1", " DCL-inf-1 anchor")}
    assert all(results[row]["seed"] == [0, 1] for row in trained)
    assert "The page:" in result.output


def test_the_records_say_where_they_come_from_and_how_the_validation_went(made):
    _, out = made
    record = read_record(out / "runs" / "resnet10t-adam-dcl-inf-1_epochs-1_batch-4" / "seed-0")
    told = [record.run[name] for name in ("data", "table", "row")]
    assert told == ["OSIE", "osie", "ResNet-50 Adam DCL-inf-1"]
    assert 0 < record.epochs[-1]["evaluation"]["loss"] < 2


def test_a_report_on_them_has_the_scores_and_the_papers_numbers(made, tmp_path):
    _, out = made
    result = call("report", out / "runs", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'data-column="NSS"' in page
    assert page.count("2.4108 (sd 0.0063)") == 2
    assert "Validation loss" in page


def scored(name, values, seeds=(0, 1, 2)):
    return {name: {"seed": list(seeds), **{metric: list(values) for metric in ("NSS", "sAUC", "AUC", "CC")}}}


def test_differences_are_those_of_the_seeds_that_both_have():
    recipes = [Recipe(method="baseline"), Recipe(method="GEM")]
    base, gem = (recipe.name for recipe in recipes)
    results = scored(base, [1.0, 2.0, 3.0]) | scored(gem, [2.1, 3.0, 9.0], seeds=(1, 2, 7))
    table = summary("osie", recipes, results)
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert row["NSS against"].startswith("+0.0500 ± ")
    told = findings(recipes, results)
    assert told[0] == f"{gem}, against the same without a method: no clear change of NSS, sAUC, AUC, CC."
    assert told[1].startswith("0 of 4 comparisons have p < 0.05, where 0.2 would by chance alone; 0 are left")
    assert "Too few seeds" in findings(recipes[:1], results)[0]


def test_rows_are_picked_by_the_papers_names():
    recipes = paper_recipes("osie")
    assert pick(recipes, ()) == recipes
    assert [one.method for one in pick(recipes, ["DINet Adam"])] == ["baseline"]
    assert len(pick(recipes, ["DINet"])) == 4
    assert [one.method for one in pick(recipes, ["DINet Adam DCL"])] == ["DCL-120-1", "DCL-120-1 anchor"]


def test_the_sets_are_found_by_their_layout(tmp_path, monkeypatch):
    monkeypatch.delenv("CONGRUENCY_DATA", raising=False)
    small_salicon(tmp_path / "salicon")
    assert find_set("SALICON", tmp_path) == find_set("SALICON", tmp_path / "salicon") == tmp_path / "salicon"
    monkeypatch.setenv("CONGRUENCY_DATA", str(tmp_path))
    assert find_set("SALICON", None) == tmp_path / "salicon"
    with pytest.raises(FileNotFoundError, match="MIT1003 is not in"):
        find_set("MIT1003", tmp_path)


def test_orders_of_the_images(tmp_path):
    """Fixed: the same for all seeds and methods; independent: for no two."""
    held = data.prepare_in_memory(data.osie(small_osie(tmp_path / "osie", images=12)), (8, 8))

    def seen(seed, method, order, epoch=0, **more):
        recipe = Recipe(method=method, sample_order=order, **more)
        batches = SaliencyBatches(held, 4, seed=recipe.seed_of_order(seed))
        return tuple(int(image.sum()) for images, _ in batches.train_batches(epoch) for image in images)

    runs = [(seed, method) for seed in (0, 1) for method in ("baseline", "GEM", "DCL-inf-1")]
    assert len({seen(*run, "fixed") for run in runs}) == 1
    assert len({seen(*run, "independent") for run in runs}) == 6
    assert len({seen(*run, "seed") for run in runs}) == 2
    assert seen(0, "GEM", "fixed") != seen(0, "GEM", "fixed", epoch=1)
    assert seen(0, "GEM", "fixed") != seen(0, "GEM", "fixed", order_seed=2)
    names = {Recipe(sample_order=order).folder for order in ("seed", "fixed", "independent")}
    assert len(names | {Recipe(sample_order="fixed", order_seed=1).folder}) == 4
    assert Recipe(sample_order="fixed").name.endswith("Adam, fixed order")
    assert Recipe(sample_order="independent").seed_of_order(3) == order_seed("independent", 3, METHODS["baseline"])
    with pytest.raises(ValueError, match="order_seed is for"):
        Recipe(order_seed=3)
    with pytest.raises(ValueError, match="order must be one of"):
        Recipe(sample_order="shuffled")


def test_evaluation_goes_through_all_images_once(tmp_path):
    held = data.prepare_in_memory(data.osie(small_osie(tmp_path / "osie", images=5)), (8, 8))
    shown = [images for images, _ in SaliencyBatches(held, 2, seed=4).evaluation_batches()]
    assert [len(images) for images in shown] == [2, 2, 1]
    assert all((a == b).all() for a, b in zip((x for part in shown for x in part), held.images, strict=True))


def test_clear_changes_are_told_with_their_size():
    recipes = [Recipe(method="baseline"), Recipe(method="GEM")]
    base, gem = (recipe.name for recipe in recipes)
    results = scored(base, [1.0, 2.0, 3.0]) | scored(gem, [1.1, 2.11, 3.1])
    results[gem]["CC"] = [1.0, 2.1, 2.9]
    told = findings(recipes, results)
    sizes = "NSS rises by 0.1033 (p 0.001); sAUC rises by 0.1033 (p 0.001); AUC rises by 0.1033 (p 0.001)"
    assert told[0] == f"{gem}, against the same without a method: {sizes}; no clear change of CC."
    assert told[1].startswith("3 of 4 comparisons have p < 0.05, where 0.2 would by chance alone; 3 are left")


def test_the_study_on_osie_alone_has_a_page_without_the_papers_numbers(tmp_path):
    recipes = [Recipe(method="baseline"), Recipe(method="GEM", halve_every=2)]
    base, gem = (recipe.name for recipe in recipes)
    floor = {"centre Gaussian": {metric: [0.5] for metric in ("NSS", "sAUC", "AUC", "CC")}}
    results = floor | scored(base, [1.0, 2.0, 3.0]) | scored(gem, [1.1, 2.11, 3.1])
    (tmp_path / "examples.jpg").write_bytes(b"a picture")
    page, paths = show("osie_study", recipes, results, tmp_path, "congruency saliency osie")
    assert page.table.columns[:4] == ["Row", "Seeds", "NSS", "NSS against"]
    assert not any("paper" in column for column in page.table.columns)
    assert [row[0] for row in page.table.rows] == [base, gem, "centre Gaussian"]
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "500 images of OSIE, scored on the other 200" in text
    assert "(examples.jpg)" in text
    assert {path.name for path in paths} == {"index.html", "table.md"}
