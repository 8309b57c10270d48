"""The README: its code runs, and what it names exists."""

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
from learning import SEEDS, assert_learns, run_block
from scipy import stats
from typer.testing import CliRunner

import congruency
from congruency import cli
from congruency.training import read_record
from congruency.training.methods import FAMILIES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", SEEDS)
def test_code_blocks_run_and_learn(seed, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    torch.manual_seed(seed)
    assert all(run_block(block, "README.md", {}) for block in blocks)
    printed = capsys.readouterr().out
    assert printed.count("loss: ") == len(blocks)
    assert 0 < int(re.search(r"(\d+)% of the last update kept", printed)[1]) <= 100


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


def section(title):
    return re.search(rf"^## {title}\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)[1]


def readme_table():
    return runpy.run_path(str(ROOT / "docs" / "making" / "readme_table.py"))


def test_the_table_is_that_of_the_results():
    """`make readme-table` writes it."""
    made = readme_table()
    assert made["filled"](README) == README
    emptied = re.sub(r"^(<!-- what helps -->)\n.*?^(<!-- end -->)$", r"\1\n\2", README, flags=re.M | re.S)
    assert len(emptied) < len(README) - 1000
    assert made["filled"](emptied) == README
    numbers, page = 0, ""
    for line in made["table"]().splitlines():
        for result in re.findall(r"\(docs/results/(\w+)/table\.md\)", line):
            page = (ROOT / "docs" / "results" / result / "table.md").read_text("utf-8")
        for number in re.findall(r"[-+]\d+\.\d+ ± \d+\.\d+", line):
            assert f"| {number} (p " in page, line
            numbers += 1
    assert numbers > 10


def test_the_table_has_the_families_that_were_measured(tmp_path):
    """Against scipy's paired t-test and Holm's correction by hand; what has no results or was not tuned is absent."""
    folder, screened, begun = tmp_path / "tiny_lite0", tmp_path / "screened", tmp_path / "tiny_lite0_begun"
    for tuned in (folder, begun):
        (tuned / "tuning").mkdir(parents=True)
    screened.mkdir()
    (screened / "settings.json").write_text(json.dumps({"study": "language"}))
    settings = {"study": "tuned", "table": "tiny_lite0", "changes": {"epochs": 3}}
    plain, ours, other = [30.0, 31.0, 30.5, 32.0], [29.0, 30.2, 29.3, 31.0], [30.1, 30.8, 30.9, 32.2]
    rows = {"baseline": plain, "cautious": ours, "l2sp-0.01": other}
    for tuned in (folder, begun):
        (tuned / "settings.json").write_text(json.dumps(settings))
    results = {name: {"seed": [0, 1, 2, 3], "test error": values} for name, values in rows.items()}
    (folder / "results.json").write_text(json.dumps(results))
    table = readme_table()["table"]
    lines = table(tmp_path).splitlines()
    assert [line for line in lines if line.startswith("| **")] == ["| **Fine-tuning** | | | | |"]
    clear, unclear = (stats.ttest_rel(values, plain) for values in (ours, other))
    assert clear.pvalue < unclear.pvalue
    low, high = clear.confidence_interval(0.95)
    mean = sum(ours) / 4 - sum(plain) / 4
    assert lines[-2].endswith(f"| Cautious | **{mean:+.2f} ± {(high - low) / 2:.2f}** | 4 | {2 * clear.pvalue:.3f} |")
    assert "Tiny ImageNet, EfficientNet-Lite0 fine-tuned, AdamW, 3 epochs, error in %" in lines[-2]
    assert "(30.88)" in lines[-2]
    assert f"| 4 | {unclear.pvalue:.2f} |" in lines[-1]
    (folder / "settings.json").write_text(json.dumps({**settings, "screen": True}))
    named = [name for name in FAMILIES if name != "cautious"]
    (folder / "results.json").write_text(json.dumps(dict.fromkeys(("baseline", *named), results["baseline"])))
    names = [line.split(" | ")[1] for line in table(tmp_path).splitlines()[3:]]
    assert len(set(names)) == len(named)
    assert names[-1] == "L2-SP, the best of 3"
    assert "**" not in lines[-1]


def test_worst_of_anchor_stands_in_the_results():
    table = (ROOT / "docs" / "results" / "cifar10_grid" / "table.md").read_text("utf-8")
    rises = [float(rise) for rise in re.findall(r"^\| DCL.* anchor, margin 0\.5, .*?\| \+(\S+) ±", table, re.MULTILINE)]
    assert f"by {min(rises):.2f} to {max(rises):.2f} points" in section("When it helps, and when it does not")


def test_costs_are_what_was_measured():
    measured = {
        device: json.loads((ROOT / "benchmarks" / "results" / f"bench-{device}.json").read_text("utf-8"))
        for device in ("cpu", "cuda")
    }

    def correction(device, workload):
        rows = measured[device]["corrections"]
        return next(row for row in rows if row["workload"] == workload and row["references"] == 1)

    def step(network, scope):
        rows = measured["cuda"]["training_steps"]
        return next(r for r in rows if r["network"].startswith(network) and (r["scope"], r["references"]) == (scope, 1))

    def more(row):
        return row["step_with_dcl"] / row["step"] - 1

    costs = section("What it costs")
    whole, head, small = step("ResNet-50", "all"), step("ResNet-50", "head"), step("MLP 784", "all")
    cpu = correction("cpu", "ResNet-50")
    for shown in (
        f"{correction('cuda', 'ResNet-50')['corrected'] * 1e6:.0f} us | {more(whole):+.1%} of".replace("%", " %"),
        f"{correction('cuda', 'head 2048x1000')['corrected'] * 1e6:.0f} us | {more(head):+.1%} |".replace("%", " %"),
        f"{cpu['corrected'] * 1e3:.0f} ms | {cpu['corrected'] / cpu['sgd_step']:.2f} of",
        f"{(small['step_with_dcl'] - small['step']) * 1e3:.1f} ms | {more(small):+.0%} of".replace("%", " %"),
    ):
        assert shown in costs, shown


def test_commands_are_the_makefiles():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
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
