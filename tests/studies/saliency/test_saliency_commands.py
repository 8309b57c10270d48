"""The commands: maps from images, scores of folders, prepared sets; what they say when something is wrong."""

import io
import json
import re
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from saliency_data import picture, small_cat2000, small_mit1003, small_osie, small_salicon
from typer.testing import CliRunner

from congruency.cli.saliency import app
from congruency.cli.saliency import options as saliency_options
from congruency.saliency import data, models
from congruency.saliency import task as saliency_task
from congruency.saliency.data.loaders import open_split
from congruency.saliency.export import log_density
from congruency.saliency.predict import example_page, overlay, saliency_of, save_grey, save_overlay, save_values
from congruency.saliency.score_maps import score_maps
from congruency.saliency.scorer import METRICS, resized
from congruency.saliency.task import train_network
from congruency.studies.saliency import recipes as saliency_recipes
from congruency.studies.saliency import runner as saliency_runner
from congruency.studies.store import Store
from congruency.training import read_record


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def unboxed(result):
    """What was said, without its frame and line breaks."""
    return " ".join(re.sub("[│╭╰─╮╯]", " ", result.output).split())


@pytest.fixture
def checkpoint(tmp_path):
    seen = data.Preprocessing((48, 64))
    network = models.create("salicon", "resnet10t", stride=32, preprocessing=seen)
    return models.save_model(network, tmp_path / "model.pt")


def test_predict_writes_maps_and_overlays(tmp_path, checkpoint):
    images = [picture(tmp_path / "a.jpg", 50, 70), picture(tmp_path / "grey.png", 64, 40, mode="L")]
    result = call("predict", *images, "--checkpoint", checkpoint, "--out", tmp_path / "out", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "2 maps written" in result.output
    for image in images:
        size = Image.open(image).size
        grey = Image.open(tmp_path / "out" / "maps" / f"{image.stem}.png")
        assert (grey.size, grey.mode, np.asarray(grey).max()) == (size, "I;16", 65535)
        over = Image.open(tmp_path / "out" / "overlays" / f"{image.stem}.png")
        assert (over.size, over.mode) == (size, "RGB")


def test_a_network_that_diverged_predicts_nothing(tmp_path, checkpoint):
    model = models.load_model(checkpoint)
    torch.nn.init.constant_(model.readout.bias, torch.nan)
    models.save_model(model, checkpoint)
    image = picture(tmp_path / "a.jpg", 50, 70)
    result = call("predict", image, "--checkpoint", checkpoint, "--out", tmp_path / "out", "--device", "cpu")
    assert result.exit_code == 2
    assert "has nan: its training diverged" in unboxed(result)
    assert not (tmp_path / "out").exists()


def test_maps_of_8_bits_without_overlays(tmp_path, checkpoint):
    image = picture(tmp_path / "a.jpg", 50, 70)
    arguments = (
        "--checkpoint",
        checkpoint,
        "--out",
        tmp_path / "out",
        "--bits",
        8,
        "--no-overlays",
        "--device",
        "cpu",
    )
    assert call("predict", image, *arguments).exit_code == 0
    assert Image.open(tmp_path / "out" / "maps" / "a.png").getextrema() == (0, 255)
    assert not (tmp_path / "out" / "overlays").exists()


def test_the_maps_numbers_are_kept_on_request(tmp_path, checkpoint):
    image = picture(tmp_path / "a.jpg", 50, 70)
    words = ["--checkpoint", checkpoint, "--out", tmp_path / "out", "--npy", "--device", "cpu"]
    result = call("predict", image, *words)
    assert result.exit_code == 0, result.output
    expected = saliency_of(models.load_model(checkpoint), data.read_image(image))
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "values" / "a.npy"), expected.numpy())
    assert {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()} == {"a.png", "a.npy"}
    (tmp_path / "points.csv").write_text("image,x,y\na,3,4\na,30,20\n")
    for folder in ("values", "maps"):  # each of them alone can be scored
        result = call("score", tmp_path / "out" / folder, tmp_path / "points.csv", "--metric", "KL", "--device", "cpu")
        assert result.exit_code == 0, result.output
        assert ("1 maps are pictures, 0 of them of 8 bits" in result.output) == (folder == "maps")


def test_a_picture_changes_kl_and_is_reported(tmp_path):
    osie = data.osie(small_osie(tmp_path / "osie"))
    for v in osie.viewings:
        blurred = data.density(data.fixation_counts([v.points], (v.height, v.width)), 3.0)[0] + 0.01
        save_values(blurred, tmp_path / "npy" / f"{v.image.stem}.npy")
        save_grey(blurred, tmp_path / "png" / f"{v.image.stem}.png", bits=8)
    true = score_maps(tmp_path / "npy", osie, ["KL", "NSS"], sigma=3.0)
    seen = score_maps(tmp_path / "png", osie, ["KL", "NSS"], sigma=3.0)
    assert (true.pictures, seen.pictures, seen.eight_bits) == (0, 4, 4)
    assert seen.means["NSS"] == pytest.approx(true.means["NSS"], rel=0.01)
    assert abs(seen.means["KL"] - true.means["KL"]) > 0.1
    result = call("score", tmp_path / "png", tmp_path / "osie", "--metric", "NSS", "--device", "cpu")
    assert "pictures" not in result.output  # nothing that depends on it was asked for


