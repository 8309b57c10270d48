"""The continual-learning tables through the command line, on the embedded digits."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from congruency.cli import build
from congruency.experiments.continual import reproduce, showing, tables
from congruency.experiments.continual.reproduce import Settings

SMALL = ["--base", "digits", "--tasks", "3", "--samples", "60", "--memory", "20"]


def invoke(*words: str):
    return CliRunner().invoke(build(), ["reproduce", *words])


def small(**changes) -> Settings:
    return Settings(**{"table": "mnist_r", "base": "digits", "tasks": 3, "samples": 60, "memory": 20, **changes})


@pytest.mark.parametrize("table", ["mnist_r", "mnist_p"])
def test_the_command_writes_one_value_a_seed_for_every_row(table, tmp_path):
    result = invoke(table, *SMALL, "--seeds", "3", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    rows = [row for row in tables.TABLES[table].rows if not row.on_request]
    assert list(found) == [row.name for row in rows]
    for row, metrics in zip(rows, found.values(), strict=True):
        own = {"memory_agreement"} if row.method.has_memory else set()
        assert set(metrics) == {"accuracy", "backward_transfer", "forward_transfer", "validation_loss"} | own
        assert all(len(values) == 3 and all(map(math.isfinite, values)) for values in metrics.values())
        assert all(0 <= value <= 1 for value in metrics["accuracy"])
    page = (tmp_path / "index.html").read_text()
    assert "http" not in re.sub(r"http://www.w3.org/2000/svg", "", page)
    for row in rows:
        assert row.name in page
    assert "83.35" in page or "82.44" in page  # the paper's GEM
    assert (tmp_path / "table.md").read_text().count("\n| ") == 2 + len(rows)  # the heading and its rule
    assert (tmp_path / "figure-01.svg").read_text().startswith("<svg xmlns=")
    assert not list((tmp_path / "state").glob("*"))


def test_finished_runs_are_never_run_again(tmp_path, monkeypatch):
    first = reproduce.run_rows(small(rows=["GEM", "single", "independent"], seeds=[0, 1]), tmp_path)

    def refuse(*args, **kwargs):
        raise AssertionError("ran again")

    monkeypatch.setattr(reproduce, "run_together", refuse)
    monkeypatch.setattr(reproduce, "run", refuse)
    again = reproduce.run_rows(small(rows=["GEM", "single", "independent"], seeds=[0, 1]), tmp_path)
    for name, outcome in first.items():
        assert torch.equal(outcome.matrix, again[name].matrix)
        assert torch.equal(outcome.losses, again[name].losses)
        assert torch.isfinite(outcome.losses).all()
    for other in ({"seeds": [0, 1, 2]}, {"memory": 21}, {"rows": ["EWC"]}, {"policy": "ring"}, {"samples": 61}):
        settings = small(**{"rows": ["GEM", "single", "independent"], "seeds": [0, 1], **other})
        with pytest.raises(AssertionError, match="ran again"):
            reproduce.run_rows(settings, tmp_path)


def test_a_seed_is_the_same_in_any_company(tmp_path):
    together = reproduce.run_rows(small(rows=["GEM", "EWC"], seeds=[0, 1, 2]), tmp_path / "a")
    alone = reproduce.run_rows(small(rows=["GEM"], seeds=[2]), tmp_path / "b")
    assert (together["GEM"].matrix[2] - alone["GEM"].matrix[0]).abs().max() < 0.02  # rounding may turn a guess


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    settings = small(rows=["GEM", "EWC", "single"], seeds=[0, 1])
    whole = reproduce.run_rows(settings, tmp_path / "whole")

    class Stop(Exception):
        pass

    calls = []

    def stop(label, done, total):
        calls.append((done, total))
        if len(calls) == 4:
            raise Stop

    with pytest.raises(Stop):
        reproduce.run_rows(settings, tmp_path / "parts", stop)
    assert list((tmp_path / "parts" / "state").glob("*.pt"))
    rest = []
    parts = reproduce.run_rows(settings, tmp_path / "parts", lambda label, done, total: rest.append(done))
    for name in whole:
        assert torch.equal(whole[name].matrix, parts[name].matrix)
        assert torch.equal(whole[name].losses, parts[name].losses)
    assert calls[0][0] == 2  # of 3 groups with 3 tasks each: work is counted in tasks of single runs
    assert rest[-1] == calls[-1][1] == 2 * 3 * 3


def test_rows_are_picked_by_name_or_by_the_beginning_of_it():
    table = tables.TABLES["mnist_r"]
    assert [row.name for row in tables.pick(table, ["GEM"])] == ["GEM"]
    four = [row.name for row in tables.pick(table, ["MLP DCL-30-1 MEM"])]
    assert len(four) == 4
    assert {("concentrate" in n, "0.5" in n) for n in four} == {(a, b) for a in (0, 1) for b in (0, 1)}
    with pytest.raises(ValueError, match="there is no row 'MLP'; the rows are: single"):
        tables.pick(table, ["MLP"])
    assert "independent" not in [row.name for row in tables.pick(table, [])]


def test_every_row_of_the_paper_is_there():
    names = {
        "mnist_r": ["EWC", "GEM", "MLP DCL-30-1 MEM", "MLP DCL-40-1 MEM", "MLP DCL-50-1 MEM"],
        "mnist_p": ["EWC", "GEM", "MLP DCL-3-1 MEM", "MLP DCL-4-1 MEM", "MLP DCL-5-1 MEM"],
        "icifar100": ["EWC", "iCARL", "ResNet GEM"] + [f"ResNet DCL-{w}-1 MEM" for w in (4, 8, 12, 20, 24, 32, 50)],
    }
    for table, rows in names.items():
        for name in rows:
            found = tables.pick(tables.TABLES[table], [name])
            assert sum(row.paper is not None for row in found) == 1, (table, name)
    known = {row.name for table in tables.TABLES.values() for row in table.rows}
    assert all(row.against in known for table in tables.TABLES.values() for row in table.rows)


def test_the_table_says_what_the_numbers_say():
    """Differences and their tests, recomputed from the values of the file."""
    from scipy import stats

    generator = torch.Generator().manual_seed(0)

    def outcome(level):
        matrix = level + 0.05 * torch.rand(6, 1, 4, 4, generator=generator, dtype=torch.float64)
        return reproduce.Outcome(matrix, torch.full((6, 4), 0.1), level * torch.ones(6, 1, 4), 1 - matrix)

    rows = tables.pick(tables.TABLES["mnist_r"], ["GEM", "MLP DCL-30-1 MEM, anchor, margin 0.5"])
    results = {"GEM": outcome(0.7), rows[1].name: outcome(0.75)}
    table = showing.summary_table(rows, results)
    ours, gems = ([100 * v for v in results[row.name].scores().accuracy[:, 0].tolist()] for row in (rows[1], rows[0]))
    p = stats.ttest_rel(ours, gems).pvalue
    line = table.rows[1]
    assert line[1].startswith(f"{sum(ours) / 6:.2f} ±")
    assert line[2].startswith(f"{sum(ours) / 6 - sum(gems) / 6:+.2f} ±")
    assert f"p {p:.3f}" in line[2] or (p < 0.001 and "p < 0.001" in line[2])
    assert table.rows[0][2] == "-"
    assert line[-1] == "84.08 / 0.0094 / 0.6423"
    (said,) = showing.findings(rows, results)
    assert "accuracy rises by" in said


def test_incremental_classes_with_a_network_of_timm(tmp_path):
    result = invoke(
        "icifar100", "--base", "digits", "--tasks", "2", "--samples", "40", "--memory", "10", "--seeds", "1",
        "--rows", "ResNet GEM", "--rows", "iCARL", "--network", "mlp", "--out", str(tmp_path),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert set(json.loads((tmp_path / "results.json").read_text())) == {"iCARL", "ResNet GEM"}
    settings = small(table="icifar100", tasks=2, network="resnet18", samples=20)
    stream = reproduce._Streams(settings)(0)
    assert sum(p.numel() for p in reproduce.network(settings, stream, 1.0, 0).parameters()) > 1e7


def test_seeds_whose_classes_differ_in_size_run_apart(tmp_path):
    """Digits have not equally many images of each; seeds deal the classes out in other orders."""
    settings = small(
        table="icifar100", tasks=5, samples=40, memory=10, network="mlp", rows=["ResNet GEM"], seeds=range(3)
    )
    streams = reproduce._Streams(settings)
    shapes = [streams.shape(seed) for seed in range(3)]
    assert len(set(shapes)) > 1
    together = reproduce.run_rows(settings, tmp_path / "together")["ResNet GEM"]
    assert together.matrix.shape[:2] == (3, 1)
    alone = reproduce.run_rows(replace(settings, seeds=[2]), tmp_path / "alone")["ResNet GEM"]
    torch.testing.assert_close(together.matrix[2], alone.matrix[0], rtol=0, atol=0.1)


def test_tuning_searches_held_out_seeds(tmp_path):
    result = invoke("mnist_r", *SMALL, "--tune", "ewc", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "tuning-ewc.json").read_text())
    assert found["seeds"] == [1000, 1001, 1002]
    accuracies = [entry["accuracy"] for entry in found["grid"]]
    assert accuracies == sorted(accuracies, reverse=True)


@pytest.mark.parametrize("kind", ["ewc", "icarl"])
def test_a_large_network_is_tuned_on_one_held_out_seed(kind, tmp_path):
    result = invoke(
        "icifar100", "--base", "digits", "--tasks", "2", "--samples", "10", "--memory", "5", "--tune", kind,
        "--out", str(tmp_path),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / f"tuning-{kind}.json").read_text())
    assert found["seeds"] == [1000]
    cells = {(entry["lr"], entry["strength"]) for entry in found["grid"]}
    rates, strengths = (sorted({cell[i] for cell in cells}) for i in (0, 1))
    assert cells == {(rate, strength) for rate in rates for strength in strengths}
    assert len(found["grid"]) == len(cells)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mnist_q"], "there is no table 'mnist_q'"),
        (["mnist_r", "--rows", "nothing"], "there is no row 'nothing'"),
        (["mnist_r", "--memory", "61"], "a memory of 61 samples per task is larger than a task of 60 samples"),
        (["mnist_r", "--policy", "last"], "policy must be one of"),
        (["mnist_r", "--base", "nowhere/at/all"], "nowhere/at/all"),
        (["mnist_r", "--tune", "gem"], "nothing to tune"),
        (["icifar100", "--network", "nonet", "--tasks", "2"], "there is no network 'nonet'"),
        (["mnist_r", "--labels", "tidy"], "labels must be one of clean, noisy, given, got 'tidy'"),
        (["mnist_r", "--labels", "noisy"], "labels 'noisy' are for CIFAR-100"),
        (["icifar100", "--labels", "clean"], "labels 'clean' are for CIFAR-100"),
        (["icifar100", "--tasks", "3"], "10 classes cannot be split evenly into 3 tasks"),
    ],
)
def test_bad_input_is_named(words, message, tmp_path):
    result = invoke(*words[:1], *SMALL, *words[1:], "--out", str(tmp_path))
    assert result.exit_code == 2
    assert message in " ".join(re.sub("[│╭╰─╮╯]", " ", result.output).split())


def test_a_damaged_run_is_named(tmp_path):
    settings = small(rows=["single"], seeds=[0])
    reproduce.run_rows(settings, tmp_path)
    (path,) = (tmp_path / "runs").glob("*.json")
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"is not a finished run .* remove it"):
        reproduce.run_rows(settings, tmp_path)
