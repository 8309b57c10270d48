"""What the README's tables name works as written after ``import congruency`` alone."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import congruency

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
CELLS = [code for line in README.splitlines() if line.startswith("|") for code in re.findall(r"`([^`]+)`", line)]
NAMES = sorted({name for code in CELLS for name in re.findall(r"\bcongruency(?:\.[A-Za-z_]\w*)+", code)})
CALLS = [code for code in CELLS if re.match(r"congruency\.\w+\(.*\)$", code)]
LIBRARIES = ("avalanche", "lightning", "torchmetrics", "transformers")


def test_the_tables_name_something():
    assert len(NAMES) > 8
    assert len(CALLS) > 8
    assert {name.split(".")[2] for name in NAMES if name.startswith("congruency.integrations.")} == set(LIBRARIES)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there_after_importing_congruency_alone(name):
    if name.startswith("congruency.integrations."):
        library = name.split(".")[2]  # our modules are named after the libraries
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
        done = subprocess.run(
            [sys.executable, "-c", f"import congruency; {name}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    else:
        assert eval(name, {"congruency": congruency})


class Anything(congruency.Directions):
    """A constraint source of one's own."""


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_accepted(call):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    scope = {
        "congruency": congruency,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": torch.nn.functional.cross_entropy,
        "inputs": torch.randn(5, 3),
        "targets": torch.tensor([0, 1, 0, 1, 1]),
        "my_source": Anything(),
        "gradient": torch.randn(4),
        "constraints": torch.randn(2, 4),
    }
    assert eval(call, scope) is not None


def test_unknown_names_are_attribute_errors():
    for where, name in ((congruency, "Integrations"), (congruency.integrations, "keras")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(where, name)


def test_every_name_comes_on_first_use():
    """What type checkers and readers see is what there is at run time, each name from the module that defines it."""
    assert set(congruency.__all__) <= set(dir(congruency))
    shown = set()
    for node in ast.parse(Path(congruency.__file__).with_suffix(".pyi").read_text("utf-8")).body:
        assert all(alias.name == alias.asname for alias in node.names)
        shown |= {(node.module.removeprefix("congruency").lstrip("."), alias.name) for alias in node.names}
    held = {(home, name) for home, names in congruency._HOMES.items() for name in names}
    assert shown == held | {("", "integrations"), ("_version", "__version__")}


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import congruency", {"torch", "numpy", "typer"}),
        ("import congruency.cli; congruency.cli.build()", {"torch", "numpy", "scipy", "timm", "lightning"}),
        ("import torch; before = set(sys.modules); from congruency import *", {"sympy", "torch.distributed.tensor"}),
    ],
    ids=["package", "help", "core"],
)
def test_nothing_heavy_is_imported(code, absent):
    """Help must come at once, and the core add next to nothing to ``import torch``."""
    check = f"import sys; before = set(); {code}; print(*sorted({absent!r} & (set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
