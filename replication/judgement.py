"""Judge claims: make the comparisons that a result allows, and decide on the verdict of a variant."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from congruency.studies.plan import Row, Study
from congruency.studies.results import Results, paired
from congruency.studies.statistics import Difference, holm, paired_difference
from replication.claims import Comparison, Expected
from replication.rows import definition, label

NOT_MEASURED = "not yet measured"
_SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Compared:
    """A comparison with its name, the expected outcome and the paired difference.

    ``little`` is the largest difference, in the metric, that counts as little; nan if not used.
    """

    name: str
    folder: str
    metric: str
    expected: Expected
    difference: Difference
    little: float = math.nan
    versus: str = ""


def compared(comparison: Comparison, results: Results | None, study: Study[Any] | None = None) -> list[Compared]:
    """Return the comparisons that a result allows; rows are those of ``study``, by default the folder's definition."""
    study = study or definition(comparison.folder)
    if results is None or study is None:
        return []
    made = []
    for row in study.find(**comparison.rows):
        other = _other(row, comparison, study)
        if other is None or _never_corrected(row, results) or _never_corrected(other, results):
            continue
        pair = paired(results, row.name, other.name, comparison.metric, comparison.against_metric)
        difference = None if pair is None else paired_difference(*pair)
        if difference is not None and math.isfinite(difference.mean):
            made.append(
                Compared(
                    label(row, comparison.named), comparison.folder, comparison.metric, comparison.expected, difference,
                    _little(comparison, results[other.name]), comparison.versus,
                )
            )  # fmt: skip
    return made


def _other(row: Row[Any], comparison: Comparison, study: Study[Any]) -> Row[Any] | None:
    """Return the row to compare with: the row itself in another metric, the study's, or one found by settings."""
    if comparison.against_metric is not None:
        return row
    if comparison.against is None:
        return next((each for each in study.rows if each.name == row.against), None)
    shared = {name: row.settings.get(name) for name in comparison.same}
    others = study.find(**{**shared, **comparison.against})
    if len(others) > 1:
        raise ValueError(f"{comparison.folder}: {row.name} has several rows to be compared with: {others}")
    return others[0] if others else None


def _never_corrected(row: Row[Any], results: Results) -> bool:
    """Whether a row with a correction changed no step at any seed, so that it equals the baseline."""
    shares = results.get(row.name, {}).get("corrected_share")
    return row.settings.get("method") != "baseline" and bool(shares) and not any(shares or ())


def _little(comparison: Comparison, against: Mapping[str, Sequence[float]]) -> float:
    """Return the largest difference, in the metric, that counts as little; nan if not used."""
    if comparison.little is None:
        return math.nan
    if not comparison.relative:
        return comparison.little
    return comparison.little * abs(statistics.fmean(against[comparison.against_metric or comparison.metric]))


def verdict(found: Sequence[Compared]) -> str:
    """Return the verdict, for, against, mixed or undecided, with counts of the differences clear after Holm's."""
    if not found:
        return NOT_MEASURED
    adjusted = holm([one.difference.p for one in found])
    clear = [one for one, p in zip(found, adjusted, strict=True) if p < _SIGNIFICANT]
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
    """Return ``for`` if all intervals are within ``little``, ``against`` if a clear one is entirely outside of it."""
    beyond = [one for one in clear if one.difference.low > one.little or one.difference.high < -one.little]
    if beyond:
        return f"against{_share(len(beyond), len(found))}"
    within = [one for one in found if -one.little <= one.difference.low and one.difference.high <= one.little]
    return "for" if len(within) == len(found) else "undecided"


def _share(clear: int, count: int) -> str:
    return "" if clear == count else f" ({clear} of {count} clear)"
