"""The commands: maps from images, scores of folders, prepared sets; what they say when something is wrong."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from saliency_data import picture, small_mit1003, small_osie
from typer.testing import CliRunner

from congruency.experiments.saliency import study
from congruency.experiments.saliency.commands import app
from congruency.saliency import data, models
from congruency.saliency.pictures import example_page, overlay, save_grey
from congruency.saliency.predict import saliency_of
from congruency.saliency.score_maps import score_maps
from congruency.training import read_record


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def unboxed(result):
    """What was said, without its frame and line breaks."""
    return " ".join(re.sub("[│╭╰─╮╯]", " ", result.output).split())


@pytest.fixture
def checkpoint(tmp_path):
    return models.save_model(models.create("salicon", "resnet10t", stride=32), tmp_path / "model.pt")


def test_predict_writes_maps_and_overlays(tmp_path, checkpoint):
    images = [picture(tmp_path / "a.jpg", 50, 70), picture(tmp_path / "grey.png", 64, 40, mode="L")]
    result = call("predict", *images, "--checkpoint", checkpoint, "--out", tmp_path / "out", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "2 maps written" in result.output
    for image in images:
        size = Image.open(image).size
        grey = Image.open(tmp_path / "out" / "maps" / f"{image.stem}.png")
        assert (grey.size, grey.mode, grey.getextrema()) == (size, "L", (0, 255))
        over = Image.open(tmp_path / "out" / "overlays" / f"{image.stem}.png")
        assert (over.size, over.mode) == (size, "RGB")


def test_maps_of_16_bits_without_overlays(tmp_path, checkpoint):
    image = picture(tmp_path / "a.jpg", 50, 70)
    arguments = (
        "--checkpoint",
        checkpoint,
        "--out",
        tmp_path / "out",
        "--bits",
        16,
        "--no-overlays",
        "--device",
        "cpu",
    )
    assert call("predict", image, *arguments).exit_code == 0
    assert np.asarray(Image.open(tmp_path / "out" / "maps" / "a.png")).max() == 65535
    assert not (tmp_path / "out" / "overlays").exists()


def test_predictions_do_not_depend_on_company(checkpoint):
    model = models.load_model(checkpoint)
    image = torch.randint(256, (3, 45, 61), dtype=torch.uint8)
    saliency = saliency_of(model, image, longest=64)
    assert saliency.shape == (45, 61)
    torch.testing.assert_close(saliency_of(model, image, longest=64), saliency)


def folder_of_maps(tmp_path):
    """Maps that are the fixations' own density, and one map too many."""
    osie = data.osie(small_osie(tmp_path / "osie"))
    for v in osie.viewings:
        counts = data.fixation_counts([v.points], (v.height, v.width))
        save_grey(data.density(counts, 3.0)[0], tmp_path / "maps" / f"{v.image.stem}.png", bits=16)
    save_grey(torch.rand(4, 4), tmp_path / "maps" / "other.png")
    return osie


