"""Training a saliency network on real images: a few steps, every method, stopped and resumed; recipes."""

import json
import signal
from dataclasses import replace

import pytest
import torch
from saliency_data import picture, real, small_osie

from congruency.constraints.references import DEFAULT_FLOOR
from congruency.saliency import data
from congruency.saliency.batches import SaliencyBatches
from congruency.saliency.predict import predict
from congruency.saliency.score_maps import score_maps
from congruency.saliency.task import METHODS, Recipe, Trained, build_task, method_named, split_prepared, train_network
from congruency.training import Correction, TrainingConfig, order_seed, train

QUICK = {"model": "dinet", "backbone": "resnet10t", "epochs": 2, "batch": 3}
SMALL = data.Preprocessing((48, 64))


@pytest.fixture(scope="module")
def slice_of_osie(tmp_path_factory):
    """Eight real images, small: six to train on, two to score."""
    osie = data.osie(real("osie")).subset(range(8))
    path = data.prepare(osie, tmp_path_factory.mktemp("osie") / "osie.pt", (48, 64))
    return split_prepared(data.load_prepared(path), train=6)


@pytest.mark.parametrize(
    ("optimizer", "method"),
    [
        ("adam", "baseline"), ("rmsprop", "baseline"), ("adam", "GEM"), ("rmsprop", "DCL-inf-1"),
        ("adam", "DCL-inf-1 anchor"), ("adam", "DCL-3-2 floor"), ("rmsprop", "DCL-inf-1 update"), ("adam", "Cautious"),
    ],
)  # fmt: skip
def test_every_method_trains_on_real_images(slice_of_osie, tmp_path, method, optimizer):
    recipe = Recipe(**QUICK, method=method, optimizer=optimizer)
    scores = train_network(recipe, 0, *slice_of_osie, tmp_path, device="cpu").scores
    assert set(scores) == {"NSS", "sAUC", "AUC", "CC", "AUC-Judd", "KL", "SIM", "IG"}
    assert all(-2 < scores[name] < 5 for name in ("NSS", "sAUC", "AUC", "CC", "SIM"))
    written = json.loads((tmp_path / "scores.json").read_text())
    assert (written["row"], written["seed"]) == (recipe.name, 0)
    steps = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in steps if line["kind"] == "epoch"]
    assert len(losses) == 2
    assert all(0 < loss < 2 for loss in losses)


def test_training_makes_the_loss_smaller(slice_of_osie, tmp_path):
    recipe = Recipe(**{**QUICK, "epochs": 6, "model": "salicon"}, halve_every=100, lr=2e-3, loss="l1")
    train_network(recipe, 0, *slice_of_osie, tmp_path, device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "epoch"]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("method", ["GEM", "DCL-inf-1"])
def test_a_run_that_was_interrupted_resumes_to_the_same_weights(slice_of_osie, tmp_path, method):
    """Killed within the second epoch, and resumed from its last checkpoint."""
    recipe = Recipe(**QUICK, method=method)
    train_set = slice_of_osie[0]
    config = TrainingConfig(
        epochs=2, seed=3, method=method_named(method), accelerator="cpu", evaluate_every=0, checkpoint_steps=1
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


def test_batches_are_the_same_from_any_place(slice_of_osie):
    batches = SaliencyBatches(slice_of_osie[0], 4, seed=1)
    assert len(batches) == 2
    whole, rest = list(batches.train_batches(5)), list(batches.train_batches(5, start=1))
    assert [len(images) for images, _ in whole] == [4, 2]
    assert rest[0][0].equal(whole[1][0])
    assert not next(batches.train_batches(6))[0].equal(whole[0][0])
    images, target = whole[0]
    assert images.dtype == torch.uint8
    assert target["density"].amax((1, 2)).tolist() == pytest.approx([1] * 4)
    shares = [SaliencyBatches(slice_of_osie[0], 4, seed=1, rank=rank, world_size=2) for rank in (0, 1)]
    halves = [next(share.train_batches(5))[0] for share in shares]
    assert torch.stack(halves, 1).flatten(0, 1).equal(images)
    with pytest.raises(ValueError, match="must be a multiple of the 3 processes"):
        SaliencyBatches(slice_of_osie[0], 4, world_size=3)


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
        ({"delay": -1}, "delay must be at least 0 epochs, got -1"),
    ],
)
def test_recipes_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**change)


def test_the_papers_schedule():
    """eta_(k+1) = eta_0 0.5^(k-1), k counting from 1: two epochs at the first rate, then half of it in each."""
    assert [Recipe().rate(epoch) for epoch in range(5)] == [1, 1, 0.5, 0.25, 0.125]
    assert [Recipe(delay=0).rate(epoch) for epoch in range(4)] == [1, 0.5, 0.25, 0.125]
    assert [Recipe(delay=0, halve_every=3).rate(epoch) for epoch in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


def test_the_schedule_is_that_of_the_steps(slice_of_osie, tmp_path):
    train_network(Recipe(**{**QUICK, "epochs": 4}), 0, *slice_of_osie, tmp_path, device="cpu", keep_model=False)
    lines = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines if line["kind"] == "epoch"] == [2e-4, 2e-4, 1e-4, 5e-5]


