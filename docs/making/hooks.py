"""What mkdocs asks while it builds: the results that are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent


def on_config(config: Any) -> Any:
    """Put every results page into the navigation, whichever there are."""
    for entry in config.nav:
        if entry.get("Results") == ["results"]:
            entry["Results"] = results_pages()
    return config


def results_pages() -> list[dict[str, str]]:
    """The overview first, then all other pages; ``findings.md`` is part of the overview."""
    folder = DOCS / "results"
    overview = folder / ("index.md" if (folder / "index.md").exists() else "README.md")
    pages = [overview, *sorted(set(folder.rglob("*.md")) - {overview, folder / "findings.md"})]
    found = [title(path) for path in pages]
    titles = [
        f"{name} ({path.parent.name})" if found.count(name) > 1 else name
        for name, path in zip(found, pages, strict=True)
    ]
    titles[0] = "Overview"
    return [{name: path.relative_to(DOCS).as_posix()} for name, path in zip(titles, pages, strict=True)]


def title(path: Path) -> str:
    """The first heading of a page, its file's name where it has none."""
    found = re.search(r"^# (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return found[1] if found else path.stem
