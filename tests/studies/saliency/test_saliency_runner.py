"""Saliency studies: their rows, the data sets they read, finished and interrupted runs, several processes."""

import math
import signal
from dataclasses import asdict, replace

import pytest
from rich.console import Console
from saliency_data import small_mit1003, small_osie, small_salicon

from congruency.saliency import data
from congruency.saliency import task as saliency_task
from congruency.saliency.models import load_model
from congruency.saliency.task import Recipe
from congruency.studies.executor import Place
from congruency.studies.plan import Run
from congruency.studies.results import read_results
from congruency.studies.saliency.recipes import osie_recipes, paper_numbers, paper_recipes, table_recipes
from congruency.studies.saliency.runner import (
    SaliencyRunner,
    Sets,
    below_floor,
    conduct_saliency,
    diverged,
    find_set,
    run_folder,
)  # fmt: skip
from congruency.studies.saliency.study import TRAINING_TIME, SaliencyJob, saliency_study
from congruency.studies.store import Store

QUICK = Recipe(model="dinet4", backbone="resnet10t", epochs=1, batch=4, height=32, width=32)
SMALL = data.Preprocessing((32, 40))


@pytest.fixture(scope="module")
def osie_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("osie")
    return data.prepare(data.osie(small_osie(folder / "osie", images=6, viewers=4)), folder / "osie.pt", (32, 32))


def small_runner(osie_file, out, **changes):
    return SaliencyRunner(sets=Sets("osie_study", (osie_file,), train=4), out=out, accelerator="cpu", **changes)


def carry_out(recipes, runner, seeds, examples=0, **place):
    study = saliency_study(runner.sets.study, recipes)
    return conduct_saliency(
        study, runner, seeds, place=Place(**place), command="congruency saliency osie", examples=examples,
        console=Console(quiet=True),
    )  # fmt: skip


def test_a_finished_run_is_not_repeated(osie_file, tmp_path):
    runner = small_runner(osie_file, tmp_path)
    assert carry_out([QUICK], runner, [0, 1]) == 0
    record = run_folder(tmp_path, SaliencyJob(QUICK), 0) / "record.jsonl"
    before, results = record.stat().st_mtime_ns, read_results(tmp_path)
    assert carry_out([QUICK], runner, [0, 1]) == 0
    assert record.stat().st_mtime_ns == before
    assert read_results(tmp_path) == results
    assert len(Store(tmp_path).load()) == 2
    assert Store(tmp_path).repeated_attempts() == 0
    assert results[QUICK.name]["NSS"][0] != results[QUICK.name]["NSS"][1]
    references = ("uniform", "centre Gaussian", "mean training map", "human ceiling")
    assert [len(results[row]["CC"]) for row in references] == [1, 1, 1, 1]
    assert all(seconds > 0 for seconds in results[QUICK.name][TRAINING_TIME])
    assert "| Training, s |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert load_model(record.with_name("model.pt")).training is False
    assert not (run_folder(tmp_path, SaliencyJob(QUICK), 1) / "model.pt").exists()


def test_rows_below_the_centre_bias_are_named():
    results = {
        "good": {"seed": [0, 1], "NSS": [1.0, 1.2], "CC": [0.5, 0.6]},
        "bad": {"seed": [0, 1], "NSS": [0.9, 0.8], "CC": [0.5, 0.6]},
        "uniform": {"NSS": [0.0]},
        "centre Gaussian": {"NSS": [0.95], "CC": [0.4]},
    }
    (sentence,) = below_floor(results)
    assert sentence.startswith("bad is worse than the centre bias in NSS (0.8500, centre Gaussian 0.9500)")


def test_a_run_that_diverged_is_named_and_the_others_go_on(osie_file, tmp_path):
    wild = replace(QUICK, method="Cautious", lr=1e30, epochs=2)
    for _ in range(2):  # the second time all is finished
        assert carry_out([wild, QUICK], small_runner(osie_file, tmp_path), [0]) == 0
    assert Store(tmp_path).repeated_attempts() == 0
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert f"{wild.name} diverged with seed 0: its maps are nan, and it has no means" in text
    several = {"other": {"seed": [0.0, 1.0, 2.0], "NSS": [math.nan, 1.0, math.nan]}, "uniform": {"NSS": [0.0]}}
    (sentence,) = diverged(several)
    assert sentence.startswith("other diverged with seeds 0, 2:")


def test_results_are_the_same_in_several_processes(osie_file, tmp_path):
    recipes = [QUICK, Recipe(**{**asdict(QUICK), "method": "DCL-inf-1"})]
    assert carry_out(recipes, small_runner(osie_file, tmp_path / "here"), [0, 1], threads=1) == 0
    there = small_runner(osie_file, tmp_path / "there")
    assert carry_out(recipes, there, [0, 1], processes=2, threads=1) == 0
    assert len(Store(tmp_path / "here").load()) == 4
    first, second = (read_results(tmp_path / name) for name in ("here", "there"))
    for row in (recipe.name for recipe in recipes):
        assert first[row].pop(TRAINING_TIME) != second[row].pop(TRAINING_TIME)
    assert first == second


