"""``congruency illustrate``: paths of optimizers on a surface, with and without DCL, and what they show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

from congruency.files import write_together
from congruency.report.charts import Series, line_chart
from congruency.report.numbers import fixed, listed
from congruency.report.page import Figure, Page, render
from congruency.report.pictures import folded, picture
from congruency.report.tables import Table
from congruency.studies.analysis.contours import Panel, animation, still
from congruency.studies.analysis.descent import (
    OPTIMIZERS,
    SURFACES,
    Agreement,
    Correction,
    Descent,
    Path,
    Surface,
    agreements,
    descend_all,
    settle,
)
from congruency.studies.page import provenance
from congruency.studies.results import RESULTS_FILE

__all__ = ["Drawn", "Illustration", "Settings", "compose", "draw", "findings", "illustrate", "table", "write"]


@dataclass(frozen=True)
class Settings:
    """The surface, the optimizers and the correction."""

    surface: Surface = SURFACES["paper"]
    descents: Sequence[Descent] = tuple(OPTIMIZERS.values())
    correction: Correction = field(default_factory=Correction)


@dataclass(frozen=True, eq=False)
class Illustration:
    """An optimizer, its paths, which modes' learning rates agree, and how many references DCL had to record."""

    descent: Descent
    panel: Panel
    agreements: list[Agreement]
    references: int = 1

    @property
    def paths(self) -> Sequence[Path]:
        return self.panel.paths

    @property
    def never_corrects(self) -> bool:
        """Whether all steps of a window are taken up by recording references."""
        return self.descent.window is not None and self.descent.window <= self.references


def illustrate(settings: Settings) -> list[Illustration]:
    """Return all paths, by optimizer; a minimum has one letter for all of them."""
    runs = [descend_all(settings.surface, descent, settings.correction) for descent in settings.descents]
    found = settle(settings.surface, [path for paths in runs for path in paths])
    made: list[Illustration] = []
    before = 0
    for descent, paths in zip(settings.descents, runs, strict=True):
        minima = found.part(before, len(paths))
        before += len(paths)
        title = f"{descent.name} after {descent.steps} steps"
        panel = Panel(title, settings.surface, paths, minima)
        made.append(Illustration(descent, panel, agreements(paths, minima), settings.correction.references))
    return made


def table(results: Sequence[Illustration]) -> Table:
    """Return one line per path."""
    rows = []
    for result in results:
        for number, path in enumerate(result.paths):
            x, y = path.points[-1].tolist()
            steps = len(path.points) - 1
            rows.append([
                f"{result.descent.name} {path.rate:g} {path.mode}", f"({fixed(x)}, {fixed(y)})",
                fixed(float(path.heights[-1]), 3), result.panel.minima.letter(number),
                fixed(path.detour, 3), "-" if path.mode == "baseline" else f"{path.corrected}/{steps}",
            ])  # fmt: skip
    caption = (
        "Minimum: that of the basin in which the path ends, by its letter in the pictures. "
        "Length / distance: 1 is a straight line from start to end. Corrected: steps whose gradient DCL "
        "changed. More digits are in results.json."
    )
    columns = ["Path", "End (x, y)", "z at the end", "Minimum", "Length / distance", "Corrected"]
    return Table(caption, columns, rows)


def findings(results: Sequence[Illustration]) -> list[str]:
    """Say what the end points show: where learning rates agree, by optimizer, and over all."""
    several = [result for result in results if len(result.descent.rates) > 1]
    return [*_verdict(several), *map(_of_one, several), *_unmoved(results)]


