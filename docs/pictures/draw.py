"""Draw the pictures that explain congruency and DCL; what is corrected in them is computed by the package.

Run as ``python docs/pictures/draw.py docs/pictures``.
"""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import torch

import congruency

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle, Wedge

INK, SOFT, DISPLACEMENT, GRADIENT, CORRECTED, ALLOWED = "#16202b", "#4a5663", "#4a5663", "#b93c06", "#0b5cc4", "#dbe8fa"
plt.rcParams.update({"font.size": 11, "svg.fonttype": "path", "svg.hashsalt": "congruency", "text.color": INK})


def main(folder: Path) -> None:
    """Draw all pictures into ``folder``."""
    for picture in (angle, modes, cone, window, momentum_paths, momentum_distance, rules):
        figure, name = picture(), picture.__name__.replace("_", "-")
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, facecolor="white", bbox_inches="tight")
        plt.close(figure)


def angle() -> Any:
    """Three next steps after the same displacement, and their congruency."""
    figure, panels = plt.subplots(1, 3, figsize=(9.4, 2.9))
    displacement = torch.tensor([2.0, 0.7])
    steps = ((1.3, 1.1, "agrees"), (-0.49, 1.4, "neither"), (-1.35, 0.55, "disagrees"))
    for axes, (x, y, word) in zip(panels, steps, strict=True):
        step = torch.tensor([x, y])
        value = congruency.congruency(-step, -displacement).item()
        _stage(axes, (-0.5, 3.9), (-0.5, 2.7))
        _displacement(axes, displacement)
        _arrow(axes, displacement, step, GRADIENT)
        axes.text(*_beside(displacement, step, 0.12), "next step", color=GRADIENT, ha="center", va="bottom")
        axes.set_title(f"{word}: ν = {round(value, 2) + 0.0:.2f}".replace("-", "−"), fontsize=12)
    return figure


def modes() -> Any:
    """The two modes for the same displacement, and what a margin adds."""
    figure, panels = plt.subplots(1, 3, figsize=(10.2, 3.7))
    displacement = torch.tensor([2.0, 0.0])
    cases = (
        ('mode "concentrate"\nno step opposes w − r', -1.0, (-0.9, 1.2), 0.0),
        ('mode "anchor"\nno step away from r', 1.0, (0.9, 1.2), 0.0),
        ('mode "anchor", margin 0.5\nevery step is pulled toward r', 1.0, (-0.25, 1.2), 0.5),
    )
    for axes, (title, sign, step, margin) in zip(panels, cases, strict=True):
        _stage(axes, (-0.45, 3.9), (-0.75, 1.9))
        edge = float(displacement[0])
        start, end, side = (edge, 3.9, "right") if sign < 0 else (-0.45, edge, "left")
        axes.add_patch(Rectangle((start, -0.75), end - start, 2.65, color=ALLOWED, lw=0))
        axes.text(end - 0.06 if sign < 0 else start + 0.06, -0.68, "allowed", color=CORRECTED, ha=side)
        _displacement(axes, displacement)
        gradient = -torch.tensor(step)
        corrected = congruency.project(gradient, (sign * displacement).unsqueeze(0), margin)
        _arrow(axes, displacement, -gradient, GRADIENT, dashed=True)
        _arrow(axes, displacement, -corrected, CORRECTED)
        aside = 1 if step[0] > -corrected[0] else -1  # on which side of the corrected step the dashed one lies
        _name(axes, displacement - gradient, "before", GRADIENT, aside)
        _name(axes, displacement - corrected, "corrected", CORRECTED, -aside)
        axes.set_title(title, fontsize=12)
    return figure


