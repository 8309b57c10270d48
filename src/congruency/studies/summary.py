"""The table and the findings of a study, from its results."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Console

from congruency.report.numbers import NOTHING, fixed, p_value, with_margin
from congruency.report.tables import Table, to_rich
from congruency.studies.plan import Column, JobT, PaperNumber, Row, Run, Study
from congruency.studies.results import Comparison, Results, comparisons, merged_rows, seeds_of
from congruency.studies.statistics import Difference, mean_interval
from congruency.studies.store import Failure

Compared = Mapping[tuple[str, str], Comparison]
_SIGNIFICANT = 0.05
_MOST_NAMED = 8


def summary_table(study: Study[JobT], results: Results, failed: Mapping[str, int] | None = None) -> Table:
    """Return one line per row: every column with its paired difference and the paper's number, if any.

    Rows with equal values share a line. Results that are not rows of the study (bounds) come last; ``failed`` counts
    the failed runs of each row.
    """
    compared = comparisons(study, results)
    columns = [column for column in study.columns if column.in_table]
    any_compared = {key for _, key in compared}
    printed = {key for row in study.rows for key in row.paper}
    extras = [extra for extra in study.extras if any(extra.key in metrics for metrics in results.values())]
    header, groups = ["Row", "Seeds"], []
    for column in columns:
        first = len(header)
        header.append(column.heading)
        if column.key in any_compared:
            header += [f"{column.short} against", *(["Holm's p"] if study.holm else [])]
        header += [f"{column.short}, paper"] if column.key in printed else []
        groups.append(range(first, len(header)))
    lines, lost = [], failed or {}
    named = {row.name: row for row in study.rows}
    for label, rows in merged_rows(study, results).items():
        row, metrics, failures = rows[0], results.get(rows[0].name, {}), sum(lost.get(each.name, 0) for each in rows)
        if not metrics and row.jobs and not failures:
            continue
        line = [label, _seeds(metrics, failures)]
        for column in columns:
            estimate = mean_interval([column.scale * value for value in metrics.get(column.key, [])])
            line.append(with_margin(estimate.mean, estimate.margin, column.digits))
            if column.key in any_compared:
                one = compared.get((row.name, column.key))
                line += _against(row, one, column, column.key in metrics)[: 1 + study.holm]
            line += [_printed([each.paper.get(column.key) for each in rows], column)] if column.key in printed else []
        lines.append([*line, *(_mean(metrics, extra) for extra in extras)])
    for name in (name for name in results if name not in named):  # bounds: one value, no randomness
        line = [name, NOTHING]
        for column in columns:
            line += [_mean(results[name], column)]
            line += [NOTHING] * ((1 + study.holm) * (column.key in any_compared) + (column.key in printed))
        lines.append([*line, *(NOTHING for _ in extras)])
    caption = _caption(study, bool(compared), bool(printed))
    return Table(caption, [*header, *(extra.heading for extra in extras)], lines, groups)


def _caption(study: Study[JobT], compared: bool, printed: bool) -> str:
    parts = [study.caption, "Means over the seeds, ± their 95 % intervals."]
    if compared:
        whom = {row.against for row in study.rows if row.against is not None}
        other = whom.pop() if len(whom) == 1 else "the row it is compared with"
        parts.append(f"Against: the paired difference to {other}, seed by seed, with the p-value of the t-test.")
    if compared and study.holm:
        parts.append("Holm's p: corrected for all comparisons of the table.")
    if printed:
        parts.append("Paper: as printed there.")
    return " ".join(filter(None, parts))


def _seeds(metrics: Mapping[str, Sequence[float]], lost: int) -> str:
    count = str(len(seeds_of(metrics)))
    return f"{count}, {lost} failed" if lost else count


def _against(row: Row[JobT], one: Comparison | None, column: Column, known: bool) -> list[str]:
    """The cells for the paired difference and its Holm p-value; an identical row says so."""
    if known and (row.inactive or (one is not None and one.identical)):
        whom = "the baseline" if row.against == "baseline" else row.against
        return [f"identical to {whom}", NOTHING]  # no spread, nothing to test
    if one is None or not math.isfinite(one.difference.mean):
        return [NOTHING, NOTHING]
    found: Difference = one.difference
    text = with_margin(column.scale * found.mean, column.scale * found.margin, column.digits, sign=True)
    return [f"{text} (p {p_value(found.p)})" if math.isfinite(found.p) else text, p_value(one.adjusted)]


def _printed(numbers: Sequence[PaperNumber | None], column: Column) -> str:
    """The paper's numbers for the rows of a line."""
    digits = column.digits if column.paper_digits is None else column.paper_digits
    shown = [
        f"{number[0]:.{digits}f} (sd {number[1]:.{digits}f})" if isinstance(number, tuple) else f"{number:.{digits}f}"
        for number in numbers
        if number is not None
    ]
    return "; ".join(shown) or NOTHING