def _verdict(results: Sequence[Illustration]) -> list[str]:
    """Which of the two modes makes learning rates agree that do not without correction."""
    split = [result for result in results if _agree(result, "baseline") is False]
    if not results:
        return []
    if not split:
        return [
            "With every optimizer the learning rates end at the same minimum without correction, so nothing is left "
            "for a correction to bring together."
        ]
    names = listed([result.descent.name for result in split])
    parts = []
    for mode in ("anchor", "concentrate"):
        united = [result.descent.name for result in split if _agree(result, mode)]
        does = f"does with {listed(united)}" if united else "does not with any of them"
        missed = [result.descent.name for result in split if not _agree(result, mode)]
        parts.append(f"{mode} {does}{f', not with {listed(missed)}' if united and missed else ''}")
    return [
        f"Without correction the learning rates end at different minima with {names}. The paper's figure shows DCL "
        f"making them agree on one. Here {'; '.join(parts)}."
    ]


def _of_one(result: Illustration) -> str:
    parts = []
    for verdict in result.agreements:
        ends = [result.panel.minima.letter(i) for i, path in enumerate(result.paths) if path.mode == verdict.mode]
        where = ", ".join(f"{rate:g} at {end}" for rate, end in zip(result.descent.rates, ends, strict=True))
        if verdict.agree is None:
            parts.append(f"{verdict.mode}: not all end at a minimum ({where.replace('at -', 'at none')})")
        else:
            parts.append(f"{verdict.mode}: {'one minimum' if verdict.agree else 'different minima'} ({where})")
    return f"{result.descent.name}. {'; '.join(parts)}."


def _unmoved(results: Sequence[Illustration]) -> list[str]:
    """Modes that never changed a step followed the baseline's path: the picture hides one of the two."""
    never = [result for result in results if result.never_corrects]
    text = []
    if never:
        windows = listed(list(dict.fromkeys(str(result.descent.window) for result in never)))
        count = never[0].references
        text.append(
            f"With {listed([result.descent.name for result in never])} DCL could never correct a step: recording "
            f"{count} reference{'s' * (count > 1)} takes up the whole window of {windows}. Its paths are the "
            "baseline's, point for point; give a --window larger than --references."
        )
    same = [
        f"{result.descent.name} {path.rate:g}"
        for result in results
        if not result.never_corrects
        for path in result.paths
        if path.mode == "concentrate" and path.corrected == 0
    ]
    if same:
        text.append(
            f"With {listed(same)} no gradient ever opposed the gradient accumulated within the window, so concentrate "
            "corrected nothing and its path is the baseline's, point for point."
        )
    return text


def _agree(result: Illustration, mode: str) -> bool | None:
    return next(verdict.agree for verdict in result.agreements if verdict.mode == mode)


@dataclass(frozen=True)
class Drawn:
    """An optimizer's pictures: ``still`` by kind of file, and the animation, where it is wanted."""

    still: dict[str, bytes]
    moving: bytes | None = None


def draw(results: Sequence[Illustration], animated: bool) -> list[Drawn]:
    """Return all pictures."""
    return [Drawn(still(result.panel), animation([result.panel]) if animated else None) for result in results]


def compose(settings: Settings, results: Sequence[Illustration], pictures: Sequence[Drawn], command: str) -> Page:
    """Return the page with the pictures."""
    figures = []
    for result, drawn in zip(results, pictures, strict=True):
        name = result.descent.name
        figures.append(Figure(f"Paths with {name}", _shown(result, drawn), _picture_note(result)))
        note = "One chart per learning rate. Lower is better."
        figures.append(Figure(f"z by iteration with {name}", _heights(result), note))
    return Page(
        title="What DCL does to the path of a descent",
        lead=(
            f"z = {settings.surface.formula}, from {settings.surface.start}: without correction (baseline), and with "
            "DCL in its two modes, concentrate (the paper's equations) and anchor (its published code)."
        ),
        command=command,
        table=table(results),
        findings=findings(results),
        figures=figures,
        figures_title="Paths and heights",
        figures_note="Colour: the mode. Dashes in the pictures: the larger learning rate. Stars: minima.",
        notes=_notes(settings),
        made=provenance("nothing here is random"),
    )


