"""docs/results/osie: its records load, and its table is what they give."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from congruency.studies.page import compose, to_page_markdown
from congruency.studies.results import collect, read_results
from congruency.studies.saliency.recipes import osie_recipes
from congruency.studies.saliency.runner import EXAMPLES, EXAMPLES_CAPTION, below_floor
from congruency.studies.saliency.study import saliency_study
from congruency.studies.store import Store

OSIE = Path(__file__).parents[3] / "docs" / "results" / "osie"
COMMAND = (
    "congruency saliency osie osie.pt --model dinet4 --delay 0 --lite-weights efficientnet-lite0.pth --epochs 6 "
    "--scratch-epochs 6 --precision bf16 --seeds 5 --out docs/results/osie"
)


def documented_study():
    recipes = osie_recipes(
        models=["dinet4"], optimizers=["adam", "rmsprop"], methods=["baseline", "GEM", "DCL-inf-1", "DCL-inf-1 anchor"],
        lite="efficientnet-lite0.pth", scratch=True, epochs=6, scratch_epochs=6, delay=0,
    )  # fmt: skip
    return saliency_study("osie_study", recipes)


def test_the_table_is_made_of_its_records():
    results = read_results(OSIE)
    page = compose(documented_study(), results, command=COMMAND)
    page = replace(page, findings=[*page.findings, *below_floor(results)])
    text = to_page_markdown(page, {EXAMPLES: EXAMPLES_CAPTION})
    held = (OSIE / "table.md").read_text(encoding="utf-8")
    assert text.splitlines()[:-1] == held.splitlines()[:-1]  # the last line says when and with what it was made
    assert (OSIE / EXAMPLES).is_file()


def test_floor_and_ceiling_are_those_of_the_table():
    results, bounds = read_results(OSIE), json.loads((OSIE / "bounds.json").read_text(encoding="utf-8"))
    assert list(bounds) == ["uniform", "centre Gaussian", "mean training map", "human ceiling"]
    assert all(results[row] == {name: [value] for name, value in bounds[row].items()} for row in bounds)


def test_the_command_finds_every_run_finished():
    study, store = documented_study(), Store(OSIE)
    assert store.pending(study.runs(range(5))) == []
    collected, results = collect(study, store.load()), read_results(OSIE)
    assert collected == {name: row for name, row in results.items() if "seed" in row}


def test_every_row_of_the_records_is_a_row_of_the_study():
    study, rows = documented_study(), json.loads((OSIE / "results.json").read_text(encoding="utf-8"))
    assert {row.name for row in study.rows} == {name for name in rows if "seed" in rows[name]}
    assert all(rows[name]["seed"] == [0, 1, 2, 3, 4] for name in rows if "seed" in rows[name])


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"method": "dcl", "mode": "anchor"}, 4),
        ({"method": "gem", "optimizer": "adam"}, 2),
        ({"pretrained": True, "method": "baseline"}, 2),
        ({"window": 120}, 0),
    ],
)
def test_rows_are_found_by_their_settings(settings, count):
    assert len(documented_study().find(**settings)) == count
