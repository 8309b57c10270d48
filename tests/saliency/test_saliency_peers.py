"""Every metric beside pysaliency's, on real images and fixations of OSIE; predictions that its models read."""

import importlib.util

import numpy as np
import pytest
import torch
from saliency_data import picture, real

from congruency.saliency import data, metrics
from congruency.saliency.export import export_maps
from congruency.saliency.predict import save_values

if importlib.util.find_spec("pysaliency") is None:
    pytest.skip("pysaliency has an environment of its own, it needs old releases: make test-saliency-peers",
                allow_module_level=True)  # fmt: skip

import h5py
import pysaliency
from pysaliency.metrics import CC, NSS, SIM, MIT_KLDiv
from pysaliency.models import Model
from pysaliency.saliency_map_models import SaliencyMapModel

IMAGES = 5
SIZE = (600, 800)
EPSILON = 2.2204e-16  # as pysaliency has it


class Maps(SaliencyMapModel):
    """Given maps, found by the image they are of."""

    def __init__(self, stimuli, maps):
        super().__init__(caching=False)
        self.ids, self.maps = list(stimuli.stimulus_ids), maps

    def _saliency_map(self, stimulus):
        return self.maps[self.ids.index(pysaliency.datasets.get_image_hash(stimulus))].copy()


class Densities(Model):
    """The same with their logarithms as a probabilistic model."""

    def __init__(self, stimuli, maps):
        super().__init__(caching=False)
        self.parent = Maps(stimuli, np.log(maps / maps.sum((1, 2), keepdims=True)))

    def _log_density(self, stimulus):
        return self.parent.saliency_map(stimulus)


