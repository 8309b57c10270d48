from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from congruency.cli.commands import ManyValuesCommand, spread

MANY = {"--window", "-w", "--margin"}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--window 5 10 none", "--window 5 --window 10 --window none"),
        ("--window=5 10", "--window=5 --window 10"),
        ("-w 5 10", "-w 5 -w 10"),
        ("--window 5 --window 10", "--window 5 --window 10"),
        ("--window 5 10 --seeds 3 --margin 0 .5", "--window 5 --window 10 --seeds 3 --margin 0 --margin .5"),
        ("--margin -1 -.5 --quick", "--margin -1 --margin -.5 --quick"),
        ("recipe --seeds 3 more --window 5", "recipe --seeds 3 more --window 5"),
        ("--window 5 10 -- 20 30", "--window 5 --window 10 -- 20 30"),
        ("--window --seeds 3", "--window --seeds 3"),
        ("", ""),
    ],
)
def test_the_flag_is_repeated_before_each_further_value(words, wanted):
    once = spread(words.split(), MANY)
    assert once == wanted.split()
    assert spread(once, MANY) == once


@pytest.fixture
def heard():
    """An application with such a command, and what its function was called with."""
    app, calls = typer.Typer(), []

    @app.command(cls=ManyValuesCommand)
    def go(
        name: str,
        window: Annotated[list[int] | None, typer.Option("--window")] = None,
        out: Annotated[str, typer.Option("--out")] = "here",
    ) -> None:
        calls.append((name, window, out))

    return app, calls


@pytest.mark.parametrize(
    "words",
    ["one --window 5 10 --out there", "one --out there --window 5 --window 10", "--window=5 10 --out there one"],
)
def test_a_command_takes_both_ways(words, heard):
    app, calls = heard
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 0, result.output
    assert calls == [("one", [5, 10], "there")]


def test_bad_values_are_named(heard):
    app, calls = heard
    result = CliRunner().invoke(app, ["one", "--window", "5", "ten"])
    assert result.exit_code == 2
    assert "--window" in result.output
    assert not calls
