"""The registry of tables and figures: complete, in step with the families, its commands real."""

import re
import shlex
from functools import partial

import command_line
import pytest
import typer

from congruency import cli
from congruency.studies.classification.grids import GRIDS
from congruency.studies.classification.grids import TITLES as GRID_TITLES
from congruency.studies.classification.tables import TABLES as PAPER_TABLES
from congruency.studies.classification.tables import TITLES as PAPER_TITLES
from congruency.studies.classification.tuned import TUNED
from congruency.studies.continual.tables import TABLES
from congruency.studies.cost import TABLES as COSTS
from congruency.studies.image_tables import named_study, sets_of
from congruency.studies.language.study import SETUPS
from congruency.studies.saliency.recipes import PAPER, PRINTED, paper_recipes
from replication.catalogue import CATALOGUE, commands_of, runnable
from replication.page import index

call = partial(command_line.call, CONGRUENCY_DATA="")

COMMANDS = [(entry.name, command) for entry in CATALOGUE for command in commands_of(entry)]


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
        "continual": set(TABLES),
        "classification": {*PAPER_TABLES, *COSTS, *GRIDS},
        "tuned": set(TUNED),
        "saliency": set(PAPER),
        "language": set(SETUPS) - {"medium"},  # which shows how it is done
    }
    for name, title in {**PAPER_TITLES, **GRID_TITLES}.items():
        assert runnable()[name].title == title
    for name, table in TABLES.items():
        assert runnable()[name].title == table.title
        assert runnable()[name].data == (table.base,)


def test_the_page_names_the_sets_that_we_do_not_have(tmp_path):
    sentence = "**Not yet measured.** It needs {}, which we do not have. What would measure it:"
    page = index(tmp_path)
    assert [sentence.format(name) in page for name in ("SALICON", "ImageNet", "mnist")] == [True, True, False]
    assert "| Table 2 | saliency, trained on OSIE and scored on MIT1003 | not yet measured, needs MIT1003 |" in page
    assert "| Table 3 | MNIST rotations | not yet measured |" in page


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_entries_say_what_they_need(entry):
    assert bool(entry.commands) == (entry.family != "drawing")
    assert entry.takes == "not measured" or entry.takes.endswith(("(measured)", "(estimate)"))
    if entry.runs:
        assert shlex.split(entry.commands[0])[:3] == ["reproduce", entry.family, entry.name]
    if entry.family == "classification":
        assert sets_of(named_study(entry.name)) == set(entry.data)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(COMMANDS)])
def test_every_command_is_one(name, command):
    """All words are understood; nothing is run, and the folder of data is the reader's."""
    found = typer.main.get_command(cli.build())
    words = shlex.split(command.replace("--data FOLDER", "--data ."))[1:]
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    context = found.make_context(command, words)
    assert not context.args


def test_commands_say_where_named_sets_are():
    for name, command in COMMANDS:
        words = shlex.split(command)
        if words[1] in ("train", "pairs", "ablate") and "tiny_imagenet" in command:
            assert words[words.index("--data") + 1] == "FOLDER", name


def test_commands_run_as_many_seeds_as_are_meant():
    for entry in CATALOGUE:
        for words in map(shlex.split, entry.commands):
            if entry.runs and entry.seeds:
                assert words[words.index("--seeds") + 1] == str(entry.seeds)
    meant = {entry.name: entry.seeds for entry in CATALOGUE if entry.seeds}
    assert meant == {
        "salicon": 3, "osie": 3, "mnist_r": 20, "mnist_p": 20, "icifar100": 3, "cifar10_grid": 20,
        "icifar100_clean_tenth": 10, "split_mnist_class": 20, "split_mnist_task": 20,
        "cifar100_noisy": 10, "tiny_subset": 5, "osie_study": 5, "saliency_networks": 10,
        "tiny": 12, "10m": 8, "100m": 3,
        "cifar10_resnet9": 20, "cifar100_resnet9": 20, "cifar10_resnext29": 3, "cifar10_densenet100": 3,
        "tiny_lite0": 10, "tiny_lite0_sgd": 10, "tiny_lite0_scratch": 10, "tiny_resnet50": 5,
        "tiny_resnet50_scratch": 5, "tiny_resnet101": 5, "tiny_resnet101_scratch": 5,
        "cifar10_resnet9_screened": 20, "cifar100_resnet9_screened": 20, "tiny_lite0_screened": 10,
        "tiny_lite0_sgd_screened": 10, "cifar10_resnet9_30_screened": 10, "cifar100_resnet9_30_screened": 10,
    }  # fmt: skip


@pytest.mark.parametrize("family", ["classification", "continual", "saliency"])
def test_help_names_all_tables(family):
    shown = "".join(re.findall(r"[\w,]", call("reproduce", family, "--help").output))
    names = [name for name, entry in runnable().items() if entry.family == family]
    assert names
    for name in names:
        assert name in shown


def test_the_papers_saliency_numbers():
    for table, window in (("salicon", "DCL-500-1"), ("osie", "DCL-120-1")):
        named = {recipe.paper_row.removesuffix(" anchor") for recipe in paper_recipes(table)}
        assert named == set(PAPER[table])
        assert f"DINet Adam {window}" in named
    assert dict(zip(PRINTED, PAPER["salicon"]["ResNet-50 RMSP DCL-inf-1"], strict=True))["NSS"] == (1.8226, 0.0014)
    assert PAPER["osie"]["DINet Adam GEM"][3] == (0.7540, 0.0006)


def test_the_command_lists_what_can_be_run():
    for words in (["--list"], []):
        result = call("reproduce", *words)
        assert result.exit_code == 0, result.output
        for name, entry in runnable().items():
            line = next(line for line in result.output.splitlines() if line.split()[:2] == [entry.family, name])
            assert line.endswith(f"({entry.place} of the paper)") == bool(entry.place)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["continual", "mnist_r", "--order", "fixed"], "No such option: --order"),
        (["saliency", "salicon", "--labels", "clean"], "No such option: --labels"),
        (["classification", "cifar", "--order", "fixed"], "No such option: --order"),
        (["saliency", "osie"], "OSIE"),
        (["saliency", "osie", "--row", "VGG", "--data", "."], "no row 'VGG'"),
        (
            ["classification", "cifar10_grid", "--record-steps", "1", "--data", "."],
            "--record-steps is for runs whose records are kept",
        ),
    ],
)
def test_wrong_usage_is_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONGRUENCY_DATA", raising=False)
    result = command_line.call("reproduce", *words, columns=200)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("│", " ").split())
