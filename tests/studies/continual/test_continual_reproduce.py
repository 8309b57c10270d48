"""The continual-learning tables through the command line, on the embedded digits."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from congruency.cli import build
from congruency.datasets import LabelledImages
from congruency.studies.continual import runner as runner_module
from congruency.studies.continual import tables
from congruency.studies.continual import tuning as tuning_module
from congruency.studies.continual.parts import part_study
from congruency.studies.continual.runner import ContinualRunner, network, outcome_of
from congruency.studies.continual.tables import AGREEMENT, StreamSettings, continual_study
from congruency.studies.continual.tuning import COMPARED, best_settings, tuned_study, tuning_seeds, tuning_study
from congruency.studies.executor import Place, execute
from congruency.studies.results import collect
from congruency.studies.store import Store
from congruency.studies.summary import findings, summary_table

SMALL = ["--dataset", "digits", "--tasks", "3", "--samples", "60", "--memory", "20"]
FIGURES = {"seed", "accuracy", "backward_transfer", "forward_transfer", "memory_agreement", "validation_loss"}
FIGURES |= {"forgetting"}


def invoke(*words: str):
    return CliRunner().invoke(build(), ["reproduce", "continual", *words])


def small(**changes) -> StreamSettings:
    return StreamSettings(
        **{"table": "mnist_r", "dataset": "digits", "tasks": 3, "samples": 60, "memory": 20, **changes}
    )


def carry_out(out: Path, seeds, rows=(), notify=None, **changes):
    """Execute what is pending of a study and return its outcomes by row."""
    settings, store = small(**changes), Store(out)
    study = continual_study(settings, rows)
    pending = store.pending(study.runs(seeds))
    for run, outcome in execute(pending, ContinualRunner(settings, out), Place(), store, notify):
        store.add(run, outcome)
    finished = store.load()
    return {row.name: outcome_of([finished[row.jobs[0].digest(), seed] for seed in seeds]) for row in study.rows}


@pytest.mark.parametrize("table", ["mnist_r", "mnist_p"])
def test_the_command_writes_one_value_per_seed_for_every_row(table, tmp_path):
    result = invoke(table, *SMALL, "--seeds", "3", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    rows = [row for row in tables.TABLES[table].rows if not row.on_request]
    assert list(found) == [row.method.name for row in rows]
    for row, metrics in zip(rows, found.values(), strict=True):
        assert set(metrics) == FIGURES
        for name, values in metrics.items():
            assert len(values) == 3
            undefined = name == "memory_agreement" and not row.method.has_memory
            assert all(value is None if undefined else math.isfinite(value) for value in values)
        assert all(0 <= value <= 1 for value in metrics["accuracy"])
    page = (tmp_path / "index.html").read_text()
    assert "http" not in re.sub(r"http://www.w3.org/2000/svg", "", page)
    for row in rows:
        assert row.method.name in page
    assert "Accuracy, paper" not in page  # its numbers are of MNIST
    assert "an implementation of its own" in page
    lines = [
        line.split("|")[1].strip() for line in (tmp_path / "table.md").read_text().splitlines() if line[:2] == "| "
    ]
    shared = [line.removesuffix(")").replace(" (same as: ", "; ") if "same as" in line else line for line in lines[2:]]
    named = [name for line in shared for name in line.split("; ")]
    assert sorted(named) == sorted(row.method.name for row in rows)
    assert not list((tmp_path / "state").glob("*"))


def test_finished_runs_are_never_repeated(tmp_path, monkeypatch):
    rows = ["GEM", "single", "independent"]
    first = carry_out(tmp_path, [0, 1], rows)

    def refuse(*args, **kwargs):
        raise KeyboardInterrupt("repeated")  # an error would be an outcome

    monkeypatch.setattr(runner_module, "run_together", refuse)
    monkeypatch.setattr(runner_module, "run_alone", refuse)
    again = carry_out(tmp_path, [0, 1], rows)
    for name, outcome in first.items():
        assert torch.equal(outcome.matrix, again[name].matrix)
        assert torch.equal(outcome.losses, again[name].losses)
        assert torch.isfinite(outcome.losses).all()
    for seeds, other, changes in (
        ([0, 1, 2], rows, {}), ([0, 1], ["EWC"], {}), ([0], rows, {"memory": 21}), ([0], rows, {"policy": "ring"}),
        ([0], rows, {"samples": 61}),
    ):  # fmt: skip
        with pytest.raises(KeyboardInterrupt, match="repeated"):
            carry_out(tmp_path, seeds, other, **changes)


def test_a_seed_is_the_same_in_any_batch(tmp_path):
    together = carry_out(tmp_path / "a", [0, 1, 2], ["GEM", "EWC"])
    alone = carry_out(tmp_path / "b", [2], ["GEM"])
    assert (together["GEM"].matrix[2] - alone["GEM"].matrix[0]).abs().max() < 0.02  # rounding may change a prediction


def test_an_interrupted_batch_resumes_where_it_stopped(tmp_path):
    rows = ["GEM", "EWC", "single"]
    whole = carry_out(tmp_path / "whole", [0, 1], rows)
    settings = small()
    study, runner = continual_study(settings, rows), ContinualRunner(settings, tmp_path / "parts")

    class Stop(Exception):
        pass

    shares = []

    def stop(label, share):
        shares.append(share)
        if len(shares) == 4:
            raise Stop

    (batch,) = runner.batches(study.runs([0, 1]))
    assert len(batch) == 6
    with pytest.raises(Stop):
        list(runner.run(batch, stop))
    assert list((tmp_path / "parts" / "state").glob("*.pt"))
    assert shares == sorted(shares)
    parts = carry_out(tmp_path / "parts", [0, 1], rows)
    for name in whole:
        assert torch.equal(whole[name].matrix, parts[name].matrix)
        assert torch.equal(whole[name].losses, parts[name].losses)


def test_processes_give_the_same_results(tmp_path):
    """Two shapes of streams make two batches, one for each process."""
    words = ["icifar100", "--dataset", "digits", "--tasks", "5", "--samples", "40", "--memory", "10", "--model", "mlp",
             "--row", "ResNet GEM", "--row", "single", "--seeds", "3", "--threads", "1"]  # fmt: skip
    for place in ([], ["--processes", "2"]):
        result = invoke(*words, *place, "--out", str(tmp_path / f"{len(place)}"))
        assert result.exit_code == 0, result.output
    assert Store(tmp_path / "0").load() == Store(tmp_path / "2").load()


def test_rows_are_picked_by_name_or_by_the_beginning_of_it():
    def names(*given):
        return [row.name for row in continual_study(small(), given).rows]

    assert names("GEM") == ["GEM"]
    four = continual_study(small(), ["MLP DCL-30-1 MEM"])
    assert {(row.settings["mode"], row.settings["memory_margin"]) for row in four.rows} == {
        (mode, margin) for mode in ("concentrate", "anchor") for margin in (0.0, 0.5)
    }
    with pytest.raises(ValueError, match="has no row 'MLP'"):
        names("MLP")
    assert "independent" not in names()
    assert names("independent") == ["independent"]


def test_every_row_of_the_paper_is_there():
    names = {
        "mnist_r": ["EWC", "GEM", "MLP DCL-30-1 MEM", "MLP DCL-40-1 MEM", "MLP DCL-50-1 MEM"],
        "mnist_p": ["EWC", "GEM", "MLP DCL-3-1 MEM", "MLP DCL-4-1 MEM", "MLP DCL-5-1 MEM"],
        "icifar100": ["EWC", "iCARL", "ResNet GEM"] + [f"ResNet DCL-{w}-1 MEM" for w in (4, 8, 12, 20, 24, 32, 50)],
    }
    for table, rows in names.items():
        study = continual_study(StreamSettings(table=table))
        for name in rows:
            found = continual_study(StreamSettings(table=table), [name]).rows
            assert sum(bool(row.paper) for row in found) == 1, (table, name)
        known = {row.name for row in study.rows}
        assert all(row.against in known for row in study.rows if row.against is not None)


def test_the_table_says_what_the_numbers_say():
    """Differences and their tests, recomputed from the values."""
    from scipy import stats

    study = continual_study(StreamSettings(table="mnist_r"), ["GEM", "MLP DCL-30-1 MEM, anchor, margin 0.5"])
    generator = torch.Generator().manual_seed(0)
    results = {
        row.name: {
            metric: (level + 0.05 * torch.rand(6, generator=generator, dtype=torch.float64)).tolist()
            for metric in ("accuracy", "backward_transfer", "forward_transfer", "memory_agreement")
        }
        for row, level in zip(study.rows, (0.7, 0.75), strict=True)
    }
    table = summary_table(study, results)
    gems, ours = ([100 * value for value in results[row.name]["accuracy"]] for row in study.rows)
    p = stats.ttest_rel(ours, gems).pvalue
    cells = dict(zip(table.columns, table.rows[1], strict=True))
    assert cells["Accuracy, %"].startswith(f"{sum(ours) / 6:.2f} ±")
    assert cells["Accuracy against"].startswith(f"{sum(ours) / 6 - sum(gems) / 6:+.2f} ±")
    assert f"p {p:.3f}" in cells["Accuracy against"] or (p < 0.001 and "p < 0.001" in cells["Accuracy against"])
    assert (cells["Accuracy, paper"], cells["BWT, paper"], cells["FWT, paper"]) == ("84.08", "0.0094", "0.6423")
    assert table.rows[0][3] == "-"
    assert "Accuracy rises by" in findings(study, results)[0]


def test_incremental_classes_and_a_network_of_timm(tmp_path):
    result = invoke(
        "icifar100", "--dataset", "digits", "--tasks", "2", "--samples", "40", "--memory", "10", "--seeds", "1",
        "--row", "ResNet GEM", "--row", "iCARL", "--model", "mlp", "--out", str(tmp_path),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert set(json.loads((tmp_path / "results.json").read_text())) == {"iCARL", "ResNet GEM"}
    settings = small(table="icifar100", tasks=2, model="resnet18", samples=20)
    stream = ContinualRunner(settings, tmp_path).stream(0)
    assert sum(p.numel() for p in network(settings, stream, 1.0, 0).parameters()) > 1e7


def test_a_gpu_has_its_fastest_convolutions(tmp_path, monkeypatch):
    """The memory format that they need, on the device of meta tensors, and cuDNN's choice while a run is executed."""
    stream = ContinualRunner(small(table="icifar100", tasks=2), tmp_path).stream(0)
    model = network(small(table="icifar100", tasks=2), stream, 1.0, 0)
    for device, memory_format in (("cpu", torch.contiguous_format), ("meta", torch.channels_last)):
        weight = runner_module.placed(model, device).stages[1].first.weight
        assert weight.device.type == device
        assert weight.is_contiguous(memory_format=memory_format)
    chosen = []

    def note(*args, **kwargs):
        chosen.append(torch.backends.cudnn.benchmark)
        raise ValueError

    monkeypatch.setattr(runner_module, "run_alone", note)
    settings = small(table="icifar100", tasks=2, model="resnet")
    for device in ("cpu", "cuda"):
        runner = ContinualRunner(settings, tmp_path, device=device)
        (batch,) = runner.batches(continual_study(settings, ["ResNet GEM"]).runs([0]))
        with pytest.raises(ValueError):  # noqa: PT011
            next(iter(runner.run(batch, lambda label, share: None)))
    assert chosen == [False, True]
    assert not torch.backends.cudnn.benchmark