def test_predict_takes_folders_and_uses_the_size_of_the_training(tmp_path, checkpoint):
    images = [picture(tmp_path / "photos" / f"{name}.png", 60, 100, seed=i) for i, name in enumerate("ab")]
    usual = ["predict", tmp_path / "photos", "--checkpoint", checkpoint, "--npy", "--device", "cpu", "--out"]
    result = call(*usual, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "SALICON on resnet10t sees images at 48x64, stretched" in result.output
    assert "note:" not in result.output
    model = models.load_model(checkpoint)
    for path in images:
        seen = data.read_image(path, (48, 64))  # as prepare_in_memory resizes it for training
        with torch.no_grad():
            expected = resized(model(seen.unsqueeze(0)), (60, 100))[0]
        assert np.array_equal(np.load(tmp_path / "out" / "values" / f"{path.stem}.npy"), expected.numpy())
    other = call(*usual, tmp_path / "large", "--width", 128, "--height", 96)
    assert "sees images at 96x128, stretched\nnote: it was trained at 48x64, stretched" in other.output
    both = [np.load(tmp_path / name / "values" / "a.npy") for name in ("out", "large")]
    assert not np.allclose(*both, rtol=1e-3)
    half = call(*usual, tmp_path / "half", "--width", 128)
    assert half.exit_code == 2
    assert "--width and --height belong together" in unboxed(half)
    (tmp_path / "empty").mkdir()
    nothing = call("predict", tmp_path / "empty", "--checkpoint", checkpoint, "--out", tmp_path / "none")
    assert nothing.exit_code == 2
    assert "and its subfolders hold no images" in unboxed(nothing)


def folder_of_maps(tmp_path):
    """Maps that are the fixations' own density, and one map too many."""
    osie = data.osie(small_osie(tmp_path / "osie"))
    for v in osie.viewings:
        counts = data.fixation_counts([v.points], (v.height, v.width))
        save_grey(data.density(counts, 3.0)[0], tmp_path / "maps" / f"{v.image.stem}.png", bits=16)
    save_grey(torch.rand(4, 4), tmp_path / "maps" / "other.png")
    return osie


def test_score_prints_and_writes_the_metrics(tmp_path):
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
    references = ["uniform", "centre Gaussian", "mean map of the other images"]
    assert list(content["references"]) == references
    assert all(f"({i + 1}) {name}" in result.output for i, name in enumerate(references))
    (line,) = [line.split() for line in result.output.splitlines() if line.startswith("CC ")]
    assert line[1:] == [f"{value['CC']:.4f}" for value in (content["means"], *content["references"].values())][0:6]
    assert "worse than the centre bias" not in result.output
    for choice, count in (("floors", 3), ("none", 0)):
        words = ["--metric", "NSS", "--references", choice, "--device", "cpu"]
        bare = call("score", tmp_path / "maps", tmp_path / "osie", *words)
        assert bare.stdout.count("\n(") == count


def test_maps_below_the_centre_bias_are_named(tmp_path):
    """Maps that are high where nobody looks."""
    osie = data.osie(small_osie(tmp_path / "osie"))
    for v in osie.viewings:
        counts = data.fixation_counts([v.points], (v.height, v.width))
        save_values(1 - data.density(counts, 3.0)[0], tmp_path / "maps" / f"{v.image.stem}.npy")
    result = call("score", tmp_path / "maps", tmp_path / "osie", "--metric", "NSS", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "warning: these maps: worse than the centre bias in NSS (-" in result.output


def test_score_with_points_alone(tmp_path):
    osie = folder_of_maps(tmp_path)
    lines = ["image,x,y", *(f"{v.image.stem},{x},{y}" for v in osie.viewings for x, y in v.points.tolist())]
    (tmp_path / "points.csv").write_text("\n".join(lines))
    from_points = score_maps(tmp_path / "maps", tmp_path / "points.csv", ["NSS", "AUC"])
    from_set = score_maps(tmp_path / "maps", osie, ["NSS", "AUC"])
    assert from_points.means == pytest.approx(from_set.means)


def test_one_image_of_two_names_is_refused(tmp_path):
    folder_of_maps(tmp_path)
    (tmp_path / "points.csv").write_text("image,x,y\n1001,3,4\n1001.jpg,5,6\n")
    with pytest.raises(data.DataError, match=r"1001 and 1001.jpg would share the map 1001.png; name an image in one"):
        score_maps(tmp_path / "maps", tmp_path / "points.csv")


def test_scores_against_the_sets_own_densities(tmp_path):
    mit = data.mit1003(small_mit1003(tmp_path / "mit1003"))
    for v in mit.viewings:
        save_grey(data.official_density(v), tmp_path / "maps" / f"{v.image.stem}.png")
    words = ["score", tmp_path / "maps", tmp_path / "mit1003", "--device", "cpu", "--json", tmp_path / "s.json"]
    result = call(*words, "--density", "official")
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "s.json").read_text())
    assert content["density"] == "official"
    assert list(content["means"]) == ["NSS", "sAUC", "AUC", "CC", "AUC-Judd", "KL", "SIM", "IG"]
    assert content["means"]["CC"] == pytest.approx(1, abs=1e-3)
    assert content["means"]["SIM"] == pytest.approx(1, abs=1e-2)
    uniform = content["references"]["uniform"]
    assert list(uniform) == list(content["means"])
    assert call(*words).exit_code == 0
    blurred = json.loads((tmp_path / "s.json").read_text())
    assert blurred["means"]["CC"] < 0.5  # against a blur of 35 pixels
    assert blurred["references"]["uniform"]["KL"] < uniform["KL"] - 1
    assert blurred["means"]["NSS"] == content["means"]["NSS"]
    save_grey(torch.rand(30, 40), tmp_path / "maps" / "1001.png")
    result = call("score", tmp_path / "maps", small_osie(tmp_path / "osie", images=1), "--density", "official")
    assert result.exit_code == 2
    assert "there is no official density map for 1001.jpg" in unboxed(result)


