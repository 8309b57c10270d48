"""What a continual-learning table came to, as a table, a page and files."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import torch

import congruency
from congruency.continual import Outcome
from congruency.files import write_together
from congruency.report import charts
from congruency.report.numbers import NOTHING, fixed, p_value, with_margin
from congruency.report.page import Figure, Page, render
from congruency.report.tables import Table, to_markdown
from congruency.studies.continual.reproduce import Results, Settings
from congruency.studies.continual.tables import Row
from congruency.studies.statistics import Difference, mean_interval, paired_difference

__all__ = ["METRICS", "show", "to_json"]

METRICS = ("accuracy", "backward_transfer", "forward_transfer")
_AGREEMENT = "memory_agreement"  # mean cosine between updates and memory gradients, for rows with a memory
_LOSS = "validation_loss"  # mean over all tasks after the last, where losses were kept
_TITLES = ("Accuracy, %", "BWT", "FWT")
_AT_MOST = 6  # lines in a chart


def to_json(results: Results) -> str:
    """``{row: {metric: [one value a seed]}}``; accuracies are shares of 1, what is not a number is null."""
    return json.dumps({name: _metrics(outcome) for name, outcome in results.items()}, indent=1) + "\n"


def show(settings: Settings, results: Results, out: Path, command: str, seconds: float) -> tuple[Page, list[Path]]:
    """Write ``results.json``, ``index.html``, ``table.md`` and the figures into ``out``."""
    page = compose(settings, results, command, seconds)
    figures = {f"figure-{i:02d}.svg": _standing_alone(figure.chart) for i, figure in enumerate(page.figures, 1)}
    texts = {
        "results.json": to_json(results),
        "index.html": render(page),
        "table.md": _markdown(page),
        **figures,
    }
    return page, write_together(out, texts)


def compose(settings: Settings, results: Results, command: str, seconds: float) -> Page:
    """The page."""
    rows = [row for row in settings.chosen if row.name in results]
    return Page(
        title=_title(settings),
        lead=_lead(settings),
        command=command,
        table=summary_table(rows, results),
        findings=findings(rows, results),
        figures=_figures(rows, results),
        figures_note="Means over the seeds. Bands: 95 % intervals. Point at a chart for its values.",
        notes=_NOTES,
        made=(
            f"Made by congruency {congruency.__version__} on {datetime.now():%Y-%m-%d}, in {seconds:.0f} seconds, with "
            f"PyTorch {torch.__version__} and Python {platform.python_version()} on {settings.device}. The numbers "
            "behind the table are in results.json beside this page."
        ),
    )


def summary_table(rows: Sequence[Row], results: Results) -> Table:
    """One line a row: three metrics, each with its paired difference to GEM; the paper's numbers last."""
    lines = []
    for row in rows:
        line = [row.name]
        for metric in METRICS:
            digits = 2 if metric == "accuracy" else 4
            scale = 100 if metric == "accuracy" else 1
            values = [scale * value for value in _values(results[row.name], metric)]
            estimate = mean_interval(values)
            line.append(with_margin(estimate.mean, estimate.margin, digits))
            difference = _difference(row, results, metric)
            line.append(
                NOTHING if difference is None
                else f"{with_margin(scale * difference.mean, scale * difference.margin, digits, sign=True)}"
                f" (p {p_value(difference.p)})"
            )  # fmt: skip
        line.append(NOTHING if row.paper is None else f"{row.paper[0]:.2f} / {row.paper[1]:.4f} / {row.paper[2]:.4f}")
        lines.append(line)
    seeds = len(next(iter(results.values())).matrix)
    caption = (
        f"Means over {seeds} {'seed' if seeds == 1 else 'seeds'}, ± their 95 % intervals. Against GEM: paired "
        "differences, seed by seed, with the p of the t-test; rows with margin 0 are compared with GEM, margin 0. "
        "Paper: accuracy, backward and forward transfer as printed there."
    )
    columns = ["Row"]
    for title in _TITLES:
        columns += [title, f"{title.partition(',')[0]} against GEM"]
    return Table(caption, [*columns, "Paper"], lines)


