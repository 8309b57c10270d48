"""Pairs of samples of networks that were really trained, or saved, a moment ago."""

import json
import shutil

import pytest
import torch
from one_command import call as call_command
from PIL import Image
from saliency.saliency_data import picture, small_osie
from torch.nn import functional

from congruency.classification import create
from congruency.classification.image_options import ImageOptions
from congruency.cli import train as command
from congruency.cli.pairs import pairs as pairs_command
from congruency.modules import head
from congruency.saliency.models import create as create_saliency
from congruency.saliency.models import save_model
from congruency.studies.analysis import pairs
from congruency.studies.analysis.pairs import BETWEEN, SIMILAR, WITHIN, Pairs
from congruency.studies.analysis.samples import classifier_samples
from congruency.training import TrainingConfig, load_checkpoint

SETUP = {
    "model": "mlp", "epochs": 2, "batch_size": 32, "learning_rate": 0.1, "momentum": 0.9, "nesterov": False,
    "weight_decay": 0.0, "schedule": "steps", "warmup": 0.0, "milestones": (), "decay": 0.1, "smoothing": 0.0,
    "workers": 0, "pretrained": None, "optimizer": "sgd",
}  # fmt: skip


def call(name, *words):
    assert name == "pairs"
    return call_command(pairs_command, *words)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    config = TrainingConfig(epochs=2, accelerator="cpu")
    images = ImageOptions(source="digits", per_class=30)
    command.run(images, config, SETUP, out, resume=False)
    return out


def test_the_command_writes_matrices_and_pictures(run, tmp_path):
    result, text = call("pairs", run, "--dataset", "digits", "--classes", 3, 8, "--samples", 4, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "within a class" in text
    page = (tmp_path / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 2 * 6
    assert page.count("Cong. ") == 2 * 5
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "results.json", "table.md"}
    found = json.loads((tmp_path / "results.json").read_text())
    assert {kind: (len(values["seed"]), len(values["congruency"])) for kind, values in found.items()} == {
        WITHIN: (1, 1), BETWEEN: (1, 1),
    }  # fmt: skip
    assert f"Congruency is {found[WITHIN]['congruency'][0]:.4f} within a class and " in text


def test_the_matrix_is_that_of_gradients_by_backward(run):
    """Every sample's gradient of the last layer by plain autograd, in the network rebuilt by hand."""
    samples = classifier_samples(run, "digits", ("1", "7"), 3)
    model = create("mlp", 10, shape=(1, 8, 8))
    model.load_state_dict(load_checkpoint(max((run / "checkpoints").iterdir()))["model"])
    layer = list(head(model.eval()).parameters())
    gradients = []
    for x, y in zip(samples.inputs, samples.targets, strict=True):
        loss = functional.cross_entropy(model(x[None]), y[None])
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, layer)]).double())
    rows = functional.normalize(torch.stack(gradients), dim=1)
    found = pairs.compare(samples)
    torch.testing.assert_close(found.congruency, rows @ rows.T, atol=1e-5, rtol=1e-5)
    flat = functional.normalize(samples.inputs.flatten(1).double(), dim=1)
    torch.testing.assert_close(found.similarity, flat @ flat.T)
    assert samples.labels == ["1"] * 3 + ["7"] * 3


def test_a_checkpoint_file_does_as_well_as_its_run(run):
    path = max((run / "checkpoints").iterdir())
    by_file, by_run = (classifier_samples(place, "digits", (), 5) for place in (path, run))
    assert torch.equal(by_file.model(by_file.inputs), by_run.model(by_run.inputs))


@pytest.mark.parametrize("count", [5, 10, 12, 25])
def test_without_classes_images_are_mixed_evenly(run, count):
    found = classifier_samples(run, "digits", (), count).labels
    assert len(found) == count
    assert found == sorted(found)
    assert len(set(found)) == min(count, 10)


