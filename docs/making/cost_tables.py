"""Write the tables of docs/cost.md from the benchmark's own files: ``make cost-tables``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
MEASUREMENTS = DOCS.parent / "benchmarks" / "results"
_TABLE = re.compile(r"^(<!-- (corrections|updates|training): (cpu|cuda) -->)\n.*?^(<!-- end -->)$", re.M | re.S)
_SHOWN = {  # of the corrections measured, those that a reader can picture
    "MLP 784-100-100-10": (1, 3),
    "head 2048x1000": (1, 3),
    "ResNet-50": (1, 3, 10),
    "one tensor": (1,),
}
_LARGE = 100_000_000
_CORRECTION = ("sgd_step", "congruent", "corrected")
_UPDATE = ("adamw_step", "cautious", "timm_cautious", "dcl_update")
Rows = list[dict[str, Any]]


def filled(markdown: str) -> str:
    """Return a page with each table between its two comments as the measurements have it now."""
    return _TABLE.sub(lambda found: f"{found[1]}\n\n{table(found[2], found[3])}\n\n{found[4]}", markdown)


def table(kind: str, device: str) -> str:
    """A table of what ``congruency bench`` wrote, with the machine and the command."""
    files = [MEASUREMENTS / f"bench-{device}{which}.json" for which in ("", "-2")]
    runs = [json.loads(path.read_text("utf-8")) for path in files if path.exists()]
    machine = runs[0]["machine"]
    name = machine["gpu"] or f"{machine['threads']} threads of an {machine['processor']}".replace("(R)", "")
    key = {"corrections": "corrections", "updates": "updates", "training": "training_steps"}[kind]
    if kind == "training":
        rows, again = _training([run[key] for run in runs]), ""
    else:
        make, times = {"corrections": (_corrections, _CORRECTION), "updates": (_updates, _UPDATE)}[kind]
        rows, again = make(runs[0][key]), _again([run[key] for run in runs], times)
    return "\n".join([*rows, "", f"*{name}, torch {machine['torch']}; `{runs[0]['command']}`{again}*"])


def _again(runs: list[Rows], times: tuple[str, ...]) -> str:
    """How far the times of a second run are from those of the first."""
    if len(runs) < 2:
        return ""
    apart = [abs(b[key] / a[key] - 1) for a, b in zip(*runs, strict=True) for key in times if a[key] is not None]
    return f"; the times of a second run differ by {100 * max(apart):.0f} % at most"


def _corrections(measured: Rows) -> list[str]:
    rows = ["| parameters | references | optimizer | measured | corrected |", "|---|--:|--:|--:|--:|"]
    for row in measured:
        alone = row["workload"] == "one tensor"
        if row["references"] not in _SHOWN.get(row["workload"], ()) or (alone and row["parameters"] < _LARGE):
            continue
        name = f"{row['workload']}, {count(row['parameters'])}"
        times = (duration(row[key]) for key in _CORRECTION)
        rows.append(f"| {name} | {row['references']} | {' | '.join(times)} |")
    return rows


def _updates(measured: Rows) -> list[str]:
    rows = ["| parameters | AdamW | Cautious | timm's | DCL on the update |", "|---|--:|--:|--:|--:|"]
    for row in measured:
        base, keys = row["adamw_step"], ("cautious", "timm_cautious", "dcl_update")
        ratios = ("-" if row[key] is None else f"{row[key] / base:.2f}" for key in keys)
        rows.append(f"| {row['workload']}, {count(row['parameters'])} | {duration(base)} | {' | '.join(ratios)} |")
    return rows


def _training(runs: list[Rows]) -> list[str]:
    """With what the correction adds in every run; the times are those of the first."""
    more = ["more", "in a second run"][: len(runs)]
    rows = [f"| network | corrects | correction | plain | corrected | {' | '.join(more)} |"]
    rows.append(f"|---|---|--:|--:|--:|{'--:|' * len(runs)}")
    for row, *others in zip(*runs, strict=True):
        shares = [f"{100 * (each['step_with_dcl'] / each['step'] - 1):+.1f} %" for each in (row, *others)]
        what = row.get("correction", "DCL") + (
            f", {row['references']}" if row.get("correction", "DCL") == "DCL" else ""
        )
        what += {"graph": " (CUDA graph)", "compile": " (compiled)"}.get(row.get("mode", "eager"), "")
        cells = [row["network"], row["scope"], what, duration(row["step"]), duration(row["step_with_dcl"]), *shares]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def count(parameters: int) -> str:
    """A number of parameters as people say it, with three digits."""
    return f"{parameters / 1e6:.3g} million" if parameters >= 1e6 else f"{parameters / 1e3:.3g} thousand"


def duration(seconds: float) -> str:
    """Seconds as people say them, with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 999.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 1e-6:.2g} µs"


if __name__ == "__main__":
    page = DOCS / "cost.md"
    page.write_text(filled(page.read_text("utf-8")), "utf-8")
