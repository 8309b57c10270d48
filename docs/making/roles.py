"""Turn the docstrings' reST roles into Markdown, so that they read well on the reference pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

REFERENCE = Path(__file__).parent.parent / "reference"
_NAMED = {name for page in REFERENCE.glob("*.md") for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.M)}
_ROLE = re.compile(r":(?:class|meth|func|attr|mod|data|exc):`(~?)([^`]+)`")


def markdown(text: str) -> str:
    """``text`` with every role as code; what has a place on a reference page also becomes a link to it."""
    return _ROLE.sub(_as_markdown, text)


def _as_markdown(found: re.Match[str]) -> str:
    short, target = found.groups()
    shown = target.rpartition(".")[2] if short else target
    known = target in _NAMED or target.rpartition(".")[0] in _NAMED
    return f"[`{shown}`][{target}]" if known else f"`{shown}`"


class Roles(griffe.Extension):
    """Rewrites every docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