def test_the_test_images_of_osie_are_scored_alone(tmp_path):
    osie = data.osie(small_osie(tmp_path / "osie", images=503, viewers=1, height=12, width=16))
    _, test = data.osie_split(osie)
    for v in test.viewings:
        save_values(torch.rand(12, 16), tmp_path / "maps" / f"{v.image.stem}.npy")
    words = ["score", tmp_path / "maps", tmp_path / "osie", "--metric", "NSS", "--device", "cpu"]
    result = call(*words, "--split", "test")
    assert result.exit_code == 0, result.output
    assert "OSIE: 3 images, 9 fixations" in result.output
    assert call(*words).exit_code == 2
    missing = call(*words, "--split", "train")
    assert "has no map for 500 of 500 images" in unboxed(missing)
    unknown = call(*words, "--split", "val")
    assert "OSIE has the splits train and test, got 'val'" in unboxed(unknown)
    small = ["--split", "test", "--width", 32, "--height", 32]
    assert call("prepare", tmp_path / "osie", tmp_path / "test.pt", *small).exit_code == 0
    assert len(data.load_prepared(tmp_path / "test.pt").data) == 3


def test_a_part_of_what_has_none_is_refused(tmp_path):
    folder_of_maps(tmp_path)
    mit = small_mit1003(tmp_path / "mit1003")
    (tmp_path / "points.csv").write_text("image,x,y\n1001,3,4\n")
    for place in (mit, tmp_path / "points.csv"):
        result = call("score", tmp_path / "maps", place, "--split", "test")
        assert result.exit_code == 2
        assert "has no splits; do not name one, got 'test'" in unboxed(result)
    salicon = data.salicon(small_salicon(tmp_path / "salicon"))
    prepared = data.prepare(salicon, tmp_path / "salicon.pt", (24, 32))
    with pytest.raises(data.DataError, match="is a prepared split of SALICON"):
        open_split(prepared, "val")
    assert len(open_split(tmp_path / "salicon", "train")) == len(open_split(prepared, None)) == 2


@pytest.mark.parametrize("content", ["image,x,y\n", "{}", '{"1001": []}'])
def test_points_without_a_point_are_refused(tmp_path, content):
    folder_of_maps(tmp_path)
    path = tmp_path / f"points.{'csv' if content.startswith('image') else 'json'}"
    path.write_text(content)
    result = call("score", tmp_path / "maps", path, "--device", "cpu")
    assert result.exit_code == 2
    assert "has fixations: there is nothing to score against" in unboxed(result)


@pytest.mark.parametrize("protocol", ["mit", "salicon"])
def test_score_by_the_published_protocols(tmp_path, protocol):
    folder_of_maps(tmp_path)
    result = call(
        "score", tmp_path / "maps", tmp_path / "osie", "--protocol", protocol, "--metric", "AUC", "--device", "cpu"
    )
    assert result.exit_code == 0, result.output
    assert f"metrics: {protocol}" in result.output


def test_maps_of_another_size_and_images_without_fixations_are_reported(tmp_path):
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


def maps_of(osie, folder, spoil=None):
    """The fixations' densities as arrays; ``spoil`` changes the one of 1003."""
    for v in osie.viewings:
        saliency = data.density(data.fixation_counts([v.points], (v.height, v.width)), 3.0)[0] + 0.01
        if spoil is not None and v.key == "1003":
            saliency = spoil(saliency)
        save_values(saliency, folder / f"{v.key}.npy")
    return folder


def with_nan(saliency):
    saliency[2, 3] = torch.nan
    return saliency


def with_infinity(saliency):
    saliency[2, 3] = torch.inf
    return saliency


@pytest.mark.parametrize("spoil", [with_nan, with_infinity, torch.log])
def test_a_map_that_is_not_valid_is_named_and_left_out_or_refused(tmp_path, spoil):
    osie = data.osie(small_osie(tmp_path / "osie"))
    whole = score_maps(maps_of(osie, tmp_path / "good"), osie, METRICS, sigma=3.0)
    maps = maps_of(osie, tmp_path / "maps", spoil)
    words = ["score", maps, tmp_path / "osie", "--sigma", 3, "--device", "cpu"]
    result = call(*words, "--json", tmp_path / "s.json", "--csv", tmp_path / "s.csv")
    assert result.exit_code == 0, result.output
    partly = spoil is torch.log  # a log density has ranks and z-scores, and is no distribution
    assert f"warning: 1003.npy is left out{' of KL, SIM, IG' if partly else ''}:" in result.stderr
    assert "1 maps with nan or negative values left out" in result.output
    assert f"{4 if partly else 3} images scored" in result.output
    assert "nan" not in result.stdout.split("see the warnings")[1]
    content = json.loads((tmp_path / "s.json").read_text())
    assert list(content["invalid"]) == ["1003.npy"]
    assert content["images"]["1003.jpg"]["KL"] is None
    assert (content["images"]["1003.jpg"]["NSS"] is None) != partly
    others = [scores["KL"] for name, scores in whole.images.items() if name != "1003.jpg"]
    assert content["means"]["KL"] == pytest.approx(sum(others) / 3, rel=1e-6)
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert lines[0] == "image,NSS,sAUC,AUC,CC,AUC-Judd,KL,SIM,IG"
    assert [line.split(",")[0] for line in lines[1:]] == ["1001.jpg", "1002.jpg", "1003.jpg", "1004.jpg"]
    assert lines[3].split(",")[6] == ""
    assert float(lines[1].split(",")[1]) == content["images"]["1001.jpg"]["NSS"]
    refused = call(*words, "--strict")
    assert refused.exit_code == 2
    assert "1 maps are not valid, the first is 1003.npy" in unboxed(refused)


