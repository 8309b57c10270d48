"""``congruency reproduce``: the tables of the paper and our own, one command per task family."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    help="Run a table of the paper, or one of our own studies, with as many seeds as you like.\n\n"
    "Every row is trained from every seed; the table shows means, intervals and paired differences beside the paper's "
    "numbers. An interrupted command resumes where it stopped when it is given again.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def reproduce(
    context: typer.Context,
    listing: Annotated[bool, typer.Option("--list", help="List every table that can be run, and exit.")] = False,
) -> None:
    """List the tables where no family is named."""
    if not listing and context.invoked_subcommand is not None:
        return
    from congruency.studies.catalogue import runnable

    for name, entry in runnable().items():
        command = f"{entry.family.partition(' ')[0]} {name}"
        where = f" ({entry.place} of the paper)" if entry.place else ""
        typer.echo(f"  {command:30}  {entry.title}{where}")
    typer.echo(
        "\ncongruency reproduce FAMILY TABLE runs one, such as: congruency reproduce classification cifar10_grid"
    )
    raise typer.Exit


for family in ("classification", "continual", "saliency"):
    module = f"congruency.cli.reproduce.{family}"
    if find_spec(module):  # until all families are there
        app.command()(getattr(import_module(module), family))
