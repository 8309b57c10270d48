"""Typer command classes: flags shown without a type, several values after one flag."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

_NUMBER = re.compile(r"-\.?\d")


def _plain_flags(params: list[Any]) -> list[Any]:
    """Hide types in help: newer releases of typer show ``<bool>`` after flags and ``<list[Path]>`` after arguments."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if param.param_type_name == "argument" and hasattr(param, "display_type_rich"):
            param.display_type_rich = lambda **_: None
    return params


class Command(TyperCommand):
    """A command whose help shows flags and arguments without types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return typer's parameters, with ``--help``, without displayed types."""
        return _plain_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands that lists them if an unknown one is given."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve as typer does, but list the commands if the name is unknown."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"there is no command {args[0]!r} here; choose one of {', '.join(self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return typer's parameters, with ``--help``, without displayed types."""
        return _plain_flags(super().get_params(ctx))


class ManyValuesCommand(Command):
    """A command whose repeatable options take several values, ``--window 5 10`` as well as ``--window 5 --window 10``.

    They take all values up to the next option, so arguments must come before them.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does, after repeating the flag before each further value."""
        repeatable = {name for param in self.params if getattr(param, "multiple", False) for name in param.opts}
        return super().parse_args(ctx, spread(args, repeatable))


def spread(words: Sequence[str], repeatable: Collection[str]) -> list[str]:
    """Rewrite ``--window 5 10`` as ``--window 5 --window 10``, for every flag in ``repeatable``.

    A flag takes values up to the next word that begins with a dash and is not a number, or up to a bare ``--``.
    """
    made: list[str] = []
    flag, held = None, False  # the current repeatable flag, and whether it has a value
    for place, word in enumerate(words):
        if word == "--":
            return [*made, *words[place:]]
        if word.startswith("-") and not _NUMBER.match(word):
            name, equals, _ = word.partition("=")
            flag, held = (name if name in repeatable else None), bool(equals)
        elif flag is not None:
            made += [flag] if held else []
            held = True
        made.append(word)
    return made