@pytest.mark.parametrize("scale", [1e36, 1e300, 1e-42, 1e-300])
def test_maps_of_any_scale_have_the_same_scores(tmp_path, scale):
    """Exponentials of logits may be close to the limits of float32, or beyond them."""
    osie = data.osie(small_osie(tmp_path / "osie", height=150, width=200))
    for i, v in enumerate(osie.viewings):
        values = np.random.default_rng(i).random((v.height, v.width)) + 0.1
        for folder, factor in (("usual", 1.0), ("scaled", scale)):
            (tmp_path / folder).mkdir(exist_ok=True)
            np.save(tmp_path / folder / f"{v.key}.npy", values * factor)
    usual, scaled = (score_maps(tmp_path / folder, osie, METRICS) for folder in ("usual", "scaled"))
    assert scaled.invalid == ()
    for name, scores in usual.images.items():
        assert scaled.images[name] == pytest.approx(scores, abs=1e-5)


def test_the_gallery_names_maps_that_are_not_valid(tmp_path):
    maps = maps_of(data.osie(small_osie(tmp_path / "osie")), tmp_path / "maps", with_nan)
    result = call("gallery", maps, tmp_path / "osie", "--out", tmp_path / "page", "--pixels-per-degree", 3)
    assert result.exit_code == 0, result.output
    assert "warning: 1003.npy is left out: 1 of its values are nan or infinite" in result.stderr


def test_a_metric_without_any_valid_map_is_an_error(tmp_path):
    osie = data.osie(small_osie(tmp_path / "osie"))
    for v in osie.viewings:
        save_values(torch.rand(30, 40) - 0.5, tmp_path / "maps" / f"{v.key}.npy")
    result = call("score", tmp_path / "maps", tmp_path / "osie", "--metric", "NSS", "--metric", "KL", "--device", "cpu")
    assert result.exit_code == 2
    assert "no map has a valid KL: of 1001.npy its least value is" in unboxed(result)
    assert "take the exponential of log densities" in unboxed(result)
    assert call("score", tmp_path / "maps", tmp_path / "osie", "--metric", "NSS", "--device", "cpu").exit_code == 0