def test_sigterm_ends_a_study_with_75_and_the_same_call_resumes(osie_file, tmp_path, monkeypatch):
    recipe = Recipe(**{**asdict(QUICK), "epochs": 3})
    assert carry_out([recipe], small_runner(osie_file, tmp_path / "whole"), [0]) == 0
    plain, sent = saliency_task.train, []

    def stopped(build, config, folder, *, notice, **options):
        def terminate(step, steps):
            if step == 2 and not sent:
                sent.append(signal.raise_signal(signal.SIGTERM))
            notice(step, steps)

        return plain(build, config, folder, notice=terminate, **options)

    monkeypatch.setattr(saliency_task, "train", stopped)
    assert carry_out([recipe], small_runner(osie_file, tmp_path / "parts"), [0]) == 75
    assert not Store(tmp_path / "parts").load()
    assert not Store(tmp_path / "parts").failures()
    assert carry_out([recipe], small_runner(osie_file, tmp_path / "parts"), [0]) == 0
    first, second = (read_results(tmp_path / name) for name in ("parts", "whole"))
    for row in (name for name in first if TRAINING_TIME in first[name]):
        del first[row][TRAINING_TIME], second[row][TRAINING_TIME]
    assert first == second
    assert Store(tmp_path / "parts").repeated_attempts() == 1


def test_another_precision_is_refused_in_the_same_folder(osie_file, tmp_path):
    carry_out([QUICK], small_runner(osie_file, tmp_path), [0])
    with pytest.raises(ValueError, match="precision was '32' and is 'bf16'"):
        carry_out([QUICK], small_runner(osie_file, tmp_path, precision="bf16"), [0])


def test_other_images_are_refused_in_the_same_folder(osie_file, tmp_path):
    carry_out([QUICK], small_runner(osie_file, tmp_path), [0])
    other = small_runner(osie_file, tmp_path)
    with pytest.raises(ValueError, match=r"data was .*OSIE: 4 images.* and is .*OSIE: 3 images"):
        carry_out([QUICK], replace(other, sets=replace(other.sets, train=3)), [0])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weights": "nowhere.pth"}, FileNotFoundError, "weights nowhere.pth is missing"),
        ({"backbone": "mlp"}, ValueError, "timm cannot make 'mlp'"),
    ],
)
def test_a_network_that_cannot_be_made_is_refused_before_any_run(osie_file, tmp_path, change, error, message):
    recipe = Recipe(**{**asdict(QUICK), **change})
    with pytest.raises(error, match=message):
        small_runner(osie_file, tmp_path).prepare([Run("row", SaliencyJob(recipe), 0)])


def test_the_study_shows_examples(osie_file, tmp_path):
    assert carry_out([QUICK], small_runner(osie_file, tmp_path), [1], examples=2) == 0
    assert not (tmp_path / "examples.jpg").exists()  # which needs the networks of seed 0
    assert "examples.jpg" not in (tmp_path / "table.md").read_text()
    assert carry_out([QUICK], small_runner(osie_file, tmp_path), [0], examples=2) == 0
    assert (tmp_path / "examples.jpg").stat().st_size > 10_000
    assert "![Test images, where people looked, and what networks predict](examples.jpg)" in (
        tmp_path / "table.md"
    ).read_text(encoding="utf-8")


def test_images_of_many_sizes_are_scored_at_their_own(tmp_path):
    places = small_osie(tmp_path / "osie"), small_mit1003(tmp_path / "mit1003")
    runner = SaliencyRunner(sets=Sets("osie", places), out=tmp_path / "out", accelerator="cpu")
    assert carry_out([QUICK], runner, [0]) == 0
    results = read_results(tmp_path / "out")  # where viewers are not separate
    assert set(results) == {QUICK.name, "uniform", "centre Gaussian", "mean training map"}
    assert all(len(row["NSS"]) == 1 for row in results.values())


def test_the_sets_of_the_papers_tables(tmp_path):
    places = small_osie(tmp_path / "osie"), small_mit1003(tmp_path / "mit1003")
    train_set, test_set = Sets("osie", places).read(SMALL)
    assert (train_set.images.shape, test_set.data.name) == ((4, 3, 32, 40), "MIT1003")
    small_salicon(tmp_path / "salicon", "train")
    small_salicon(tmp_path / "salicon", "val")
    train_set, test_set = Sets("salicon", (tmp_path / "salicon",)).read(SMALL)
    assert (train_set.data.version, test_set.data.name) == ("2017", "SALICON")
    assert {v.image.name for v in train_set.data.viewings}.isdisjoint(v.image.name for v in test_set.data.viewings)


