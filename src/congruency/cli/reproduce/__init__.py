"""``congruency reproduce``: the paper's tables and our own studies, one command per task family."""

from __future__ import annotations

from typing import Annotated

import typer

from congruency.cli.commands import Command, Group
from congruency.cli.options import option
from congruency.cli.reproduce.classification import classification
from congruency.cli.reproduce.continual import continual
from congruency.cli.reproduce.language import language
from congruency.cli.reproduce.saliency import saliency
from congruency.cli.reproduce.tuned import tuned

app = typer.Typer(
    cls=Group,
    help="Run a table of the paper, or one of our own studies, with any number of seeds.\n\n"
    "Every row is trained from every seed. The table shows means, intervals and paired differences next to the paper's "
    "numbers. Run the same command again to resume after an interruption.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


_PLACES = {
    "salicon": "Table 1", "osie": "Table 2", "mnist_r": "Table 3", "mnist_p": "Table 4", "icifar100": "Table 5",
    "cifar": "Table 6", "tiny_imagenet": "Table 7", "imagenet": "Table 8", "from_scratch": "Table 9",
    "cost": "Tables 10 and 11", "cost_window": "Table 12, left", "cost_references": "Table 12, right",
}  # fmt: skip


@app.callback(invoke_without_command=True)
def reproduce(
    context: typer.Context,
    listing: Annotated[bool, option("List every table that can be run.", name="--list")] = False,
) -> None:
    """List what can be run where no family is named."""
    if not listing and context.invoked_subcommand is not None:
        return
    from congruency.studies.classification.tuned import TUNED
    from congruency.studies.continual.tables import SPLITS, TABLES
    from congruency.studies.image_tables import TITLES
    from congruency.studies.language.study import SETUPS
    from congruency.studies.saliency.study import TITLES as SALIENCY

    titles = {f"continual {name}": table.title for name, table in {**TABLES, **SPLITS}.items()}
    titles |= {f"classification {name}": title for name, title in TITLES.items()}
    titles |= {f"saliency {name}": title for name, title in SALIENCY.items() if name in _PLACES}
    titles |= {f"language {size}": f"AdamW with each correction on a byte-level GPT, {size}" for size in SETUPS}
    titles |= {f"tuned {name}": f"{table.title}: methods at tuned learning rates" for name, table in TUNED.items()}
    for name, title in titles.items():
        where = _PLACES.get(name.split()[1])
        typer.echo(f"  {name:30}  {title}{f' ({where} of the paper)' if where else ''}")
    typer.echo("\ncongruency reproduce FAMILY TABLE runs one; congruency reproduce FAMILY --help shows its options.")
    raise typer.Exit


for command in (classification, tuned, continual, saliency, language):
    app.command(cls=Command)(command)
