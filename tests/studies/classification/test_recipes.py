import pickle

import pytest

from congruency.classification.models import create
from congruency.datasets import SETS
from congruency.studies.classification.recipes import RECIPES, find, rows

CIFAR = [
    "ResNeXt-29 SGD",
    "ResNeXt-29 SGD GEM",
    "ResNeXt-29 SGD DCL-inf-1",
    "DenseNet-100-12 SGD",
    "DenseNet-100-12 SGD GEM",
    "DenseNet-100-12 SGD DCL-90-1",
    "EfficientNet-B1 SGD",
    "EfficientNet-B1 SGD GEM",
    "EfficientNet-B1 SGD DCL-5-1",
]
TINY = [
    "ResNet-101 SGD",
    "ResNet-101 SGD GEM",
    "ResNet-101 SGD DCL-60-1",
    "DenseNet-169-32 SGD",
    "DenseNet-169-32 SGD GEM",
    "DenseNet-169-32 SGD DCL-50-1",
    "EfficientNet-B1 SGD",
    "EfficientNet-B1 SGD GEM",
    "EfficientNet-B1 SGD DCL-8-1",
]
PAPER = {
    "cifar": CIFAR,
    "tiny_imagenet": TINY,
    "imagenet": ["ResNet-50 (original)", "ResNet-50 (reproduced)", "ResNet-50 DCL"],
    "from_scratch": ["ResNet-101 SGD", "ResNet-101 SGD GEM", "ResNet-101 SGD DCL"],
    "cost": ["baseline (ResNet-101 / ResNet-50 / ResNet-50)", "GEM", "DCL"],
    "cost_window": ["DCL"],
    "cost_references": ["DCL"],
}
COLUMNS = {
    "cifar": {"CIFAR-10", "CIFAR-100"},
    "tiny_imagenet": {"Top-1 error", "Top-5 error"},
    "imagenet": {"Top-1 error", "Top-5 error"},
    "from_scratch": {"Top-1 TFS", "Top-1 FT", "Top-5 TFS", "Top-5 FT"},
    "cost": {"Tiny ImageNet params", "Tiny ImageNet ms", "ImageNet params", "ImageNet ms"},
    "cost_window": {"10", "20", "30", "40", "50"},
    "cost_references": {"1", "5", "10", "15", "20"},
}
EVERY = [(table, row) for table, names in PAPER.items() for row in names]


def test_the_tables_and_rows_are_the_papers():
    assert {table: list(rows(table)) for table in dict.fromkeys(recipe.table for recipe in RECIPES)} == PAPER


@pytest.mark.parametrize(("table", "row"), EVERY)
def test_every_row_is_found_and_reports_every_column(table, row):
    recipes = find(table, row)
    assert recipes
    assert set().union(*(recipe.paper for recipe in recipes)) == COLUMNS[table]
    assert sum(len(recipe.paper) for recipe in recipes) == len(COLUMNS[table])
    assert all(recipe.paper.keys() == recipe.columns.keys() for recipe in recipes)
    assert len({recipe.label for recipe in recipes}) == len(recipes)


@pytest.mark.parametrize(("table", "row"), EVERY)
def test_the_name_of_a_row_says_its_method(table, row):
    for recipe in find(table, row):
        words = row.split()
        method = "gem" if "GEM" in words else "dcl" if any(word.startswith("DCL") for word in words) else "baseline"
        assert recipe.method == method
        if words[-1].startswith("DCL-"):
            _, window, references = words[-1].split("-")
            assert recipe.window == (None if window == "inf" else int(window))
            assert recipe.references == int(references)


def test_the_papers_numbers():
    ten, hundred = find("cifar", "ResNeXt-29 SGD DCL-inf-1")
    assert (ten.paper, hundred.paper) == ({"CIFAR-10": 3.33}, {"CIFAR-100": 17.02})
    (tiny,) = find("tiny_imagenet", "DenseNet-169-32 SGD DCL-50-1")
    assert tiny.paper == {"Top-1 error": 19.55, "Top-5 error": 6.09}
    assert find("imagenet", "ResNet-50 DCL")[0].paper["Top-1 error"] == (24.09, 0.03)
    assert [recipe.paper for recipe in find("cost_references", "DCL")][-1] == {"20": 54}
    assert [recipe.references for recipe in find("cost_references", "DCL")] == [1, 5, 10, 15, 20]
    assert [recipe.window for recipe in find("cost_window", "DCL")] == [10, 20, 30, 40, 50]
    scratch, tuned = find("from_scratch", "ResNet-101 SGD DCL")
    assert (scratch.pretrained, tuned.pretrained) == (False, True)
    assert (scratch.paper["Top-1 TFS"], tuned.paper["Top-5 FT"]) == (67.56, 4.50)


def test_the_papers_hyperparameters():
    for recipe in RECIPES:
        assert recipe.momentum == 0.9
        if recipe.data.startswith("cifar"):
            assert (recipe.learning_rate, recipe.weight_decay, recipe.epochs) == (0.1, 5e-4, 300)
            assert (recipe.milestones, recipe.batch_size) == ((150, 225), 128)
        elif recipe.data == "tiny_imagenet":
            assert (recipe.learning_rate, recipe.weight_decay, recipe.epochs) == (0.001, 1e-4, 30)
            assert (recipe.milestones, recipe.batch_size) == ((10, 20), 64)
        else:
            assert (recipe.model, recipe.batch_size) == ("resnet50", 512)
            assert recipe.window == (5 if recipe.method == "dcl" else None)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.table}-{recipe.row}-{recipe.data}")
def test_a_recipe_can_be_prepared(recipe):
    assert recipe.data in SETS
    for each in (recipe, recipe.small()):
        augmentation = each.augmentation
        assert augmentation.size == (each.size or augmentation.size)
        assert len(augmentation.mean) == 3
        assert each.setup().augmentation == augmentation


@pytest.mark.parametrize("name", sorted({each.model for r in RECIPES for each in (r, r.small())}))
def test_the_networks_exist(name):
    import torch

    with torch.device("meta"):
        create(name, 10, shape=(3, 64, 64))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.table}-{recipe.row}-{recipe.data}")
def test_a_small_budget_says_it_is_one(recipe):
    assert not recipe.changes
    small = recipe.small()
    assert f"{small.epochs} epochs for {recipe.epochs}" in small.changes
    assert small.budget == "small"
    assert small.epochs < recipe.epochs
    assert all(0 < milestone < small.epochs for milestone in small.milestones)
    assert list(small.milestones) == sorted(small.milestones)
    assert (small.method, small.window, small.references) == (recipe.method, recipe.window, recipe.references)
    assert small.small() is small


def test_recipes_travel_to_other_processes():
    for recipe in RECIPES:
        assert pickle.loads(pickle.dumps(recipe)) == recipe
