"""What the README's tables name works as written after ``import congruency`` alone."""

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
