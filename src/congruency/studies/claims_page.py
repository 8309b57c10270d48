"""The page of results: the paper's claims, one by one, each with our evidence for or against."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from congruency.files import write_together
from congruency.report.numbers import p_value, with_margin
from congruency.studies.catalogue import CATALOGUE, Entry, command_of
from congruency.studies.claims import CLAIMS, Claim, Comparison, Expected, Variant
from congruency.studies.listing import finished, state
from congruency.studies.results import (
    FILE,
    Results,
    compare,
    find_results,
    never_corrected,
    read_results,
    told_seeds,
)
from congruency.studies.statistics import Difference, holm

__all__ = ["Compared", "compared", "index", "verdict", "write_index"]

_FINDINGS = "findings.md"
_CLEAR = 0.05
NOT_MEASURED = "not yet measured"

# How a metric is called and shown: its factor, digits, and unit.
_METRICS: dict[str, tuple[str, float, int, str]] = {
    "accuracy": ("accuracy", 100, 2, " points"),
    "backward_transfer": ("backward transfer", 1, 4, ""),
    "forward_transfer": ("forward transfer", 1, 4, ""),
    "memory_agreement": ("mean cosine with the memory", 1, 4, ""),
    "test error": ("test error", 1, 2, " points"),
    "train_error": ("training error", 1, 2, " points"),
    "training_error": ("training error", 1, 2, " points"),
    "Top-1 error": ("test error", 1, 2, " points"),
    "test_loss": ("validation loss", 1, 4, ""),
    "validation_loss": ("validation loss by task", 1, 4, ""),
    "Tiny ImageNet ms": ("Tiny ImageNet", 1, 4, " ms"),
    "SALICON ms": ("SALICON", 1, 4, " ms"),
    "ImageNet ms": ("ImageNet", 1, 4, " ms"),
}

# Tables whose columns are settings: what of.
_COLUMNS = {"cost_window": "window", "cost_references": "reference points"}


@dataclass(frozen=True)
class Compared:
    """One comparison that could be made: its name, what was expected, and the paired difference.

    ``little`` is the difference, in the metric, up to which it counts as little; nan where that does not matter.
    """

    name: str
    folder: str
    metric: str
    expected: Expected
    difference: Difference
    little: float = math.nan
    versus: str = ""


def write_index(folder: Path) -> Path:
    """Write ``index.md`` into a folder of results."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; give the folder of results, docs/results in a checkout")
    (path,) = write_together(folder, {"index.md": index(folder)})
    return path


def index(folder: Path) -> str:
    """The page, from the results in a folder and the hand-written ``findings.md`` beside them."""
    names = dict.fromkeys(one.folder for claim in CLAIMS for variant in claim.variants for one in variant.comparisons)
    results = {name: read for name in names if (read := read_results(folder, name)) is not None}
    sections = [_claim(number, claim, results, folder) for number, claim in enumerate(CLAIMS, 1)]
    findings = folder / _FINDINGS
    parts = [
        _INTRODUCTION.format(count=_count(results)),
        _summary(results, folder),
        "## The claims\n",
        *sections,
        findings.read_text(encoding="utf-8") if findings.is_file() else "",
        _results(folder),
    ]
    return "\n".join(part for part in parts if part)


_INTRODUCTION = """# Results

The claims of the paper (Luo, Wong, Kankanhalli and Zhao, TPAMI 2019), one by one, each with our evidence for or
against. Every number comes from one command over several seeds. This page is made from the `results.json` beside it by
`congruency reproduce --index`; do not edit it.

A comparison is the mean of differences paired by seed, ± its 95 % interval, with the p of the t-test. A line of
comparisons is judged together: one of them is clear where p < 0.05 is left after Holm's correction for their number.
*For* and *against* mean that at least one is clear and all clear ones point that way; *mixed*, that clear ones point
both ways; *undecided*, that none is clear. Where the claim is that something matters little, the line says what counts
as little: *for* means that all intervals lie within that, *against* that at least one clear difference lies beyond it
with its whole interval, *undecided* anything else. A row of DCL that corrected no gradient in any seed (as with five
references in a window of five) is plain training, and no comparison. There are {count} comparisons on this page.

The paper is two methods. Its printed numbers come from its published code: mode `anchor` with a margin of 0.5, which
pulls weights back toward a reference. Its equations are mode `concentrate`, which keeps steps from turning back. Both
are judged. In continual learning rows with margin 0 are compared with GEM at margin 0, rows with margin 0.5 with GEM at
margin 0.5, which is the better GEM.
"""


def _summary(results: Mapping[str, Results], folder: Path) -> str:
    lines = ["| claim | where | our evidence |", "| --- | --- | --- |"]
    for number, claim in enumerate(CLAIMS, 1):
        told = "; ".join(
            f"{name}: **{word}**" if name else f"**{word}**" for name, word in _verdicts(claim, results, folder)
        )
        told += f" ({', '.join(sources)})" if (sources := _sources(claim, results)) else ""
        lines.append(f"| [{number}](#claim-{number}). {claim.text} | {claim.where} | {told} |")
    return "\n".join(lines) + "\n"


