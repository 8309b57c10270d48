"""How networks see images: stretched or padded, with fixations and maps in the right places."""

import numpy as np
import pytest
import torch
from PIL import Image
from saliency_data import picture

from congruency.saliency import data
from congruency.saliency.batches import SaliencyBatches
from congruency.saliency.data import Preprocessing


@pytest.mark.parametrize(
    ("size", "aspect", "frame", "box"),
    [
        ((240, 320), "stretch", (600, 800), (0, 0, 240, 320)),
        ((240, 320), "stretch", (10, 1000), (0, 0, 240, 320)),
        ((320, 480), "pad", (600, 800), (0, 26, 320, 427)),  # OSIE in DINet: columns of black on both sides
        ((320, 480), "pad", (300, 1000), (88, 0, 144, 480)),
        ((320, 480), "pad", (640, 960), (0, 0, 320, 480)),
        ((32, 32), "pad", (1, 5000), (15, 0, 1, 32)),
    ],
)
def test_where_an_image_lies(size, aspect, frame, box):
    assert Preprocessing(size, aspect).box(frame) == box


@pytest.mark.parametrize("aspect", ["stretch", "pad"])
@pytest.mark.parametrize("frame", [(30, 40), (40, 30), (24, 36), (50, 20)])
def test_images_are_resized_into_their_box(aspect, frame):
    seen = Preprocessing((24, 36), aspect)
    image = torch.randint(1, 256, (3, *frame), dtype=torch.uint8)
    made = seen.apply(image)
    assert made.shape == (3, 24, 36)
    _, _, height, width = seen.box(frame)
    expected = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((width, height), Image.Resampling.BILINEAR)
    assert np.array_equal(seen.crop(made, frame).permute(1, 2, 0).numpy(), np.asarray(expected))
    outside = made.int().sum() - seen.crop(made, frame).int().sum()
    assert outside == 0  # black


@pytest.mark.parametrize("aspect", ["stretch", "pad"])
def test_points_move_with_the_image(aspect):
    """A bright pixel and a fixation on it stay together."""
    frame, seen = (20, 50), Preprocessing((80, 100), aspect)
    for x, y in ((0, 0), (49, 19), (25, 7)):
        image = torch.zeros(3, *frame, dtype=torch.uint8)
        image[:, y, x] = 255
        bright = seen.apply(image)[0].double()
        rows, columns = (
            bright.sum(dim) @ torch.arange(bright.shape[1 - dim]).double() / bright.sum() for dim in (1, 0)
        )
        point = seen.points(torch.tensor([[float(x), float(y)]]), frame)[0]
        assert point.tolist() == pytest.approx([float(columns), float(rows)], abs=1.0)


def test_padded_training_maps_show_the_image_alone(tmp_path):
    """Inside its box a padded density is the one of the box's size; outside it is 0, and so is a count."""
    picture(tmp_path / "wide.png", 30, 90)
    (tmp_path / "fixations.csv").write_text("image,x,y\nwide,0,0\nwide,89,29\nwide,44,15\n")
    wide = data.folder(tmp_path)
    padded = SaliencyBatches(data.prepare_in_memory(wide, (60, 60), "pad"))
    exact = SaliencyBatches(data.prepare_in_memory(wide, (20, 60)))
    seen = Preprocessing((60, 60), "pad")
    for maps, alone in ((padded.density, exact.density), (padded.fixations, exact.fixations)):
        assert seen.crop(maps, (30, 90)).equal(alone)
        assert maps.float().sum() == alone.float().sum()


def test_a_prepared_file_keeps_its_aspect(tmp_path):
    picture(tmp_path / "wide.png", 30, 90)
    (tmp_path / "fixations.csv").write_text("image,x,y\nwide,44,15\n")
    path = data.prepare(data.folder(tmp_path), tmp_path / "set.pt", (60, 60), "pad")
    prepared = data.load_prepared(path)
    assert prepared.preprocessing == prepared.subset(["wide.png"]).preprocessing == Preprocessing((60, 60), "pad")
    content = torch.load(path)
    del content["aspect"]  # a file of the first version
    torch.save(content, tmp_path / "old.pt")
    assert data.load_prepared(tmp_path / "old.pt").preprocessing == Preprocessing((60, 60), "stretch")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"aspect": "crop"}, "aspect must be one of 'stretch', 'pad'"), ({"size": (0, 3)}, "size must be")],
)
def test_invalid_preprocessing_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**change)
