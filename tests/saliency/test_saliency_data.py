"""The loaders: official layouts, odd images, broken files; points to maps."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from saliency_data import picture, real, small_cat2000, small_mit1003, small_osie, small_salicon
from scipy.io import loadmat, savemat
from scipy.ndimage import gaussian_filter

from congruency.saliency import data
from congruency.saliency.batches import SaliencyBatches


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
    assert osie[0].sigma == 24


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
    # x exceeds the height: rows and columns are not swapped.
    largest = torch.cat([v.points for v in salicon.viewings]).amax(0)
    assert largest.tolist() == [639, 479]
    assert salicon[0].sigma == pytest.approx(19.2)


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
    with pytest.raises(ValueError, match=r"version must be '2015' or '2017'.*got '2016'"):
        data.salicon(tmp_path, version="2016")


def test_official_densities_are_read(tmp_path):
    salicon = data.salicon(small_salicon(tmp_path / "salicon"))
    first = salicon[0]
    stored = np.asarray(Image.open(tmp_path / "salicon" / "maps" / "train" / f"{first.image.stem}.png"))
    read = data.official_density(first)
    assert (read.dtype, tuple(read.shape)) == (torch.float32, (480, 640))
    np.testing.assert_array_equal(read, stored)
    mit = data.mit1003(small_mit1003(tmp_path / "mit1003"))
    assert data.official_density(mit[1]).shape == (90, 70)
    own = data.osie(small_osie(tmp_path / "osie"))
    with pytest.raises(data.DataError, match=r"no official density map for 1001.jpg; SALICON"):
        data.official_density(own[0])
    picture(first.density, 20, 20, mode="L")
    with pytest.raises(data.DataError, match=r"is \(20, 20\) \(height, width\) and its image \(480, 640\)"):
        data.official_density(first)


def test_salicon_test_images_have_no_fixations(tmp_path):
    picture(tmp_path / "images" / "test" / "a.jpg")
    salicon = data.salicon(tmp_path, "test")
    assert len(salicon[0].points) == 0
    assert "1 images without fixations" in salicon.summary()


def test_mit1003_from_fixation_maps(tmp_path):
    mit = data.mit1003(small_mit1003(tmp_path))
    assert [(v.height, v.width) for v in mit.viewings] == [(60, 80), (90, 70)]
    assert all(v.points.tolist() == [[20, 10], [50, 40]] for v in mit.viewings)
    assert mit[0].density.name == "i1_fixMap.jpg"
    assert mit.pixels_per_degree == 35


def test_cat2000_by_category(tmp_path):
    for root in (small_cat2000(tmp_path), tmp_path / "trainSet"):
        cat = data.open_data(root)
        assert [v.name for v in cat.viewings] == ["Action/001.jpg", "Social/001.jpg"]
        assert [v.points.tolist() for v in cat.viewings] == [[[20, 10], [90, 40]], [[20, 11], [90, 40]]]
        assert (cat.name, cat.pixels_per_degree) == ("CAT2000", None)
        assert data.official_density(cat[1]).shape == (54, 96)
    prepared = data.load_prepared(data.prepare(cat, tmp_path / "cat.pt", (32, 32)))
    assert [v.name for v in prepared.data.viewings] == ["Action/001.jpg", "Social/001.jpg"]
    assert prepared.subset(["Social/001.jpg"]).data[0].points.tolist() == [[20, 11], [90, 40]]
    locations = tmp_path / "trainSet" / "FIXATIONLOCS" / "Social" / "001.mat"
    savemat(locations, {"fixLocs": np.zeros((3, 4))})
    with pytest.raises(data.DataError, match=r"'fixLocs' of the image's size \(54, 96\), found \(3, 4\)"):
        data.cat2000(tmp_path)
    locations.unlink()
    with pytest.raises(data.DataError, match=r"the file .*001.mat is missing"):
        data.cat2000(tmp_path)


def test_salicon_of_2017_as_its_archives_unpack(tmp_path):
    """fixations.zip and maps.zip hold the splits, without a folder of their own."""
    small_salicon(tmp_path)
    for kind in ("fixations", "maps"):
        for path in (tmp_path / kind / "train").iterdir():
            (tmp_path / "train").mkdir(exist_ok=True)
            path.rename(tmp_path / "train" / path.name)
        (tmp_path / kind / "train").rmdir()
        (tmp_path / kind).rmdir()
    salicon = data.open_data(tmp_path)
    assert (len(salicon), salicon.version) == (2, "2017")
    assert data.official_density(salicon[0]).shape == (480, 640)
    unseen = picture(tmp_path / "images" / "test" / "COCO_test2014_000000000001.jpg", 480, 640)
    assert [v.image for v in data.open_data(tmp_path, "test").viewings] == [unseen]
    unseen.unlink()
    unseen.parent.rmdir()
    images = sorted((tmp_path / "images" / "train").iterdir())
    for path in images:  # beside the maps, whose names differ only in their suffix
        path.rename(tmp_path / "train" / path.name)
    (tmp_path / "images" / "train").rmdir()
    (tmp_path / "images").rmdir()
    assert [v.image.suffix for v in data.open_data(tmp_path).viewings] == [".jpg", ".jpg"]
    picture(tmp_path / "train" / "COCO_train2014_000000000011.jpg", 480, 640)
    with pytest.raises(data.DataError, match=r"1 images of the split have no viewers' file .*000000000011.mat"):
        data.open_data(tmp_path)
    for path in (tmp_path / "train").glob("*.jpg"):
        path.unlink()
    with pytest.raises(data.DataError, match=r"has no image COCO_train2014_000000000007.jpg; unpack all"):
        data.open_data(tmp_path)


def test_an_image_without_its_viewers_is_an_error(tmp_path):
    small_salicon(tmp_path / "salicon")
    next((tmp_path / "salicon" / "fixations" / "train").glob("*009.mat")).unlink()
    with pytest.raises(
        data.DataError, match=r"1 images of the split have no viewers' file .*000000009.mat; unpack all"
    ):
        data.salicon(tmp_path / "salicon")
    for path in sorted((tmp_path / "salicon" / "images" / "train").iterdir()):  # images of all splits in one folder
        path.rename(tmp_path / "salicon" / "images" / path.name)
    (tmp_path / "salicon" / "images" / "train").rmdir()
    with pytest.raises(data.DataError, match=r"000000009.mat; unpack all"):
        data.salicon(tmp_path / "salicon")
    root = small_osie(tmp_path / "osie")
    entries = loadmat(root / "fixations.mat", squeeze_me=True)["fixations"]
    entries[2]["subjects"] = entries[2]["subjects"][:2]
    savemat(root / "fixations.mat", {"fixations": entries})
    with pytest.raises(data.DataError, match=r"has 2 of 3 viewers for 1003.jpg"):
        data.osie(root)


def test_hidden_files_of_macos_are_no_images(tmp_path):
    roots = small_salicon(tmp_path / "salicon"), small_cat2000(tmp_path / "cat"), small_mit1003(tmp_path / "mit")
    counts = [len(data.open_data(root)) for root in roots]
    for root in roots:
        for path in [path for path in root.rglob("*") if path.is_file()]:
            path.with_name(f"._{path.name}").write_bytes(b"Mac OS X")
    assert [len(data.open_data(root)) for root in roots] == counts


def test_a_folder_named_stimuli_is_not_osie_by_that_name(tmp_path):
    picture(tmp_path / "stimuli" / "a.png")
    with pytest.raises(data.DataError, match=r"is not a known data set: it holds neither stimuli/ with fixations.mat"):
        data.open_data(tmp_path)
    (tmp_path / "fixations.csv").write_text("image,x,y\na,1,2\n")
    own = data.open_data(tmp_path, pixels_per_degree=7)
    assert (own.name, own[0].sigma, own[0].points.tolist()) == (tmp_path.name, 7, [[1, 2]])
    assert data.open_data(small_osie(tmp_path / "osie"), pixels_per_degree=31)[0].sigma == 31


@pytest.mark.parametrize("form", ["csv", "json", "json of viewers"])
def test_a_folder_of_images_with_fixations(tmp_path, form):
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


def test_points_count_at_the_nearest_pixel_and_not_outside(tmp_path):
    (tmp_path / "f.csv").write_text("image,x,y\na,-0.4,0.4\na,38.6,28.6\na,39.5,3\na,-0.6,3\na,nan,1\na,,\n")
    picture(tmp_path / "images" / "a.png")
    own = data.folder(tmp_path / "images", tmp_path / "f.csv")
    assert (own[0].outside, own[0].missing) == (2, 2)
    assert "2 fixations outside the frame and 2 without coordinates left out" in own.summary()
    kept = data.load_prepared(data.prepare(own, tmp_path / "own.pt", (32, 32)))
    assert kept.data.summary() == own.summary()
    counts = data.fixation_counts([own[0].points], (30, 40))
    assert counts.nonzero().tolist() == [[0, 0, 0], [0, 29, 39]]


def test_counts_are_rescaled_to_another_size():
    points = [torch.tensor([[0.0, 0.0], [79.0, 59.0], [79.0, 59.0]]), torch.tensor([[5.0, 5.0]])]
    counts = data.fixation_counts(points, (30, 40), frames=[(60, 80), (10, 10)])
    assert counts[0].nonzero().tolist() == [[0, 0], [29, 39]]
    assert counts[0, 29, 39] == 2
    assert counts[1].nonzero().tolist() == [[16, 22]]  # (5.5 * 3 - 0.5, 5.5 * 4 - 0.5) to the nearest
    assert counts.sum() == 4


@pytest.mark.parametrize("sigma", [0.5, 2.0, 7.3])
def test_density_equals_scipy_gaussian_filter(sigma):
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


@pytest.mark.parametrize("sigma", [0, -1, float("inf"), float("nan"), 1e12])
def test_density_needs_a_positive_sigma(sigma):
    with pytest.raises(ValueError, match="sigma must be a positive number of pixels, at most 100000, got"):
        data.density(torch.zeros(1, 4, 4), sigma)


def test_density_with_different_horizontal_and_vertical_sigma():
    counts = torch.zeros(1, 33, 47)
    counts[0, 20, 30] = 1
    expected = gaussian_filter(counts[0].double().numpy(), (2.0, 5.0), mode="constant", radius=(8, 20))
    np.testing.assert_allclose(data.density(counts, (2.0, 5.0))[0], expected, atol=1e-6)


def in_the_middle(folder, *sizes):
    """One image of each size, a fixation in its middle."""
    lines = ["image,x,y"]
    for i, (height, width) in enumerate(sizes):
        picture(folder / f"{i}.png", height, width)
        lines.append(f"{i},{width // 2},{height // 2}")
    (folder / "fixations.csv").write_text("\n".join(lines))


def spread(maps):
    """(B, 2): the standard deviation of each map's mass, vertical and horizontal."""
    shares = maps.double() / maps.double().sum((-2, -1), keepdim=True)
    found = []
    for axis in (1, 2):
        mass = shares.sum(3 - axis)
        places = torch.arange(mass.shape[1], dtype=torch.float64)
        mean = (mass * places).sum(1, keepdim=True)
        found.append((mass * (places - mean) ** 2).sum(1).sqrt())
    return torch.stack(found, 1)