def findings(rows: Sequence[Row], results: Results) -> list[str]:
    """A sentence for every row with reference points: what it changes against GEM."""
    return [_finding(row, results) for row in rows if row.method.kind == "dcl_memory" and row.against in results]


def _finding(row: Row, results: Results) -> str:
    parts = []
    titles = ("accuracy", "backward transfer", "forward transfer", "the updates' mean cosine with the memory")
    for metric, title in zip((*METRICS, _AGREEMENT), titles, strict=True):
        difference = _difference(row, results, metric)
        assert difference is not None
        scale, unit = (100, " points") if metric == "accuracy" else (1, "")
        digits = 2 if metric == "accuracy" else 4
        if not math.isfinite(difference.p):
            parts.append(f"{title} cannot be judged")
        elif difference.p < 0.05:
            parts.append(
                f"{title} {'rises' if difference.mean > 0 else 'falls'} by "
                f"{fixed(scale * abs(difference.mean), digits)}{unit} (p {p_value(difference.p)})"
            )
        else:
            parts.append(f"{title} shows no clear change (p {p_value(difference.p)})")
    return f"{row.name}, against {row.against}: {'; '.join(parts)}."


def _difference(row: Row, results: Results, metric: str) -> Difference | None:
    if row.against not in results or row.name == row.against:
        return None
    return paired_difference(_values(results[row.name], metric), _values(results[row.against], metric))


def _figures(rows: Sequence[Row], results: Results) -> list[Figure]:
    figures = []
    so_far = "After each task: the mean over all tasks met by then."
    entropy = f"Mean cross entropy of the test images, in nats. {so_far}"
    cosine = "Mean cosine between the update and the gradients of the memory while learning each task."
    parts = _parts(rows, results)
    for label, part in parts:
        curve = _curve(part, _learned, "accuracy, %")
        figures.append(Figure(f"Accuracy on what was learned so far{label}", curve, so_far))
    for label, part in parts:
        known = [(name, o) for name, o in part if torch.isfinite(_losses_learned(o).sum(0)).any()]
        if known:
            curve = _curve(known, _losses_learned, "validation loss")
            figures.append(Figure(f"Validation loss by task{label}", curve, entropy))
    for label, part in parts:
        with_memory = [(name, o) for name, o in part if not torch.isnan(o.agreement).all()]
        if with_memory:
            curve = _curve(with_memory, lambda o: o.agreement[:, 0, 1:], "mean cosine", first=2)
            figures.append(Figure(f"Agreement of updates with the memory{label}", curve, cosine))
    for row in rows:
        heat_map = _heat_map(row.name, results[row.name])
        figures.append(Figure(row.name, heat_map, "Mean accuracy on every task after each."))
    return figures