def _mean(metrics: Mapping[str, Sequence[float]], column: Column) -> str:
    return fixed(column.scale * mean_interval(metrics.get(column.key, [])).mean, column.digits)


def print_table(table: Table, console: Console) -> None:
    """Print a table, or paragraphs if the terminal is too narrow; row names are never cut or wrapped."""
    columns = zip(table.columns, *table.rows, strict=True)  # headings wrap between words
    if console.width >= sum(max(map(len, [*name.split(), *cells])) + 2 for name, *cells in columns):
        console.print(to_rich(table))
    else:
        console.print(as_paragraphs(table), markup=False, highlight=False, soft_wrap=True)


def show(table: Table, findings: Sequence[str], last: str, console: Console) -> None:
    """Print a table, the findings and a last line, such as the path of the page."""
    print_table(table, console)
    console.print()
    for text in findings:
        console.print(text, markup=False, highlight=False)
    console.print(f"\n{last}", markup=False, highlight=False, soft_wrap=True)


def as_paragraphs(table: Table, width: int = 78) -> str:
    """Return a table as one paragraph per row, for narrow terminals."""
    paragraphs = []
    for row in table.rows:
        shown = [f"{name}: {cell}" for name, cell in zip(table.columns[1:], row[1:], strict=True) if cell != NOTHING]
        indent = " " * 4
        paragraphs.append(
            f"{row[0]}\n{textwrap.fill('; '.join(shown), width, initial_indent=indent, subsequent_indent=indent)}"
        )
    return "\n".join([*paragraphs, "", textwrap.fill(table.caption, width)])


def findings(
    study: Study[JobT], results: Results, failures: Mapping[tuple[str, int], Failure] | None = None, repeated: int = 0
) -> list[str]:
    """Return the findings as sentences: clear differences, the others, and all of them with Holm's correction.

    ``repeated`` is how often a run was resumed after an interruption.
    """
    compared = comparisons(study, results)
    sentences = _compared(study, results, compared) if any(row.against for row in study.rows) else []
    inactive = [f"{row.name} ({row.inactive})" for row in study.rows if row.inactive]
    if inactive:
        sentences.append(f"Equal to the row they are compared with by construction: {'; '.join(inactive)}.")
    for run in _runs_of(study, failures or {}):
        reason = (failures or {})[run.key].line
        sentences.append(f"Failed: {run.title}: {reason} (failed.json has more; the same command tries again).")
    if repeated:
        sentences.append(f"{repeated} time(s) a run was resumed from its checkpoint after an interruption.")
    return sentences