def test_the_blur_of_a_batch_is_one_degree_if_known(tmp_path):
    in_the_middle(tmp_path, (600, 800))
    known, unknown = data.folder(tmp_path, pixels_per_degree=60), data.folder(tmp_path)
    at_half = data.collate(known.viewings, (300, 400))
    torch.testing.assert_close(at_half.density, data.density(at_half.fixations, 30.0))
    without = data.collate(unknown.viewings, (300, 400))
    torch.testing.assert_close(without.density, data.density(without.fixations, 12.0))
    stated = data.collate(known.viewings, (300, 400), sigma=5.0)
    torch.testing.assert_close(stated.density, data.density(stated.fixations, 5.0))


def test_every_image_of_a_batch_is_blurred_by_its_own_sigma(tmp_path):
    in_the_middle(tmp_path, (300, 400), (600, 800), (600, 400))
    uneven = data.folder(tmp_path, pixels_per_degree=20)
    expected = torch.tensor([[20.0, 20.0], [10.0, 10.0], [10.0, 20.0]], dtype=torch.float64)
    maps = data.collate(uneven.viewings, (300, 400)).density
    torch.testing.assert_close(spread(maps), expected, rtol=0.01, atol=0)
    batches = SaliencyBatches(data.prepare_in_memory(uneven, (300, 400)))
    torch.testing.assert_close(spread(batches.density), expected, rtol=0.01, atol=0)


