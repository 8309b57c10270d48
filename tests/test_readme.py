"""The README: its code runs, and what it names exists."""

import re
from pathlib import Path

import pytest
import torch

import congruency

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_code_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "tensor(" in capsys.readouterr().out


def test_names_exist():
    names = set(re.findall(r"congruency\.([A-Za-z_]+)\(", README))
    assert len(names) > 6
    for name in names:
        assert name in congruency.__all__, name


def rows_for_dcl():
    return re.findall(r"`(congruency\.DCL\(.*?\))` \|", README)


@pytest.mark.parametrize("call", rows_for_dcl())
def test_every_way_to_make_a_dcl_works(call):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dcl = eval(call, {"congruency": congruency, "optimizer": optimizer, "model": model})
    if dcl.sources[0].capturable:
        return  # needs a GPU to step
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
    assert dcl.stats.steps == 4


def test_commands_are_the_makefiles():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^    make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