def cone() -> Any:
    """Several reference points leave a cone of allowed steps."""
    figure, axes = plt.subplots(figsize=(5.2, 4.3))
    _stage(axes, (-0.6, 4.1), (-0.4, 3.6))
    here = torch.tensor([1.9, 1.5])
    references = torch.tensor([[0.0, 1.1], [0.9, 0.1]])
    displacements = here - references
    # a step s is allowed where <d, s> >= 0 for every displacement d: between the two directions orthogonal to them
    bearings = [math.degrees(math.atan2(*displacement.flip(0).tolist())) for displacement in displacements]
    axes.add_patch(Wedge(tuple(here), 6.0, max(bearings) - 90, min(bearings) + 90, color=ALLOWED, lw=0))
    for i, displacement in enumerate(displacements):
        _arrow(axes, references[i], displacement, DISPLACEMENT)
        axes.plot(*references[i], "o", color=INK, markersize=6)
        axes.text(*(references[i] + torch.tensor([-0.08, -0.08])), f"r{'₁₂'[i]}", ha="right", va="top")
    gradient = -torch.tensor([-1.2, 0.75])
    _arrow(axes, here, -gradient, GRADIENT, dashed=True)
    axes.text(*_beside(here, -gradient, 0.06), "before the correction", color=GRADIENT, ha="center", va="bottom")
    corrected = congruency.project(gradient, -displacements)
    _arrow(axes, here, -corrected, CORRECTED)
    axes.text(*_beside(here, -corrected, 0.06), "corrected", color=CORRECTED, va="bottom")
    axes.plot(*here, "o", color=INK, markersize=7, zorder=5)
    axes.text(2.05, 1.3, "w, now", va="top")
    axes.text(4.05, 3.45, "allowed by both", color=CORRECTED, ha="right", va="top")
    return figure


def window() -> Any:
    """What happens at each step, for window 8, two references and offset 2."""
    steps, width, references, offset = 22, 8, 2, 2
    figure, axes = plt.subplots(figsize=(9.4, 1.75))
    for t in range(steps):
        phase = (t - offset) % width if t >= offset else -1
        records = 0 <= phase < references
        letter = f"r{'₁₂'[phase]}" if records else ""
        colour = "white" if phase < 0 else "#f6d9c9" if records else ALLOWED
        axes.add_patch(Rectangle((t, 0), 0.92, 0.92, facecolor=colour, edgecolor=SOFT, lw=0.8))
        axes.text(t + 0.46, 0.44, letter, ha="center", va="center", color=GRADIENT)
        axes.text(t + 0.46, -0.2, str(t), ha="center", va="top", fontsize=9, color=SOFT)
    axes.annotate("", (offset + width, 1.35), (offset, 1.35), arrowprops={"arrowstyle": "<->", "color": SOFT})
    axes.text(offset + width / 2, 1.48, "window = 8", ha="center", color=SOFT)
    axes.text(offset - 0.15, 1.2, "offset = 2", color=SOFT, ha="right")
    for place, colour, text in ((10.8, "#f6d9c9", "records, corrects nothing"), (18.1, ALLOWED, "may correct")):
        axes.add_patch(Rectangle((place, 1.42), 0.5, 0.5, facecolor=colour, edgecolor=SOFT, lw=0.8))
        axes.text(place + 0.7, 1.48, text, color=SOFT)
    axes.set(xlim=(-1.1, steps), ylim=(-0.75, 2.0))
    axes.axis("off")
    return figure


CURVATURES = torch.tensor([1.0, 0.4], dtype=torch.float64)
FORMS: tuple[tuple[str, dict[str, Any] | None, str], ...] = (
    ("plain momentum", None, INK),
    ("the paper's form, floor=None", {"floor": None}, GRADIENT),
    ("the default", {}, CORRECTED),
)