def test_mit1003_is_blurred_by_35_pixels(tmp_path):
    mit = data.mit1003(small_mit1003(tmp_path))
    batch = data.collate(mit.viewings[:1], (60, 80))
    torch.testing.assert_close(batch.density, data.density(batch.fixations, 35.0))


@pytest.mark.parametrize("degree", [0, -1, float("inf"), float("nan")])
def test_pixels_per_degree_must_be_positive(tmp_path, degree):
    in_the_middle(tmp_path, (30, 40))
    with pytest.raises(ValueError, match="pixels_per_degree must be a positive number or None, got"):
        data.folder(tmp_path, pixels_per_degree=degree)


def test_different_sizes_and_grey_images_fit_one_batch(tmp_path):
    picture(tmp_path / "a.png", 30, 40, mode="L")
    picture(tmp_path / "b.png", 50, 20)
    (tmp_path / "fixations.csv").write_text("image,x,y\na,20,15\nb,10,25\n")
    batch = data.collate(data.folder(tmp_path).viewings, (24, 32))
    assert batch.images.shape == (2, 3, 24, 32)
    assert batch.images.dtype == torch.uint8
    assert batch.images[0, 0].equal(batch.images[0, 2])
    assert data.folder(tmp_path).summary().startswith(f"{tmp_path.name}: 2 images (of 2 sizes, 1 grey), 2 fixations;")
    assert batch.fixations.flatten(1).sum(1).tolist() == [1, 1]
    assert batch.frames == ((30, 40), (50, 20))


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK", "1", "I;16"])
def test_images_of_any_mode_are_read_as_rgb_bytes(tmp_path, mode):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    if mode == "I;16":
        Image.fromarray(np.full((4, 5), 65535, dtype=np.uint16)).save(path)
    else:
        Image.new("RGB", (5, 4), (255, 255, 255)).convert(mode).save(path)
    image = data.read_image(path)
    assert image.shape == (3, 4, 5)
    assert (image == 255).all()