def test_seeds_whose_classes_differ_in_size_are_batched_apart(tmp_path):
    """Digits have different numbers of images per class; seeds assign the classes in other orders."""
    changes = {"table": "icifar100", "tasks": 5, "samples": 40, "memory": 10, "model": "mlp"}
    settings = small(**changes)
    study, runner = continual_study(settings, ["ResNet GEM"]), ContinualRunner(settings, tmp_path)
    assert len(runner.batches(study.runs(range(3)))) > 1
    together = carry_out(tmp_path / "together", range(3), ["ResNet GEM"], **changes)["ResNet GEM"]
    assert together.matrix.shape[:2] == (3, 1)
    alone = carry_out(tmp_path / "alone", [2], ["ResNet GEM"], **changes)["ResNet GEM"]
    torch.testing.assert_close(together.matrix[2], alone.matrix[0], rtol=0, atol=0.1)


def test_tuning_searches_held_out_seeds(tmp_path):
    result = invoke("mnist_r", *SMALL, "--tune", "ewc", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert all(row["seed"] == [1000, 1001, 1002, 1003] for row in found.values())
    accuracies = {name: math.fsum(row["accuracy"]) / 4 for name, row in found.items()}
    best = max(accuracies, key=lambda name: accuracies[name])
    assert f"Highest accuracy of ewc: {best}, {100 * accuracies[best]:.2f} %." in (tmp_path / "table.md").read_text()


def test_margins_are_ranked_by_accuracy():
    assert tuning_seeds(small()) == tuple(range(1000, 1004))
    study = tuning_study(["gem"], small(samples=20, memory=5))
    assert {row.jobs[0].method.kind for row in study.rows} == {"gem"}
    results = {row.name: {"seed": [1000.0], "accuracy": [1 - row.jobs[0].method.memory_margin]} for row in study.rows}
    assert best_settings(study, results) == ["Highest accuracy of gem: GEM, margin 0.1, 90.00 %."]
    del results["GEM, margin 0.1"]  # a run that failed
    assert best_settings(study, results) == ["Highest accuracy of gem: GEM, margin 0.2, 80.00 %."]


def test_methods_are_compared_at_the_settings_that_tuning_ranks_first():
    """Each kind's own best counts, diverged runs last; the comparison runs exactly these settings."""
    settings = small()
    tuning = tuning_study(list(COMPARED.values()), settings)
    best = {"single": 0.03, "er": 0.2, "derpp": 0.03, "gem": 0.1, "dcl_memory": 0.1}  # by rate
    results = {}
    for row in tuning.rows:
        method = row.jobs[0].method
        wanted = method.lr == best[method.kind] and method.memory_margin in (0.0, 0.3)
        results[row.name] = {"seed": [1000.0], "accuracy": [0.9 if wanted else math.nan if method.lr == 0.1 else 0.5]}
    study = tuned_study(settings, tuning, results)
    chosen = {row.name: row.jobs[0].method for row in study.rows}
    assert {name: method.kind for name, method in chosen.items()} == COMPARED
    assert (chosen["plain SGD"].lr, chosen["ER"].lr, chosen["DER++"].lr) == (0.03, 0.2, 0.03)
    assert (chosen["GEM"].memory_margin, chosen["GEM with DCL-10-1"].memory_margin) == (0.3, 0.3)
    assert chosen["GEM with DCL-10-1"].window == 10
    assert {row.name: row.against for row in study.rows}["GEM with DCL-10-1"] == "GEM"
    assert "4 held-out seeds, 1000 to 1003: plain SGD rate 0.03 (of 6); ER rate 0.2 (of 4); DER++ rate" in study.lead
    assert "GEM margin 0.3 (of 6); GEM with DCL-10-1 margin 0.3 (of 6)." in study.lead
    assert study.lead.endswith("a better one may lie beyond: rate of DER++, strength of DER++.")


def test_the_tuned_part_tunes_compares_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_module, "COMPARED", {"plain SGD": "single", "GEM": "gem"})
    words = ["mnist_r", "--dataset", "digits", "--tasks", "2", "--samples", "30", "--memory", "10", "--part", "tuned"]
    words += ["--seeds", "2", "--out", str(tmp_path)]
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert {name: len(row["accuracy"]) for name, row in found.items()} == {"plain SGD": 2, "GEM": 2}
    assert (tmp_path / "tuning" / "table.md").exists()
    grid = json.loads((tmp_path / "tuning" / "results.json").read_text())
    accuracies = {row.name: math.fsum(grid[row.name]["accuracy"]) for row in tuning_study(["gem"], small()).rows}
    best = max(accuracies, key=lambda name: accuracies[name])
    assert f"Highest accuracy of gem: {best}, " in (tmp_path / "tuning" / "table.md").read_text()
    margin = 0.5 if best == "GEM" else float(best.removeprefix("GEM, margin "))
    assert f"GEM margin {margin:g} (of 6)" in (tmp_path / "table.md").read_text()
    assert "methods at their best settings" in (tmp_path / "table.md").read_text()
    before = (tmp_path / "finished.jsonl").read_text()
    assert invoke(*words).exit_code == 0
    assert (tmp_path / "finished.jsonl").read_text() == before
    refused = invoke(*words, "--first-seed", "1001")
    assert refused.exit_code != 0
    assert "seeds of tuning and comparison must differ" in refused.output