def path(form: dict[str, Any] | None, steps: int) -> torch.Tensor:
    """(steps + 1, 2) the weights of SGD with momentum 0.9 on a quadratic whose minimum is at 0."""
    weights = torch.tensor([-2.0, 2.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.2, momentum=0.9)
    if form is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the paper's form warns of what the picture shows
            congruency.DCL(optimizer, window=50, **form)
    points = [weights.detach().clone()]
    for _ in range(steps):
        weights.grad = CURVATURES * weights.detach()
        optimizer.step()
        points.append(weights.detach().clone())
    return torch.stack(points)


def momentum_paths() -> Any:
    """Where SGD with momentum goes on a quadratic: plain, the paper's form, the default."""
    figure, panels = plt.subplots(1, 3, figsize=(8.6, 4.6), sharey=True, layout="constrained")
    x, y = torch.meshgrid(torch.linspace(-6, 6, 121), torch.linspace(-14, 4, 121), indexing="xy")
    losses = 0.5 * (CURVATURES[0] * x**2 + CURVATURES[1] * y**2)
    for axes, (title, form, colour) in zip(panels, FORMS, strict=True):
        points = path(form, 50)
        axes.contour(x, y, losses, levels=[0.5, 2, 6, 12, 20, 30], colors="#c9d2dc", linewidths=0.8)
        axes.plot(points[:, 0], points[:, 1], "-o", color=colour, lw=1.2, markersize=2.2)
        axes.plot(*points[0], "o", color=INK, markersize=6)
        axes.plot(0, 0, "+", color=INK, markersize=11, mew=2)
        axes.text(-2.2, 2.25, "start", ha="right")
        axes.set(xlim=(-6, 6), ylim=(-14, 4), aspect="equal", xlabel="first weight")
        axes.set_title(title, fontsize=12, color=colour)
    panels[0].set_ylabel("second weight")
    return figure


def momentum_distance() -> Any:
    """How far the same runs are from the minimum."""
    figure, axes = plt.subplots(figsize=(8.2, 3.6), layout="constrained")
    for (title, form, colour), style in zip(FORMS, ("-", "-", (0, (4, 2))), strict=True):
        axes.semilogy(path(form, 400).norm(dim=1), color=colour, lw=1.8, label=title, linestyle=style)
    for start in range(0, 401, 50):
        axes.axvline(start, color="#c9d2dc", lw=0.8, zorder=0)
    axes.set(
        xlabel="step (grey lines: the reference is recorded anew)", ylabel="distance from the minimum", xlim=(0, 400)
    )
    axes.legend(frameon=False, loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def rules() -> Any:
    """At which congruency each form corrects, by whether the weights move away from the reference."""
    forms = (
        ("floor=None (the paper)", 1.0, True),
        ("floor=0.3, returning=False", 0.3, True),
        ("the default", 0.3, False),
    )
    figure, panels = plt.subplots(1, 2, figsize=(9.4, 2.3), sharey=True, layout="constrained")
    for axes, (title, away) in zip(panels, (("moving away from r", True), ("coming back to r", False)), strict=True):
        for place, (_, reach, both) in enumerate(forms):
            axes.add_patch(Rectangle((-1, -place - 0.3), 2, 0.6, facecolor="#f1f4f7", lw=0))
            if both or not away:
                axes.add_patch(Rectangle((-reach, -place - 0.3), reach, 0.6, facecolor=CORRECTED, lw=0))
        axes.axvline(0, color=SOFT, lw=1)
        axes.set(xlim=(-1, 1), ylim=(-len(forms) + 0.5, 0.5), xlabel="congruency ν", xticks=[-1, -0.3, 0, 1])
        axes.set_xticklabels(["−1", "−0.3", "0", "1"])
        axes.set_yticks([-place for place in range(len(forms))], [name for name, _, _ in forms])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(f"in the step before: {title}", fontsize=11)
    return figure


def _stage(axes: Any, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set(xlim=x, ylim=y, aspect="equal")
    axes.axis("off")


def _displacement(axes: Any, displacement: Any) -> None:
    """The reference point at the origin, the present weights, and the displacement between them."""
    _arrow(axes, torch.zeros(2), displacement, DISPLACEMENT)
    for place, name, shift in ((torch.zeros(2), "r", (-0.05, -0.12)), (displacement, "w, now", (0.12, -0.12))):
        axes.plot(*place, "o", color=INK, markersize=7, zorder=5)
        axes.text(*(place + torch.tensor(shift)), name, va="top", ha="right" if name == "r" else "left")
    axes.text(*(displacement / 2 + torch.tensor([0.3, -0.22])), "w − r", color=DISPLACEMENT, va="top", ha="center")


def _name(axes: Any, end: Any, words: str, colour: str, side: int) -> None:
    """Words over the end of an arrow, shifted to its right (1) or left (-1)."""
    axes.text(float(end[0]) - 0.1 * side, float(end[1]) + 0.1, words, color=colour, ha="left" if side > 0 else "right")


def _arrow(axes: Any, start: Any, along: Any, colour: str, dashed: bool = False) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "lw": 2.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 15}
    if dashed:
        style["linestyle"] = (0, (4, 2))
    axes.annotate("", tuple((start + along).tolist()), tuple(start.tolist()), arrowprops=style, zorder=4)


def _beside(start: Any, along: Any, gap: float) -> Any:
    return start + along + torch.tensor([0.0, gap])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
