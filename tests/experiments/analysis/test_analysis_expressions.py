import math

import pytest
import torch

from congruency.experiments.analysis import surfaces
from congruency.experiments.analysis.expressions import parse

X, Y = torch.tensor([0.3, -1.2], dtype=torch.float64), torch.tensor([0.7, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", lambda x, y: x),
        ("2", lambda x, y: 2.0),
        ("-x + 3*y/4 - +1", lambda x, y: -x + 3 * y / 4 - 1),
        ("x**2**y", lambda x, y: x ** (2**y)),
        ("sin(x)*cos(y) + exp(-x)", lambda x, y: math.sin(x) * math.cos(y) + math.exp(-x)),
        ("sqrt(y) + pow(y, 3)", lambda x, y: math.sqrt(y) + y**3),
        ("log(y) + abs(x) - tanh(x*y)", lambda x, y: math.log(y) + abs(x) - math.tanh(x * y)),
        ("pi*e", lambda x, y: math.pi * math.e),
    ],
)
def test_a_formula_is_what_python_would_make_of_it(text, expected):
    found = parse(text)(X, Y).tolist()
    for value, x, y in zip(found, X.tolist(), Y.tolist(), strict=True):
        assert value == pytest.approx(expected(x, y))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "x.__class__",
        "(lambda: x)()",
        "[x for x in y]",
        "open(x)",
        "x if y else 1",
        "x < y",
        "True",
        "'x'",
        "1j",
        "z",
        "sin(x, y)",
        "sin(x=1)",
        "pow(x)",
        "sin",
        "x; y",
        "x := 1",
        "",
        "(" * 300 + "x",
        "-" * 499 + "x +",
        "x" * 501,
        "-" * 400 + "x",
        "x" + "+x" * 200,
        "x ^ 2",
        "x // 2",
        "1e999",
        "9" * 400,
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="formula"):
        parse(text)


def test_a_power_is_written_with_two_stars():
    with pytest.raises(ValueError, match=r"write \*\* for a power"):
        parse("x^2")


def test_towers_of_powers_are_no_trap():
    assert parse("9**9**9**9**9")(X, Y).isinf().all()


def test_the_papers_function():
    x, y = 0.4, -0.9
    expected = -math.sin(x**2) * math.cos(3 * y**2) * math.exp(-((x * y) ** 2)) - math.exp(-((x + y) ** 2))
    surface = surfaces.find("paper")
    assert float(surface(torch.tensor([x, y], dtype=torch.float64))) == pytest.approx(expected, abs=1e-15)
    assert surface.start == (0.75, 1.0)


@pytest.mark.parametrize("name", surfaces.SURFACES)
def test_every_surface_has_the_slope_that_differences_give(name):
    surface = surfaces.find(name)
    point, small = torch.tensor(surface.start, dtype=torch.float64), 1e-6
    steps = small * torch.eye(2, dtype=torch.float64)
    differences = torch.stack([(surface(point + s) - surface(point - s)) / (2 * small) for s in steps])
    torch.testing.assert_close(surface.gradient(point), differences, atol=1e-7, rtol=1e-6)


def test_a_start_may_be_given_and_must_be_for_a_formula():
    assert surfaces.find("ravine", (1.0, 2.0)).start == (1.0, 2.0)
    with pytest.raises(ValueError, match="--start"):
        surfaces.find("x*x + y*y")
    with pytest.raises(ValueError, match="another start"):
        surfaces.find("sqrt(x) + y", (-1.0, 0.0))
    with pytest.raises(ValueError, match="did you mean 'ravine'"):
        surfaces.find("ravin")
    flat = surfaces.find("3", (1.0, 1.0))
    assert flat.gradient(torch.ones(2, dtype=torch.float64)).tolist() == [0.0, 0.0]