def _compared(study: Study[JobT], results: Results, compared: Compared) -> list[str]:
    tested = [one for one in compared.values() if math.isfinite(one.p)]
    if not tested:
        return ["Nothing could be compared: that needs two seeds or more of a row and of the one it is compared with."]
    sentences, unclear, identical = [], [], []
    for label, rows in merged_rows(study, results).items():
        row = rows[0]
        own = {
            column: one for column in study.columns if (one := compared.get((row.name, column.key))) in tested and one
        }
        clear = [_change(column, one) for column, one in own.items() if one.p < _SIGNIFICANT]
        if clear:
            rest = [column.short for column, one in own.items() if one.p >= _SIGNIFICANT]
            others = [f"no clear change of {', '.join(rest)}"] if rest else []
            sentences.append(f"{label}, against {row.against}: {'; '.join([*clear, *others])}.")
        elif own and all(one.identical for one in own.values()):
            identical += [each.name for each in rows]
        elif own:
            unclear.append(label)
    if unclear:
        sentences.append(f"No clear difference: {'; '.join(unclear)}.")
    if identical and not sentences:
        return [
            f"Nothing differs: on every seed {identical[0] if len(identical) == 1 else 'every row'} is identical to "
            "what it is compared with. Runs so short cannot show a difference, or nothing was corrected (see the share "
            "of corrected steps): try more epochs or samples, or a shorter window."
        ]
    if identical:
        sentences.append(f"Identical on every seed to the row they are compared with: {'; '.join(identical)}.")
    if study.holm and any(not one.identical for one in tested):
        sentences.append(_shown(study, [one for one in tested if not one.identical]))
    return [*sentences, *([_together(study, tested)] if len(tested) > 1 else [])]


def _shown(study: Study[JobT], tested: Sequence[Comparison]) -> str:
    """State the smallest detectable differences in the first compared column."""
    column = next(column for column in study.columns if column.compared)
    where = f" in {column.short}" if sum(each.compared for each in study.columns) > 1 else ""
    start = f"The smallest difference{where} that these seeds show with a power of 80 %"
    sizes = {one.row: column.scale * one.difference.detectable for one in tested if one.column == column.key}
    if len(sizes) <= _MOST_NAMED:
        return f"{start}: {', '.join(f'{row} {fixed(size, column.digits)}' for row, size in sizes.items())}."
    low, high = (fixed(size, column.digits) for size in (min(sizes.values()), max(sizes.values())))
    return f"{start}: {low} to {high}, by row."


def _change(column: Column, one: Comparison) -> str:
    direction = "rises" if one.difference.mean > 0 else "falls"
    size = fixed(column.scale * abs(one.difference.mean), column.digits)
    unit = f" {column.unit}" if column.unit else ""
    return f"{column.short} {direction} by {size}{unit} (p {p_value(one.p)})"


def _together(study: Study[JobT], tested: Sequence[Comparison]) -> str:
    """Summarize all tests: how many are significant, how many are expected by chance, which remain after Holm's."""
    significant = sum(one.p < _SIGNIFICANT for one in tested)
    left = [one for one in tested if one.adjusted < _SIGNIFICANT]
    by_chance = f"{_SIGNIFICANT * len(tested):.2g}"
    first = (
        f"{significant} of {len(tested)} comparisons have p < {_SIGNIFICANT:g}, where {by_chance} would by chance alone"
    )
    if not left:
        return f"{first}; none is left after Holm's correction for their number."
    if len(left) > 12:
        return f"{first}; {len(left)} are left after Holm's correction for their number."
    several = len([column for column in study.columns if column.compared]) > 1
    names = "; ".join(f"{one.row}{f' ({one.column})' if several else ''}, p {p_value(one.adjusted)}" for one in left)
    verb = "is" if len(left) == 1 else "are"
    return f"{first}; {len(left)} {verb} left after Holm's correction for their number: {names}."


def _runs_of(study: Study[JobT], keys: Mapping[tuple[str, int], object]) -> list[Run[JobT]]:
    """The runs of the study with these keys."""
    digests = {job.digest(): (row, job) for row in study.rows for job in row.jobs}
    return [Run(digests[d][0].name, digests[d][1], seed) for d, seed in keys if d in digests]
