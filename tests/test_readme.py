"""The README: its code runs, and what it names exists."""

import re
from pathlib import Path

import pytest
import torch
from learning import SEEDS, assert_learns, run_block

import congruency

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", SEEDS)
def test_code_blocks_run_and_learn(seed, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    torch.manual_seed(seed)
    assert all(run_block(block, "README.md", {}) for block in blocks)
    printed = capsys.readouterr().out
    assert printed.count("loss: ") == len(blocks)
    assert int(re.search(r"(\d+) of \d+ gradients corrected", printed)[1]) > 0


def test_names_exist():
    names = set(re.findall(r"congruency\.([A-Za-z_]+)\(", README))
    assert len(names) > 6
    for name in names:
        assert name in congruency.__all__, name


def rows_for_dcl():
    return re.findall(r"`(congruency\.DCL\(.*?\))` \|", README)


@pytest.mark.parametrize("call", rows_for_dcl())
@pytest.mark.parametrize("seed", SEEDS)
def test_every_way_to_make_a_dcl_learns(call, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dcl = eval(call, {"congruency": congruency, "optimizer": optimizer, "model": model})
    if dcl.sources[0].capturable:
        return  # needs a GPU to step
    losses = []
    for _ in range(120):
        inputs = torch.randn(16, 3)
        loss = (model(inputs) - inputs[:, :2]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert dcl.stats.steps == 120
    assert_learns(losses, call)


def test_commands_are_the_makefiles():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^    make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