@pytest.fixture(scope="module")
def osie():
    return data.osie(real("osie")).subset(range(0, 700, 700 // IMAGES)).subset(range(IMAGES))


@pytest.fixture(scope="module")
def counts(osie):
    return torch.cat([data.fixation_counts([v.points], SIZE) for v in osie.viewings]).double()


@pytest.fixture(scope="module")
def truth(counts):
    return data.density(counts, 24.0) + 1e-9


@pytest.fixture(scope="module")
def theirs(osie):
    """Stimuli and fixations as pysaliency has them."""
    stimuli = pysaliency.FileStimuli([str(v.image) for v in osie.viewings])
    points = [(v.points + 0.5).floor() for v in osie.viewings]
    x, y = (torch.cat([p[:, axis] for p in points]).numpy() for axis in (0, 1))
    n = np.concatenate([np.full(len(p), i) for i, p in enumerate(points)])
    return stimuli, pysaliency.Fixations.create_without_history(x, y, n)


@pytest.fixture(scope="module", params=["seven people", "edges", "256 levels", "another image"])
def maps(request, osie):
    """Real maps, (B, H, W) float64 and positive: people, a filter of the picture, with ties, of the wrong image."""
    seven = torch.cat([data.fixation_counts([torch.cat(v.fixations[:7])], SIZE) for v in osie.viewings]).double()
    people = data.density(seven, 30.0) + 1e-7
    grey = torch.stack([data.read_image(v.image).double().mean(0) for v in osie.viewings])
    return {
        "seven people": people,
        "edges": data.density((grey - data.density(grey, 8.0)).abs(), 15.0),
        "256 levels": (people / people.amax((1, 2), keepdim=True) * 255).round() + 1,
        "another image": people.roll(1, 0),
    }[request.param]


def test_nss(maps, counts, theirs):
    _, fixations = theirs
    expected = [
        NSS(m, fixations.x_int[fixations.n == i], fixations.y_int[fixations.n == i]).mean()
        for i, m in enumerate(maps.numpy())
    ]
    np.testing.assert_allclose(metrics.nss(maps, counts), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(metrics.nss(maps.float(), counts), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "others", "options"),
    [(metrics.cc, CC, {}), (metrics.sim, SIM, {}), (metrics.kl, MIT_KLDiv, {"epsilon": EPSILON})],
    ids=["CC", "SIM", "KL"],
)
def test_metrics_between_maps(maps, truth, ours, others, options):
    expected = [others(m, t) for m, t in zip(maps.numpy(), truth.numpy(), strict=True)]
    np.testing.assert_allclose(ours(maps, truth, **options), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours(maps.float(), truth.float(), **options), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("negatives", ["uniform", "unfixated", "shuffled"])
def test_areas(maps, counts, theirs, negatives):
    stimuli, fixations = theirs
    expected = Maps(stimuli, maps.numpy()).AUC_per_image(stimuli, fixations, nonfixations=negatives)
    found = {
        "uniform": lambda: metrics.auc_borji(maps, counts),
        "unfixated": lambda: metrics.auc_judd(maps, counts),
        "shuffled": lambda: metrics.auc_shuffled(maps, counts, metrics.shuffled_negatives(counts)),
    }[negatives]()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_the_area_of_the_mit_benchmark(maps, counts, theirs):
    """On maps from 0 to 1 and distinct pixels; each breaks ties by noise of its own, which decides little."""
    stimuli, _ = theirs
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    n, y, x = (axis.numpy() for axis in counts.nonzero(as_tuple=True))
    distinct = pysaliency.Fixations.create_without_history(x, y, n)
    expected = Maps(stimuli, ((maps - low) / (high - low)).numpy()).AUC_Judd(stimuli, distinct)
    found = metrics.auc_judd(maps, counts, protocol="mit").mean().item()
    assert found == pytest.approx(expected, abs=1e-3)


def test_information_gain(maps, counts, theirs):
    stimuli, fixations = theirs
    prior = metrics.shuffled_negatives(counts)
    prior = data.density(prior, 40.0) + 1e-4
    ours = metrics.information_gain(maps, counts, prior, epsilon=0.0)
    expected = Densities(stimuli, maps.numpy()).information_gains(stimuli, fixations, Densities(stimuli, prior.numpy()))
    per_image = [expected[fixations.n == i].mean() for i in range(IMAGES)]
    np.testing.assert_allclose(ours, per_image, rtol=0, atol=1e-10)


def test_exported_predictions_are_a_model(maps, osie, theirs, tmp_path):
    stimuli, _ = theirs
    (tmp_path / "images").mkdir()
    for v, saliency in zip(osie.viewings, maps, strict=True):
        save_values(saliency, tmp_path / "maps" / f"{v.key}.npy")
        (tmp_path / "images" / v.name).symlink_to(v.image)
    assert export_maps(tmp_path / "maps", tmp_path / "images", tmp_path / "model.hdf5").maps == IMAGES
    model = pysaliency.HDF5Model(stimuli, str(tmp_path / "model.hdf5"))
    direct = Densities(stimuli, maps.numpy())
    np.testing.assert_allclose(model.log_density(stimuli[1]), direct.log_density(stimuli[1]), rtol=0, atol=1e-5)
    export_maps(tmp_path / "maps", tmp_path / "images", tmp_path / "model.zip")
    archive = pysaliency.precomputed_models.SaliencyMapModelFromArchive(stimuli, str(tmp_path / "model.zip"))
    stored, saliency = archive.saliency_map(stimuli[1]), maps[1].numpy()
    np.testing.assert_allclose(stored / 65535, (saliency - saliency.min()) / np.ptp(saliency), rtol=0, atol=1e-5)


def test_hdf5_of_maps_with_zeros_and_of_another_size(tmp_path):
    maps = {"a/1.jpg": torch.rand(30, 40) + 0.1, "b/1.png": torch.rand(10, 12)}
    maps["b/1.png"][2:8, 3:9] = 0
    for name, saliency in maps.items():
        save_values(saliency, (tmp_path / "maps" / name).with_suffix(".npy"))
    picture(tmp_path / "images" / "a" / "1.jpg", 30, 40)
    picture(tmp_path / "images" / "b" / "1.png", 20, 24)
    done = export_maps(tmp_path / "maps", tmp_path / "images", tmp_path / "model.hdf5")
    assert (done.maps, done.resized, done.floored) == (2, 1, 1)
    with h5py.File(tmp_path / "model.hdf5") as file:
        first, second = file["a/1.jpg"][:], file["b/1.png"][:]
    np.testing.assert_allclose(np.exp(first), maps["a/1.jpg"] / maps["a/1.jpg"].sum(), rtol=1e-5)
    assert second.shape == (20, 24)
    assert np.exp(second.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)
    assert np.isfinite(second).all()
