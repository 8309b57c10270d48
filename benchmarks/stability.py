"""Which corrections are stable: quadratics, every kind of optimizer, windows from short to long.

Every run minimises ``1/2 sum_j lambda_j w_j^2``, lambda from 1/condition to 1, and counts as unstable where its loss
ends above the loss it started from. With noise, a random vector as long as the gradient is added to it at every step,
and the rate of SGD is (1 - momentum) / 2 instead of 1: rates at which the optimizers converge on their own.

    python benchmarks/stability.py --out benchmarks/results/stability.json --page docs/stability.md
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import congruency

CONDITIONS, DIMENSIONS, WINDOWS, STEPS = (1.0, 1e2, 1e4), (2, 16, 1000), (5, 50, 500), 1000
OPTIMIZERS: dict[str, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, momentum=0.0),
    "momentum 0.5": partial(torch.optim.SGD, momentum=0.5),
    "momentum 0.9": partial(torch.optim.SGD, momentum=0.9),
    "momentum 0.99": partial(torch.optim.SGD, momentum=0.99),
    "Nesterov 0.9": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "Adam": partial(torch.optim.Adam, lr=0.05),
    "AdamW": partial(torch.optim.AdamW, lr=0.05),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.05),
}
Attach = Callable[[torch.optim.Optimizer, int], object]


def dcl(**settings: Any) -> Attach:
    """DCL over each tensor for itself, given the optimizer and the window."""
    return lambda optimizer, window: congruency.DCL(optimizer, window=window, blocks="tensor", **settings)


def cautious(**settings: Any) -> Attach:
    """Cautious, which has no window."""
    return lambda optimizer, window: congruency.Cautious(optimizer, **settings)


FORMS: dict[str, Attach | None] = {
    "no correction": None,
    "DCL, `floor=None`: the paper's form": dcl(floor=None),
    "DCL, `returning=False`: the floor alone": dcl(returning=False),
    "DCL, `floor=1.0`: `returning` alone": dcl(floor=1.0),
    "DCL, the default: both": dcl(),
    "Cautious": cautious(),
    "Cautious, `max_rescale=2.0`": cautious(max_rescale=2.0),
    "Cautious, `rescale=False`": cautious(rescale=False),
}


def final_ratios(
    optimizer_name: str, form: Attach | None, window: int, noise: bool, dimensions: Sequence[int] = DIMENSIONS
) -> list[float]:
    """Final loss over first loss, one per condition and dimension.

    The problems are tensors of one optimizer, and every tensor is corrected for itself.
    """
    generator = torch.Generator().manual_seed(window)
    curvatures, weights = [], []
    for condition in CONDITIONS:
        for size in dimensions:
            curvatures.append(torch.logspace(0, -math.log10(condition), size, dtype=torch.float64))
            weights.append(torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_())
    optimizer = OPTIMIZERS[optimizer_name](weights)
    for group in optimizer.param_groups:
        if "nesterov" in group:
            group["lr"] = (1 - group["momentum"]) / 2 if noise else 1.0
    if form is not None:
        form(optimizer, window)
    first = _losses(curvatures, weights)
    for _ in range(STEPS):
        for curvature, weight in zip(curvatures, weights, strict=True):
            gradient = curvature * weight.detach()
            if noise:
                random = torch.randn(len(gradient), dtype=torch.float64, generator=generator)
                gradient += random * (gradient.norm() / random.norm())
            weight.grad = gradient
        optimizer.step()
    return [last / start for last, start in zip(_losses(curvatures, weights), first, strict=True)]


def _losses(curvatures: list[torch.Tensor], weights: list[torch.Tensor]) -> list[float]:
    return [0.5 * float(c @ w.detach().square()) for c, w in zip(curvatures, weights, strict=True)]


def measure() -> dict[str, dict[str, dict[str, Any]]]:
    """By form and noise: how many runs there were, the unstable ones by optimizer, the largest final ratio."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, form in FORMS.items():
        for noise in (False, True):
            runs = {
                optimizer: [ratio for window in WINDOWS for ratio in final_ratios(optimizer, form, window, noise)]
                for optimizer in OPTIMIZERS
            }
            unstable = {optimizer: sum(not ratio <= 1 for ratio in ratios) for optimizer, ratios in runs.items()}
            every = [ratio for ratios in runs.values() for ratio in ratios]
            found.setdefault(name, {})["with noise" if noise else "without noise"] = {
                "runs": len(every),
                "unstable": unstable,
                "worst": max(ratio if math.isfinite(ratio) else math.inf for ratio in every),
            }
            print(name, "with noise" if noise else "without noise", unstable, flush=True)
    return found


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The table in Markdown, one row per form."""
    lines = ["| | without noise | worst ratio | with noise | worst ratio |", "|---|---:|---:|---:|---:|"]
    for name, columns in found.items():
        cells = []
        for column in columns.values():
            cells += [f"{sum(column['unstable'].values())} of {column['runs']}", f"{column['worst']:.2g}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, store it and put it on the page."""
    parser = argparse.ArgumentParser(description="Which corrections are stable on quadratics.")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    parser.add_argument("--page", type=Path, help="replace the table between the markers of this page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the paper's form warns of what is measured here
    found = measure()
    print("\n" + table(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if options.page:
        put_on_page(options.page, "stability", table(found))


def put_on_page(page: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of a name."""
    marker = f"<!-- measured: {name} -->\n"
    before, _, rest = page.read_text("utf-8").partition(marker)
    after = rest.partition("<!-- end -->")[2]
    page.write_text(f"{before}{marker}\n{text}\n\n<!-- end -->{after}", "utf-8")


if __name__ == "__main__":
    main()
