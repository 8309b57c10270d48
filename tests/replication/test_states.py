"""The states of results: which folders hold a table or figure, and how complete they are."""

import itertools
import json
import shlex
from pathlib import Path

import pytest

from replication.catalogue import CATALOGUE, commands_of, runnable
from replication.states import RESULTS, expected_rows, finished, held, states


@pytest.mark.parametrize("entry", [entry for entry in CATALOGUE if entry.commands], ids=lambda entry: entry.name)
def test_commands_write_where_the_state_is_looked_for(entry):
    """A result that its command writes elsewhere would stay "not yet measured" whatever is run."""
    written = set()
    for words in map(shlex.split, commands_of(entry, RESULTS)):
        options = dict(itertools.pairwise(words))
        place = Path(options["--json"]) if words[1] == "report" else Path(options.get("--out", "")) / "results.json"
        if place.is_relative_to(RESULTS):
            assert place.name == "results.json"
            written.add(place.parent.relative_to(RESULTS).as_posix())
    assert written == set(held(entry).results)
    assert not set(held(entry).results) & set(held(entry).smaller)


def test_rows_of_runnable_tables_are_known():
    for entry in runnable().values():
        rows = expected_rows(entry)
        assert rows
        for words in map(shlex.split, entry.commands):
            chosen = [word for option, word in itertools.pairwise(words) if option == "--row"]
            assert all(any(each == row or each.startswith(f"{row},") for each in rows) for row in chosen)


def results(folder, rows, seeds=2):
    folder.mkdir(parents=True)
    content = {row: {"accuracy": [0.5] * seeds} for row in rows}
    (folder / "results.json").write_text(json.dumps(content))


def test_states_of_results(tmp_path):
    entry = runnable()["mnist_r"]
    assert states(entry, tmp_path) == {}
    rows = expected_rows(entry)
    results(tmp_path / "part" / "mnist_r", rows[:3], seeds=1)
    assert states(entry, tmp_path / "part") == {"mnist_r": f"incomplete, 3 of {len(rows)} rows, 1 seed of 20"}
    assert not finished(entry, tmp_path / "part")
    results(tmp_path / "whole" / "mnist_r", [*rows, "another"], seeds=20)
    assert states(entry, tmp_path / "whole") == {"mnist_r": "complete, 20 seeds"}
    assert finished(entry, tmp_path / "whole")
    results(tmp_path / "few" / "mnist_r", rows, seeds=9)
    assert states(entry, tmp_path / "few") == {"mnist_r": f"all {len(rows)} rows, 9 seeds of 20"}
    assert not finished(entry, tmp_path / "few")
    results(tmp_path / "open" / "cost", expected_rows(runnable()["cost"]), seeds=5)
    assert states(runnable()["cost"], tmp_path / "open") == {"cost": "all 4 rows, 5 seeds"}
    assert finished(runnable()["cost"], tmp_path / "open")
    single = next(entry for entry in CATALOGUE if entry.name == "bound")
    (tmp_path / "bound").mkdir()
    (tmp_path / "bound" / "results.json").write_text('{"quadratic": {"lipschitz": 1.0}}')
    assert states(single, tmp_path) == {"bound": "done"}
    (tmp_path / "bound" / "results.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        states(single, tmp_path)


def test_rows_with_different_numbers_of_seeds(tmp_path):
    entry = runnable()["cifar10_grid"]
    rows = expected_rows(entry)
    content = {row: {"seed": list(range(9 + (row == "baseline"))), "test error": [1.0] * 10} for row in rows}
    (tmp_path / "cifar10_grid").mkdir()
    (tmp_path / "cifar10_grid" / "results.json").write_text(json.dumps(content))
    assert states(entry, tmp_path) == {"cifar10_grid": "all 20 rows, 9 to 10 seeds of 20"}
    assert not finished(entry, tmp_path)


def test_something_smaller_does_not_finish_an_entry(tmp_path):
    (entry,) = (entry for entry in CATALOGUE if entry.name == "ablation")
    results(tmp_path / "ablation_digits", ["baseline"])
    assert states(entry, tmp_path) == {"ablation_digits": "1 row, 2 seeds"}
    assert not finished(entry, tmp_path)
    results(tmp_path / "ablation_windows", ["baseline"])
    assert not finished(entry, tmp_path), "the references are missing"
    results(tmp_path / "ablation_references", ["baseline"])
    assert finished(entry, tmp_path)
