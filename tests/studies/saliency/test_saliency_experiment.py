"""Training on real images: a few steps, every method, stopped and resumed; the grid of runs; recipes."""

import json
from dataclasses import replace

import pytest
import torch
from saliency_data import real, small_mit1003, small_osie, small_salicon

from congruency.saliency import data
from congruency.saliency.batches import HeldBatches
from congruency.studies.saliency import study
from congruency.studies.saliency.experiment import build_task, experiment, run, saved_model
from congruency.studies.saliency.recipes import METHODS, Recipe, method_named, paper_recipes
from congruency.studies.saliency.study import osie_recipes, osie_study, split_prepared
from congruency.training import Correction, TrainingConfig, train

QUICK = {"model": "dinet", "backbone": "resnet10t", "epochs": 2, "batch": 3}


@pytest.fixture(scope="module")
def slice_of_osie(tmp_path_factory):
    """Eight real images, small: six to train on, two to score."""
    osie = data.osie(real("osie")).take(range(8))
    path = data.prepare(osie, tmp_path_factory.mktemp("osie") / "osie.pt", (48, 64))
    return split_prepared(data.load_prepared(path), train=6)


def weights_of(folder):
    return torch.load(folder / "model.pt", weights_only=True)["state"]


@pytest.mark.parametrize("method", ["baseline", "GEM", "DCL-inf-1", "DCL-inf-1 anchor"])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_every_method_trains_on_real_images(slice_of_osie, tmp_path, method, optimizer):
    recipe = Recipe(**QUICK, method=method, optimizer=optimizer)
    scores = run(recipe, 0, *slice_of_osie, tmp_path, device="cpu")
    assert set(scores) == {"NSS", "sAUC", "AUC", "CC", "AUC-Judd", "KL", "SIM", "IG"}
    assert all(-2 < scores[name] < 5 for name in ("NSS", "sAUC", "AUC", "CC", "SIM"))
    written = json.loads((tmp_path / "scores.json").read_text())
    assert (written["row"], written["seed"]) == (recipe.name, 0)
    steps = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in steps if line["kind"] == "epoch"]
    assert len(losses) == 2
    assert all(0 < loss < 2 for loss in losses)


def test_training_makes_the_loss_smaller(slice_of_osie, tmp_path):
    recipe = Recipe(**{**QUICK, "epochs": 6, "model": "salicon"}, halve_every=100, lr=2e-3)
    run(recipe, 0, *slice_of_osie, tmp_path, device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "epoch"]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("method", ["GEM", "DCL-inf-1"])