def test_recipes_know_what_their_networks_were_published_with():
    assert (Recipe().backbone, Recipe().effective_loss) == ("resnet50", "0.5*l1")
    assert Recipe().preprocessing == data.Preprocessing((320, 480), "pad")
    published = Recipe(model="salicon")
    assert (published.backbone, published.effective_loss, published.name) == ("vgg16", "kl", "SALICON VGG-16 Adam")
    assert published.preprocessing == data.Preprocessing((600, 800))
    assert Recipe(model="salicon", backbone="resnet50").effective_loss == "l1"
    other = Recipe(height=48, width=64, aspect="stretch")
    assert other.preprocessing == SMALL == Recipe().seen_as(SMALL).preprocessing
    folders = {Recipe().folder, other.folder, Recipe(loss="kl").folder, Recipe(delay=0).folder}
    assert len(folders) == 4
    assert Recipe().seen_as(data.Preprocessing((320, 480), "pad")).folder == Recipe(loss="0.5*l1").folder
    # what runs of the first version are found by
    assert Recipe(model="dinet4", epochs=6, delay=0).folder == "dinet-resnet-50-adam_epochs-6"
    assert Recipe(model="salicon", backbone="resnet50", delay=0, loss="l1").folder == "resnet-50-adam"
    with pytest.raises(ValueError, match="height and width belong together"):
        Recipe(height=48)


@pytest.mark.parametrize("aspect", ["stretch", "pad"])
def test_prediction_sees_an_image_as_training_did(tmp_path, aspect):
    """Scores in training are those of the maps that the checkpoint predicts from the image files."""
    for i, (height, width) in enumerate([(30, 40), (40, 30), (50, 40), (30, 60)]):
        picture(tmp_path / "set" / f"{i}.png", height, width, seed=i)
    lines = [f"{i},{5 * j},{4 * j},v{j}" for i in range(4) for j in range(1, 6)]
    (tmp_path / "set" / "fixations.csv").write_text("\n".join(["image,x,y,viewer", *lines]))
    images = data.folder(tmp_path / "set")
    held = data.prepare_in_memory(images, (48, 64), aspect)
    recipe = Recipe(**{**QUICK, "epochs": 1}).seen_as(held.preprocessing)
    trained = train_network(recipe, 0, held, held, tmp_path / "run", device="cpu")
    written = list(predict([tmp_path / "set"], tmp_path / "run" / "model.pt", tmp_path / "out", values=True))
    assert [one.image.name for one in written] == [f"{i}.png" for i in range(4)]
    found = score_maps(tmp_path / "out" / "values", images, list(trained.scores)).means
    assert found == pytest.approx(trained.scores, rel=1e-4, abs=1e-5)
    other = list(predict(
        [tmp_path / "set"], tmp_path / "run" / "model.pt", tmp_path / "large", values=True,
        preprocessing=data.Preprocessing((96, 128), aspect),
    ))  # fmt: skip
    assert len(other) == 4
    assert score_maps(tmp_path / "large" / "values", images, ["CC"]).means["CC"] != pytest.approx(found["CC"], rel=1e-4)


def test_any_window_and_number_of_references():
    assert all(method_named(name) == method for name, method in METHODS.items())
    assert method_named("DCL-500-1 anchor") == Correction(name="dcl", window=500, mode="anchor", margin=0.5, offset=1)
    assert method_named("DCL-7-3") == Correction(name="dcl", window=7, references=3)
    assert method_named("DCL-inf-2 anchor") == replace(method_named("DCL-inf-1 anchor"), references=2)
    assert method_named("DCL-7-3 update") == Correction(name="dcl", window=7, references=3, correct="update")
    assert method_named("DCL-inf-1 floor").floor == DEFAULT_FLOOR
    assert METHODS["Cautious"] == Correction(name="cautious", scope="all")
    assert Recipe(method="DCL-7-3").name == "published DINet ResNet-50 Adam DCL-7-3"
    assert Recipe(method="DCL-7-3", model="dinet4").name == "DINet ResNet-50 Adam DCL-7-3"
    for name in ("DCL-0-1", "DCL-5-0", "DCL-5", "DCL-inf-1 concentrate"):
        with pytest.raises(ValueError, match="or DCL-W-N, such as DCL-inf-1, got"):
            Recipe(method=name)


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


def test_a_finished_run_is_read_from_its_folder(slice_of_osie, tmp_path):
    recipe = Recipe(**{**QUICK, "epochs": 1})
    first = train_network(recipe, 0, *slice_of_osie, tmp_path, device="cpu", keep_model=False)
    assert not (tmp_path / "model.pt").exists()
    assert not list((tmp_path / "checkpoints").glob("*.pt"))
    before = (tmp_path / "record.jsonl").read_bytes()
    assert train_network(recipe, 0, *slice_of_osie, tmp_path, device="cpu") == first
    assert (tmp_path / "record.jsonl").read_bytes() == before


def test_sigterm_stops_a_run_and_the_same_call_resumes(slice_of_osie, tmp_path):
    recipe = Recipe(**QUICK)
    whole = train_network(recipe, 0, *slice_of_osie, tmp_path / "whole", device="cpu")

    def terminate(step, steps):
        assert steps == 4
        if step == 3:
            signal.raise_signal(signal.SIGTERM)

    stopped = train_network(recipe, 0, *slice_of_osie, tmp_path / "parts", device="cpu", notice=terminate)
    assert stopped == Trained(None, stopped=True)
    assert not (tmp_path / "parts" / "scores.json").exists()
    assert train_network(recipe, 0, *slice_of_osie, tmp_path / "parts", device="cpu") == whole
