"""One command of the command line, called as a user types it."""

import typer
from typer.testing import CliRunner


def call(command, *words):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    app.command()(command)
    arguments = [command.__name__, *map(str, words)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100", "TERM": "dumb"})
    return result, " ".join(result.output.replace("│", " ").split())