def test_a_run_that_was_interrupted_goes_on_to_the_same_weights(slice_of_osie, tmp_path, method):
    """Killed within the second epoch, and resumed from its last checkpoint."""
    recipe = Recipe(**QUICK, method=method)
    train_set = slice_of_osie[0]
    config = TrainingConfig(
        epochs=2, seed=3, method=METHODS[method], accelerator="cpu", evaluate_every=0, checkpoint_steps=1
    )

    def weights(folder, fail_at=None):
        kept = []

        def build(place):
            task = build_task(recipe, train_set, 3)(place)
            kept.append(task)
            if fail_at is not None:
                task.data.train_batches = failing(task.data.train_batches, fail_at)
            return task

        train(build, config, folder, resume=True)
        return kept[0].model.state_dict()

    whole = weights(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        weights(tmp_path / "parts", fail_at=(1, 1))
    resumed = weights(tmp_path / "parts")
    assert all(value.equal(resumed[key]) for key, value in whole.items())


def failing(train_batches, place):
    def batches(epoch, start=0):
        for i, batch in enumerate(train_batches(epoch, start), start):
            if (epoch, i) == place:
                raise InterruptedError
            yield batch

    return batches


def test_a_finished_run_is_not_run_again(slice_of_osie, tmp_path):
    recipe = Recipe(**{**QUICK, "epochs": 1})
    said = []
    arguments = ([recipe], [0, 1], *slice_of_osie, tmp_path)
    results = experiment(*arguments, device="cpu", say=said.append)
    record = tmp_path / "runs" / recipe.folder / "seed-0" / "record.jsonl"
    before = record.stat().st_mtime_ns
    again = experiment(*arguments, device="cpu", say=said.append)
    assert record.stat().st_mtime_ns == before
    assert again == results
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert len(results[recipe.name]["NSS"]) == 2
    assert results[recipe.name]["NSS"][0] != results[recipe.name]["NSS"][1]
    assert [len(results[row]["CC"]) for row in ("centre Gaussian", "mean training map", "one human")] == [1, 1, 1]
    assert saved_model(tmp_path, recipe, 0).training is False
    assert not (tmp_path / "runs" / recipe.folder / "seed-1" / "model.pt").exists()


def test_the_study_writes_results_and_a_page(tmp_path):
    path = data.prepare(data.osie(small_osie(tmp_path / "osie", images=6)), tmp_path / "osie.pt", (32, 32))
    recipes = [Recipe(model="dinet", backbone="resnet10t", epochs=1, batch=4)]
    results = osie_study(path, recipes, [0], tmp_path / "out", device="cpu", examples=2, train=4, say=lambda _: None)
    assert recipes[0].name in results
    assert (tmp_path / "out" / "examples.jpg").stat().st_size > 10_000


def test_batches_are_the_same_from_any_place(slice_of_osie):
    batches = HeldBatches(slice_of_osie[0], 4, seed=1)
    assert len(batches) == 2
    whole, rest = list(batches.train_batches(5)), list(batches.train_batches(5, start=1))
    assert [len(images) for images, _ in whole] == [4, 2]
    assert rest[0][0].equal(whole[1][0])
    assert not next(batches.train_batches(6))[0].equal(whole[0][0])
    images, target = whole[0]
    assert images.dtype == torch.uint8
    assert target["density"].amax((1, 2)).tolist() == pytest.approx([1] * 4)
    shares = [HeldBatches(slice_of_osie[0], 4, seed=1, rank=rank, world_size=2) for rank in (0, 1)]
    halves = [next(share.train_batches(5))[0] for share in shares]
    assert torch.stack(halves, 1).flatten(0, 1).equal(images)
    with pytest.raises(ValueError, match="must be a multiple of the 3 processes"):
        HeldBatches(slice_of_osie[0], 4, world_size=3)


def test_the_papers_rows():
    table = {
        "salicon": "DINet Adam DCL-500-1",
        "osie": "DINet Adam DCL-120-1",
    }
    for name, special in table.items():
        rows = [recipe.paper_row for recipe in paper_recipes(name)]
        assert {
            "ResNet-50 RMSP",
            "ResNet-50 RMSP GEM",
            "ResNet-50 Adam DCL-inf-1",
            special,
            f"{special} anchor",
        } <= set(rows)
        assert len(rows) == len(set(rows)) == 12
    with pytest.raises(ValueError, match="got 'mnist'"):
        paper_recipes("mnist")
    assert paper_recipes("osie")[0].name == "ResNet-50 pretrained RMSP"
    assert METHODS["DCL-inf-1 anchor"].margin == 0.5


def test_a_table_of_the_paper_from_the_official_sets(tmp_path, monkeypatch):
    """Every row is asked for, with the sets of its table; the training itself is tested above."""
    asked = []

    def noted(recipes, seeds, train_set, test_set, out, **options):
        asked.append((len(recipes), seeds, train_set, test_set.data.name))
        return {}

    monkeypatch.setattr(study, "experiment", noted)
    small_osie(tmp_path / "osie")
    small_mit1003(tmp_path / "mit1003")
    small_salicon(tmp_path / "salicon", "train")
    small_salicon(tmp_path / "salicon", "val")
    options = {"size": (32, 40), "say": lambda _: None}
    study.reproduce_table("osie", [tmp_path / "osie", tmp_path / "mit1003"], tmp_path / "out", **options)
    study.reproduce_table("salicon", [tmp_path / "salicon"], tmp_path / "out", **options)
    assert [(rows, seeds, name) for rows, seeds, _, name in asked] == [
        (12, [0, 1, 2], "MIT1003"),
        (12, [0, 1, 2], "SALICON"),
    ]
    assert asked[0][2].images.shape == (4, 3, 32, 40)
    assert asked[1][2].data.version == "2017"


def test_images_of_many_sizes_are_scored_at_their_own(tmp_path):
    train_set = data.read_whole(data.osie(small_osie(tmp_path / "osie")), (32, 40))
    test_set = data.read_whole(data.mit1003(small_mit1003(tmp_path / "mit1003")), (32, 40))
    results = experiment(
        [Recipe(**{**QUICK, "epochs": 1})], [0], train_set, test_set, tmp_path / "out", device="cpu", say=lambda _: None
    )
    assert "one human" not in results  # the points of all viewers are one there
    assert all(len(row["NSS"]) == 1 for row in results.values())


def test_optimizers_have_the_papers_settings():
    layer = torch.nn.Linear(2, 2)
    adam = Recipe(optimizer="adam").make_optimizer(layer)
    rmsprop = Recipe(optimizer="rmsprop").make_optimizer(layer)
    assert (adam.defaults["lr"], adam.defaults["betas"][0], adam.defaults["weight_decay"]) == (2e-4, 0.9, 1e-5)
    assert (rmsprop.defaults["lr"], rmsprop.defaults["momentum"], rmsprop.defaults["weight_decay"]) == (5e-4, 0.9, 1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer must be 'adam' or 'rmsprop', got 'sgd'"),
        ({"method": "EWC"}, "method must be one of baseline, GEM"),
        ({"halve_every": 0}, "halve_every must be at least 1 epoch, got 0"),
    ],
)
def test_recipes_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**change)


def test_offline_rows():
    options = {"models": ["dinet"], "optimizers": ["adam", "rmsprop"], "methods": ["baseline", "GEM"]}
    rows = osie_recipes(**options, lite="lite.pth", scratch=True, epochs=10, scratch_epochs=30)
    assert len(rows) == 8
    assert {(row.epochs, row.halve_every) for row in rows} == {(10, 1), (30, 3)}
    assert len({row.folder for row in rows}) == 8
    with pytest.raises(ValueError, match="nothing to train"):
        osie_recipes(**options, lite=None, scratch=False, epochs=1, scratch_epochs=1)


def test_windows_and_references_of_ones_own():
    assert all(method_named(name) == method for name, method in METHODS.items())
    assert method_named("DCL-7-3") == Correction(name="dcl", window=7, references=3)
    assert method_named("DCL-inf-2 anchor") == replace(METHODS["DCL-inf-1 anchor"], references=2)
    assert Recipe(method="DCL-7-3").name == "DINet ResNet-50 Adam DCL-7-3"
    for name in ("DCL-0-1", "DCL-5-0", "DCL-5", "DCL-inf-1 concentrate"):
        with pytest.raises(ValueError, match="or DCL-W-N of your own, got"):
            Recipe(method=name)