def test_a_metric_that_one_image_cannot_have_is_named(tmp_path):
    osie = data.osie(small_osie(tmp_path / "osie", images=1))
    result = call("score", maps_of(osie, tmp_path / "maps"), tmp_path / "osie", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "without the fixations of others: sAUC" in result.output
    assert "nan" not in result.output


def test_any_set_takes_its_pixels_per_degree_and_a_baseline(tmp_path):
    osie = data.osie(small_osie(tmp_path / "osie"))
    maps = maps_of(osie, tmp_path / "maps")
    np.save(tmp_path / "prior.npy", np.ones((6, 8)))
    words = ["score", maps, tmp_path / "osie", "--metric", "CC", "--metric", "IG", "--device", "cpu", "--json"]
    assert call(*words, tmp_path / "a.json", "--pixels-per-degree", 3).exit_code == 0
    assert call(*words, tmp_path / "b.json", "--sigma", 3, "--baseline", tmp_path / "prior.npy").exit_code == 0
    first, second = (json.loads((tmp_path / name).read_text())["means"] for name in ("a.json", "b.json"))
    assert first["CC"] == second["CC"] == pytest.approx(1, abs=1e-3)
    assert second["IG"] > 0.5  # over a uniform baseline
    assert first["IG"] != second["IG"]
    refused = call(*words, tmp_path / "c.json", "--pixels-per-degree", -1)
    assert refused.exit_code == 2
    assert "pixels_per_degree must be a positive number" in unboxed(refused)
    (tmp_path / "prior.npy").unlink()
    np.save(tmp_path / "prior.npy", np.zeros((6, 8)))
    refused = call(*words, tmp_path / "c.json", "--baseline", tmp_path / "prior.npy")
    assert "must be one map, positive at every pixel" in unboxed(refused)
    prepared = ["prepare", tmp_path / "osie", tmp_path / "osie.pt", "--width", 32, "--height", 32]
    assert call(*prepared, "--pixels-per-degree", 5).exit_code == 0
    assert data.load_prepared(tmp_path / "osie.pt").data[0].sigma == 5


def test_hidden_files_are_not_maps(tmp_path):
    osie = data.osie(small_osie(tmp_path / "osie"))
    maps = maps_of(osie, tmp_path / "maps")
    for folder, name in ((maps, "._1001.npy"), (tmp_path / "osie" / "stimuli", "._1001.jpg")):
        (folder / name).write_bytes(b"Mac OS X")
    assert score_maps(maps, tmp_path / "osie", ["NSS"]).unused == 0


def test_maps_of_categories_are_found_in_their_folders(tmp_path):
    cat = data.cat2000(small_cat2000(tmp_path / "CAT2000"))
    for v in cat.viewings:
        save_values(data.official_density(v) + 1, tmp_path / "maps" / f"{v.key}.npy")
    words = ["score", tmp_path / "maps", tmp_path / "CAT2000", "--density", "official", "--device", "cpu", "--json"]
    assert call(*words, tmp_path / "s.json").exit_code == 0
    content = json.loads((tmp_path / "s.json").read_text())
    assert list(content["images"]) == ["Action/001.jpg", "Social/001.jpg"]
    assert content["means"]["CC"] == pytest.approx(1)
    (tmp_path / "points.csv").write_text("image,x,y\nAction/001.jpg,3,4\n")
    assert score_maps(tmp_path / "maps", tmp_path / "points.csv", ["NSS"]).scored == 1


def test_predictions_of_categories_are_scored_and_exported(tmp_path, checkpoint):
    """CAT2000 numbers the images of every category alike, and has folders ``Output`` beside them."""
    images = small_cat2000(tmp_path / "CAT2000") / "trainSet" / "Stimuli"
    words = [images, "--checkpoint", checkpoint, "--npy", "--out", tmp_path / "out", "--device", "cpu"]
    result = call("predict", *words)
    assert result.exit_code == 0, result.output
    maps = tmp_path / "out" / "values"
    written = sorted(path.relative_to(maps).as_posix() for path in maps.rglob("*.npy"))
    assert written == ["Action/001.npy", "Social/001.npy"]
    assert (tmp_path / "out" / "overlays" / "Social" / "001.png").is_file()
    assert score_maps(maps, tmp_path / "CAT2000", ["NSS"]).scored == 2
    assert call("export", maps, images, tmp_path / "all.zip").exit_code == 0


def test_the_folder_of_a_set_stands_for_its_images(tmp_path, checkpoint):
    """MIT1003's maps of fixations are pictures too."""
    for root in (small_osie(tmp_path / "osie"), small_mit1003(tmp_path / "mit1003")):
        out = tmp_path / f"{root.name}-maps"
        words = [root, "--checkpoint", checkpoint, "--npy", "--no-overlays", "--out", out, "--device", "cpu"]
        assert call("predict", *words).exit_code == 0
        assert score_maps(out / "values", root, ["NSS"]).unused == 0
        assert call("export", out / "maps", root, tmp_path / "all.zip").exit_code == 0
        outside = call("score", out, root, "--metric", "NSS", "--device", "cpu")
        assert outside.exit_code == 2
        assert f"{root.name}-maps/valueshassome" in "".join(unboxed(outside).split())


def test_pictures_in_subfolders_are_not_images_of_a_folder_that_has_some(tmp_path, checkpoint):
    """Such as earlier predictions."""
    picture(tmp_path / "photos" / "a.jpg", 50, 70)
    out = tmp_path / "photos" / "saliency"
    words = [tmp_path / "photos", "--checkpoint", checkpoint, "--out", out, "--device", "cpu"]
    for _ in range(2):
        assert "1 maps written" in call("predict", *words).output
    assert call("export", out / "maps", tmp_path / "photos", tmp_path / "all.zip").exit_code == 0


def test_the_references_have_the_baseline_that_is_given(tmp_path):
    """Over a uniform baseline a uniform map gains nothing."""
    osie = data.osie(small_osie(tmp_path / "osie", viewers=4))
    np.save(tmp_path / "prior.npy", np.ones((6, 8)))
    words = ["score", maps_of(osie, tmp_path / "maps"), tmp_path / "osie", "--metric", "IG", "--device", "cpu"]
    over = [*words, "--baseline", tmp_path / "prior.npy", "--json"]
    assert call(*words, "--json", tmp_path / "a.json").exit_code == call(*over, tmp_path / "b.json").exit_code == 0
    usual, given = (json.loads((tmp_path / name).read_text())["references"] for name in ("a.json", "b.json"))
    assert given["uniform"]["IG"] == pytest.approx(0, abs=1e-6)
    assert usual["uniform"]["IG"] != pytest.approx(0, abs=1e-3)
    assert given["human ceiling"]["IG"] != usual["human ceiling"]["IG"]


def folder_to_export(tmp_path):
    """Images in two subfolders of different sizes, and their maps: one with zeros, one of another size."""
    for name, size in (("a/1.jpg", (30, 40)), ("b/1.png", (20, 24))):
        picture(tmp_path / "images" / name, *size)
    (tmp_path / "images" / "a" / "._1.jpg").write_bytes(b"Mac OS X")
    maps = {"a/1": torch.rand(30, 40) + 0.1, "b/1": torch.rand(10, 12)}
    maps["b/1"][2:8, 3:9] = 0
    for name, saliency in maps.items():
        save_values(saliency, tmp_path / "maps" / f"{name}.npy")
    return maps


def test_predictions_as_an_archive_of_the_benchmark(tmp_path):
    maps = folder_to_export(tmp_path)
    result = call("export", tmp_path / "maps", tmp_path / "images", tmp_path / "out" / "model.zip")
    assert result.exit_code == 0, result.output
    assert "2 maps written" in result.output
    with zipfile.ZipFile(tmp_path / "out" / "model.zip") as archive:
        assert archive.namelist() == ["a/1.png", "b/1.png"]
        stored = np.asarray(Image.open(io.BytesIO(archive.read("a/1.png"))))
        assert Image.open(io.BytesIO(archive.read("b/1.png"))).size == (24, 20)
    scaled = (maps["a/1"] - maps["a/1"].min()) / (maps["a/1"].max() - maps["a/1"].min())
    np.testing.assert_allclose(stored / 65535, scaled, atol=1e-5)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.zip"]


def test_hdf5_needs_h5py_and_says_so(tmp_path, monkeypatch):
    """With it: test_saliency_peers.py."""
    folder_to_export(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    result = call("export", tmp_path / "maps", tmp_path / "images", tmp_path / "model.hdf5")
    assert result.exit_code == 2
    assert "HDF5 files need the package h5py: pip install h5py" in unboxed(result)
    assert not (tmp_path / "model.hdf5").exists()


def test_log_densities_are_finite_and_sum_to_one():
    saliency = torch.rand(20, 30)
    values, floored = log_density(saliency + 0.1)
    assert not floored
    torch.testing.assert_close(values.exp(), ((saliency + 0.1) / (saliency + 0.1).sum()).double())
    saliency[:5] = 0
    values, floored = log_density(saliency)
    assert floored
    assert values.exp().sum().item() == pytest.approx(1)
    assert values[0, 0].exp().item() == pytest.approx(1e-3 / 600)
    assert log_density(torch.zeros(2, 2))[0].exp().tolist() == [[0.25, 0.25], [0.25, 0.25]]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "maps" / "b" / "1.npy").unlink(), "has no map for b/1.png"),
        (lambda root: save_values(torch.rand(4, 4) - 1, root / "maps" / "b" / "1.npy"), "negative values; a density"),
    ],
)
def test_what_cannot_be_exported_leaves_no_file(tmp_path, spoil, message):
    folder_to_export(tmp_path)
    spoil(tmp_path)
    result = call("export", tmp_path / "maps", tmp_path / "images", tmp_path / "out" / "model.zip")
    assert result.exit_code == 2
    assert message in unboxed(result)
    assert not list((tmp_path / "out").iterdir())


