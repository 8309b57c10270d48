import json
from functools import partial

import command_line
import pytest
from command_line import said

from congruency.studies.classification import runner
from congruency.studies.classification.grids import GRIDS, TITLES
from congruency.studies.image_tables import choose_machine
from congruency.studies.plan import pick
from congruency.studies.results import merged_rows
from congruency.studies.store import Store

call = partial(command_line.call, columns=160)

FAST = [
    "--dataset",
    "digits",
    "--model",
    "mlp",
    "--epochs",
    "2",
    "--batch-size",
    "128",
    "--device",
    "cpu",
    "--lr",
    "0.05",
]


@pytest.mark.parametrize("name", list(GRIDS))
def test_a_slice_of_every_grid(name, tmp_path):
    rows = [] if name != "tiny_subset" else ["ResNet-50 from scratch"]  # the others see large images
    picked = [word for row in rows for word in ("--row", row)]
    result = call("reproduce", "classification", name, *FAST, *picked, "--seeds", "2", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found) == [row.name for row in pick(GRIDS[name](), rows).rows]
    for metrics in found.values():
        assert metrics["seed"] == [0, 1]
        assert {"test error", "train_loss", "corrected_share", "images_per_second", "seconds"} < set(metrics)
        assert all(len(values) == 2 for values in metrics.values())
    baseline = next(iter(found.values()))
    assert baseline["corrected_share"] == [0.0, 0.0]
    assert any(metrics["corrected_share"] != [0.0, 0.0] for metrics in found.values())
    assert not list((tmp_path / "runs").iterdir())
    text = (tmp_path / "table.md").read_text()
    assert "by chance alone" in text
    lines = merged_rows(pick(GRIDS[name](), rows), found)  # rows that are equal share a line
    compared = sum(first.against is not None for first, *_ in lines.values())
    assert (tmp_path / "index.html").read_text().count('class="chart"') == -(-compared // 6), "as few charts as will do"


def test_the_grid_has_what_was_planned():
    names = [row.name for row in GRIDS["cifar10_grid"]().rows]
    assert len(names) == 20
    for window in ("5", "50", "inf"):
        for scope in ("head", "all"):
            for variant in ("concentrate, margin 0", "anchor, margin 0.1", "anchor, margin 0.5"):
                assert f"DCL-{window}-1, {variant}, {scope}" in names
    for name in GRIDS:
        table = GRIDS[name]()
        assert table.title == TITLES[name]
        assert all(row.against in {None, *(other.name for other in table.rows)} for row in table.rows)
        assert len({job.digest() for row in table.rows for job in row.jobs}) == len(table.rows)


def test_a_grid_is_run_in_parts_and_by_several_processes(tmp_path, monkeypatch):
    rows = ["--row", "baseline", "--row", "DCL-5-1, anchor, margin 0.5, all"]
    alone = call("reproduce", "classification", "cifar10_grid", *FAST, *rows, "--seeds", "1", "--out", tmp_path / "a")
    assert alone.exit_code == 0, alone.output
    assert "s: step 1 of " in said(alone), "it says how far the run is"
    assert f"{TITLES['cifar10_grid']}, digits instead of its images" in said(alone)
    assert "Changed by options: model mlp, epochs 2, batch size 128, learning rate 0.05." in said(alone)
    several = call(
        "reproduce", "classification", "cifar10_grid", *FAST, *rows, "--seeds", "1", "--processes", "2",
        "--out", tmp_path / "b",
    )  # fmt: skip
    assert several.exit_code == 0, several.output
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in "ab")
    assert {row: values["test error"] for row, values in one.items()} == {
        row: values["test error"] for row, values in two.items()
    }
    monkeypatch.setattr(runner, "train_run", lambda *_, **__: pytest.fail("it ran again"))
    shown = call("reproduce", "classification", "cifar10_grid", *FAST, *rows, "--seeds", "1", "--out", tmp_path / "b")
    assert shown.exit_code == 0
    assert "DCL-5-1, anchor, margin 0.5, all" in shown.output
    other = call("reproduce", "classification", "cifar10_grid", *FAST, "--compile", "--out", tmp_path / "b")
    assert other.exit_code == 2
    assert "holds runs with other settings" in said(other)


def test_a_folder_keeps_to_its_settings(tmp_path):
    store = Store(tmp_path)
    store.check_settings({"precision": "32"}, {"command": "congruency ..."})
    store.check_settings({"precision": "32"})
    assert store.settings() == {"precision": "32", "command": "congruency ..."}
    with pytest.raises(ValueError, match="precision was '32' and is 'bf16'"):
        store.check_settings({"precision": "bf16"})
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        store.settings()


def test_the_switches_that_an_older_release_did_not_know_were_off(tmp_path):
    store = Store(tmp_path)
    store.check_settings({"machine": {"compile": True}})
    store.check_settings({"machine": {"compile": True, "capture": False}})
    for other in ({"compile": True, "capture": True}, {"capture": False}, {"compile": False}):
        with pytest.raises(ValueError, match="holds runs with other settings"):
            store.check_settings({"machine": other})


def test_grids_are_captured_on_a_gpu():
    def captured(table="cifar10_grid", device="cuda", precision=None, capture=None):
        return choose_machine(table, device, precision, False, capture).capture

    assert captured()
    assert not captured(capture=False)
    assert not captured(device="cpu")
    assert not captured(precision="16")
    assert not captured(table="cost")
    assert captured(table="cifar", capture=True)