def test_the_sets_are_found_by_their_layout(tmp_path, monkeypatch):
    monkeypatch.delenv("CONGRUENCY_DATA", raising=False)
    small_salicon(tmp_path / "salicon")
    assert find_set("SALICON", tmp_path) == find_set("SALICON", tmp_path / "salicon") == tmp_path / "salicon"
    with pytest.raises(ValueError, match="SALICON is needed: give --data"):
        find_set("SALICON", None)
    monkeypatch.setenv("CONGRUENCY_DATA", str(tmp_path))
    assert find_set("SALICON", None) == tmp_path / "salicon"
    with pytest.raises(FileNotFoundError, match="MIT1003 is not in"):
        find_set("MIT1003", tmp_path)
    (tmp_path / "osie" / "stimuli").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"OSIE is not in .*\(stimuli, with fixations.mat\) into osie/"):
        find_set("OSIE", tmp_path)
    (tmp_path / "salicon" / "fixations" / "train").rename(tmp_path / "salicon" / "train")  # as the archives unpack
    (tmp_path / "salicon" / "fixations").rmdir()
    assert find_set("SALICON", None) == tmp_path / "salicon"


def test_every_network_sees_images_at_its_own_size(tmp_path):
    """From a folder; a prepared file has one size for all."""
    folder = small_osie(tmp_path / "osie", images=6)
    recipes = [QUICK, replace(QUICK, model="dinet", height=32, width=48, aspect="pad")]
    runner = SaliencyRunner(sets=Sets("osie_study", (folder,), train=4), out=tmp_path / "out", accelerator="cpu")
    assert carry_out(recipes, runner, [0], examples=2) == 0
    for recipe in recipes:
        assert load_model(run_folder(tmp_path / "out", SaliencyJob(recipe), 0) / "model.pt").preprocessing == (
            recipe.preprocessing
        )
    assert (tmp_path / "out" / "examples.jpg").is_file()
    prepared = data.prepare(data.osie(folder), tmp_path / "osie.pt", (32, 32))
    sets = Sets("osie_study", (prepared,), train=4)
    assert sets.prepared == QUICK.preprocessing
    with pytest.raises(ValueError, match="was prepared at 32x32, stretched, not at 32x48, padded"):
        sets.read(recipes[1].preprocessing)


def test_the_papers_rows():
    for table, special in {"salicon": "DINet Adam DCL-500-1", "osie": "DINet Adam DCL-120-1"}.items():
        rows = [recipe.paper_row for recipe in paper_recipes(table)]
        expected = {"ResNet-50 RMSP", "ResNet-50 RMSP GEM", "ResNet-50 Adam DCL-inf-1", special, f"{special} anchor"}
        assert expected <= set(rows)
        assert len(rows) == len(set(rows)) == 12
        study = saliency_study(table, paper_recipes(table))
        assert all(set(row.paper) == {"NSS", "sAUC", "AUC", "CC"} for row in study.rows)
        for row in study.find(method="dcl", mode="anchor"):
            settings = {**row.settings, "mode": "concentrate", "margin": 0.0}
            (other,) = study.find(**settings)
            assert row.paper == other.paper, "beside both modes of DCL"
            (plain,) = study.find(model=settings["model"], optimizer=settings["optimizer"], method="baseline")
            assert row.against == other.against == plain.name
    with pytest.raises(ValueError, match="got 'mnist'"):
        paper_recipes("mnist")
    assert paper_recipes("osie")[0].name == "ResNet-50 pretrained RMSP"
    assert paper_numbers("osie", Recipe(method="DCL-120-1 anchor"))["NSS"] == (2.4566, 0.0007)
    assert paper_numbers("osie", Recipe(method="DCL-7-1")) == paper_numbers("osie_study", Recipe()) == {}


def test_rows_are_chosen_by_the_papers_names():
    def methods(*names):
        return [recipe.method for recipe in table_recipes("osie", names)]

    assert table_recipes("osie") == paper_recipes("osie")
    assert methods("DINet Adam") == ["baseline"]
    assert len(methods("DINet")) == 4
    assert methods("DINet Adam DCL") == ["DCL-120-1", "DCL-120-1 anchor"]
    with pytest.raises(ValueError, match="there is no row 'VGG'; the rows are ResNet-50 RMSP; ResNet-50 RMSP GEM"):
        methods("VGG")


def test_offline_rows():
    options = {"models": ["dinet"], "optimizers": ["adam", "rmsprop"], "methods": ["baseline", "GEM"]}
    rows = osie_recipes(**options, lite="lite.pth", scratch=True, epochs=10, scratch_epochs=30)
    assert len(rows) == 8
    assert {(row.epochs, row.halve_every) for row in rows} == {(10, 1), (30, 3)}
    assert len({row.folder for row in rows}) == 8
    options["models"].append("salicon")
    own = osie_recipes(**options, lite=None, scratch=True, epochs=1, scratch_epochs=1)
    assert {row.network for row in own} == {"published DINet ResNet-50", "SALICON VGG-16"}
    with pytest.raises(ValueError, match="nothing to train"):
        osie_recipes(**options, lite=None, scratch=False, epochs=1, scratch_epochs=1)
