"""The registry of tables and figures: whole, in step with the families, its commands real, its states true."""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from congruency import cli
from congruency.studies.catalogue import CATALOGUE, DATA_TITLES, RESULTS, Entry, Time, runnable
from congruency.studies.classification import recipes
from congruency.studies.classification.grids import GRIDS
from congruency.studies.classification.grids import TITLES as GRID_TITLES
from congruency.studies.classification.tables import TITLES as PAPER_TITLES
from congruency.studies.continual.tables import TABLES
from congruency.studies.listing import data_at_hand, expected_rows, finished, lines, state
from congruency.studies.saliency.recipes import PAPER, PRINTED, paper_recipes

COMMANDS = [(entry.name, command) for entry in CATALOGUE for command in entry.commands]


def call(*words, **environment):
    settings = {"COLUMNS": "100", "TERM": "dumb", "CONGRUENCY_DATA": "", **environment}
    return CliRunner().invoke(cli.build(), [str(word) for word in words], env=settings)


def test_every_table_and_figure_of_the_paper_is_there_once():
    places = [entry.place for entry in CATALOGUE if entry.place]
    numbers = re.findall(r"\d+", " ".join(place for place in places if place.startswith("Table")))
    assert sorted(map(int, numbers)) == [*range(1, 13), 12]  # the halves of Table 12 are two
    figures = [int(place.removeprefix("Figure ")) for place in places if place.startswith("Figure")]
    assert figures == list(range(1, 15))
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)


def test_it_lists_exactly_what_the_families_can_run():
    families = {}
    for name, entry in runnable().items():
        families.setdefault(entry.family, set()).add(name)
    assert families == {
        "continual learning": set(TABLES),
        "classification": set(recipes.tables()) | set(GRIDS),
        "saliency": set(PAPER),
    }
    for name, title in {**PAPER_TITLES, **GRID_TITLES}.items():
        assert runnable()[name].title == title
    for name, table in TABLES.items():
        assert runnable()[name].title == table.title
        assert runnable()[name].data == (table.base,)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_entries_say_what_they_need(entry):
    assert set(entry.data) <= set(DATA_TITLES)
    assert bool(entry.commands) == (entry.family != "drawing")
    assert bool(entry.takes.text) == bool(entry.takes.source)
    if entry.runs:
        assert shlex.split(entry.commands[0])[:2] == ["reproduce", entry.name]
        assert expected_rows(entry)
    if entry.family == "classification" and not entry.name.startswith("cost"):
        wanted = {recipe.data for recipe in recipes.RECIPES if recipe.table == entry.name}
        assert wanted <= set(entry.data)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(COMMANDS)])
def test_every_command_is_one(name, command):
    """All words are understood; nothing is run."""
    found = typer.main.get_command(cli.build())
    words = shlex.split(command)
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    context = found.make_context(command, words)
    assert not context.args
    table = context.params.get("table")
    if "reproduce" in command and table:
        rows = expected_rows(runnable()[table])
        assert all(
            any(each == row or each.startswith(f"{row},") for each in rows) for row in context.params["rows"] or ()
        )


@pytest.mark.parametrize("entry", [entry for entry in CATALOGUE if entry.commands], ids=lambda entry: entry.name)
def test_commands_write_where_the_state_is_looked_for(entry):
    """A result that its command writes elsewhere would stay "not yet measured" whatever is run."""
    written = set()
    for words in map(shlex.split, entry.commands):
        options = dict(itertools.pairwise(words))
        place = Path(options["--json"]) if words[0] == "report" else Path(options.get("--out", "")) / "results.json"
        if place.is_relative_to(RESULTS):
            assert place.name == "results.json"
            written.add(place.parent.relative_to(RESULTS).as_posix())
    assert written == set(entry.results)
    assert not set(entry.results) & set(entry.smaller)


def test_commands_say_where_named_sets_are():
    for name, command in COMMANDS:
        words = shlex.split(command)
        if words[0] in ("train", "pairs", "ablate") and "tiny_imagenet" in command:
            assert words[words.index("--data-folder") + 1] == "FOLDER", name