def _parts(rows: Sequence[Row], results: Results) -> list[tuple[str, list[tuple[str, Outcome]]]]:
    """Rows that share a chart: those without reference rows, then each mode and margin with its GEM."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        joint = row.method.kind == "dcl_memory"
        key = (f": {row.method.mode}, margin {row.method.memory_margin:g}", row.against) if joint else ("",)
        first = [row.against] if joint and row.against in results else []
        groups.setdefault(key, first).append(row.name)
    return [
        (key[0], [(name, results[name]) for name in names[i : i + _AT_MOST]])
        for key, names in groups.items()
        for i in range(0, len(names), _AT_MOST)
    ]


def _learned(outcome: Outcome) -> torch.Tensor:
    """(S, T): after each task the mean accuracy on the tasks learned by then, in percent."""
    return 100 * _so_far(outcome.matrix[:, 0])


def _losses_learned(outcome: Outcome) -> torch.Tensor:
    """(S, T): after each task the mean loss on the tasks learned by then, ``1/i sum_(t <= i) L_(i, t)``."""
    return _so_far(outcome.losses[:, 0])


def _so_far(matrix: torch.Tensor) -> torch.Tensor:
    """(S, T, T) -> (S, T): of each row the mean of what is not beyond the diagonal."""
    return torch.stack([matrix[:, i, : i + 1].mean(-1) for i in range(matrix.shape[-1])], -1)


def _curve(
    part: Sequence[tuple[str, Outcome]], values: Callable[[Outcome], torch.Tensor], label: str, first: int = 1
) -> str:
    series = []
    for name, outcome in part:
        columns = values(outcome).T.tolist()
        estimates = [mean_interval(column) for column in columns]
        series.append(
            charts.Series(
                name, list(range(first, first + len(columns))), [e.mean for e in estimates],
                [e.margin for e in estimates],
            )
        )  # fmt: skip
    return charts.line_chart(series, title=label, x_label="task", y_label=label)


def _heat_map(name: str, outcome: Outcome) -> str:
    matrix = (100 * outcome.matrix[:, 0].mean(0)).tolist()
    return charts.heat_map(matrix, title=name, x_label="accuracy on task", y_label="after task")


def _standing_alone(chart: str) -> str:
    """A chart as a file of its own."""
    return chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        "\n", f"\n<style>{charts.STYLE}</style>\n", 1
    )


def _markdown(page: Page) -> str:
    findings = "\n".join(f"- {text}" for text in page.findings)
    table = to_markdown(page.table)
    return f"# {page.title}\n\n{page.lead}\n\n    {page.command}\n\n{table}\n\n{findings}\n\n{page.made}\n"


def _title(settings: Settings) -> str:
    named = {"clean": ", clean images only", "noisy": ", noisy training labels", "given": ""}
    base = f", {Path(settings.base).name} instead of {settings.stream_table.base}" if settings.base else ""
    return f"{settings.stream_table.title}{named[settings.labels]}{base}"


def _lead(settings: Settings) -> str:
    described = settings.described()
    text = (
        f"{described['tasks']} tasks of up to {described['samples']} samples, one pass in batches of "
        f"{described['batch']}, {described['memory']} samples of each task kept ({described['policy']} seen), "
        f"network {described['network']}, plain SGD. Within a seed all rows see the same stream from the same weights."
    )
    if settings.labels == "clean":
        text += " Only the clean test images of CIFAR-100 are used: of each class four fifths to learn, one to score."
    if settings.labels == "noisy":
        text += " About a fifth of the training labels are wrong; the test labels are clean."
    return text


def _metrics(outcome: Outcome) -> dict[str, list[float | None]]:
    remembers, has_losses = (not part.isnan().all() for part in (outcome.agreement, outcome.losses[:, 0, -1]))
    metrics = (*METRICS, *[_AGREEMENT] * remembers, *[_LOSS] * has_losses)
    return {metric: [v if math.isfinite(v) else None for v in _values(outcome, metric)] for metric in metrics}


def _values(outcome: Outcome, metric: str) -> list[float]:
    if metric == _AGREEMENT:
        means: list[float] = outcome.agreement[:, 0].nanmean(-1).tolist()
        return means
    if metric == _LOSS:
        losses: list[float] = outcome.losses[:, 0, -1].mean(-1).tolist()
        return losses
    found: list[float] = getattr(outcome.scores(), metric)[:, 0].tolist()
    return found


_NOTES = (
    ("Accuracy", "Mean over all tasks after the last one."),
    ("BWT, backward transfer", "How much later tasks changed the accuracy on earlier ones; below 0 is forgetting."),
    ("FWT, forward transfer", "How much better than the untrained network a task is done before it is learned."),
    (
        "Validation loss",
        "Mean cross entropy of the test images, in nats, over the classes of their task; that of iCaRL is of its "
        "network's outputs, by which it learns, not of the nearest class means, by which it answers. Rows with a run "
        "from before losses were kept have none.",
    ),
    (
        "DCL-W-N MEM",
        "N reference points, renewed every W steps and forgotten at every task, together with GEM's memory. "
        "Concentrate: the paper's equations, no step may turn back against the way come. Anchor: the paper's published "
        "code, which pulls weights back toward the reference, and records it one step later.",
    ),
    (
        "Margin",
        "Least multiplier of every constraint: 0 is the exact projection, 0.5 what GEM's code and the paper use.",
    ),
)