def test_a_folder_of_images_is_decoded_only_where_it_is_needed(tmp_path):
    """A set of files: those that are not chosen need not even be pictures."""
    for split in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            for i in range(12):
                path = picture(tmp_path / "set" / split / name / f"{i:02d}.png", 9, 8, seed=12 * number + i)
    images = ImageOptions(source=str(tmp_path / "set"), size=8)
    config = TrainingConfig(epochs=1, accelerator="cpu")
    command.run(images, config, {**SETUP, "epochs": 1}, tmp_path / "run", resume=False)
    path.write_bytes(b"no picture")
    samples = classifier_samples(tmp_path / "run", str(tmp_path / "set"), ("dog", "cat"), 3)
    assert samples.inputs.shape == (6, 3, 8, 8)
    assert samples.labels == ["dog"] * 3 + ["cat"] * 3
    assert pairs.compare(samples).congruency.shape == (6, 6)


def test_means_by_hand():
    nu = torch.tensor([[1.0, 0.8, 0.1], [0.8, 1.0, -0.3], [0.1, -0.3, 1.0]], dtype=torch.float64)
    found = pairs.means(Pairs(nu, nu / 2, ["a", "a", "b"]))
    assert found["congruency"] == {WITHIN: pytest.approx(0.8), BETWEEN: pytest.approx(-0.1)}
    assert found["similarity"] == {WITHIN: pytest.approx(0.4), BETWEEN: pytest.approx(-0.05)}
    assert pairs.means(Pairs(nu, nu, ["a", "b", "c"]))["congruency"] == {pairs.ANY: pytest.approx(0.2)}


def test_three_classes_by_hand(run, tmp_path):
    """Similar: the first two classes; between: the first and the third; the second with the third is left out."""
    labels = ["a", "a", "b", "c", "c"]
    nu = torch.arange(25.0, dtype=torch.float64).reshape(5, 5) / 25
    nu = (nu + nu.T) / 2
    found = pairs.means(Pairs(nu, nu, labels), ("a", "b"))["congruency"]
    assert found == {
        "within a class": pytest.approx(float((nu[0, 1] + nu[3, 4]) / 2)),
        "between similar classes": pytest.approx(float((nu[0, 2] + nu[1, 2]) / 2)),
        "between classes": pytest.approx(float((nu[0, 3] + nu[0, 4] + nu[1, 3] + nu[1, 4]) / 4)),
    }
    words = ["--dataset", "digits", "--classes", 3, 8, "--other", 1, "--samples", 4, "--out", tmp_path]
    other = shutil.copytree(run, tmp_path / "other")
    result, text = call("pairs", run, other, *words)
    assert result.exit_code == 0, result.output
    assert list(json.loads((tmp_path / "results.json").read_text())) == [WITHIN, SIMILAR, BETWEEN]
    assert "| between similar classes | 2 |" in (tmp_path / "table.md").read_text()
    result, text = call("pairs", run, "--dataset", "digits", "--other", 1, "--out", tmp_path / "none")
    assert result.exit_code == 2
    assert "give --classes A B" in text