def test_a_prepared_file_round_trips(tmp_path):
    osie = data.osie(small_osie(tmp_path / "osie"))
    path = data.prepare(osie, tmp_path / "carry" / "osie.pt", (24, 32))
    prepared = data.load_prepared(path)
    assert prepared.images.shape == (4, 3, 24, 32)
    assert prepared.data.summary() == osie.summary()
    assert [p.name for p in path.parent.iterdir()] == ["osie.pt"]  # no temporary file is left
    assert prepared.data.pixels_per_degree == 24
    for ours, theirs in zip(prepared.data.viewings, osie.viewings, strict=True):
        assert ours.image.name == theirs.image.name
        assert len(ours.fixations) == 3
        torch.testing.assert_close(ours.points, theirs.points, atol=1e-4, rtol=0)
    difference = prepared.images[0].float() - data.read_image(osie[0].image, (24, 32)).float()
    assert difference.abs().mean() < 6  # JPEG, of noise
    assert [v.image.name for v in prepared.subset(["1003.jpg", "1001.jpg"]).data.viewings] == ["1003.jpg", "1001.jpg"]


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
        (other_mat, r"has no variable 'fixations' \(found: eyes\)"),
        (without_images, "the image .*1002.jpg is missing"),
        (without_field, r"has no field 'subjects' where it is expected \(found: id, img\)"),
        (without_mat, "is not OSIE: it must hold"),
    ],
)
def test_a_damaged_data_set_gives_a_clear_error(tmp_path, spoil, message):
    spoil(small_osie(tmp_path))
    with pytest.raises(data.DataError, match=message):
        data.osie(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not readable JSON"),
        ("[]", "it holds a list, not an object"),
        ('{"info": {}}', "give version='2015' or version='2017'"),
        ('{"info": {"date_created": "2015-04-25"}, "images": []}', "is not SALICON's JSON: KeyError 'annotations'"),
        (
            '{"info": {"date_created": "2017-04-25"}, "annotations": [], '
            '"images": [{"id": 1, "file_name": "x.jpg", "height": 4, "width": 5}]}',
            "1 images of .* are missing, the first is x.jpg",
        ),
        (
            '{"info": {"date_created": "2017-04-25"}, "images": [], '
            '"annotations": [{"image_id": 5, "fixations": [[1, 2, 3], [4, 5, 6]]}]}',
            r"fixations_train2014.json, image 5: fixations must be pairs of two numbers.*got \[\[1, 2, 3\]",
        ),
    ],
)
def test_damaged_salicon_json_gives_a_clear_error(tmp_path, content, message):
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
        ("image,x,y\na,1\n", "line 2: x and y must be numbers"),
        ("image,x,y\na,1,5,2\n", r"line 2: more values than columns \(image,x,y\)"),
        ("image,x,y\nz,1,2\n", "names 1 images that are not in .*, the first is z"),
    ],
)
def test_a_damaged_fixations_file_gives_a_clear_error(tmp_path, content, message):
    picture(tmp_path / "a.png")
    (tmp_path / "fixations.csv").write_text(content)
    with pytest.raises(data.DataError, match=message):
        data.folder(tmp_path)