def test_runs_with_a_memory_are_stored_one_by_one_where_agreement_is_not_measured(tmp_path):
    settings = small(samples=20, memory=5)
    study = part_study(settings, ["GEM", "GEM, margin 0"], part="margins")
    runs = study.runs(range(2))
    together, alone = (
        ContinualRunner(settings, tmp_path, agreement=agreement).batches(runs) for agreement in (True, False)
    )
    assert [len(batch) for batch in together] == [4]
    assert [len(batch) for batch in alone] == [1, 1, 1, 1]
    assert AGREEMENT not in study.columns
    assert AGREEMENT in part_study(settings, part="paper").columns


@pytest.mark.parametrize("agreement", [True, False])
def test_agreement_is_measured_only_where_asked_for(agreement, tmp_path, monkeypatch):
    """For a network whose runs are not batched too."""
    monkeypatch.setattr(ContinualRunner, "_batched", lambda self, run: False)
    settings = small(samples=20, memory=5)
    runner = ContinualRunner(settings, tmp_path, agreement=agreement)
    (batch,) = runner.batches(part_study(settings, ["GEM"], part="margins").runs([0]))
    ((_, result),) = runner.run(batch, lambda label, share: None)
    assert any(map(math.isfinite, result.arrays["agreement"])) == agreement


