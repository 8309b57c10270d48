"""Records written by hand, with numbers whose means and tests are known, through ``congruency report``."""

import json
import math
import re
import statistics
from dataclasses import asdict
from html.parser import HTMLParser

import pytest
from chart_data import chart_data
from one_command import call as call_command
from scipy import stats

from congruency.cli.report import report as command
from congruency.studies.analysis import report
from congruency.studies.analysis.runs import find_records, group, load
from congruency.studies.summary import summary_table
from congruency.training.config import Correction
from congruency.training.wording import method_name

BASELINE = {"name": "baseline", "scope": "head"}
DCL = {"name": "dcl", "scope": "head", "window": 5, "references": 1, "mode": "concentrate", "margin": None, "offset": 0}
ERRORS = {"baseline": [10.0, 12.0, 11.0], "dcl": [9.0, 11.5, 9.5]}


def call(*words):
    return call_command(command, *words)[0]


def summary(groups):
    return summary_table(*report.study_of(groups))


def findings(groups):
    return report.findings(groups, *report.study_of(groups))


def write_run(
    folder, method=BASELINE, seed=0, error=10.0, epochs=3, planned=None, steps=4, evaluation=True, first=(), **task
):
    """A run whose test error ends at ``error`` and whose training error at step s of an epoch is s."""
    config = {"epochs": planned or epochs, "seed": seed, "method": method, "accelerator": "cpu"}
    lines = [{"kind": "run", "config": config, "task": {"model": "mlp", "seed": seed, **task}, "seed": seed}]
    lines[0].update(first)
    for epoch in range(epochs):
        for step in range(steps):
            place = {"kind": "step", "step": epoch * steps + step, "epoch": epoch}
            lines.append({**place, "loss": 1.0, "error": float(step), "congruency": None})
        figures = {"error": error + epochs - 1 - epoch, "loss": 0.5} if evaluation else None
        lines.append({
            "kind": "epoch", "epoch": epoch, "step": (epoch + 1) * steps, "loss": 1.0 + seed,
            "error": 50.0 / (epoch + 1), "congruency": 0.1 * seed, "magnitude": float(epoch), "magnitude_previous": 0.1,
            "corrected_share": 0.25, "evaluation": figures,
        })  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def runs(tmp_path):
    for seed in range(3):
        write_run(tmp_path / "runs" / f"base-{seed}", seed=seed, error=ERRORS["baseline"][seed])
        write_run(tmp_path / "runs" / f"dcl-{seed}", DCL, seed, ERRORS["dcl"][seed])
    return tmp_path / "runs"


def loaded(*places):
    return load(find_records(places))


def test_runs_are_put_together_by_method_and_differing_settings(tmp_path, runs):
    groups = group(loaded(runs).runs)
    assert [(one.name, one.seeds) for one in groups] == [("baseline", [0, 1, 2]), ("DCL-5-1 concentrate", [0, 1, 2])]
    write_run(tmp_path / "other", seed=0, order="repeated")
    names = [one.name for one in group(loaded(runs, tmp_path / "other").runs)]
    assert names == ["baseline (order -)", "baseline (order repeated)", "DCL-5-1 concentrate (order -)"]


