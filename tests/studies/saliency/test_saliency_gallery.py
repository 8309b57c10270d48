"""The gallery of predictions: its pictures, its scores, and sorting in a real browser."""

import json

import numpy as np
import pytest
import torch
from browser import Browser, check_page, needs_browser
from PIL import Image
from saliency_data import picture
from typer.testing import CliRunner

from congruency.cli.saliency import app
from congruency.saliency import data
from congruency.saliency.predict import save_values
from congruency.saliency.score_maps import score_maps
from congruency.studies.saliency.gallery import error_map

NAMES = ["10.png", "2.png", "<b>1.png", "bare.png"]  # in the order of the set


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    """Four images, the last without fixations; maps of random quality."""
    root = tmp_path_factory.mktemp("gallery")
    lines = ["image,x,y"]
    for i, name in enumerate(NAMES):
        picture(root / "set" / name, 60, 80, seed=i)
        save_values(torch.rand(60, 80, generator=torch.Generator().manual_seed(i)), root / "maps" / f"{name[:-4]}.npy")
        lines += [f"{name},{10 * j},{7 * j}" for j in range(1, 6)] if name != "bare.png" else []
    (root / "set" / "fixations.csv").write_text("\n".join(lines))
    words = ["gallery", root / "maps", root / "set", "--out", root / "page", "--metric", "NSS", "--metric", "KL"]
    result = CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "4 images. The page:" in result.output
    return root


def test_the_error_is_the_difference_of_distributions():
    truth = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    assert error_map(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), truth).tolist() == [[0.5, -1.0], [0.0, 0.5]]
    assert error_map(truth * 7, truth).abs().max() == 0
    assert error_map(truth, torch.zeros(2, 2)).abs().max() == 0
    uniform = torch.ones(2, 2)
    assert error_map(uniform * 0, truth).equal(error_map(uniform, truth))  # as in the metrics


def test_every_image_has_its_pictures(gallery):
    pictures = sorted(path.name for path in (gallery / "page" / "pictures").iterdir())
    assert pictures == [f"{i:05d}-{kind}.jpg" for i in range(4) for kind in ("error", "image", "people", "prediction")]
    shown = {name: np.asarray(Image.open(gallery / "page" / "pictures" / name)).astype(int) for name in pictures}
    assert {pixels.shape for pixels in shown.values()} == {(60, 80, 3)}
    assert not np.array_equal(shown["00000-people.jpg"], shown["00000-prediction.jpg"])
    error = shown["00000-error.jpg"]
    assert (error[7, 10, 2] - error[7, 10, 0]) > 60  # blue at a fixation: random maps predict too little there


def test_a_set_without_images_is_refused(gallery):
    words = ["gallery", gallery / "maps", gallery / "set" / "fixations.csv", "--out", gallery / "none"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2
    assert "the folder of the data set" in result.output


@needs_browser
def test_rows_are_sorted_in_a_browser(gallery, tmp_path):
    browser = Browser(tmp_path)
    try:
        page = gallery / "page" / "index.html"
        browser.open(page)
        assert browser.complaints == []
        assert all(address.startswith((gallery / "page").as_uri()) for address in browser.fetched)
        assert order(browser) == NAMES  # names are text, not markup
        loaded = "[...document.images].every(each => each.complete && each.naturalWidth === 80)"
        browser.run("document.querySelectorAll('img').forEach(each => each.loading = 'eager')")
        for _ in range(200):
            if browser.run(loaded):
                break
        assert browser.run(loaded)
        scores = score_maps(gallery / "maps", data.folder(gallery / "set"), ["NSS", "KL"]).images
        seen = [name for name in NAMES if name != "bare.png"]
        for place, metric in ((5, "NSS"), (6, "KL")):
            rising = sorted(seen, key=lambda name: scores[name][metric])
            for expected, state in ((rising, "ascending"), (rising[::-1], "descending"), (rising, "ascending")):
                press(browser, place)
                assert order(browser) == [*expected, "bare.png"], metric  # what has no score comes last
                assert sorts(browser) == [state if i == place else "none" for i in (0, 5, 6)]
        press(browser, 0)
        assert order(browser) == ["<b>1.png", "2.png", "10.png", "bare.png"]
        numbers = browser.run("[...document.querySelectorAll('tbody.images tr')].map(r => r.cells[5].textContent)")
        assert numbers[1] == f"{scores['2.png']['NSS']:.4f}"
        check_page(browser, page)
        browser.open(page, dark=True)
        assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(16, 22, 29)"
        assert browser.complaints == []
    finally:
        browser.close()


def order(browser):
    script = "[...document.querySelectorAll('tbody.images th')].map(each => each.textContent)"
    return json.loads(browser.run(f"JSON.stringify({script})"))


def sorts(browser):
    return browser.run("[...document.querySelectorAll('th[aria-sort]')].map(each => each.getAttribute('aria-sort'))")


def press(browser, place):
    """Click on a heading, where it is on the screen."""
    button = f"document.querySelectorAll('thead th')[{place}].querySelector('button')"
    browser.run(f"{button}.scrollIntoView({{block: 'center', inline: 'center'}})")
    box = browser.run(
        f"(() => {{ const b = {button}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()"
    )
    browser.click(box[0] + box[2] / 2, box[1] + box[3] / 2)
