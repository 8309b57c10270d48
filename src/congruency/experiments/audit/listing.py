"""An audit for other programs: every sample as CSV, every seed's figures as JSON."""

from __future__ import annotations

import csv
import io
import json
import math

from congruency.experiments.audit.ranking import most
from congruency.experiments.audit.result import Result
from congruency.experiments.audit.verdict import Scored

__all__ = ["to_csv", "to_json"]


def to_csv(result: Result) -> str:
    """A row a sample, the most suspicious first, seed after seed where each has flips of its own."""
    images = result.images.images
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    flips = result.flip is not None
    names = list(result.audits[0].scores)
    files = ["file"] if result.images.files is not None else []
    truth = ["label in the set", "flipped"] if flips else []
    writer.writerow(["seed", "rank", "index", *files, "given", "predicted", *truth, *names])
    for audit in result.shown:
        predicted = audit.predicted.tolist()
        for rank, place in enumerate(most(audit.suspicion(audit.main), len(audit.given)).tolist(), 1):
            row = [audit.seed, rank, place]
            if result.images.files is not None:
                row.append(result.images.files[place])
            row += [images.classes[int(audit.given[place])], images.classes[predicted[place]]]
            if audit.flipped is not None:
                row += [images.classes[int(images.labels[place])], int(audit.flipped[place])]
            writer.writerow([*row, *(_number(float(audit.scores[name][place])) for name in names)])
    return buffer.getvalue()


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""


def to_json(scores: Scored) -> str:
    """``{ranking: {metric: [one value a seed]}}``; what is not a number is null."""
    plain = {
        name: {metric: [v if math.isfinite(v) else None for v in values] for metric, values in metrics.items()}
        for name, metrics in scores.items()
    }
    return json.dumps(plain, indent=1) + "\n"