def test_eight_bits_are_reported_with_the_areas(tmp_path):
    osie = data.osie(small_osie(tmp_path / "osie"))
    for v in osie.viewings:
        save_grey(torch.rand(30, 40), tmp_path / "maps" / f"{v.key}.png", bits=8)
    words = ["score", tmp_path / "maps", tmp_path / "osie", "--device", "cpu", "--metric"]
    assert "4 maps have only 256 levels, whose ties lower AUC" in call(*words, "AUC").output
    assert "256 levels" not in call(*words, "NSS").output


def test_files_are_replaced_whole(tmp_path, checkpoint):
    """Another name of the old file keeps the old content: the new one was written aside and renamed."""
    osie, model = folder_of_maps(tmp_path), models.load_model(checkpoint)
    image = data.read_image(osie[0].image)
    scores = ["score", tmp_path / "maps", tmp_path / "osie", "--metric", "NSS", "--device", "cpu", "--json"]
    writers = {
        "model.pt": lambda path: models.save_model(model, path),
        "set.pt": lambda path: data.prepare(osie, path, (24, 32)),
        "map.png": lambda path: save_grey(torch.rand(4, 5), path),
        "over.png": lambda path: save_overlay(image, torch.rand(30, 40), path),
        "map.npy": lambda path: save_values(torch.rand(4, 5), path),
        "page.jpg": lambda path: example_page([image], {"map": [torch.rand(30, 40)]}, path),
        "scores.json": lambda path: call(*scores, path),
    }
    for name, write in writers.items():
        path = tmp_path / "written" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"old")
        path.with_name("other").hardlink_to(path)
        write(path)
        assert len(path.read_bytes()) > 3, name
        assert path.with_name("other").read_bytes() == b"old", name
        path.with_name("other").unlink()
    assert {path.name for path in (tmp_path / "written").iterdir()} == set(writers)