def test_margins_apart_are_compared_with_gem_of_the_same_margin():
    study = part_study(small(), part="margins")
    by_name = {row.name: row for row in study.rows}
    apart = study.find(kind="dcl_memory")
    assert sorted((row.settings["window"], row.settings["memory_margin"]) for row in apart) == [
        (window, margin) for window in (10, 30) for margin in (0.0, 0.1, 0.2, 0.3, 0.5)
    ]
    for row in apart:
        assert (row.settings["mode"], row.settings["reference_margin"]) == ("concentrate", 0.0)
        gem = by_name[row.against].settings
        assert (gem["kind"], gem["memory_margin"]) == ("gem", row.settings["memory_margin"])
    for kind in ("gem", "dcl_memory"):  # what wins the tuning can be run
        searched = [row.name for row in tuning_study([kind], small()).rows]
        assert len(part_study(small(), searched, "margins").rows) == len(searched)
    one = part_study(small(), part="margins", against="GEM")
    assert {row.against for row in one.rows} == {None, "GEM"}
    paper = {row.name: row.jobs[0].digest() for row in part_study(small()).rows}
    for name in ("GEM", "GEM, margin 0"):  # their runs are shared with the paper's table
        assert by_name[name].jobs[0].digest() == paper[name]


@pytest.mark.parametrize("kind", ["ewc", "icarl"])
def test_a_large_network_is_tuned_on_one_held_out_seed(kind, tmp_path):
    result = invoke(
        "icifar100", "--dataset", "digits", "--tasks", "2", "--samples", "10", "--memory", "5", "--tune", kind,
        "--out", str(tmp_path),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert all(row["seed"] == [1000] for row in found.values())
    cells = [tuple(re.findall(r"lr (\S+) strength (\S+)", name)[0]) for name in found]
    rates, strengths = ({cell[i] for cell in cells} for i in (0, 1))
    assert set(cells) == {(rate, strength) for rate in rates for strength in strengths}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mnist_q"], "'mnist_q' is not one of"),
        (["mnist_r", "--row", "nothing"], "mnist_r has no row 'nothing'"),
        (["mnist_r", "--memory", "61"], "61 samples"),
        (["mnist_r", "--policy", "last"], "'last' is not one of"),
        (["mnist_r", "--dataset", "nowhere/at/all"], "nowhere/at/all"),
        (["mnist_r", "--tune", "agem"], "'agem' is not one of"),
        (["mnist_r", "--part", "margins", "--against", "GEM, margin 9"], "has no row 'GEM, margin 9'"),
        (["icifar100", "--model", "nonet", "--tasks", "2"], "there is no model 'nonet'"),
        (["mnist_r", "--labels", "tidy"], "'tidy' is not one of"),
        (["mnist_r", "--labels", "noisy"], "labels 'noisy' are for CIFAR-100"),
        (["icifar100", "--labels", "clean"], "labels 'clean' are for CIFAR-100"),
        (["icifar100", "--tasks", "3"], "3 tasks"),
        (["mnist_r", "--ray", "auto", "--processes", "2"], "a Ray cluster executes as many runs as fit"),
    ],
)
def test_bad_input_is_named(words, message, tmp_path):
    result = invoke(*words[:1], *SMALL, *words[1:], "--out", str(tmp_path))
    assert result.exit_code == 2
    assert message in " ".join(re.sub("[│╭╰─╮╯]", " ", result.output).split())


