"""The paths of ``congruency illustrate`` against a loop written by hand, and what the command makes of them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from one_command import call

from congruency.cli.illustrate import illustrate as command
from congruency.studies.analysis import illustrate
from congruency.studies.analysis.descent import OPTIMIZERS, SURFACES, Descent, Surface, descend, find
from congruency.studies.analysis.descent import illustrate as paths_of


def slope(name, w):
    x, y = w
    if name == "ravine":
        return np.array([x / 10, 2 * y])
    e, f = math.exp(-((x * y) ** 2)), math.exp(-((x + y) ** 2))
    s, c = math.sin(x * x), math.cos(3 * y * y)
    dx = -(2 * x * math.cos(x * x) * c * e) + s * c * e * 2 * x * y * y + 2 * (x + y) * f
    dy = s * 6 * y * math.sin(3 * y * y) * e + s * c * e * 2 * x * x * y + 2 * (x + y) * f
    return np.array([dx, dy])


def by_hand(name, start, rate, window, steps, mode, margin=0.5):
    """Gradient descent with one reference, the quadratic program of one row solved on paper."""
    w, reference, corrected = np.array(start), None, 0
    path = [w]
    for t in range(steps):
        g = slope(name, w)
        if t % window == 0:
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
    ("name", "rate", "window"),
    [("paper", 0.1, 2), ("paper", 0.2, 2), ("paper", 0.2, 5), ("ravine", 0.95, 4), ("ravine", 0.9, 3)],
)
def test_gradient_descent_follows_the_loop_by_hand(mode, name, rate, window):
    surface = SURFACES[name]
    path = descend(surface, Descent("GD", "SGD", (rate,), window, 40), mode, rate)
    expected, corrected = by_hand(name, surface.start, rate, window, 40, mode)
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
        surface = SURFACES["paper"]
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
    return paths_of(SURFACES["paper"], list(OPTIMIZERS.values()))


def test_the_paper_figure_ends_at_the_two_minima(figure):
    places = [place.tolist() for place in figure[0].minima]
    assert len(places) == 2
    assert places[0] == pytest.approx([0.96796, -0.32175], abs=1e-4)
    assert places[1] == pytest.approx([-0.96796, 0.32175], abs=1e-4)
    for result in figure:
        for path in result.paths:
            assert path.points[-1].tolist() == pytest.approx(places[path.minimum], abs=0.02)


def test_which_mode_agrees_follows_from_the_end_points(figure):
    """Computed here from the signs of the end points alone."""
    for result in figure:
        for mode in ("baseline", "concentrate", "anchor"):
            ends = {float(path.points[-1, 0]) > 0 for path in result.paths if path.mode == mode}
            assert result.agree(mode) is (len(ends) == 1)


def test_the_findings_name_the_mode_that_agrees(figure):
    first = illustrate.findings(figure)[0]
    assert "different minima with GD and RMSprop" in first
    assert "anchor does with GD and RMSprop; concentrate does not with any of them" in first
    assert any("point for point" in text for text in illustrate.findings(figure))


def test_findings_turn_with_the_numbers():
    """A surface with one minimum leaves nothing to bring together; one without a minimum has none."""
    bowl = Surface("bowl", "", (1.0, 1.0), lambda x, y: x**2 + y**2)
    assert "nothing is left for a correction" in illustrate.findings(paths_of(bowl, [OPTIMIZERS["gd"]]))[0]
    hill = Surface("hill", "", (1.0, 1.0), lambda x, y: -(x**2) - y**2)
    results = paths_of(hill, [OPTIMIZERS["gd"]])
    assert results[0].agree("anchor") is None
    assert {row[3] for row in illustrate.table(results).rows if row[0].endswith(" anchor")} >= {"-"}


def test_a_saddle_is_no_minimum():
    surface = Surface("saddle", "", (1.0, 0.0), lambda x, y: x**2 - y**2)
    (result,) = paths_of(surface, [Descent("GD", "SGD", (0.1,), 2, 200)])
    assert [path.minimum for path in result.paths] == [None, None, None]


def test_any_optimizer_of_torch_but_those_that_cannot():
    assert find("nadam").kind == "NAdam"
    path = descend(SURFACES["ravine"], find("adagrad"), "concentrate", 0.1)
    assert len(path.points) == 201
    for name in ("LBFGS", "SparseAdam", "Optimizer", "os"):
        with pytest.raises(ValueError, match="no optimizer is called"):
            find(name)


def test_the_command_writes_everything(tmp_path):
    out = tmp_path / "made"
    result, _ = call(command, "--steps", 30, "--optimizer", "gd", "--optimizer", "adam", "--out", out)
    assert result.exit_code == 0, result.output
    assert "GD 0.1 anchor" in result.output
    assert {path.name for path in out.iterdir()} == {
        "index.html", "results.json", "paths-gd.png", "paths-gd-dark.png", "paths-adam.png", "paths-adam-dark.png",
    }  # fmt: skip
    page = (out / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 4, "each for light and dark pages"
    assert "http://" not in page.replace("http://www.w3.org", "")
    numbers = json.loads((out / "results.json").read_text())
    assert [path["corrected"] for path in numbers["optimizers"]["GD"]["paths"]][:4] == [0, 0, 0, 0]


def test_the_command_takes_a_function_and_settings(tmp_path):
    words = ["--function", "waves", "--optimizer", "adamw", "--lr", 0.1, "--window", 5, "--steps", 10]
    result, _ = call(command, *words, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "index.html").read_text()
    assert "cos(2*x)*cos(2*y), from (1.9, 1.2)" in page
    assert "a window: 5 steps" in page.replace("DCL&#x27;s", "a")


def test_the_formulas_shown_are_the_functions():
    x, y = torch.tensor(0.3, dtype=torch.float64), torch.tensor(-0.7, dtype=torch.float64)
    known = {"x": 0.3, "y": -0.7, "sin": math.sin, "cos": math.cos, "exp": math.exp}
    for surface in SURFACES.values():
        assert float(surface.function(x, y)) == pytest.approx(eval(surface.formula, known))


def test_paths_that_diverge_are_drawn(tmp_path):
    results = paths_of(SURFACES["himmelblau"], [replace(OPTIMIZERS["gd"], rates=(0.1, 20.0))])
    assert results[0].paths[1].minimum is None
    illustrate.write(results, tmp_path, "")
    assert (tmp_path / "paths-gd.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--function", "x**2"], "'x**2' is not one of 'paper', 'rosenbrock'"),
        (["--optimizer", "lbfgs"], "no optimizer"),
        (["--lr", "-1"], "--lr"),
        (["--window", "1"], "--window"),
    ],
)
def test_bad_input_is_reported_in_a_line(tmp_path, words, message):
    result, text = call(command, *words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in text
    assert not (tmp_path / "out").exists()