def _sources(claim: Claim, results: Mapping[str, Results]) -> list[str]:
    """The folders that the claim is judged by."""
    found = (one.folder for variant in claim.variants for one in _compared(variant, results))
    return list(dict.fromkeys(found))


def _verdicts(claim: Claim, results: Mapping[str, Results], folder: Path) -> list[tuple[str, str]]:
    """The claim's readings and the verdict on each: of the published code and of the equations, if it has these."""
    if claim.evidence is not None:
        word, _ = _SPECIAL[claim.evidence](folder)
        return [("", word)]
    if not claim.variants:
        return [("", NOT_MEASURED)]
    words = [(variant.name.partition(" (")[0], verdict(_compared(variant, results))) for variant in claim.variants]
    measured = [(name, word) for name, word in words if word != NOT_MEASURED]
    if not measured:
        return [("", NOT_MEASURED)]
    first = [pair for pair in words[:2] if pair in measured]
    return first or measured


def _claim(number: int, claim: Claim, results: Mapping[str, Results], folder: Path) -> str:
    lines = [f'<a id="claim-{number}"></a>', "", f"### {number}. {claim.text}", "", f"Paper: {claim.where}.", ""]
    measured = False
    if claim.evidence is not None:
        word, sentences = _SPECIAL[claim.evidence](folder)
        measured = word != NOT_MEASURED
        lines += [f"**{word[0].upper()}{word[1:]}.** {sentences}", ""] if measured else []
    else:
        shown = [(variant, _compared(variant, results)) for variant in claim.variants]
        shown = [(variant, found) for variant, found in shown if found]
        measured = bool(shown)
        for variant, found in shown:
            lines += [f"- {variant.name}: **{verdict(found)}**", *(f"    - {line}" for line in _told(found, folder))]
        lines += [""] if shown else []
    if not measured and (held := _held(claim, folder)):
        lines += [f"Results that bear on it, not judged here: {', '.join(held)}.", ""]
    missing = [entry for entry in _entries(claim) if not measured or not finished(entry, folder)]
    if missing:
        lines += ["What would measure more of it:" if measured else "**Not yet measured.** What would measure it:", ""]
        lines += [f"    {command}" for command in dict.fromkeys(c for entry in missing for c in command_of(entry))]
        lines += [""]
    return "\n".join(lines)


def _held(claim: Claim, folder: Path) -> list[str]:
    """What there is of results that no comparison of the claim reads."""
    names = dict.fromkeys(name for entry in _entries(claim) for name in (*entry.results, *entry.smaller))
    return [_linked(name, folder) for name in find_results(folder, names)]


def _linked(name: str, folder: Path) -> str:
    """With a link to its table, if it has one: a report of runs has a page that is not kept here."""
    return f"[{name}]({name}/table.md)" if (folder / name / "table.md").is_file() else name


def _entries(claim: Claim) -> list[Entry]:
    known = {entry.name: entry for entry in CATALOGUE}
    return [known[name] for name in claim.entries]


def _told(found: Sequence[Compared], root: Path) -> Iterator[str]:
    """A line a result, metric and what it is compared with."""
    for folder, metric, versus in dict.fromkeys((one.folder, one.metric, one.versus) for one in found):
        name, factor, digits, unit = _metric(folder, metric)
        line = [one for one in found if (one.folder, one.metric, one.versus) == (folder, metric, versus)]
        parts = [f"{one.name} {_difference(one.difference, factor, digits)}" for one in line]
        told = f"{_linked(folder, root)}, {name}{' in' if unit else ''}{unit}"
        told += f" against {versus}" if versus else ""
        told += f", {told_seeds(one.difference.count for one in line)}"
        little = max(one.little for one in line)
        told += f", little is up to {factor * little:.2g}{unit}" if math.isfinite(little) else ""
        yield f"{told}: {'; '.join(parts)}"


def _metric(folder: str, metric: str) -> tuple[str, float, int, str]:
    """How a metric is called and shown."""
    if folder in _COLUMNS:
        return f"{_COLUMNS[folder]} {metric}", 1, 4, " ms"
    return _METRICS.get(metric, (metric, 1, 4, ""))


def _difference(difference: Difference, factor: float, digits: int) -> str:
    text = with_margin(factor * difference.mean, factor * difference.margin, digits, sign=True)
    return f"{text} (p {p_value(difference.p)})" if math.isfinite(difference.p) else text


def _compared(variant: Variant, results: Mapping[str, Results]) -> list[Compared]:
    return [one for comparison in variant.comparisons for one in compared(comparison, results.get(comparison.folder))]


def compared(comparison: Comparison, results: Results | None) -> list[Compared]:
    """The comparisons that a result allows."""
    if results is None:
        return []
    found = []
    for row in results.rows:
        match = re.fullmatch(comparison.rows, row)
        if match is None:
            continue
        against = match.expand(comparison.against)
        if never_corrected(results, row) or never_corrected(results, against):
            continue
        difference = compare(results, row, against, comparison.metric, comparison.against_metric)
        if difference is not None and math.isfinite(difference.mean):
            hidden = {place for name, place in match.re.groupindex.items() if name.startswith("_")}
            name = ", ".join(text for place, text in enumerate(match.groups(), 1) if place not in hidden)
            found.append(
                Compared(
                    name,
                    comparison.folder,
                    comparison.metric,
                    comparison.expected,
                    difference,
                    _little(comparison, results.rows[against]),
                    comparison.versus,
                )
            )
    return found