def test_commands_run_as_many_seeds_as_are_meant():
    for entry in CATALOGUE:
        for words in map(shlex.split, entry.commands):
            if entry.runs and entry.seeds:
                assert words[words.index("--seeds") + 1] == str(entry.seeds)
    meant = {entry.name: entry.seeds for entry in CATALOGUE if entry.seeds}
    assert meant == {
        "salicon": 3, "osie": 3, "mnist_r": 20, "mnist_p": 20, "icifar100": 3, "cifar10_grid": 20,
            "cifar100_noisy": 10, "tiny_subset": 5, "osie_study": 5,
    }  # fmt: skip


def test_help_names_all_tables():
    shown = "".join(re.findall(r"[\w,]", call("reproduce", "--help").output))
    for name in runnable():
        assert name in shown


def test_the_papers_saliency_numbers():
    for table, window in (("salicon", "DCL-500-1"), ("osie", "DCL-120-1")):
        named = {recipe.paper_row.removesuffix(" anchor") for recipe in paper_recipes(table)}
        assert named == set(PAPER[table])
        assert f"DINet Adam {window}" in named
    assert dict(zip(PRINTED, PAPER["salicon"]["ResNet-50 RMSP DCL-inf-1"], strict=True))["NSS"] == (1.8226, 0.0014)
    assert PAPER["osie"]["DINet Adam GEM"][3] == (0.7540, 0.0006)


def results(folder, rows, seeds=2):
    folder.mkdir(parents=True)
    content = {row: {"accuracy": [0.5] * seeds} for row in rows}
    (folder / "results.json").write_text(json.dumps(content))


