"""The page of results: the paper's claims, each with our evidence for or against it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from congruency.files import write_together
from congruency.report.numbers import p_value, with_margin
from congruency.studies.results import RESULTS_FILE, Results, read_results
from congruency.studies.statistics import Difference
from replication.catalogue import CATALOGUE, UNAVAILABLE, Entry, commands_of
from replication.claims import CLAIMS, Claim, Variant
from replication.judgement import NOT_MEASURED, Compared, compared, verdict
from replication.states import RESULTS, finished, found, held, seeds_text, states

_FINDINGS = "findings.md"
_CODE, _EQUATIONS = "published code", "equations"

# Name, factor, digits and unit with which a metric is shown.
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

# Tables whose columns are values of a setting, with that setting.
_COLUMNS = {"cost_window": "window", "cost_references": "reference points"}


Judged = list[tuple[Variant, list[Compared]]]
"""The variants of a claim, with the comparisons that the results allow."""


def write_index(folder: Path) -> Path:
    """Write ``index.md`` into a folder of results."""
    (path,) = write_together(folder, {"index.md": index(folder)})
    return path


def index(folder: Path) -> str:
    """Return the page, from the results in a folder and the hand-written ``findings.md`` beside them."""
    names = dict.fromkeys(one.folder for claim in CLAIMS for variant in claim.variants for one in variant.comparisons)
    results = {name: read_results(folder / name) for name in names}
    judged = [[(variant, _compared(variant, results)) for variant in claim.variants] for claim in CLAIMS]
    findings = folder / _FINDINGS
    parts = [
        _INTRODUCTION,
        _summary(judged, folder),
        _METHOD.format(count=sum(len(made) for variants in judged for _, made in variants)),
        "## The claims\n",
        *(_section(number, claim, judged[number - 1], folder) for number, claim in enumerate(CLAIMS, 1)),
        findings.read_text(encoding="utf-8") if findings.is_file() else "",
        _catalogue(folder),
    ]
    return "\n".join(part for part in parts if part)


def _compared(variant: Variant, results: Mapping[str, Results | None]) -> list[Compared]:
    return [made for comparison in variant.comparisons for made in compared(comparison, results[comparison.folder])]


_INTRODUCTION = """# Results

This page lists the claims of the paper (Luo, Wong, Kankanhalli and Zhao, TPAMI 2019) and judges each by our own
runs, once for its *published code* (mode `anchor`, margin 0.5) and once for its *equations* (mode `concentrate`).
The number of a claim links to the evidence. An asterisk (\\*) marks evidence that differs from the paper's in scale
or measure; the claim's section says how.
"""

_METHOD = """<details markdown="1">
<summary>How the claims are judged: {count} comparisons, paired by seed</summary>

Every number comes from one command over several seeds. This page is made from the `results.json` beside it by `make
replication`; do not edit it.

A comparison is the mean of the differences paired by seed, ± its 95 % interval, with the p-value of the t-test. The
comparisons on one line are judged together: a difference is clear if p < 0.05 after Holm's correction for the
number of comparisons on that line. *For* and *against* mean that at least one difference is clear and all clear
ones point that way; *mixed* means that clear ones point both ways; *undecided* means that none is clear. If the
claim is that something matters little, the line states what counts as little. Then *for* means that all intervals
lie within that range, *against* that the whole interval of at least one clear difference lies outside of it, and
*undecided* anything else. A row of DCL that corrected no gradient in any seed (as with five references in a window
of five) equals the run without DCL and is not compared.

The paper describes two methods. Its printed numbers come from its published code, which pulls weights back toward a
reference. Its equations keep steps from turning back. Both are judged. In continual learning, rows with margin 0
are compared with GEM with margin 0, and rows with margin 0.5 with GEM with margin 0.5, which is the better GEM.
*For* in the first comparison therefore does not mean that DCL improves the best GEM.