def test_score_says_what_maps_are_worth(tmp_path):
    folder_of_maps(tmp_path)
    out = tmp_path / "scores.json"
    result = call("score", tmp_path / "maps", tmp_path / "osie", "--sigma", 3, "--json", out, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "OSIE: 4 images, 36 fixations" in result.output
    assert "1 maps without an image in the set left out" in result.output
    content = json.loads(out.read_text())
    assert set(content["images"]) == {"1001.jpg", "1002.jpg", "1003.jpg", "1004.jpg"}
    assert content["means"]["CC"] == pytest.approx(1, abs=1e-3)
    assert content["means"]["AUC"] > 0.8


def test_score_with_points_alone(tmp_path):
    osie = folder_of_maps(tmp_path)
    lines = ["image,x,y", *(f"{v.image.stem},{x},{y}" for v in osie.viewings for x, y in v.points.tolist())]
    (tmp_path / "points.csv").write_text("\n".join(lines))
    from_points = score_maps(tmp_path / "maps", tmp_path / "points.csv", ["NSS", "AUC"])
    from_set = score_maps(tmp_path / "maps", osie, ["NSS", "AUC"])
    assert from_points.means == pytest.approx(from_set.means)


@pytest.mark.parametrize("protocol", ["mit", "salicon"])
def test_score_by_the_published_protocols(tmp_path, protocol):
    folder_of_maps(tmp_path)
    result = call(
        "score", tmp_path / "maps", tmp_path / "osie", "--protocol", protocol, "--metric", "AUC", "--device", "cpu"
    )
    assert result.exit_code == 0, result.output
    assert f"AUCs: {protocol}" in result.output


def test_maps_of_another_size_and_bare_images_are_said(tmp_path):
    for name in ("a", "b"):
        picture(tmp_path / "set" / f"{name}.png", 30, 40)
    (tmp_path / "set" / "fixations.csv").write_text("image,x,y\na,3,4\na,30,20\n")
    (tmp_path / "maps").mkdir()
    for name in ("a", "b"):
        np.save(tmp_path / "maps" / f"{name}.npy", np.random.default_rng(0).random((15, 20)))
    result = call("score", tmp_path / "maps", tmp_path / "set", "--metric", "NSS", "--metric", "KL", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "2 maps resized to their image's size" in result.output
    assert "1 images without fixations left out" in result.output


def test_prepare_makes_one_small_file(tmp_path):
    small_osie(tmp_path / "osie")
    result = call("prepare", tmp_path / "osie", tmp_path / "osie.pt", "--width", 64, "--height", 48)
    assert result.exit_code == 0, result.output
    assert data.load_prepared(tmp_path / "osie.pt").images.shape == (4, 3, 48, 64)
    assert data.open_data(tmp_path / "osie.pt").summary() in result.output


def test_osie_runs_a_small_study(tmp_path):
    path = data.prepare(data.osie(small_osie(tmp_path / "osie")), tmp_path / "osie.pt", (32, 32))
    result = call("osie", path, "--out", tmp_path / "out", "--device", "cpu", "--method", "EWC")
    assert result.exit_code == 1
    assert "method must be one of" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "nowhere", "nowhere"], "there is no folder nowhere"),
        (["predict", "a.jpg", "--checkpoint", "nowhere.pt"], "the checkpoint nowhere.pt is missing"),
        (["predict", "a.jpg", "b/a.jpg", "--checkpoint", "nowhere.pt"], "several images are named 'a'"),
        (["prepare", "nowhere", "out.pt"], "there is no data set at nowhere"),
        (["osie", "nowhere.pt"], "the prepared set nowhere.pt is missing"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message):
    result = call(*arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_map_for_every_image_is_needed(tmp_path):
    folder_of_maps(tmp_path)
    (tmp_path / "maps" / "1003.png").unlink()
    result = call("score", tmp_path / "maps", tmp_path / "osie", "--device", "cpu")
    assert result.exit_code == 1
    assert "has no map for 1 of 4 images, the first is 1003.jpg" in " ".join(result.output.split())


def test_two_maps_for_one_image_are_refused(tmp_path):
    folder_of_maps(tmp_path)
    picture(tmp_path / "maps" / "1003.jpg")
    with pytest.raises(data.DataError, match=r"two maps for one image: 1003.jpg and 1003.png"):
        score_maps(tmp_path / "maps", tmp_path / "osie")


def test_the_overlay_colours_what_is_salient():
    image = torch.full((3, 4, 4), 100, dtype=torch.uint8)
    saliency = torch.zeros(4, 4)
    saliency[2, 2] = 1
    mixed = overlay(image, saliency)
    assert (mixed[:, 0, 0] == 100).all()
    assert mixed[0, 2, 2] > 100
    assert (overlay(image, torch.ones(4, 4)) == 100).all()  # a constant map marks nothing
    with pytest.raises(ValueError, match="bits must be 8 or 16, got 12"):
        save_grey(saliency, None, bits=12)


def test_a_page_needs_a_map_for_every_image(tmp_path):
    with pytest.raises(ValueError, match="column 'DCL' has 1 maps for 2 images"):
        example_page([torch.zeros(3, 4, 4)] * 2, {"DCL": [torch.zeros(4, 4)]}, tmp_path / "page.png")


def test_the_comparison_on_osie_ends_in_a_page(tmp_path, monkeypatch):
    data.prepare(data.osie(small_osie(tmp_path / "osie", images=6)), tmp_path / "osie.pt", (32, 32))
    monkeypatch.setattr(study, "osie_study", partial(study.osie_study, train=4))
    out, methods = tmp_path / "out", ["--method", "baseline", "--method", "GEM", "--optimizer", "adam"]
    words = ["osie", tmp_path / "osie.pt", *methods, "--seeds", 2, "--device", "cpu", "--out", out, "--examples", 2]
    result = call(*words, "--scratch-epochs", 1)
    assert result.exit_code == 0, result.output
    assert "the page:" in result.output
    text = (out / "table.md").read_text(encoding="utf-8")
    assert "resnet50 from scratch: 1 epochs (the paper: 10) in batches of 8" in text
    assert "| DINet ResNet-50 Adam GEM | 2 |" in text
    assert "| one human | - |" in text
    assert "- Humans: One human: a viewer's fixations" in text
    assert "SALICON's evaluation" not in text
    assert "Trained on cpu, precision 32" in text
    assert "(examples.jpg)" in text
    result = call(*words, "--scratch-epochs", 2, "--first-seed", 3)
    assert result.exit_code == 0, result.output
    assert "| DINet ResNet-50 Adam | 2 |" in (out / "table.md").read_text(encoding="utf-8")
    rows = json.loads((out / "results.json").read_text(encoding="utf-8"))
    seeds = {row: metrics["seed"] for row, metrics in rows.items() if "seed" in metrics}
    assert seeds["DINet ResNet-50 Adam (epochs-1)"] == [0, 1]
    assert seeds["DINet ResNet-50 Adam (epochs-2)"] == [3, 4]


@pytest.mark.parametrize("kind", ["osie", "prepared", "mit1003"])
def test_a_network_is_trained_scored_and_used_from_the_command_line(kind, tmp_path):
    small_mit1003(tmp_path / "mit1003")
    small_osie(tmp_path / "osie", images=6)
    path = {"osie": tmp_path / "osie", "mit1003": tmp_path / "mit1003", "prepared": tmp_path / "osie.pt"}[kind]
    data.prepare(data.osie(tmp_path / "osie"), tmp_path / "osie.pt", (32, 32))
    out = tmp_path / "run"
    words = ["train", path, "--out", out, "--backbone", "resnet10t", "--epochs", 1, "--device", "cpu", "--width", 32]
    words += ["--height", 32, "--method", "DCL-inf-1", "--loss", "kl+cc"]
    if kind == "mit1003":
        words += ["--test", tmp_path / "osie"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    told, scored = {"osie": (5, 1), "prepared": (5, 1), "mit1003": (2, 6)}[kind]
    assert f": {told} images" in result.output
    assert f": {scored} images" in result.output
    assert "NSS" in result.output
    assert read_record(out).run["config"]["method"]["name"] == "dcl"
    again = call(*words)
    assert again.exit_code == 0, again.output
    other = call(*words, "--seed", 1)
    assert other.exit_code == 2
    assert "holds another finished run" in unboxed(other)
    photo = picture(tmp_path / "a.jpg", 50, 70)
    assert (
        call(
            "predict", photo, "--checkpoint", out / "model.pt", "--out", tmp_path / "maps", "--device", "cpu"
        ).exit_code
        == 0
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--holdout", 6], "must leave images on both sides of 6"),
        (["--holdout", 2, "--test", "there"], "with --test leave it out"),
        (["--method", "magic"], "method must be one of"),
        (["--loss", "l3"], "losses must be among"),
        (["--model", "vgg"], "there is no saliency model"),
        (["--device", "tpu"], "must be auto, cpu or cuda"),
        (["--pretrained", "nowhere.pth"], "nowhere.pth"),
    ],
)
def test_what_cannot_be_trained_is_named(words, message, tmp_path):
    small_osie(tmp_path / "osie", images=6)
    usual = [
        "train",
        tmp_path / "osie",
        "--out",
        tmp_path / "run",
        "--backbone",
        "resnet10t",
        "--width",
        32,
        "--height",
        32,
    ]
    result = call(*usual, *words)
    assert result.exit_code == 2
    assert message in unboxed(result)