def _little(comparison: Comparison, against: Mapping[str, Sequence[float]]) -> float:
    """Up to where a difference counts as little, in the metric."""
    if comparison.little is None:
        return math.nan
    if not comparison.relative:
        return comparison.little
    values = against[comparison.against_metric or comparison.metric]
    return comparison.little * abs(statistics.fmean(values))


def verdict(found: Sequence[Compared]) -> str:
    """For, against, mixed or undecided, and in how many comparisons; clear are those that Holm's correction leaves."""
    if not found:
        return NOT_MEASURED
    adjusted = holm([one.difference.p for one in found])
    clear = [one for one, p in zip(found, adjusted, strict=True) if p < _CLEAR]
    if all(one.expected == "same" for one in found):
        return _little_verdict(found, clear)
    as_claimed = [one for one in clear if (one.difference.mean > 0) == (one.expected == "higher")]
    if not clear:
        return "undecided"
    if len(as_claimed) == len(clear):
        return f"for{_share(len(clear), len(found))}"
    if not as_claimed:
        return f"against{_share(len(clear), len(found))}"
    return f"mixed ({len(as_claimed)} for, {len(clear) - len(as_claimed)} against, of {len(found)})"


def _little_verdict(found: Sequence[Compared], clear: Sequence[Compared]) -> str:
    """That something matters little: for where no interval leaves what counts as little, against beyond it."""
    beyond = [one for one in clear if one.difference.low > one.little or one.difference.high < -one.little]
    if beyond:
        return f"against{_share(len(beyond), len(found))}"
    within = [one for one in found if -one.little <= one.difference.low and one.difference.high <= one.little]
    return "for" if len(within) == len(found) else "undecided"


def _share(clear: int, count: int) -> str:
    return "" if clear == count else f" ({clear} of {count} clear)"


def _count(results: Mapping[str, Results]) -> int:
    return sum(len(_compared(variant, results)) for claim in CLAIMS for variant in claim.variants)


def _bound(folder: Path) -> tuple[str, str]:
    """The theorem as printed, and the inequality in its proof."""
    content = _content(folder / "bound")
    if content is None:
        return NOT_MEASURED, ""
    runs = [run for problem in content.values() for run in problem["steps"]]
    broken = {
        kind: sum(any(m < b - 1e-9 for m, b in zip(run["measured"], run[kind], strict=True)) for run in runs)
        for kind in ("sharp", "expanded", "printed")
    }
    held = "holds at every step" if not broken["sharp"] + broken["expanded"] else "is broken"
    word = "for" if not any(broken.values()) else "against, as it is printed" if broken["printed"] else "against"
    told = (
        f"As printed the bound is broken with {broken['printed']} of {len(runs)} step sizes on a quadratic and on "
        f"logistic regression; the inequality in its proof, before the last simplification, {held}."
    )
    return word, told


def _descent(folder: Path) -> tuple[str, str]:
    content = _content(folder / "illustrate")
    if content is None:
        return NOT_MEASURED, ""
    optimizers = {name: one["agree"] for name, one in content["optimizers"].items()}
    torn = [name for name, agree in optimizers.items() if not agree["baseline"]]
    joined = {mode: [name for name in torn if optimizers[name][mode]] for mode in ("anchor", "concentrate")}
    told = f"Without DCL {_listed(torn)} at two learning rates end in different minima. " if torn else ""
    told += f"The published code (anchor) makes {_listed(joined['anchor'])} agree; "
    told += f"the paper's equations (concentrate) make {_listed(joined['concentrate'])} agree."
    words = {mode: "for" if torn and joined[mode] == torn else "against" for mode in joined}
    word = f"published code: {words['anchor']}; equations: {words['concentrate']}"
    return word, told


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if names else "none of them"


_SPECIAL = {"bound": _bound, "descent": _descent}


def _content(folder: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return content


def _results(folder: Path) -> str:
    """Every table and figure, how it stands, and what makes it."""
    lines = [
        "## Every table and figure",
        "",
        "| | what | result | takes | command |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in CATALOGUE:
        if not entry.commands:
            lines.append(f"| {entry.place} | {entry.title} | {entry.remark} | | |")
            continue
        commands = "<br>".join(f"`{command}`" for command in command_of(entry))
        told = state(entry, folder) + (f"; {entry.remark}" if entry.remark else "")
        for name in find_results(folder, (*entry.results, *entry.smaller)):
            told = told.replace(f"{name} (", f"{_linked(name, folder)} (", 1)
        lines.append(f"| {entry.place or 'ours'} | {entry.title} | {told} | {entry.takes} | {commands} |")
    return "\n".join(lines) + "\n"
