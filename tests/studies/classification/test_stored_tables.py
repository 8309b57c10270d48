"""The tables of docs/results come out of their records as they are committed."""

import json
import shlex
from pathlib import Path

import pytest

from congruency.classification.image_options import ImageOptions
from congruency.studies.ablation import ablation_study, from_options
from congruency.studies.classification.cells import Axes
from congruency.studies.image_tables import study_of
from congruency.studies.network_runs import made_by
from congruency.studies.page import compose, to_page_markdown
from congruency.studies.results import collect, read_results
from congruency.studies.store import Store

RESULTS = Path(__file__).parents[3] / "docs" / "results"
FOLDERS = [
    "cifar10_grid", "cifar100_noisy", "cifar100_noisy_half_rate", "tiny_subset", "cost", "cost_window",
    "cost_references",
]  # fmt: skip


def unmade(text):
    """Without the line that says when and with what the page was made."""
    return [line for line in text.splitlines() if not line.startswith("Made by ")]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_table_comes_out_of_its_runs(name):
    folder, store = RESULTS / name, Store(RESULTS / name)
    settings, committed = store.settings(), (RESULTS / name / "table.md").read_text("utf-8")
    study = study_of(settings)
    results = collect(study, store.load())
    assert results == read_results(folder)
    assert results, "the digests of the jobs are those of the finished runs"
    page = compose(study, results, command=settings["command"], made=made_by(settings))
    assert unmade(to_page_markdown(page)) == unmade(committed)
    assert f"on NVIDIA H200 in precision {settings['machine']['precision']}" in committed.splitlines()[-1]
    assert shlex.split(settings["command"])[:4] == ["congruency", "reproduce", "classification", settings["table"]]


def test_the_ablation_comes_out_of_its_results():
    """Its runs were not kept, their results were. What stands between the title and the lead is written by hand."""
    results = read_results(RESULTS / "ablation_digits")
    changes = {"model": "convnet", "epochs": 12, "batch_size": 16, "learning_rate": 0.05, "per_class": 20}
    base = from_options(ImageOptions(source="digits"), changes)
    study = ablation_study(base, Axes(modes=("concentrate", "anchor")))
    assert list(results) == [row.name for row in study.rows]
    committed = (RESULTS / "ablation_digits" / "table.md").read_text("utf-8")
    (command,) = (line.strip() for line in committed.splitlines() if line.startswith("    congruency "))
    resumed = sum(attempts - 1 for metrics in results.values() for attempts in metrics["attempts"])
    page = compose(study, results, command=command, repeated=int(resumed))
    title, rest = committed.split("\n\n", 1)
    by_hand, found, rest = rest.partition(study.lead)
    assert found
    assert "not the paper's Figure 9" in by_hand
    assert unmade(to_page_markdown(page)) == unmade(f"{title}\n\n{study.lead}{rest}")
    assert json.loads((RESULTS / "ablation_digits" / "results.json").read_text()).keys() == results.keys()