def test_states_of_results(tmp_path):
    entry = runnable()["mnist_r"]
    assert state(entry, tmp_path / "nowhere") == "not at hand"
    assert state(entry, tmp_path) == "not yet measured"
    rows = expected_rows(entry)
    results(tmp_path / "part" / "mnist_r", rows[:3], seeds=1)
    assert state(entry, tmp_path / "part") == f"mnist_r (incomplete, 3 of {len(rows)} rows, 1 seed of 20)"
    assert not finished(entry, tmp_path / "part")
    results(tmp_path / "whole" / "mnist_r", [*rows, "another"], seeds=20)
    assert state(entry, tmp_path / "whole") == "mnist_r (complete, 20 seeds)"
    assert finished(entry, tmp_path / "whole")
    results(tmp_path / "few" / "mnist_r", rows, seeds=9)
    assert state(entry, tmp_path / "few") == f"mnist_r (all {len(rows)} rows, 9 seeds of 20)"
    assert not finished(entry, tmp_path / "few")
    results(tmp_path / "open" / "cost", expected_rows(runnable()["cost"]), seeds=5)
    assert state(runnable()["cost"], tmp_path / "open") == "cost (all 4 rows, 5 seeds)"
    assert finished(runnable()["cost"], tmp_path / "open")
    single = next(entry for entry in CATALOGUE if entry.name == "bound")
    (tmp_path / "bound").mkdir()
    (tmp_path / "bound" / "results.json").write_text('{"quadratic": {"lipschitz": 1.0}}')
    assert state(single, tmp_path) == "bound (done)"
    (tmp_path / "bound" / "results.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        state(single, tmp_path)


def test_rows_with_different_numbers_of_seeds(tmp_path):
    entry = runnable()["cifar10_grid"]
    rows = expected_rows(entry)
    content = {row: {"seed": list(range(9 + (row == "baseline"))), "test error": [1.0] * 10} for row in rows}
    (tmp_path / "cifar10_grid").mkdir()
    (tmp_path / "cifar10_grid" / "results.json").write_text(json.dumps(content))
    assert state(entry, tmp_path) == "cifar10_grid (all 20 rows, 9 to 10 seeds of 20)"
    assert not finished(entry, tmp_path)


def test_something_smaller_does_not_finish_an_entry(tmp_path):
    (entry,) = (entry for entry in CATALOGUE if entry.name == "ablation")
    results(tmp_path / "ablation_digits", ["baseline"])
    assert state(entry, tmp_path) == "ablation_digits (1 row, 2 seeds)"
    assert not finished(entry, tmp_path)
    results(tmp_path / "ablation_windows", ["baseline"])
    assert not finished(entry, tmp_path), "the references are missing"
    results(tmp_path / "ablation_references", ["baseline"])
    assert finished(entry, tmp_path)


def test_sets_that_are_not_whole_are_said_to_be_so(tmp_path):
    entry = Entry(name="x", title="", family="analysis", data=("tiny_imagenet", "cifar100"))
    for place in ("tiny_imagenet/tiny-imagenet-200-subset.zip", "cifar100/cifar100_noisy_train.tar.xz"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).touch()
    assert data_at_hand(entry, tmp_path) == (
        "Tiny ImageNet is at hand, a subset (tiny-imagenet-200-subset.zip), "
        "CIFAR-100 is at hand, its training labels noisy (cifar100_noisy_train.tar.xz)"
    )


def test_data_at_hand(tmp_path, monkeypatch):
    monkeypatch.delenv("CONGRUENCY_DATA", raising=False)
    entry = Entry(name="x", title="", family="saliency", data=("mnist", "OSIE", "MIT1003"))
    assert data_at_hand(entry, None).count("is missing: no data folder was named") == 3
    (tmp_path / "mnist").mkdir()
    (tmp_path / "osie" / "stimuli").mkdir(parents=True)
    told = data_at_hand(entry, tmp_path)
    assert told == "MNIST is at hand (mnist), OSIE is at hand (osie), MIT1003 is missing"
    assert data_at_hand(Entry(name="x", title="", family="analysis"), None) == "none is needed"


def test_the_listing(tmp_path):
    results(tmp_path / "results" / "mnist_p", expected_rows(runnable()["mnist_p"]), seeds=3)
    result = call("reproduce", "--list", "--data", tmp_path, "--results", tmp_path / "results")
    assert result.exit_code == 0, result.output
    for entry in CATALOGUE:
        assert entry.title in result.output
    text = " ".join(result.output.split())
    assert (
        "Table 4: mnist_p, MNIST permutations congruency reproduce mnist_p --data FOLDER --seeds 20 "
        "--out docs/results/mnist_p Data: MNIST is missing" in text
    )
    assert "Result: mnist_p (all 19 rows, 3 seeds of 20)" in text
    assert "class_pairs_cifar10 is a small one" in text, "a folder's name is left as it is"
    assert "Figure 2: a training step with DCL A drawing, nothing is measured in it." in text
    assert len([line for line in lines(tmp_path, tmp_path) if line.startswith("Figure")]) == 14


def test_how_a_time_is_known():
    assert str(Time()) == "not measured"
    assert str(Time("1 s", "estimate")) == "1 s (estimate)"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--list", "mnist_r"], "leave mnist_r out"),
        (["salicon", "--network", "mlp"], "salicon is a table of saliency: --network is for continual learning"),
        (["salicon", "--base", "x"], "--base is for continual learning and classification"),
        (["mnist_r", "--order", "fixed"], "--order is for classification and saliency"),
        (["cifar", "--order-seed", "3"], "is for --order fixed"),
        (["osie"], "where OSIE is must be said"),
        (["osie", "--rows", "VGG", "--data", "."], "there is no row 'VGG'; the rows are ResNet-50 RMSP"),
        (["--index", "--results", "nowhere"], "there is no folder nowhere"),
        (["cifar10_grid", "--record-steps", "1", "--data", "."], "--record-steps is for runs whose records are kept"),
    ],
)
def test_what_cannot_be_is_refused(words, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONGRUENCY_DATA", raising=False)
    result = CliRunner().invoke(cli.build(), ["reproduce", *words], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 2, result.output
    assert told in " ".join(result.output.replace("│", " ").split())