def test_results_are_collected_for_finished_seeds_only(tmp_path):
    carry_out(tmp_path, [0, 3], ["GEM"])
    study = continual_study(small(), ["GEM", "single"])
    assert collect(study, Store(tmp_path).load()).keys() == {"GEM"}
    assert collect(study, Store(tmp_path).load())["GEM"]["seed"] == [0, 3]


@pytest.mark.parametrize("model", ["resnet", "mlp"])
def test_agreement_with_the_memory_is_measured_where_it_takes_little_of_a_step(model, tmp_path):
    """And in the paper's tables."""
    words = ["icifar100", "--dataset", "digits", "--tasks", "2", "--samples", "10", "--memory", "5", "--seeds", "1"]
    rows = ["--part", "peers", "--row", "ResNet GEM", "--model", model]
    result = invoke(*words, *rows, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())["ResNet GEM"]["memory_agreement"]
    assert (found == [None]) == (model == "mlp")


def test_windows_that_no_task_is_long_enough_for_are_named():
    assert "A task has 6 steps: windows as long or longer (30, 40, 50) never renew" in continual_study(small()).caption
    assert "(40, 50)" in continual_study(small(samples=400)).caption
    assert "windows" not in continual_study(StreamSettings(table="mnist_r")).caption
    assert "windows" not in continual_study(small(), ["GEM"]).caption