def test_a_saliency_model(tmp_path):
    path = save_model(create_saliency("dinet", "resnet10t").eval(), tmp_path / "model.pt")
    data = small_osie(tmp_path / "osie", images=4, height=64, width=64)
    result, text = call("pairs", path, "--dataset", data, "--samples", 3, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "between any two" in text
    page = (tmp_path / "out" / "index.html").read_text()
    assert "DINet on 3 images" in page
    result, text = call("pairs", path, "--dataset", data, "--classes", "a", "b", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "no classes" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--classes", "3", "x"], "no class 'x'"),
        (["--classes", "3", "3"], "must differ"),
        (["--split", "train", "--classes", "3", "8", "--samples", "60"], "too many for a page"),
        (["--samples", "101"], "100"),
        (["--split", "none"], "split must be"),
    ],
)
def test_bad_input(run, tmp_path, words, message):
    result, text = call("pairs", run, "--dataset", "digits", *words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in text
    assert not (tmp_path / "out").exists()


def test_what_is_no_checkpoint_is_refused(run, tmp_path):
    (tmp_path / "a.pt").write_bytes(b"nothing")
    for place, message in (
        (tmp_path / "none", "is missing"),
        (tmp_path, "no checkpoint"),
        (tmp_path / "a.pt", "has no record.jsonl"),
    ):
        result, text = call("pairs", place, "--dataset", "digits", "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert message in text


@pytest.mark.parametrize("again", [".", "checkpoints/checkpoint-*.pt"])
def test_a_network_counts_once(run, tmp_path, again):
    place = min(run.glob(again)) if "*" in again else run / again
    result, text = call("pairs", run, place, "--dataset", "digits", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "are of one run; give each network once" in text
    assert not (tmp_path / "out").exists()


def test_images_of_another_size_are_refused(run, tmp_path):
    for name in range(10):
        folder = tmp_path / "larger" / "test" / str(name)
        folder.mkdir(parents=True)
        Image.new("L", (16, 16), 10 * name).save(folder / "one.png")
    result, text = call("pairs", run, "--dataset", tmp_path / "larger", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "the weights of mlp do not fit images of 1 x 16 x 16" in text


def test_a_run_without_its_record_or_with_half_a_checkpoint(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    path = max((tmp_path / "run" / "checkpoints").iterdir())
    whole = path.read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        result, text = call("pairs", tmp_path / "run", "--dataset", "digits", "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert "cannot be read" in text
    (tmp_path / "run" / "record.jsonl").write_text('{"kind": "run"}\n')
    result, text = call("pairs", tmp_path / "run", "--dataset", "digits", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "does not describe a classifier" in text
    (tmp_path / "run" / "record.jsonl").unlink()
    result, text = call("pairs", tmp_path / "run", "--dataset", "digits", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "has no record.jsonl" in text


def test_several_networks_are_compared_by_classes(run, tmp_path):
    """The same network in three places: its own means, and no spread for an interval or a test."""
    alone = pairs.means(pairs.compare(classifier_samples(run, "digits", (), 20)))
    copies = [shutil.copytree(run, tmp_path / "runs" / str(i)) for i in range(3)]
    result, shown = call("pairs", *copies, "--dataset", "digits", "--samples", "20", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    for name in ("congruency", "similarity"):
        assert {kind: values[name] for kind, values in found.items()} == {
            kind: [value] * 3 for kind, value in alone[name].items()
        }
    table = (tmp_path / "table.md").read_text()
    assert "| within a class | 3 |" in table
    assert "the same for all networks" in table
    assert "one seed per network" in shown


def test_over_networks_by_hand():
    found = {
        WITHIN: {"seed": [0.0, 1.0, 2.0], "congruency": [0.5, 0.6, 0.7], "similarity": [0.1, 0.2, 0.3]},
        BETWEEN: {"seed": [0.0, 1.0, 2.0], "congruency": [0.1, 0.1, 0.1], "similarity": [0.2, 0.1, 0.3]},
    }
    page = pairs.compose("", found, "congruency pairs")
    assert page.table.rows[0][3] == "+0.5000 ± 0.2484 (p 0.013)"  # t = 0.5 / (0.1 / sqrt 3), 2 degrees
    assert page.findings[0] == (
        "within a class, against between classes: Congruency rises by 0.5000 (p 0.013); no clear change of Similarity."
    )
    same = {kind: {**metrics, "similarity": [0.2 + 0.1 * (kind == WITHIN)] * 3} for kind, metrics in found.items()}
    last = pairs.compose("", same, "").findings[-1]
    assert last == "Similarity is 0.3000 within a class and 0.2000 between classes, the same for all networks."
    alone = {kind: {name: values[:1] for name, values in metrics.items()} for kind, metrics in found.items()}
    assert pairs.compose("", alone, "").findings == [
        "Congruency is 0.5000 within a class and 0.1000 between classes.",
        "Similarity is 0.1000 within a class and 0.2000 between classes.",
    ]
    without = {pairs.ANY: found[WITHIN]}  # samples without classes: nothing to compare
    assert pairs.compose("", without, "").findings == []
    assert pairs.compose("", without, "").table.rows[0][:3] == ["between any two", "3", "0.6000 ± 0.2484"]
