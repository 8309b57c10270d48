"""The loaders: official layouts, odd images, broken files; points to maps."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from saliency_data import picture, real, small_mit1003, small_osie, small_salicon
from scipy.io import savemat
from scipy.ndimage import gaussian_filter

from congruency.saliency import data
from congruency.saliency.data.mit1003 import fixations_in_gaze


def test_osie_has_700_images_of_15_viewers():
    osie = data.osie(real("osie"))
    assert len(osie) == 700
    assert {len(v.fixations) for v in osie.viewings} == {15}
    assert {(v.height, v.width) for v in osie.viewings} == {(600, 800)}
    first = osie[0]
    assert first.image.name == "1001.jpg"
    torch.testing.assert_close(first.fixations[0][0], torch.tensor([394.5, 264.7], dtype=torch.float64))
    assert osie.summary() == (
        "OSIE: 700 images, 98321 fixations; 0 fixations outside the frame left out, 0 images without fixations"
    )
    assert osie.sigma(800) == 24


def test_the_split_is_fixed():
    train, test = data.osie_split(data.osie(real("osie")))
    assert (len(train), len(test)) == (500, 200)
    names = [v.image.name for v in test.viewings]
    assert names[:4] == ["1002.jpg", "1016.jpg", "1017.jpg", "1023.jpg"]
    assert not set(names) & {v.image.name for v in train.viewings}


def test_a_split_must_leave_images_on_both_sides(tmp_path):
    osie = data.osie(small_osie(tmp_path))
    assert [len(part) for part in data.osie_split(osie, train=3)] == [3, 1]
    with pytest.raises(ValueError, match="leave images on both sides of 4, got 4"):
        data.osie_split(osie, train=4)


def test_the_ten_official_salicon_examples():
    salicon = data.salicon(real("salicon_examples"))
    assert (len(salicon), salicon.version) == (10, "2015")
    assert sum(len(v.points) for v in salicon.viewings) == 73630
    assert sum(len(v.fixations) for v in salicon.viewings) == 610
    assert all((v.height, v.width) == (480, 640) for v in salicon.viewings)
    # x reaches beyond the height: rows and columns are the right way round.
    largest = torch.cat([v.points for v in salicon.viewings]).amax(0)
    assert largest.tolist() == [639, 479]
    assert salicon.sigma(640) == pytest.approx(19.2)


def test_salicon_of_2017(tmp_path):
    salicon = data.salicon(small_salicon(tmp_path))
    assert salicon.version == "2017"
    first, second = salicon.viewings
    assert [p.tolist() for p in first.fixations] == [[[0, 0], [639, 479]], []]
    assert [p.tolist() for p in second.fixations] == [[[11, 33]], [[4, 5], [6, 7]]]
    assert first.outside == 1
    assert first.density.name == "COCO_train2014_000000000007.png"
    assert "1 fixations outside" in salicon.summary()
    assert data.salicon(tmp_path, version="2015").version == "2015"


def test_salicons_test_images_have_no_fixations(tmp_path):
    picture(tmp_path / "images" / "test" / "a.jpg")
    salicon = data.salicon(tmp_path, "test")
    assert len(salicon[0].points) == 0
    assert "1 images without fixations" in salicon.summary()


def test_mit1003_from_its_points(tmp_path):
    mit = data.mit1003(small_mit1003(tmp_path))
    assert [(v.height, v.width) for v in mit.viewings] == [(60, 80), (90, 70)]
    assert all(v.points.tolist() == [[20, 10], [50, 40]] for v in mit.viewings)
    assert mit[0].density.name == "i1_fixMap.jpg"
    assert mit.pixels_per_degree == 35


def test_mit1003_from_its_viewers(tmp_path):
    mit = data.mit1003(small_mit1003(tmp_path), "viewers")
    assert all(len(v.fixations) == 2 for v in mit.viewings)
    assert mit[1].fixations[0].tolist() == [[20, 10], [50, 40]]  # the rest at (30, 30) came before the image


def test_gaze_that_never_rests_has_no_fixation():
    moving = torch.arange(100.0)[:, None] * torch.tensor([10.0, 3.0])
    assert fixations_in_gaze(moving).shape == (0, 2)
    assert fixations_in_gaze(torch.full((100, 2), torch.nan)).shape == (0, 2)
    assert fixations_in_gaze(torch.full((100, 2), 5.0)).tolist() == [[5, 5]]


@pytest.mark.parametrize("form", ["csv", "json", "json of viewers"])
def test_a_folder_of_your_own(tmp_path, form):
    for name in ("a.png", "b.jpg", "c.png"):
        picture(tmp_path / name)
    if form == "csv":
        (tmp_path / "fixations.csv").write_text(
            "image,x,y,viewer\na.png,1,2,me\na.png,3.5,4,you\nb,39,29,me\nb,99,1,me\n"
        )
    elif form == "json":
        (tmp_path / "fixations.json").write_text(json.dumps({"a.png": [[1, 2], [3.5, 4]], "b": [[39, 29], [99, 1]]}))
    else:
        viewers = {"a.png": {"me": [[1, 2]], "you": [[3.5, 4]]}, "b": {"me": [[39, 29], [99, 1]]}}
        (tmp_path / "fixations.json").write_text(json.dumps(viewers))
    own = data.folder(tmp_path)
    assert [v.points.tolist() for v in own.viewings] == [[[1, 2], [3.5, 4]], [[39, 29]], []]
    assert len(own[0].fixations) == (1 if form == "json" else 2)
    assert own.summary().endswith("1 fixations outside the frame left out, 1 images without fixations")


def test_points_fall_on_the_nearest_pixel_and_outside_nowhere(tmp_path):
    (tmp_path / "f.csv").write_text("image,x,y\na,-0.4,0.4\na,38.6,28.6\na,39.5,3\na,-0.6,3\na,nan,1\n")
    picture(tmp_path / "images" / "a.png")
    own = data.folder(tmp_path / "images", tmp_path / "f.csv")
    assert own[0].outside == 3
    counts = data.fixation_counts([own[0].points], (30, 40))
    assert counts.nonzero().tolist() == [[0, 0, 0], [0, 29, 39]]


def test_counts_scale_to_another_size():
    points = [torch.tensor([[0.0, 0.0], [79.0, 59.0], [79.0, 59.0]]), torch.tensor([[5.0, 5.0]])]
    counts = data.fixation_counts(points, (30, 40), frames=[(60, 80), (10, 10)])
    assert counts[0].nonzero().tolist() == [[0, 0], [29, 39]]
    assert counts[0, 29, 39] == 2
    assert counts[1].nonzero().tolist() == [[16, 22]]  # (5.5 * 3 - 0.5, 5.5 * 4 - 0.5) to the nearest
    assert counts.sum() == 4


@pytest.mark.parametrize("sigma", [0.5, 2.0, 7.3])
def test_the_density_is_scipys_gaussian(sigma):
    counts = torch.zeros(2, 33, 47)
    counts[0, 3, 4], counts[0, 20, 30], counts[1, 32, 46] = 2, 1, 1
    expected = np.stack(
        [
            gaussian_filter(c, sigma, mode="constant", radius=max(1, int(np.ceil(4 * sigma))))
            for c in counts.double().numpy()
        ]
    )
    np.testing.assert_allclose(data.density(counts, sigma), expected, atol=1e-6)
    np.testing.assert_allclose(data.density(counts.to(torch.int64), sigma), expected, atol=1e-6)


def test_a_density_needs_a_width():
    with pytest.raises(ValueError, match="sigma must be a positive number of pixels, got 0"):
        data.density(torch.zeros(1, 4, 4), 0)


def test_different_sizes_and_grey_images_fit_one_batch(tmp_path):
    picture(tmp_path / "a.png", 30, 40, mode="L")
    picture(tmp_path / "b.png", 50, 20)
    (tmp_path / "fixations.csv").write_text("image,x,y\na,20,15\nb,10,25\n")
    batch = data.collate(data.folder(tmp_path).viewings, (24, 32))
    assert batch.images.shape == (2, 3, 24, 32)
    assert batch.images.dtype == torch.uint8
    assert batch.images[0, 0].equal(batch.images[0, 2])
    assert batch.fixations.flatten(1).sum(1).tolist() == [1, 1]
    assert batch.frames == ((30, 40), (50, 20))


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK", "1", "I;16"])
def test_images_of_any_kind_become_three_channels_of_bytes(tmp_path, mode):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    if mode == "I;16":
        Image.fromarray(np.full((4, 5), 65535, dtype=np.uint16)).save(path)
    else:
        Image.new("RGB", (5, 4), (255, 255, 255)).convert(mode).save(path)
    image = data.read_image(path)
    assert image.shape == (3, 4, 5)
    assert (image == 255).all()


def test_a_prepared_set_is_what_was_there(tmp_path):
    osie = data.osie(small_osie(tmp_path / "osie"))
    path = data.prepare(osie, tmp_path / "carry" / "osie.pt", (24, 32))
    prepared = data.load_prepared(path)
    assert prepared.images.shape == (4, 3, 24, 32)
    assert prepared.data.summary() == osie.summary()
    assert prepared.data.pixels_per_degree == 24
    for ours, theirs in zip(prepared.data.viewings, osie.viewings, strict=True):
        assert ours.image.name == theirs.image.name
        assert len(ours.fixations) == 3
        torch.testing.assert_close(ours.points, theirs.points, atol=1e-4, rtol=0)
    difference = prepared.images[0].float() - data.read_image(osie[0].image, (24, 32)).float()
    assert difference.abs().mean() < 6  # JPEG, of noise
    assert [v.image.name for v in prepared.take(["1003.jpg", "1001.jpg"]).data.viewings] == ["1003.jpg", "1001.jpg"]


def broken_mat(root):
    (root / "fixations.mat").write_bytes(b"not MATLAB at all" * 20)


def newer_mat(root):
    (root / "fixations.mat").write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64" + bytes(200))


def other_mat(root):
    savemat(root / "fixations.mat", {"eyes": 3})


def without_images(root):
    (root / "stimuli" / "1002.jpg").unlink()


def without_field(root):
    savemat(root / "fixations.mat", {"fixations": np.array([(1, "1001.jpg")], dtype=[("id", object), ("img", object)])})


def without_mat(root):
    (root / "fixations.mat").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken_mat, "fixations.mat is not a MATLAB file that can be read"),
        (newer_mat, r"is a MATLAB 7.3 file \(HDF5\).*save\(name, '-v7'\)"),
        (other_mat, r"has no variable 'fixations' \(there: eyes\)"),
        (without_images, "the image .*1002.jpg is missing"),
        (without_field, r"has no field 'subjects' where it is expected \(there: id, img\)"),
        (without_mat, "is not OSIE: it must hold"),
    ],
)
def test_what_is_wrong_with_a_set_is_said(tmp_path, spoil, message):
    spoil(small_osie(tmp_path))
    with pytest.raises(data.DataError, match=message):
        data.osie(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON that can be read"),
        ("[]", "it holds a list, not an object"),
        ('{"info": {}}', "say version='2015' or version='2017'"),
        ('{"info": {"date_created": "2015-04-25"}, "images": []}', "is not SALICON's JSON: KeyError 'annotations'"),
        (
            '{"info": {"date_created": "2017-04-25"}, "annotations": [], '
            '"images": [{"id": 1, "file_name": "x.jpg", "height": 4, "width": 5}]}',
            "1 images of .* are missing, the first is x.jpg",
        ),
    ],
)
def test_what_is_wrong_with_salicons_json_is_said(tmp_path, content, message):
    picture(tmp_path / "images" / "a.jpg")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "fixations_train2014.json").write_text(content)
    with pytest.raises(data.DataError, match=message):
        data.salicon(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", r"must begin with a line image,x,y\[,viewer\], got a,b"),
        ("image,x,y\na,one,2\n", "line 2: x and y must be numbers"),
        ("image,x,y\nz,1,2\n", "names 1 images that are not in .*, the first is z"),
    ],
)
def test_what_is_wrong_with_a_file_of_fixations_is_said(tmp_path, content, message):
    picture(tmp_path / "a.png")
    (tmp_path / "fixations.csv").write_text(content)
    with pytest.raises(data.DataError, match=message):
        data.folder(tmp_path)


def test_what_else_is_missing_is_said(tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(data.DataError, match="has neither fixations/train nor annotations"):
        data.salicon(tmp_path)
    with pytest.raises(data.DataError, match=r"there is no folder .*ALLSTIMULI"):
        data.mit1003(tmp_path)
    with pytest.raises(data.DataError, match=r"has no fixations.csv and no fixations.json"):
        data.folder(tmp_path)
    with pytest.raises(data.DataError, match="congruency saliency prepare"):
        data.load_prepared(tmp_path / "none.pt")
    (tmp_path / "bad.pt").write_bytes(b"1234")
    with pytest.raises(data.DataError, match="cannot be read"):
        data.load_prepared(tmp_path / "bad.pt")
    (tmp_path / "bad.jpg").write_bytes(b"1234")
    with pytest.raises(data.DataError, match="is not an image that can be read"):
        data.read_image(tmp_path / "bad.jpg")