</details>
"""


def _summary(judged: Sequence[Judged], folder: Path) -> str:
    """Return a table with one line per claim and the first word of each verdict."""
    lines = [
        '<div class="claims" markdown="1">',
        "",
        "| | claim | published code | equations |",
        "| --: | --- | --- | --- |",
    ]
    for number, (claim, variants) in enumerate(zip(CLAIMS, judged, strict=True), 1):
        verdicts = _verdicts(claim, variants, folder)
        named = {name: f"**{word.partition(' (')[0]}**" for name, word in verdicts}
        either = NOT_MEASURED if named.keys() & {_CODE, _EQUATIONS} else next(iter(named.values()))
        cells = [named.get(name, either) for name in (_CODE, _EQUATIONS)]
        text = claim.text.removesuffix(".") + (r"\*" if claim.limits else "")
        lines.append(f"| [{number}](#claim-{number}) | {text} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "</div>", ""])


def _verdicts(claim: Claim, variants: Judged, folder: Path) -> list[tuple[str, str]]:
    """Return the judged variants with their verdicts: the first two (code and equations) if measured, else others."""
    if claim.evidence is not None:
        return _SPECIAL[claim.evidence](folder)[0]
    measured = [(variant.name, verdict(made)) for variant, made in variants if made]
    first = [(variant.name, verdict(made)) for variant, made in variants[:2] if made]
    return first or measured or [("", NOT_MEASURED)]


def _section(number: int, claim: Claim, variants: Judged, folder: Path) -> str:
    """Return a claim's evidence, folded; the anchor is inside, so that following a link unfolds it."""
    lines = [
        '<details markdown="1">', f"<summary>{number}. {escape(claim.text, quote=False)}</summary>", "",
        f'<a id="claim-{number}"></a>', "",
        f"Paper: {claim.where}{f' ({claim.limits})' if claim.limits else ''}.", "",
    ]  # fmt: skip
    shown = [(variant, made) for variant, made in variants if made]
    measured = bool(shown)
    if claim.evidence is not None:
        verdicts, sentences = _SPECIAL[claim.evidence](folder)
        measured = bool(sentences)
        word = "; ".join(f"{name}: {word}" if name else word for name, word in verdicts)
        lines += [f"**{word[0].upper()}{word[1:]}.** {sentences}", ""] if measured else []
    for variant, made in shown:
        name = f"{variant.name} ({variant.detail})" if variant.detail else variant.name
        lines += [f"- {name}: **{verdict(made)}**", *(f"    - {line}" for line in _lines(made, folder))]
    lines += [""] if shown else []
    entries = [entry for entry in CATALOGUE if entry.name in claim.entries]
    entries.sort(key=lambda entry: claim.entries.index(entry.name))
    held_names = [name for entry in entries for name in (*held(entry).results, *held(entry).smaller)]
    if not measured and (others := found(folder, held_names)):
        links = ", ".join(_linked(name, folder) for name in others)
        lines += [f"Results that bear on it, not judged here: {links}.", ""]
    missing = [entry for entry in entries if not measured or not finished(entry, folder)]
    if missing:
        needs = "".join(f" It needs {each}, which we do not have." for each in _unavailable(missing))
        how = "What would measure more of it:" if measured else f"**Not yet measured.**{needs} What would measure it:"
        lines += [how, ""]
        commands = dict.fromkeys(command for entry in missing for command in commands_of(entry, RESULTS))
        lines += [*(f"    {command}" for command in commands), ""]
    return "\n".join([*lines, "</details>", ""])


def _unavailable(entries: Iterable[Entry]) -> list[str]:
    """Return the data sets that the entries need and that we do not have."""
    return list(dict.fromkeys(UNAVAILABLE[name] for entry in entries for name in entry.data if name in UNAVAILABLE))


def _linked(name: str, folder: Path) -> str:
    """Return a link to a result's table, or its name if it has none, as reports do."""
    return f"[{name}]({name}/table.md)" if (folder / name / "table.md").is_file() else name


def _lines(made: Sequence[Compared], root: Path) -> Iterator[str]:
    """Yield one line per result, metric and object of comparison."""
    for folder, metric, versus in dict.fromkeys((one.folder, one.metric, one.versus) for one in made):
        name, factor, digits, unit = _metric(folder, metric)
        line = [one for one in made if (one.folder, one.metric, one.versus) == (folder, metric, versus)]
        parts = [f"{one.name} {_difference(one.difference, factor, digits)}" for one in line]
        text = f"{_linked(folder, root)}, {name}{' in' if unit else ''}{unit}"
        text += f" against {versus}" if versus else ""
        text += f", {seeds_text(one.difference.count for one in line)}"
        little = max(one.little for one in line)
        text += f", little is up to {factor * little:.2g}{unit}" if math.isfinite(little) else ""
        yield f"{text}: {'; '.join(parts)}"


