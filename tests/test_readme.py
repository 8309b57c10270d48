"""The README: its code runs, and what it names exists."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from learning import SEEDS, assert_learns, run_block
from typer.testing import CliRunner

import congruency
from congruency import cli
from congruency.training import read_record

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


def test_the_quick_training_command_learns(tmp_path, monkeypatch):
    """As the README writes it; its record must show a falling loss."""
    (line,) = re.findall(r"^    congruency (train .*)$", README, re.MULTILINE)
    words = shlex.split(line, comments=True)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.build(), [*words, "--no-progress"])
    assert result.exit_code == 0, result.output
    assert_learns([step["loss"] for step in read_record(words[words.index("--out") + 1]).steps], line)
