"""``congruency reproduce``: the tables of the paper and our own, one command per task family."""

from __future__ import annotations

from typing import Annotated

import typer

from congruency.cli.options import Data, option
from congruency.cli.reproduce.classification import classification
from congruency.cli.reproduce.continual import continual
from congruency.cli.reproduce.language import language
from congruency.cli.reproduce.saliency import saliency

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
    listing: Annotated[bool, option(
        "List every table and figure that can be run: its command, its data, its time.", name="--list",
    )] = False,
    data: Data = None,
) -> None:  # fmt: skip
    """List what can be run where no family is named."""
    if not listing and context.invoked_subcommand is not None:
        return
    from congruency.studies.catalogue import lines, runnable

    if listing:
        for line in lines(data):
            typer.echo(line)
        raise typer.Exit
    for name, entry in runnable().items():
        where = f" ({entry.place} of the paper)" if entry.place else ""
        typer.echo(f"  {f'{entry.family} {name}':30}  {entry.title}{where}")
    typer.echo("\ncongruency reproduce FAMILY TABLE runs one; --list shows its data and its time too.")
    raise typer.Exit


for family in (classification, continual, saliency, language):
    app.command()(family)