def _shown(result: Illustration, drawn: Drawn) -> str:
    alt = f"Contour lines of z with {len(result.paths)} paths of {result.descent.name} from the start to minima."
    if drawn.moving is None:
        return picture(drawn.still["png"], alt)
    moving = picture(drawn.moving, f"The paths of {result.descent.name} as they grow, step by step.")
    return picture(drawn.still["png"], alt) + folded("Show how they grow", moving)


def _picture_note(result: Illustration) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in result.descent.settings.items())
    window = "never renewed" if result.descent.window is None else f"a window of {result.descent.window} steps"
    return f"Reference: {window}.{f' Optimizer: {settings}.' if settings else ''}"


def _heights(result: Illustration) -> str:
    """A chart for every learning rate, so that a mode has the colour that it has in the picture."""
    made = []
    for rate in result.descent.rates:
        series = [
            Series(path.mode, list(range(len(path.heights))), path.heights.tolist())
            for path in result.paths
            if path.rate == rate
        ]
        title = f"z by iteration with {result.descent.name} at learning rate {rate:g}"
        made.append(line_chart(series, title=title, x_label=f"iteration, learning rate {rate:g}", y_label="z"))
    return "\n".join(made)


def _notes(settings: Settings) -> list[tuple[str, str]]:
    how = settings.correction
    return [
        (
            "Concentrate",
            "The gradient of a step may not oppose the gradient accumulated since the reference point; one that does "
            "is replaced by the nearest that does not.",
        ),
        (
            "Anchor",
            "The same with the opposite sign, as in the paper's published code: a step further away from the reference "
            f"point is corrected, and the weights are pulled back to it (margin {how.margin:g}, trigger "
            f"{how.trigger}).",
        ),
        (
            "Window",
            f"The number of steps after which the reference point is renewed; {how.references} of them, from step "
            f"{how.offset} on. The steps that record a reference are never corrected.",
        ),
        (
            "Whether learning rates agree",
            "From the last point of every path plain descent in small steps continues to the minimum of the basin; two "
            "paths agree where these are one. A path that ends at a saddle, or diverges, has none.",
        ),
    ]


def to_json(settings: Settings, results: Sequence[Illustration]) -> str:
    """Return the numbers of every path as JSON."""
    content: dict[str, Any] = {"formula": settings.surface.formula, "start": list(settings.surface.start)}
    content["minima"] = [place.tolist() for place in results[0].panel.minima.places] if results else []
    content["optimizers"] = {}
    for result in results:
        content["optimizers"][result.descent.name] = {
            "agree": {verdict.mode: verdict.agree for verdict in result.agreements},
            "paths": [
                {
                    "mode": path.mode, "rate": path.rate, "end": path.points[-1].tolist(),
                    "z": float(path.heights[-1]), "minimum": result.panel.minima.of[number], "length": path.length,
                    "distance": path.distance, "corrected": path.corrected, "steps": len(path.points) - 1,
                }
                for number, path in enumerate(result.paths)
            ],
        }  # fmt: skip
    return json.dumps(content, indent=1) + "\n"


def write(
    settings: Settings, results: Sequence[Illustration], out: File, command: str, *, animated: bool = True
) -> list[File]:
    """Write the page, ``results.json``, the pictures as PNG, SVG and GIF, and all in one ``paths.gif``."""
    pictures = draw(results, animated)
    page = compose(settings, results, pictures, command)
    contents: dict[str, str | bytes] = {"index.html": render(page), RESULTS_FILE: to_json(settings, results)}
    for result, drawn in zip(results, pictures, strict=True):
        name = f"paths-{result.descent.name.lower()}"
        contents |= {f"{name}.{kind}": data for kind, data in drawn.still.items()}
        if drawn.moving is not None:
            contents[f"{name}.gif"] = drawn.moving
    if animated:
        contents["paths.gif"] = animation([result.panel for result in results])
    return write_together(out, contents)
