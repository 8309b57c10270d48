"""Every kind of page in a real browser: on a wide screen and on a phone, in light and dark colours."""

import json
from pathlib import Path

import pytest
from browser import Browser, check_page, needs_browser, white_frame
from typer.testing import CliRunner

from congruency import cli
from congruency.language import read_corpus
from congruency.report.page import render
from congruency.studies import bench_report, demo
from congruency.studies.continual.tables import StreamSettings, continual_study
from congruency.studies.image_tables import study_of
from congruency.studies.page import compose
from congruency.studies.results import read_results
from congruency.studies.saliency.recipes import osie_recipes
from congruency.studies.saliency.study import saliency_study
from congruency.studies.store import Store

pytestmark = needs_browser
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
TEXT = ROOT / "docs" / "mathematics.md"  # read in no time, unlike the standard library
SMALL = ["--dataset", "digits", "--model", "mlp", "--epochs", "1", "--device", "cpu"]
COMMANDS = {  # pages that a command makes in a second or two
    "language/index.html": [
        "reproduce", "language", "tiny", "--row", "cautious", "--seeds", "2", "--steps", "4", "--batch-size", "2",
        "--rate", "0.002", "--device", "cpu", "--corpus", TEXT,
    ],
    "continual/index.html": [
        "reproduce", "continual", "mnist_r", "--dataset", "digits", "--tasks", "3", "--samples", "100", "--seeds", "2",
        "--memory", "20", "--row", "GEM", "--row", "MLP DCL-30-1 MEM, concentrate, margin 0.5",
    ],
    "ablation/index.html": ["ablate", *SMALL, "--window", "5", "--references", "1", "--scope", "all", "--seeds", "2"],
    "illustrate/index.html": ["illustrate", "--optimizer", "gd"],
    "bound/index.html": ["bound"],
}  # fmt: skip
STORED = ("classification", "cost", "continual_table", "saliency", "bench")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def invoke(*words):
    result = CliRunner().invoke(cli.build(), list(map(str, words)))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("place", COMMANDS)
def test_pages_of_commands(browser, tmp_path, place):
    invoke(*COMMANDS[place], "--out", (tmp_path / place).parent)
    check_page(browser, tmp_path / place)


def test_the_page_of_the_demo(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "HELD_OUT_WINDOWS", 4)
    settings, corpus = demo.Settings(seeds=2, steps=10, epochs=1, window=2), read_corpus(str(TEXT))
    tasks = (demo.language_task(corpus, 10), demo.digits_task(1), demo.stream_task())
    page = demo.compose(settings, tasks, corpus, demo.train_all(settings, tasks), "congruency demo", 1.0)
    (tmp_path / "demo.html").write_text(render(page), encoding="utf-8")
    check_page(browser, tmp_path / "demo.html")


def test_pages_of_single_runs(browser, tmp_path):
    invoke("train", *SMALL, "--out", tmp_path / "run", "--no-progress")
    invoke("report", tmp_path / "run", "--out", tmp_path / "report.html")
    invoke("pairs", tmp_path / "run", "--dataset", "digits", "--classes", "3", "8", "--out", tmp_path / "pairs")
    check_page(browser, tmp_path / "report.html")
    check_page(browser, tmp_path / "pairs" / "index.html")


def stored_page(kind):
    """The page of a large study, from what docs/results has of it."""
    if kind == "bench":
        return bench_report.page([json.loads((ROOT / "benchmarks" / "results" / "bench-cpu.json").read_text())])
    folder = {"classification": "cifar10_grid", "continual_table": "mnist_r", "saliency": "osie"}.get(kind, kind)
    if kind == "saliency":
        recipes = osie_recipes(
            models=["dinet4"], optimizers=["adam", "rmsprop"], lite="lite.pth", scratch=True, epochs=6, delay=0,
            scratch_epochs=6, methods=["baseline", "GEM", "DCL-inf-1", "DCL-inf-1 anchor"],
        )  # fmt: skip
        study = saliency_study("osie_study", recipes)
    elif kind == "continual_table":
        study = continual_study(StreamSettings(table="mnist_r"))
    else:
        study = study_of(Store(RESULTS / folder).settings())
    return compose(study, read_results(RESULTS / folder), command="congruency")


@pytest.mark.parametrize("kind", STORED)
def test_pages_of_large_studies(browser, tmp_path, kind):
    path = tmp_path / f"{kind}.html"
    path.write_text(render(stored_page(kind)), encoding="utf-8")
    check_page(browser, path)
    browser.open(path, width=1400)
    wide = "[...document.querySelectorAll('.card')].filter((each) => each.scrollWidth > each.clientWidth + 1).length"
    assert browser.run(wide) == 0, "no table scrolls sideways"
    heights = "[...document.querySelectorAll('td')].map((each) => each.getBoundingClientRect().height)"
    assert max(browser.run(heights)) < 70, "and no cell has three lines"
    shown = browser.run("[...document.querySelectorAll('.chart')].filter((each) => each.clientWidth > 0).length")
    assert shown <= 12


def test_a_white_picture_in_the_dark_is_found(browser, tmp_path):
    from PIL import Image

    found = {}
    for name, colour in (("white", (255, 255, 255)), ("grey", (120, 120, 120))):
        Image.new("RGB", (200, 100), colour).save(tmp_path / f"{name}.png")
        page = tmp_path / f"{name}.html"
        page.write_text(f'<body style="margin: 0; background: black"><img src="{name}.png" width="200"></body>')
        browser.open(page, dark=True)
        found[name] = white_frame(browser, [0, 0, 200, 100])
    assert found == {"white": 1.0, "grey": 0.0}
