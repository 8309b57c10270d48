"""No framework is imported before its integration is; without one, the message says what to install."""

import importlib
import json
import subprocess
import sys

import pytest

FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers", "accelerate", "avalanche", "torchmetrics")


def test_nothing_is_imported_early():
    code = (
        "import json, sys, congruency; congruency.integrations; congruency.DCL; print(json.dumps(sorted(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(json.loads(found.stdout))
    assert "congruency.integrations" in imported
    assert not [name for name in imported if name.startswith("congruency.integrations.")]
    rooms = {name.split(".")[1] for name in imported if name.startswith("congruency.")}
    assert rooms <= {
        "_validate", "_version", "backends", "cautious", "cone", "constraints", "corrector", "dcl", "distributed",
        "gem", "integrations", "measure", "modules", "step",
    }  # fmt: skip
    assert not imported & {*FRAMEWORKS, "torchvision", "timm", "wandb", "tensorboard"}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("lightning", "needs Lightning, which is not installed; install it with: pip install lightning"),
        ("transformers", r"install it with: pip install 'transformers\[torch\]'"),
        ("torchmetrics", "install it with: pip install torchmetrics"),
        ("avalanche", "install it with: pip install avalanche-lib"),
    ],
)
def test_without_the_framework(module, message, monkeypatch):
    monkeypatch.delitem(sys.modules, f"congruency.integrations.{module}", raising=False)
    monkeypatch.delitem(sys.modules, "lightning.pytorch", raising=False)
    for name in FRAMEWORKS:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ImportError, match=message):
        importlib.import_module(f"congruency.integrations.{module}")
