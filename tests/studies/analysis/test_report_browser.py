"""The report page of real runs in a real browser: it opens quietly, is named, and fits a phone."""

import re

import pytest
from browser import Browser, needs_browser
from typer.testing import CliRunner

from congruency import cli

pytestmark = needs_browser
NAMES = ("baseline", "DCL-3-1 concentrate, whole network, floor 0.3", "GEM, whole network")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three methods, two seeds each, on the embedded digits."""
    folder = tmp_path_factory.mktemp("report")
    small = ["--dataset", "digits", "--model", "convnet", "--per-class", "8", "--batch-size", "16", "--device", "cpu"]
    methods = {"base": [], "gem": ["--method", "gem"], "dcl": ["--method", "dcl", "--window", "3"]}
    for name, options in methods.items():
        for seed in ("0", "1"):
            out = str(folder / "runs" / f"{name}-{seed}")
            words = ["train", *small, *options, "--epochs", "2", "--seed", seed, "--out", out, "--no-progress"]
            result = CliRunner().invoke(cli.build(), words)
            assert result.exit_code == 0, result.output
    path = folder / "page.html"
    result = CliRunner().invoke(cli.build(), ["report", str(folder / "runs"), "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def test_it_opens_without_a_complaint_and_fetches_nothing(browser, page):
    browser.open(page)
    assert browser.complaints == []
    assert browser.fetched == [page.as_uri()]
    titles = browser.run("[...document.querySelectorAll('.figures h3')].map(each => each.textContent)")
    assert {
        "Congruency with the accumulated gradient", "Congruency with the last step", "Magnitude",
        "Magnitude of the steps",
        "Training error, mean of each epoch", "Training error, std within each epoch",
        "Training error by iteration, epoch 1", "Validation loss",
    } <= set(titles)  # fmt: skip
    drawn = browser.run(
        "[...document.querySelectorAll('.chart > svg')].map(each => each.getBoundingClientRect().height)"
    )
    assert len(drawn) == len(titles)
    assert min(drawn[:12]) > 150


def test_every_chart_and_box_has_a_name_for_those_who_do_not_see_it(browser, page):
    browser.open(page)
    labels = browser.run("[...document.querySelectorAll('.chart > svg')].map(e => e.getAttribute('aria-label') || '')")
    assert all(len(label) > 20 for label in labels)
    assert browser.run("[...document.querySelectorAll('.chart > svg')].every(e => e.getAttribute('role') == 'img')")
    boxes = browser.run("[...document.querySelectorAll('input')].map(each => each.labels[0].textContent.trim())")
    assert boxes[-len(NAMES) - 1 :] == ["Lines of the seeds", *NAMES]
    buttons = browser.run("[...document.querySelectorAll('.bar button:not([hidden])')].map(e => e.ariaLabel)")
    assert {"SVG of Training loss", "PNG of Training loss", "CSV of Training loss"} <= set(buttons)
    assert browser.run("document.documentElement.lang") == "en"


def test_every_seed_has_a_line(browser, page):
    browser.open(page)
    browser.run("document.querySelector('.chart-controls > label input[type=checkbox]').click()")
    seeds = browser.run("[...document.querySelectorAll('.chart')].map(e => e.querySelectorAll('.seed').length)")
    assert seeds[0] == 2 * len(NAMES)


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_cut_off(browser, page, dark):
    browser.open(page, width=390, height=844, dark=dark, phone=True)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    widths = browser.run("[...document.querySelectorAll('section > .figures .chart')].map(e => e.clientWidth)")
    assert min(widths) > 300
    light = browser.run("getComputedStyle(document.body).backgroundColor")
    red = int(re.search(r"rgb\((\d+)", light)[1])
    assert (red < 60) == dark