def test_names_are_as_short_as_distinguishes_groups(tmp_path):
    for data, mean, classes in (("cifar10", 0.49, 10), ("cifar100", 0.51, 100)):
        for order in ("fixed", "independent"):
            write_run(tmp_path / data / order, first={"data": data}, mean=mean, sample_order=order, classes=classes)
    groups = group(loaded(tmp_path).runs)
    assert [one.name for one in groups] == [
        f"baseline (data {data}, sample order {order})"
        for data in ("cifar10", "cifar100")
        for order in ("fixed", "independent")
    ]  # fmt: skip
    assert {"mean", "classes", "data"} <= set(report.differing(groups).columns)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (BASELINE, "baseline"),
        ({**BASELINE, "margin": 0.3, "window": 7}, "baseline"),
        ({"name": "gem", "scope": "all", "margin": 0.5}, "GEM, whole network"),
        ({"name": "gem", "margin": None, "memory": 20, "trigger": "always", "window": 3, "mode": "anchor"},
         "GEM, memory 20, always"),
        ({"name": "gem", "margin": 0, "memory": 1, "trigger": "violated"}, "GEM, margin 0"),
        ({**DCL, "accumulate": "gradients", "trigger": "violated", "scope": "all", "memory": 9},
         "DCL-5-1 concentrate, violated, accumulating gradients, whole network"),
        ({**DCL, "margin": 0.0, "trigger": "always", "accumulate": "weights"}, "DCL-5-1 concentrate"),
        ({**DCL, "lookahead": 4}, "DCL-5-1 concentrate, lookahead 4"),
        ({"name": "dcl", "window": None, "references": 2, "mode": "anchor", "margin": 0.5, "offset": 1},
         "DCL-∞-2 anchor, margin 0.5, offset 1"),
        ({**DCL, "floor": 0.3}, "DCL-5-1 concentrate, floor 0.3"),
        ({**DCL, "floor": 0.1, "returning": False, "correct": "update", "blocks": "row", "cautious": True},
         "DCL-5-1 concentrate, floor 0.1, returning off, corrects the update, by row, cautious"),
        ({**DCL, "returning": False, "rescale": False, "mask_decay": True}, "DCL-5-1 concentrate"),
        ({"name": "gem", "cautious": True, "rescale": False, "floor": 0.3}, "GEM, cautious, not rescaled"),
        ({"name": "l2sp", "scope": "all", "strength": 0.1}, "L2-SP, strength 0.1"),
        ({"name": "cautious", "scope": "all", "window": 5, "margin": 0.1}, "Cautious"),
        ({"name": "cautious", "scope": "head", "rescale": False, "mask_decay": True},
         "Cautious, last layer, not rescaled, masked decay"),
        ({"name": "cautious", "max_rescale": 2.0, "floor": 0.3}, "Cautious, rescaled at most 2.0"),
    ],
)  # fmt: skip
def test_methods_in_words(method, expected):
    assert method_name(method) == expected


@pytest.mark.parametrize("name", ["gem", "dcl", "cautious"])
def test_every_setting_that_a_method_trains_by_makes_another_row(tmp_path, name):
    changes = {
        "gem": {"memory": 2, "margin": 0.1, "trigger": "always", "scope": "all",
                "cautious": True},
        "cautious": {"scope": "all", "rescale": False, "mask_decay": True, "max_rescale": 2.0},
        "dcl": {"window": 5, "references": 2, "offset": 3, "mode": "anchor", "margin": 0.1, "trigger": "violated",
                "accumulate": "gradients", "scope": "all", "floor": 0.3, "correct": "update", "blocks": "row",
                "cautious": True},
    }  # fmt: skip
    usual = asdict(Correction(name=name))
    for place, changed in enumerate([{}, *({key: value} for key, value in changes[name].items())]):
        write_run(tmp_path / str(place), usual | changed)
    rows = [one.name for one in group(loaded(tmp_path).runs)]
    assert len(set(rows)) == len(rows) == 1 + len(changes[name])


def test_a_second_run_of_a_row_and_seed_is_reported_as_left_out(tmp_path, runs):
    write_run(runs / "once-more", DCL, seed=1, error=99.0)
    result = call(runs, "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    reported = (
        "runs/once-more/record.jsonl was left out: DCL-5-1 concentrate has seed 1 already, by runs/dcl-1/record.jsonl"
    )
    page = (tmp_path / "page.html").read_text()
    assert reported in page
    assert reported in result.output
    assert "Report on 6 runs" in page
    assert "-1.00 ± 1.24 (p 0.074)" in page, "the run that was left out does not count"


def test_of_two_runs_of_a_seed_the_finished_one_counts(tmp_path):
    write_run(tmp_path / "a", epochs=2, planned=3)
    write_run(tmp_path / "b", epochs=3)
    (one,) = group(load(find_records([tmp_path]), unfinished=True).runs)
    assert ([len(run.epochs) for run in one.runs], len(one.left_out)) == ([3], 1)


def test_the_table_has_the_known_means_and_the_paired_test(runs):
    groups = group(loaded(runs).runs)
    table = summary(groups)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    mine, base = ERRORS["dcl"], ERRORS["baseline"]
    margin = stats.t.ppf(0.975, 2) * statistics.stdev(mine) / math.sqrt(3)
    row = rows["DCL-5-1 concentrate"]
    assert row["test error"] == f"{statistics.fmean(mine):.2f} ± {margin:.2f}"
    test = stats.ttest_rel(mine, base)
    assert row["test error against"].startswith("-1.00 ± ")
    assert row["test error against"].endswith(f"(p {test.pvalue:.3f})")
    assert row["Congruency"].startswith("0.100 ± ")
    assert row["Corrected, %"] == "25"
    assert rows["baseline"]["test error against"] == "-"
    assert findings(groups)[0] == "No clear difference: DCL-5-1 concentrate."


