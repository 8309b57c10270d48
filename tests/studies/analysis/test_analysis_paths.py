"""The paths of ``congruency illustrate`` against a loop written by hand, and what the command makes of them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from one_command import call
from PIL import Image

from congruency.cli.illustrate import illustrate as command
from congruency.studies.analysis import illustrate
from congruency.studies.analysis.descent import (
    OPTIMIZERS,
    SURFACES,
    Correction,
    Descent,
    Surface,
    descend,
    descend_all,
    find,
    settle,
    surface_named,
)  # fmt: skip


def slope(name, w):
    x, y = w
    if name == "ravine":
        return np.array([x / 10, 2 * y])
    e, f = math.exp(-((x * y) ** 2)), math.exp(-((x + y) ** 2))
    s, c = math.sin(x * x), math.cos(3 * y * y)
    dx = -(2 * x * math.cos(x * x) * c * e) + s * c * e * 2 * x * y * y + 2 * (x + y) * f
    dy = s * 6 * y * math.sin(3 * y * y) * e + s * c * e * 2 * x * x * y + 2 * (x + y) * f
    return np.array([dx, dy])


def by_hand(name, start, rate, window, steps, mode, margin=0.5, offset=0):
    """Gradient descent with one reference, the quadratic program of one row solved on paper."""
    w, reference, corrected = np.array(start), None, 0
    path = [w]
    for t in range(steps):
        g = slope(name, w)
        if t % window == offset:
            reference = w
        elif mode != "baseline" and reference is not None:
            row = reference - w if mode == "concentrate" else w - reference
            least = margin if mode == "anchor" else 0.0
            product, square = row @ g, row @ row
            if product < 0:
                g = g + max(least, -product / square) * row
                corrected += 1
        w = w - rate * g
        path.append(w)
    return np.array(path), corrected


@pytest.mark.parametrize("mode", ["baseline", "concentrate", "anchor"])
@pytest.mark.parametrize(
    ("name", "rate", "window", "offset"),
    [("paper", 0.1, 2, 0), ("paper", 0.2, 2, 0), ("paper", 0.2, 5, 1), ("ravine", 0.95, 4, 0), ("ravine", 0.9, 3, 2)],
)
def test_gradient_descent_follows_the_loop_by_hand(mode, name, rate, window, offset):
    surface = surface_named(name)
    path = descend(surface, Descent("GD", "SGD", (rate,), window, 40), mode, rate, Correction(offset=offset))
    expected, corrected = by_hand(name, surface.start, rate, window, 40, mode, offset=offset)
    np.testing.assert_allclose(path.points.numpy(), expected, atol=1e-10)
    assert path.corrected == corrected
    if mode == "anchor" or (mode == "concentrate" and name == "ravine"):
        assert corrected > 0
    length = np.linalg.norm(np.diff(expected, axis=0), axis=1).sum()
    assert path.length == pytest.approx(length)
    assert path.detour == pytest.approx(length / np.linalg.norm(expected[-1] - expected[0]))


def test_adam_and_rmsprop_are_torchs_with_the_figures_settings():
    for name, make in (
        ("rmsprop", lambda p: torch.optim.RMSprop(p, lr=0.02, eps=0.1)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.999), eps=0.1)),
    ):
        surface = surface_named("paper")
        w = torch.tensor([0.75, 1.0], dtype=torch.float64, requires_grad=True)
        optimizer = make([w])
        for _ in range(20):
            optimizer.zero_grad()
            surface(w).backward()
            optimizer.step()
        path = descend(surface, OPTIMIZERS[name], "baseline", 0.02)
        torch.testing.assert_close(path.points[20], w.detach())


@pytest.fixture(scope="module")
def figure():
    return illustrate.illustrate(illustrate.Settings())


def test_the_paper_figure_ends_at_the_two_minima(figure):
    places = [place.tolist() for place in figure[0].panel.minima.places]
    assert len(places) == 2
    assert places[0] == pytest.approx([0.96796, -0.32175], abs=1e-4)
    assert places[1] == pytest.approx([-0.96796, 0.32175], abs=1e-4)
    for result in figure:
        for number, path in enumerate(result.paths):
            assert path.points[-1].tolist() == pytest.approx(places[result.panel.minima.of[number]], abs=0.02)


def test_which_mode_agrees_follows_from_the_end_points(figure):
    """Computed here from the signs of the end points alone."""
    for result in figure:
        for verdict in result.agreements:
            ends = {float(path.points[-1, 0]) > 0 for path in result.paths if path.mode == verdict.mode}
            assert verdict.agree is (len(ends) == 1)


def test_the_findings_name_the_mode_that_agrees(figure):
    first = illustrate.findings(figure)[0]
    assert "different minima with GD and RMSprop" in first
    assert "anchor does with GD and RMSprop; concentrate does not with any of them" in first
    assert any("point for point" in text for text in illustrate.findings(figure))


def test_findings_turn_with_the_numbers(figure):
    """A surface with one minimum leaves nothing to bring together; one without a minimum has none."""
    bowl = illustrate.Settings(Surface("bowl", "", (1.0, 1.0), lambda x, y: x**2 + y**2), [OPTIMIZERS["gd"]])
    assert "nothing is left for a correction" in illustrate.findings(illustrate.illustrate(bowl))[0]
    steep = illustrate.Settings(Surface("hill", "", (1.0, 1.0), lambda x, y: -(x**2) - y**2), [OPTIMIZERS["gd"]])
    results = illustrate.illustrate(steep)
    assert {verdict.agree for verdict in results[0].agreements} == {None}
    assert "0.1 at none" in " ".join(illustrate.findings(results))


@pytest.mark.parametrize(
    ("window", "references", "never"), [(1, 1, True), (2, 3, True), (2, 1, False), (None, 3, False)]
)
def test_a_window_that_leaves_no_step_to_correct_is_reported(window, references, never):
    gd = replace(OPTIMIZERS["gd"], window=window)
    settings = illustrate.Settings(descents=[gd], correction=Correction(references=references))
    results = illustrate.illustrate(settings)
    text = " ".join(illustrate.findings(results))
    assert ("could never correct a step" in text) is never
    if never:
        assert all(path.corrected == 0 for path in results[0].paths)
        assert "ever opposed" not in text


def test_a_saddle_is_no_minimum():
    surface = Surface("saddle", "", (1.0, 0.0), lambda x, y: x**2 - y**2)
    paths = descend_all(surface, Descent("GD", "SGD", (0.1,), 2, 200))
    assert settle(surface, paths).of == [None, None, None]


def test_any_optimizer_of_torch_but_those_that_cannot():
    assert find("nadam").kind == "NAdam"
    path = descend(surface_named("ravine"), find("adagrad"), "concentrate", 0.1)
    assert len(path.points) == 201
    for name in ("LBFGS", "SparseAdam", "Optimizer", "os"):
        with pytest.raises(ValueError, match="no optimizer is called"):
            find(name)


def test_the_command_writes_everything(tmp_path):
    out = tmp_path / "made"
    result, _ = call(command, "--steps", 30, "--optimizer", "gd", "--optimizer", "adam", "--out", out)
    assert result.exit_code == 0, result.output
    assert "GD 0.1 anchor" in result.output
    names = {path.name for path in out.iterdir()}
    pictures = {f"paths-{name}.{kind}" for name in ("gd", "adam") for kind in ("png", "svg", "gif")}
    assert names == {"index.html", "results.json", "paths.gif"} | pictures
    with Image.open(out / "paths.gif") as moving:
        assert moving.n_frames > 20
        assert moving.info["loop"] == 0
    page = (out / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert page.count("data:image/gif;base64,") == 2
    assert "http://" not in page.replace("http://www.w3.org", "")
    numbers = json.loads((out / "results.json").read_text())
    assert [path["corrected"] for path in numbers["optimizers"]["GD"]["paths"]][:4] == [0, 0, 0, 0]


def test_the_command_takes_a_function_and_settings(tmp_path):
    words = ["--function", "waves", "--start", -1, 1, "--optimizer", "adamw", "--lr", 0.1]
    words += ["--setting", "betas=(0.5, 0.9)", "--window", 0, "--references", 2, "--steps", 10, "--no-animation"]
    result, _ = call(command, *words, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "paths.gif").exists()
    assert "cos(2*x)*cos(2*y), from (-1.0, 1.0)" in (tmp_path / "index.html").read_text()


def test_the_formulas_shown_are_the_functions():
    x, y = torch.tensor(0.3, dtype=torch.float64), torch.tensor(-0.7, dtype=torch.float64)
    known = {"x": 0.3, "y": -0.7, "sin": math.sin, "cos": math.cos, "exp": math.exp}
    for surface in SURFACES.values():
        assert float(surface.function(x, y)) == pytest.approx(eval(surface.formula, known))


@pytest.mark.parametrize(
    ("function", "start"),
    [
        (lambda x, y: x.sqrt() + y**2, (0.5, 1.0)),
        (lambda x, y: (x**4).exp() - y, (1.0, 1.0)),
        (lambda x, y: 0 * x, (5000.0, 0.0)),
        (lambda x, y: -(x**2) - y**4, (1.0, 1.0)),
        (lambda x, y: 1 / x, (-1.0, 0.0)),
    ],
    ids=["hole", "cliff", "flat", "no bottom", "pole"],
)
def test_surfaces_with_holes_cliffs_and_no_bottom_are_drawn(tmp_path, function, start):
    settings = illustrate.Settings(Surface("odd", "", start, function), [replace(OPTIMIZERS["gd"], rates=(0.2,))])
    illustrate.write(settings, illustrate.illustrate(settings), tmp_path, "", animated=False)
    assert (tmp_path / "paths-gd.png").stat().st_size > 1000


def test_a_start_where_the_function_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite at"):
        surface_named("himmelblau", (math.inf, 0.0))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--function", "x**2"], "'x**2' is not one of 'paper', 'rosenbrock'"),
        (["--optimizer", "lbfgs"], "no optimizer"),
        (["--setting", "eps"], "must look like"),
        (["--setting", "eps=open('x')"], "not a number"),
        (["--setting", "nothing=1"], "cannot be made with these settings"),
        (["--trigger", "sometimes"], "'sometimes' is not one of 'violated', 'always'"),
        (["--lr", "-1"], "positive"),
        (["--lr", "0.1", "--lr", "0.1"], "must differ"),
        (["--window", "2", "--offset", "5"], "offset must be"),
        (["--start", "nan", "0"], "not finite at"),
    ],
)
def test_bad_input_is_reported_in_a_line(tmp_path, words, message):
    result, text = call(command, *words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in text
    assert not (tmp_path / "out").exists()
