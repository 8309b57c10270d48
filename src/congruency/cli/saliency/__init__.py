"""``congruency saliency``: one module per command."""

from __future__ import annotations

import typer

from congruency.cli.commands import Command, Group
from congruency.cli.saliency.export import export
from congruency.cli.saliency.gallery import gallery
from congruency.cli.saliency.osie import osie
from congruency.cli.saliency.predict import predict
from congruency.cli.saliency.prepare import prepare
from congruency.cli.saliency.score import score
from congruency.cli.saliency.train import train

app = typer.Typer(
    cls=Group,
    help="Predict where people look, score saliency maps, and compare corrections in saliency networks.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)
for command in (train, predict, score, gallery, export, prepare, osie):
    app.command(cls=Command)(command)