def test_only_seeds_that_both_have_are_paired(tmp_path, runs):
    write_run(tmp_path / "more", DCL, seed=9, error=99.0)
    groups = group(loaded(runs, tmp_path / "more").runs)
    assert dict(zip(summary(groups).columns, summary(groups).rows[1], strict=True))["test error against"].startswith(
        "-1.00 ± "
    )
    lonely = group(loaded(tmp_path / "more").runs)
    assert "no baseline of the same settings" in findings(lonely)[0]


def test_curves_by_epoch_and_within(runs):
    groups = group(loaded(runs).runs)
    loss = report.by_epoch(groups, "loss")[0]
    assert list(loss.x) == [1, 2, 3]
    assert loss.y == [2.0, 2.0, 2.0]
    assert loss.margin[0] == pytest.approx(stats.t.ppf(0.975, 2) / math.sqrt(3))
    assert report.spread_by_epoch(groups, "error")[0].y == [pytest.approx(statistics.stdev(range(4)))] * 3
    inside = report.within_epoch(groups, "error", 2)[0]
    assert (list(inside.x), list(inside.y)) == ([1, 2, 3, 4], [0.0, 1.0, 2.0, 3.0])
    assert report.representative(groups) == [0, 2]
    assert report.evaluated(groups) == ["error", "loss"]


def test_long_epochs_are_thinned_to_means_of_neighbours(tmp_path):
    write_run(tmp_path / "long", epochs=1, steps=1000)
    (series,) = report.within_epoch(group(loaded(tmp_path).runs), "error", 0)
    assert len(series.x) == 200
    assert (series.x[0], series.y[0]) == (3.0, 2.0)