def test_prepare_makes_one_small_file(tmp_path):
    small_osie(tmp_path / "osie")
    result = call("prepare", tmp_path / "osie", tmp_path / "osie.pt", "--width", 64, "--height", 48)
    assert result.exit_code == 0, result.output
    assert data.load_prepared(tmp_path / "osie.pt").images.shape == (4, 3, 48, 64)
    assert data.open_data(tmp_path / "osie.pt").summary() in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "nowhere", "nowhere"], "there is no folder nowhere"),
        (["predict", "a.jpg", "--checkpoint", "nowhere.pt"], "the checkpoint nowhere.pt is missing"),
        (["predict", "a.jpg", "b/a.jpg", "--checkpoint", "nowhere.pt"], "several images are named 'a'"),
        (["prepare", "nowhere", "out.pt"], "there is no data set at nowhere"),
        (["osie", "nowhere.pt"], "nowhere.pt is missing; create it with congruency saliency prepare"),
        (["osie", "nowhere"], "nowhere"),
        (["osie", "nowhere.pt", "--method", "EWC"], "method must be one of baseline, GEM"),
        (["osie", "nowhere.pt", "--model", "vgg"], "'vgg' is not one of 'dinet', 'salicon', 'dinet4'"),
        (["osie", "nowhere.pt", "--optimizer", "sgd"], "'sgd' is not one of 'adam', 'rmsprop'"),
        (["score", "nowhere", "nowhere", "--metric", "AUPR"], "'AUPR' is not one of 'NSS', 'sAUC'"),
        (["score", "nowhere", "nowhere", "--protocol", "x"], "'x' is not one of 'exact', 'mit', 'salicon'"),
        (["score", "nowhere", "nowhere", "--density", "x"], "'x' is not one of 'fixations', 'official'"),
        (["score", "nowhere", "nowhere", "--sigma", "inf"], "sigma must be a positive number of pixels"),
        (["export", "nowhere", "nowhere", "x.tar"], "the file must end in .hdf5, .h5, .zip"),
        (
            ["export", "nowhere", "nowhere", "x.zip"],
            "there is no folder nowhere; give the folder that holds the images",
        ),
        (["predict", "a.jpg", "--checkpoint", "nowhere.pt", "--bits", "12"], "'12' is not one of '8', '16'"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "".join(message.split()) in "".join(unboxed(result).split())  # a long path is broken anywhere
    assert not list(tmp_path.iterdir())


def test_the_metrics_to_choose_from_are_all_there_are():
    assert saliency_options.METRICS == METRICS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "a.jpg", "--checkpoint", "m.pt", "--device", "gpu"], "PyTorch cannot use 'gpu' here"),
        (["predict", "a.jpg", "--checkpoint", "m.pt", "--device", "cuda:99"], "PyTorch cannot use 'cuda:99' here"),
        (["score", "maps", "points.csv", "--device", "gpu"], "PyTorch cannot use 'gpu' here"),
        (["osie", "osie.pt", "--device", "gpu"], "'gpu' is not one of 'auto', 'cpu', 'cuda'"),
        (["predict", "a.jpg", "--checkpoint", "m.pt", "--out", "file"], "file is a file, a folder is needed"),
        (["osie", "osie.pt", "--out", "file"], "file is a file, a folder is needed"),
        (["score", "maps", "points.csv", "--json", "file/x.json"], "file is a file, a folder is needed"),
        (["score", "maps", "points.csv", "--json", "folder"], "folder is a folder, name a file"),
        (["prepare", "osie", "folder"], "folder is a folder, name a file"),
        (["prepare", "osie", "file/x.pt"], "file is a file, a folder is needed"),
    ],
)
def test_what_cannot_be_used_is_refused_before_any_work(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert "".join(message.split()) in "".join(unboxed(result).split())  # a long path is broken anywhere
    assert isinstance(result.exception, SystemExit)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_map_for_every_image_is_needed(tmp_path):
    folder_of_maps(tmp_path)
    (tmp_path / "maps" / "1003.png").unlink()
    result = call("score", tmp_path / "maps", tmp_path / "osie", "--device", "cpu")
    assert result.exit_code == 2
    assert "has no map for 1 of 4 images, the first is 1003.jpg" in unboxed(result)


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


@pytest.fixture
def small_study(tmp_path, monkeypatch):
    """The command on six images and a small network."""
    data.prepare(data.osie(small_osie(tmp_path / "osie", images=6, viewers=4)), tmp_path / "osie.pt", (32, 32))
    sets, recipes = saliency_runner.Sets, saliency_recipes.osie_recipes
    monkeypatch.setattr(saliency_runner, "Sets", lambda *words: sets(*words, train=4))
    monkeypatch.setattr(
        saliency_recipes, "osie_recipes", lambda **k: [replace(r, backbone="resnet10t") for r in recipes(**k)]
    )
    methods = ["--method", "baseline", "--method", "GEM", "--optimizer", "adam"]
    return ["osie", tmp_path / "osie.pt", *methods, "--seeds", 2, "--device", "cpu"]


def test_the_comparison_on_osie_ends_in_a_page(tmp_path, small_study):
    out = tmp_path / "out"
    words = [*small_study, "--out", out, "--examples", 2]
    result = call(*words, "--scratch-epochs", 1)
    assert result.exit_code == 0, result.output
    assert "The page:" in result.output
    text = (out / "table.md").read_text(encoding="utf-8")
    assert "resnet10t from scratch: 1 epoch (the paper: 10) in batches of 8" in text
    assert "the learning rate halved every epoch after 2 at the first." in text
    assert "published DINet resnet10t: images of 32x32, stretched, loss 0.5*l1." in text
    assert "| published DINet resnet10t Adam GEM | 2 |" in text
    assert "| human ceiling | - |" in text
    assert "- Human ceiling: The density of infinitely many viewers" in text
    assert "SALICON's evaluation" not in text
    assert "from runs on cpu in precision 32, with PyTorch" in text
    assert "(examples.jpg)" in text
    result = call(*words, "--scratch-epochs", 2, "--first-seed", 3)
    assert result.exit_code == 0, result.output
    rows = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert rows["published DINet resnet10t Adam"]["seed"] == [3, 4], "runs of two epochs, apart from those of one"
    assert {(job, seed) for job, seed in Store(out).load() if "gem" not in job} == {
        (f"published-dinet-resnet10t-adam_epochs-{epochs}_delay-1_32x32-stretch", seed)
        for epochs, seed in ((1, 0), (1, 1), (2, 3), (2, 4))
    }  # fmt: skip
    records = [read_record(path.parent).epochs for path in out.glob("runs/*epochs-2*/*/record.jsonl")]
    assert [[epoch["evaluation"] is None for epoch in epochs] for epochs in records] == [[True, False]] * 4


def test_a_run_that_fails_ends_the_command_with_1(tmp_path, small_study, monkeypatch):
    def failing(recipe, *arguments, **options):
        if recipe.method == "GEM":
            raise RuntimeError("no memory left")
        return train_network(recipe, *arguments, **options)

    monkeypatch.setattr(saliency_runner, "train_network", failing)
    out = tmp_path / "out"
    result = call(*small_study, "--scratch-epochs", 1, "--out", out)
    assert result.exit_code == 1
    assert "no memory left" in unboxed(result)
    assert [job for job, _ in Store(out).load()] == [
        "published-dinet-resnet10t-adam_epochs-1_delay-1_32x32-stretch"
    ] * 2
    assert not (out / "examples.jpg").exists()


def test_ctrl_c_ends_the_command_with_130(tmp_path, small_study, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(saliency_runner, "train_network", interrupted)
    result = call(*small_study, "--scratch-epochs", 1, "--out", tmp_path / "out")
    assert result.exit_code == 130
    assert "the same command resumes" in result.output


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
    trained, scored = {"osie": (5, 1), "prepared": (5, 1), "mit1003": (2, 6)}[kind]
    assert f": {trained} images" in result.output
    assert f": {scored} images" in result.output
    lines = result.output.splitlines()
    (nss,) = [line.split() for line in lines if line.startswith("NSS ")]
    references = json.loads((out / "references.json").read_text())
    assert len(nss) == 2 + len(references)
    assert {"uniform", "centre Gaussian", "mean training map"} <= set(references)
    aspect = "stretched" if kind == "prepared" else "padded"  # DINet's own, unless the file has another
    assert f"images at 32x32, {aspect}; loss kl+cc" in result.output
    assert str(models.load_model(out / "model.pt").preprocessing) == f"32x32, {aspect}"
    assert read_record(out).run["config"]["method"]["name"] == "dcl"
    again = call(*words)
    assert again.exit_code == 0, again.output
    other = call(*words, "--seed", 1)
    assert other.exit_code == 2
    assert "holds another run (seed was 0 and is 1)" in unboxed(other)
    photo = picture(tmp_path / "a.jpg", 50, 70)
    assert (
        call(
            "predict", photo, "--checkpoint", out / "model.pt", "--out", tmp_path / "maps", "--device", "cpu"
        ).exit_code
        == 0
    )


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_holds_one_run_on_one_set(finished, tmp_path, monkeypatch):
    """Neither a finished nor an interrupted run is taken for one of other images or of another learning rate."""
    for images in (6, 7):
        small_osie(tmp_path / str(images), images=images)
    usual = ["--out", tmp_path / "run", "--backbone", "resnet10t", "--width", 32, "--height", 32, "--device", "cpu"]
    usual += ["--epochs", 1, "--lr", 1e-4, "--holdout", 2]
    assert call("train", tmp_path / "6", *usual).exit_code == 0
    if not finished:
        (tmp_path / "run" / "scores.json").unlink()
    for words, reason in (
        (["6", "--lr", 1e-3], "lr was 0.0001 and is 0.001"),
        (["7"], "data was 'OSIE: 4 images"),
        (["6", "--pixels-per-degree", 3], "data_pixels_per_degree was 24.0 and is 3.0"),
        (["6", "--holdout", 1], "data was 'OSIE: 4 images"),
    ):
        refused = call("train", tmp_path / words[0], *usual, *words[1:])
        assert refused.exit_code == 2
        assert "holds another run" in unboxed(refused)
        assert "".join(reason.split()) in "".join(unboxed(refused).split())


def test_a_run_that_diverged_ends_the_command_with_1(tmp_path):
    words = ["train", small_osie(tmp_path / "osie", images=6), "--out", tmp_path / "run", "--backbone", "resnet10t"]
    words += ["--width", 32, "--height", 32, "--epochs", 2, "--lr", 1e12, "--device", "cpu"]
    for _ in range(2):  # a finished run is read from its folder
        result = call(*words)
        assert result.exit_code == 1, result.output
        assert "its training diverged, its maps are nan" in unboxed(result)


def test_a_stopped_run_ends_the_command_with_75(tmp_path, monkeypatch):
    monkeypatch.setattr(saliency_task, "train_network", lambda *_, **__: saliency_task.Trained(None, stopped=True))
    words = ["--out", tmp_path / "run", "--width", 32, "--height", 32, "--device", "cpu"]
    result = call("train", small_osie(tmp_path / "osie"), *words)
    assert result.exit_code == 75, result.output
    assert "the same command resumes from there" in unboxed(result)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--holdout", 6], "must leave images on both sides of 6"),
        (["--holdout", 2, "--test", "there"], "with --test leave it out"),
        (["--method", "magic"], "method must be one of"),
        (["--loss", "l3"], "losses must be among"),
        (["--model", "vgg"], "'vgg' is not one of 'dinet', 'salicon'"),
        (["--device", "tpu"], "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
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