@pytest.mark.parametrize(
    "points",
    ["[[1, 2, 3], [4, 5, 6]]", "[[1], [2]]", "[1, 2]", "[[]]", "null", "3", '[["a", "b"]]', "[[1, [2]]]", '["ab"]'],
)
def test_points_that_are_not_pairs_are_refused(tmp_path, points):
    picture(tmp_path / "a.png")
    (tmp_path / "fixations.json").write_text(f'{{"a": {points}}}')
    with pytest.raises(data.DataError, match=r"fixations.json, image 'a': fixations must be pairs of two numbers"):
        data.folder(tmp_path)


def test_an_empty_list_of_points(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "fixations.json").write_text('{"a": []}')
    assert data.folder(tmp_path)[0].points.shape == (0, 2)


def test_matlab_fixations_that_are_not_pairs_are_refused(tmp_path):
    small_salicon(tmp_path)
    path = next((tmp_path / "fixations" / "train").glob("*.mat"))
    savemat(path, {"gaze": {"fixations": np.ones((2, 3))}})
    with pytest.raises(data.DataError, match=r"has fixations of shape \(2, 3\); expected rows of x and y"):
        data.salicon(tmp_path)


def test_a_name_that_fits_two_images_is_refused(tmp_path):
    for name in ("a.jpg", "a.png"):
        picture(tmp_path / name)
    points = tmp_path / "fixations.csv"
    points.write_text("image,x,y\na,1,2\n")
    with pytest.raises(data.DataError, match=r"names a, which could be a.jpg and a.png; name it with its suffix"):
        data.folder(tmp_path)
    points.write_text("image,x,y\na.png,1,2\na.jpg,3,4\n")
    assert [v.points.tolist() for v in data.folder(tmp_path).viewings] == [[[3, 4]], [[1, 2]]]
    (tmp_path / "a.jpg").unlink()
    points.write_text("image,x,y\na,1,2\na.png,3,4\n")
    with pytest.raises(data.DataError, match=r"names one image in two ways, a and a.png"):
        data.folder(tmp_path)


def test_missing_files_give_clear_errors(tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(data.DataError, match="has neither fixations/train nor annotations"):
        data.salicon(tmp_path)
    with pytest.raises(data.DataError, match=r"there is no folder .*ALLSTIMULI"):
        data.mit1003(tmp_path)
    with pytest.raises(data.DataError, match=r"has no fixations.csv and no fixations.json"):
        data.folder(tmp_path)
    with pytest.raises(data.DataError, match="is not a known data set: it holds neither stimuli/"):
        data.open_data(tmp_path / "images")
    small_mit1003(tmp_path / "mit1003")
    (tmp_path / "mit1003" / "ALLFIXATIONMAPS" / "i2_fixPts.jpg").unlink()
    with pytest.raises(data.DataError, match=r"the fixation points .*i2_fixPts.jpg are missing; unpack ALLFIX"):
        data.mit1003(tmp_path / "mit1003")
    with pytest.raises(data.DataError, match="congruency saliency prepare"):
        data.load_prepared(tmp_path / "none.pt")
    with pytest.raises(data.DataError, match="is a folder; convert it to one file with: congruency saliency prepare"):
        data.load_prepared(tmp_path)
    (tmp_path / "bad.pt").write_bytes(b"1234")
    with pytest.raises(data.DataError, match="cannot be read"):
        data.load_prepared(tmp_path / "bad.pt")
    (tmp_path / "bad.jpg").write_bytes(b"1234")
    with pytest.raises(data.DataError, match="is not an image that can be read"):
        data.read_image(tmp_path / "bad.jpg")
