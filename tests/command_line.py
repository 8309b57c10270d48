"""The command line, called as a user types it."""

from typer.testing import CliRunner

from congruency import cli


def call(*words, columns=100, **environment):
    settings = {"COLUMNS": str(columns), "TERM": "dumb", **environment}
    return CliRunner().invoke(cli.build(), [str(word) for word in words], env=settings)


def said(result):
    """What was printed, without the frame and the line breaks of an error."""
    return " ".join(result.output.replace("│", " ").split())