def test_the_clean_images_are_fewer_and_the_page_says_so():
    """100 clean images of each class, 80 to train: 400 of the five classes of a task, not the paper's 2500."""
    clean = StreamSettings(table="icifar100", labels="clean", memory=40)
    study = continual_study(clean)
    assert "20 tasks of up to 400 samples, one pass in batches of 10, 40 samples of each task kept" in study.lead
    assert "The memory keeps 10 % of a task's samples; that of the paper, 256 of 2500, keeps 10 %." in study.lead
    assert (
        "A task has 40 steps: windows as long or longer (50) never renew their reference within one." in study.caption
    )
    assert "40 steps" not in continual_study(clean, ["ResNet DCL-32-1 MEM"]).caption
    assert clean.described()["samples"] == 2500  # names the runs on disk, also those of before
    assert continual_study(replace(clean, samples=100, memory=256)).lead.count(" 100 ") == 2
    images = LabelledImages(
        torch.zeros(400, 1, 2, 2, dtype=torch.uint8), torch.arange(400) // 100, ("a", "b", "c", "d")
    )
    train, test = images.divide(tables.CLEAN_SHARE, seed=0)
    assert train.labels.bincount().tolist() == [80] * 4
    assert test.labels.bincount().tolist() == [20] * 4


def test_the_peers_of_a_split_set_say_whether_the_task_is_given(tmp_path):
    small = ["--dataset", "digits", "--samples", "30", "--memory", "5", "--seeds", "2"]
    rows = ["--row", "GEM", "--row", "ER, DCL-10-1", "--row", "ER", "--row", "iCARL"]
    result = invoke("split_mnist", *small, *rows, "--out", str(tmp_path / "class"))
    assert result.exit_code == 0, result.output
    page = (tmp_path / "class" / "table.md").read_text()
    assert "Class-incremental: the task is not given at test time, and predictions are among all classes." in page
    assert "| Forgetting |" in page
    stored = json.loads((tmp_path / "class" / "results.json").read_text())
    assert set(stored) == {"GEM", "ER", "ER, DCL-10-1", "iCARL"}
    settings = StreamSettings(table="split_mnist", scenario="task")
    assert settings.described()["scenario"] == "task"
    study = part_study(settings)
    assert "Task-incremental: the task is given at test time" in study.lead
    assert "A-GEM" not in {row.name for row in study.rows}


@pytest.mark.parametrize("table", ["mnist_r", "mnist_p", "icifar100", "split_mnist", "split_cifar10"])
def test_peers_are_compared_with_rows_of_their_study(table):
    for part in ("peers", "all"):
        study = part_study(StreamSettings(table=table), part=part)
        names = {row.name for row in study.rows}
        assert {row.against for row in study.rows} - {None} <= names
        losses = {row.name: row.settings for row in study.rows}
        for row in study.rows:
            if row.settings["constraints"] != "none":  # the same loss, with the same settings
                same = ("kind", "lr", "strength", "beta", "replay")
                assert [row.settings[name] for name in same] == [losses[row.against][name] for name in same]
    printed = {row.name for row in study.rows if row.paper}
    assert printed == {row.method.name for row in StreamSettings(table=table).stream_table.rows if row.paper}
    assert names > {row.method.name for row in StreamSettings(table=table).stream_table.rows if not row.on_request}


def test_older_records_keep_their_digests():
    """The digest of the paper's GEM before learners had losses and constraints of their own."""
    (row,) = continual_study(StreamSettings(table="mnist_r"), ["GEM, margin 0"]).rows
    assert "scenario" not in StreamSettings(table="icifar100", labels="clean").described()
    assert row.jobs[0].digest() == "ee17522c8e6d"