def _metric(folder: str, metric: str) -> tuple[str, float, int, str]:
    """Return name, factor, digits and unit with which a metric is shown."""
    if folder in _COLUMNS:
        return f"{_COLUMNS[folder]} {metric}", 1, 4, " ms"
    return _METRICS.get(metric, (metric, 1, 4, ""))


def _difference(difference: Difference, factor: float, digits: int) -> str:
    text = with_margin(factor * difference.mean, factor * difference.margin, digits, sign=True)
    return f"{text} (p {p_value(difference.p)})" if math.isfinite(difference.p) else text


Verdicts = list[tuple[str, str]]


def _bound(folder: Path) -> tuple[Verdicts, str]:
    """Judge the theorem as printed and the inequality in its proof."""
    content = _content(folder / "bound")
    if content is None:
        return [("", NOT_MEASURED)], ""
    runs = [run for problem in content.values() for run in problem["steps"]]
    broken = {
        kind: sum(any(m < b - 1e-9 for m, b in zip(run["measured"], run[kind], strict=True)) for run in runs)
        for kind in ("sharp", "expanded", "printed")
    }
    held = "holds at every step" if not broken["sharp"] + broken["expanded"] else "is broken"
    word = "for" if not any(broken.values()) else "against, as it is printed" if broken["printed"] else "against"
    text = (
        f"As printed the bound is broken with {broken['printed']} of {len(runs)} step sizes on a quadratic and on "
        f"logistic regression; the inequality in its proof, before the last simplification, {held}."
    )
    return [("", word)], text


def _descent(folder: Path) -> tuple[Verdicts, str]:
    content = _content(folder / "illustrate")
    if content is None:
        return [("", NOT_MEASURED)], ""
    optimizers = {name: one["agree"] for name, one in content["optimizers"].items()}
    split = [name for name, agree in optimizers.items() if not agree["baseline"]]
    joined = {mode: [name for name in split if optimizers[name][mode]] for mode in ("anchor", "concentrate")}
    text = f"Without DCL {_listed(split)} at two learning rates end in different minima. " if split else ""
    text += f"The published code (anchor) makes {_listed(joined['anchor'])} agree; "
    text += f"the paper's equations (concentrate) make {_listed(joined['concentrate'])} agree."
    words = {mode: "for" if split and joined[mode] == split else "against" for mode in joined}
    return [(_CODE, words["anchor"]), (_EQUATIONS, words["concentrate"])], text


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if names else "none of them"


_SPECIAL = {"bound": _bound, "descent": _descent}


def _content(folder: Path) -> dict[str, Any] | None:
    path = folder / RESULTS_FILE
    content: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return content


def _catalogue(folder: Path) -> str:
    """Return a table of all tables and figures with their state, and the commands that make them, folded."""
    lines = ["## Every table and figure", "", "| | what | result |", "| --- | --- | --- |"]
    commands = ['<details markdown="1">', "<summary>The commands, and how long they take</summary>", ""]
    for entry in CATALOGUE:
        if not entry.commands:
            lines.append(f"| {entry.place} | {entry.title} | {entry.remark} |")
            continue
        known = [f"{_linked(name, folder)} ({state})" for name, state in states(entry, folder).items()]
        needs = "".join(f", needs {each}" for each in _unavailable([entry]))
        text = "; ".join(filter(None, [*(known or [NOT_MEASURED + needs]), entry.remark, held(entry).remark]))
        lines.append(f"| {entry.place or 'ours'} | {entry.title} | {text} |")
        commands += [f"{entry.place or 'Ours'}, {entry.title}. Takes: {entry.takes}.", ""]
        commands += [*(f"    {command}" for command in commands_of(entry, RESULTS)), ""]
    return "\n".join([*lines, "", *commands, "</details>", ""])
