"""The saliency run that is timed: the recipe of the table ``salicon``, on synthetic images."""

from dataclasses import replace

import pytest
import torch

import congruency
from congruency.classification.models import create as create_classifier
from congruency.datasets import LabelledImages
from congruency.saliency.batches import SaliencyBatches
from congruency.saliency.models import create
from congruency.saliency.task import method_named
from congruency.studies.cost import TimedSetup, method_name, synthetic_set
from congruency.studies.saliency.recipes import paper_recipes
from congruency.training import Correction, TrainingConfig, read_record, train

ROWS = ["baseline", "GEM", "DCL-inf-1", "DCL-inf-1 anchor"]


def weights(module):
    return sum(parameter.numel() for parameter in module.parameters())


def images(count, size=(48, 64)):
    return torch.zeros(1, 3, *size, dtype=torch.uint8).expand(count, -1, -1, -1)


@pytest.mark.parametrize("method", ROWS)
def test_it_is_the_recipe_of_the_table_salicon(method):
    """But for the weights it begins with, on which times do not depend, and its length."""
    recipe = replace(TimedSetup().recipe(method), pretrained=True, epochs=10)
    assert recipe in paper_recipes("salicon")
    assert recipe.preprocessing.size == TimedSetup().size


@pytest.mark.parametrize("method", ROWS)
def test_methods_are_found_by_what_they_do(method):
    assert method_name(method_named(method)) == method
    assert method_name(replace(method_named(method), margin=method_named(method).effective_margin)) == method


def test_another_method_is_refused():
    with pytest.raises(ValueError, match="have no such method"):
        method_name(Correction(name="dcl", references=7))


def test_the_papers_counts_of_parameters():
    """Ours, whole, are what the paper has for GEM and DCL; ours without the last layer what it has for the baseline."""
    with torch.device("meta"):
        saliency = create("salicon", "resnet50")
        tiny, imagenet = create_classifier("resnet101", 200), create_classifier("resnet50", 1000)
    counts = [(weights(model), weights(congruency.head(model))) for model in (tiny, saliency, imagenet)]
    assert counts == [(42_909_960, 409_800), (23_512_129, 4_097), (25_557_032, 2_049_000)]
    assert [round((whole - last) / 1e6, 2) for whole, last in counts] == [42.50, 23.51, 23.51]
    assert [round(whole / 1e6, 2) for whole, _ in counts] == [42.91, 23.51, 25.56]
    assert [int(100 * count / 1e6) / 100 for count in (23_508_032, 25_557_032)] == [
        23.50,
        25.55,
    ]  # as ImageNet's is cut


def test_synthetic_images_make_whole_batches():
    prepared = synthetic_set(images(6))
    assert prepared.images.untyped_storage().nbytes() == 3 * 48 * 64  # one image, however many there seem to be
    points = prepared.data[5].points
    assert (points >= 0).all()
    assert (points <= torch.tensor([63, 47])).all()
    batches = list(SaliencyBatches(prepared, 2).train_batches(0))
    assert len(batches) == 3
    for shown, target in batches:
        assert shown.shape == (2, 3, 48, 64)
        assert target["fixations"].sum((1, 2)).tolist() == [len(points)] * 2
        assert target["density"].amax((1, 2)).tolist() == [1.0, 1.0]
    assert torch.equal(synthetic_set(images(6)).data[0].points, points)


@pytest.mark.parametrize("method", ROWS)
def test_every_row_trains_its_network_on_all_images(method, tmp_path):
    setup = TimedSetup(model="resnet10t", batch_size=2)
    sets = LabelledImages(images(8), torch.zeros(8, dtype=torch.long), ("any",)), None
    config = TrainingConfig(
        epochs=1, method=method_named(method), accelerator="cpu", evaluate_every=0, checkpoint_epochs=0
    )
    kept = []

    def build(place):
        kept.append(setup.builder(sets, method_named(method))(place))
        return kept[0]

    record = read_record(train(build, config, tmp_path).record)
    assert [step["samples"] for step in record.steps] == [2] * 4
    assert all(step["seconds"] > 0 for step in record.steps)
    (task,) = kept
    assert (task.description["task"], task.description["method"], task.description["model"]) == (
        "saliency", method, "salicon",
    )  # fmt: skip
    assert isinstance(task.optimizer(task.model), torch.optim.RMSprop)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"batch_size": 0}, "batch_size must be a positive number, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"optimizer": "sgd"}, "optimizer must be 'adam' or 'rmsprop'"),
    ],
)
def test_bad_setups_are_refused(changes, reported):
    with pytest.raises(ValueError, match=reported):
        TimedSetup(**changes)


def test_a_network_that_is_no_backbone_is_refused():
    with pytest.raises(ValueError, match="can be a backbone: timm cannot make 'mlp' give features at stride 16"):
        TimedSetup(model="mlp").check()
    TimedSetup().check()
