"""The command `congruency`: one module per command.

Everything beyond torch is imported when a command runs, so that with only the core installed the command prints one
line that says what to install.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

from congruency._version import __version__
from congruency.cli.terminal import INTERRUPTED

if TYPE_CHECKING:
    import typer

_COMMANDS = ("demo", "train", "illustrate", "bound", "report", "pairs", "bench")
_EXTRA = {  # what [experiments] installs
    "PIL", "click", "lightning", "matplotlib", "numpy", "quadprog", "rich", "scipy", "sklearn", "tensorboard", "timm",
    "torchmetrics", "torchvision", "typer",
}  # fmt: skip


def main() -> None:
    """Run the command line."""
    try:
        build()()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        from congruency._validate import installing

        print(f"congruency: the command needs {error.name}: {installing('experiments')}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("congruency: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def build() -> "typer.Typer":
    """Return the Typer application with all commands."""
    import typer

    from congruency.cli.ablate import ablate
    from congruency.cli.commands import Command, Group, ManyValuesCommand
    from congruency.cli.reproduce import app as reproduce
    from congruency.cli.saliency import app as saliency
    from congruency.cli.train_lm import train_lm

    app = typer.Typer(
        cls=Group,
        help="Measure how well gradients agree, and correct gradients or updates that disagree (Cautious, DCL, GEM).",
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_show_locals=False,
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            print(f"congruency {__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        pass

    for name in _COMMANDS:
        app.command(cls=Command)(getattr(import_module(f"congruency.cli.{name}"), name))
    app.command("train-lm", cls=Command)(train_lm)
    app.command(cls=ManyValuesCommand)(ablate)
    app.add_typer(reproduce, name="reproduce")
    app.add_typer(saliency, name="saliency")
    return app