def test_a_run_without_evaluations_is_reported_by_its_training_loss(tmp_path):
    write_run(tmp_path / "a", evaluation=False, steps=0)
    page = report.compose(loaded(tmp_path / "a"), "congruency report a")
    assert page.table.columns[2] == "training loss"
    assert not any("Evaluation" in figure.title or "iteration" in figure.title for figure in page.figures)
    assert "nothing to compare" in page.findings[0]


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def test_hostile_names_are_text_on_the_page(tmp_path, runs):
    bad = "<script>alert(1)</script>\"'&"
    write_run(tmp_path / "bad", {**DCL, "name": bad}, model=bad)
    result = call(runs, tmp_path / "bad", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text()
    reader = Reader()
    reader.feed(page)
    assert reader.tags.count("script") == 1, "the one that draws the charts"
    assert bad in "".join(reader.text)


def test_damaged_and_unfinished_records_are_named_and_skipped(tmp_path, runs):
    first = '{"kind": "run", "config": {"epochs": 1, "method": {"name": "baseline"}}, "seed": 0}\n'
    contents = {
        "json": '{"kind": "run"\n', "list": "[]\n", "empty": "", "bare": '{"kind": "run"}\n',
        "kindless": '{"kind": "run"}\n{}\n', "bytes": b"\xff\xfe\n",
        "steps": first + '{"kind": "step"}\n',
        "evaluation": first + '{"kind": "epoch", "epoch": 0, "step": 1, "evaluation": 7}\n',
    }  # fmt: skip
    for name, content in contents.items():
        (runs / name).mkdir()
        (runs / name / "record.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    write_run(runs / "short", seed=7, planned=10)
    write_run(runs / "started", seed=8, epochs=0, planned=10)
    result = call(runs, "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    for name in [*contents, "short", "started"]:
        assert f"{name}/record.jsonl was skipped" in result.output
    assert "3 of 10 epochs" in result.output
    assert str(tmp_path) not in re.sub(r"(<code>.*?</code>)", "", (tmp_path / "page.html").read_text())
    assert len(load(find_records([runs]), unfinished=True).runs) == 7


@pytest.mark.parametrize("name", ["missing", "."])
def test_no_runs_is_an_error(tmp_path, name):
    result = call(tmp_path / name, "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert not (tmp_path / "page.html").exists()


def test_nothing_readable_is_an_error_that_names_all(tmp_path):
    (tmp_path / "record.jsonl").write_text("{}\n")
    result = call(tmp_path, "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "no run is left" in " ".join(result.output.replace("│", " ").split())
    assert call(tmp_path, "-o", tmp_path).exit_code == 2


def test_more_methods_than_colours_are_said_to_be_left_out(tmp_path):
    for window in range(2, 10):
        write_run(tmp_path / str(window), {**DCL, "window": window})
    page = report.compose(loaded(tmp_path), "")
    assert "The charts show the first 6 of 8 methods." in page.findings


def test_the_scores_beside_a_record_are_what_is_compared(tmp_path):
    for seed, (base, gem) in enumerate([(2.0, 2.5), (2.2, 2.8)]):
        first = {"table": "osie", "data": "OSIE"}
        for name, method, row, value in (("base", BASELINE, "", base), ("gem", {"name": "gem"}, " GEM", gem)):
            folder = tmp_path / f"{name}-{seed}"
            write_run(folder, method, seed, evaluation=False, first={**first, "row": f"ResNet-50 Adam{row}"})
            (folder / "scores.json").write_text(json.dumps({"scores": {"KL": 1.0, "NSS": value, "CC": None}}))
    groups = group(loaded(tmp_path).runs)
    table = summary(groups)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert table.columns[2:5] == ["NSS", "NSS against", "CC"]
    assert rows["GEM"]["NSS against"].startswith("+0.5500 ± ")
    assert (rows["baseline"]["CC"], rows["baseline"]["KL"]) == ("-", "1.0000")
    assert findings(groups) == ["No clear difference: GEM."]


def test_what_differs_is_listed_setting_by_setting(tmp_path):
    versions = {"versions": {"torch": "2.13.0"}}
    write_run(tmp_path / "a", first={"device": "cpu", **versions}, sample_order="seed", order_seed=None)
    write_run(tmp_path / "b", DCL, first={"device": "NVIDIA H200", **versions}, sample_order="fixed", order_seed=3)
    table = report.differing(group(loaded(tmp_path).runs))
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert table.columns[:2] == ["Row", "method"]
    assert rows["baseline"]["sample order"] == "seed"
    assert rows["baseline"]["window"] == rows["baseline"]["mode"] == "-", "they do not apply"
    reported = rows["dcl"]
    assert [reported[name] for name in ("window", "sample order", "order seed", "device")] == [
        "5",
        "fixed",
        "3",
        "NVIDIA H200",
    ]
    assert "torch" not in table.columns


def test_only_a_methods_own_settings_are_listed_with_the_values_it_had(tmp_path):
    for name in ("baseline", "gem", "dcl"):
        write_run(tmp_path / name, asdict(Correction(name=name)))
    table = report.differing(group(loaded(tmp_path).runs))
    base, dcl, gem = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert [one["method"] for one in (base, dcl, gem)] == ["baseline", "dcl", "gem"]
    assert [one["margin"] for one in (base, dcl, gem)] == ["-", "0", "0.5"]
    assert [one["trigger"] for one in (base, dcl, gem)] == ["-", "always", "violated"]
    assert [one["memory"] for one in (base, dcl, gem)] == ["-", "-", "1"]
    assert [one["window"] for one in (base, dcl, gem)] == ["-", "None", "-"]


def test_a_setting_of_the_method_differs_from_a_run_setting_of_that_name(tmp_path):
    for place, (rows, batches) in enumerate([("weights", 1), ("gradients", 4)]):
        write_run(tmp_path / str(place), {**DCL, "accumulate": rows}, accumulate=batches)
    table = report.differing(group(loaded(tmp_path).runs))
    cells = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [one["accumulate (method)"] for one in cells] == ["weights", "gradients"]
    assert [one["accumulate"] for one in cells] == ["1", "4"]


def test_two_seeds_do_not_stretch_a_chart_beyond_what_can_be(tmp_path):
    for seed, error in enumerate((10.0, 70.0)):
        write_run(tmp_path / str(seed), seed=seed, error=error)
    figures = {figure.title: figure.chart for figure in report.compose(loaded(tmp_path), "").figures}
    assert chart_data(figures["Validation error"])["possible"] == [0.0, 100.0]
    assert chart_data(figures["Training error, mean of each epoch"])["log"]
    assert not chart_data(figures["Training loss"])["log"]


def test_losses_below_zero_are_drawn_where_they_are(tmp_path):
    path = write_run(tmp_path / "a") / "record.jsonl"
    path.write_text(path.read_text().replace('"loss": 1.0', '"loss": -3.0'))
    figures = {figure.title: figure.chart for figure in report.compose(loaded(tmp_path), "").figures}
    data = chart_data(figures["Training loss"])
    assert data["possible"] == [None, None]
    assert -3.0 in data["series"][0]["y"]


def test_equal_results_are_called_identical(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"base-{seed}", seed=seed, error=10.0 + seed)
        write_run(tmp_path / f"dcl-{seed}", DCL, seed, 10.0 + seed)
    (text,) = findings(group(loaded(tmp_path).runs))
    assert text.startswith(
        "Nothing differs: on every seed DCL-5-1 concentrate is identical to what it is compared with."
    )


def test_the_figures_of_every_seed_are_written_with_the_page(tmp_path, runs):
    write_run(runs / "gem", {"name": "gem"}, seed=4, evaluation=False)
    path = tmp_path / "deep" / "figures.json"
    result = call(runs, "-o", tmp_path / "page.html", "--json", path)
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(written) == ["baseline", "DCL-5-1 concentrate", "GEM"]
    assert written["DCL-5-1 concentrate"] == {
        "seed": [0, 1, 2],
        "test_error": ERRORS["dcl"],
        "test_loss": [0.5] * 3,
        "training_loss": [1.0, 2.0, 3.0],
        "training_error": [50.0 / 3] * 3,
        "congruency": pytest.approx([0.0, 0.1, 0.2]),
        "magnitude": [2.0] * 3,
        "corrected_share": [0.25] * 3,
    }
    assert "test_error" not in written["GEM"], "these records do not have it"
    assert written["GEM"]["seed"] == [4]
    assert (tmp_path / "page.html").exists()


def test_a_figure_that_some_seeds_do_not_have_is_null(tmp_path):
    write_run(tmp_path / "runs" / "a", seed=0)
    write_run(tmp_path / "runs" / "b", seed=1, evaluation=False)
    (tmp_path / "runs" / "b" / "scores.json").write_text(json.dumps({"scores": {"NSS": 2.5}}))
    assert call(tmp_path / "runs", "-o", tmp_path / "page.html", "--json", tmp_path / "f.json").exit_code == 0
    row = json.loads((tmp_path / "f.json").read_text())["baseline"]
    assert (row["test_error"], row["NSS"]) == ([10.0, None], [None, 2.5])


@pytest.mark.parametrize("name", ["page.html", "."])
def test_the_figures_need_a_file_of_their_own(tmp_path, runs, name):
    result = call(runs, "-o", tmp_path / "page.html", "--json", tmp_path / name)
    assert result.exit_code == 2
    assert "--json" in result.output
    assert not (tmp_path / "page.html").exists()


def test_an_independent_order_does_not_tear_the_seeds_apart(tmp_path):
    for seed in range(3):
        write_run(tmp_path / str(seed), seed=seed, sample_order="independent", order_seed=1000 + seed)
    (one,) = group(loaded(tmp_path).runs)
    assert one.seeds == [0, 1, 2]


def test_the_exact_command_of_every_run_is_on_the_page(tmp_path):
    for seed in range(2):
        write_run(tmp_path / "runs" / f"a-{seed}", seed=seed, first={"command": "reproduce cifar --seeds 2"})
        write_run(tmp_path / "runs" / f"b-{seed}", DCL, seed, first={"command": f"train --seed {seed} --out 'a <b>'"})
    write_run(tmp_path / "runs" / "c", {"name": "gem"}, first={"command": None})
    groups = group(loaded(tmp_path / "runs").runs)
    reported = dict(report.commands(groups))
    assert reported["baseline, seeds 0 (runs/a-0), 1 (runs/a-1)"] == "congruency reproduce cifar --seeds 2"
    assert reported["DCL-5-1 concentrate, seed 1 (runs/b-1)"] == "congruency train --seed 1 --out 'a <b>'"
    assert reported["GEM, seed 0 (runs/c)"] is None
    assert call(tmp_path / "runs", "-o", tmp_path / "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text()
    assert "<code>congruency train --seed 0 --out &#x27;a &lt;b&gt;&#x27;</code>" in page
    assert "Started from Python, not by a command." in page
    reader = Reader()
    reader.feed(page)
    assert "b" not in reader.tags


def test_the_figures_that_the_records_allow(tmp_path, runs):
    titles = [figure.title for figure in report.compose(loaded(runs), "").figures]
    assert {
        "Congruency with the accumulated gradient",
        "Magnitude",
        "Magnitude of the steps",
        "Validation loss",
    } <= set(titles)
    assert "Congruency with the last step" not in titles, "these records do not have it"
