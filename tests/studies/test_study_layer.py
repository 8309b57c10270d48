"""The study layer on a toy family: what is executed, kept, repeated, compared and written."""

import json
import math
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console
from toy_study import StoppingRunner, ToyRunner, toy_study

import congruency
from congruency.studies.conduct import conduct
from congruency.studies.executor import Place, execute
from congruency.studies.page import difference_charts
from congruency.studies.plan import Column, Row, Run, Study, pick
from congruency.studies.results import collect, comparisons, paired, read_results, to_json
from congruency.studies.store import Failure, RunResult, Store
from congruency.studies.summary import findings, summary_table


def carry_out(study, runner, seeds, out, **place):
    return conduct(
        study, runner, seeds, out, place=Place(**place), settings={"toy": 1}, command="congruency toy",
        console=Console(quiet=True),
    )  # fmt: skip


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # Ray's workers import the toy family
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def executed(shared):
    return [tuple(line.split()[:2]) for line in (shared / "executed.txt").read_text().splitlines()]


PLACES = [{}, {"processes": 2, "threads": 1}, {"ray": "local", "processes": 2, "threads": 1}]


@pytest.mark.parametrize("place", PLACES[1:], ids=["processes", "ray"])
def test_every_executor_gives_the_same_bits(tmp_path, shared, place):
    if "ray" in place:
        pytest.importorskip("ray")
    study = toy_study()
    assert carry_out(study, ToyRunner(shared), range(3), tmp_path / "here", threads=1) == 0
    assert carry_out(study, ToyRunner(shared), range(3), tmp_path / "there", **place) == 0
    assert Store(tmp_path / "here").load() == Store(tmp_path / "there").load()
    assert (tmp_path / "here" / "results.json").read_text() == (tmp_path / "there" / "results.json").read_text()


@pytest.mark.parametrize("place", PLACES[1:], ids=["processes", "ray"])
def test_runs_of_a_killed_worker_are_executed_again_and_finished_ones_never(tmp_path, shared, place):
    if "ray" in place:
        pytest.importorskip("ray")
    study, out = toy_study(), tmp_path / "out"
    assert carry_out(study, ToyRunner(shared, killed="better"), range(2), out, **place) == 0
    assert len(Store(out).load()) == 6
    assert Store(out).repeated_attempts() >= 2  # each killed run once, with what shared its batch
    carry_out(study, ToyRunner(shared), range(2), tmp_path / "plain", threads=1)
    assert Store(out).load() == Store(tmp_path / "plain").load()
    before = executed(shared)
    assert carry_out(study, ToyRunner(shared), range(2), out, **place) == 0
    assert executed(shared) == before


def test_a_worker_that_dies_every_time_is_a_failure(tmp_path, shared):
    study, runner = toy_study({"plain": 0.0, "better": 1.0}), ToyRunner(shared, killed="better")
    store = Store(tmp_path / "out")
    runs = study.runs([0])
    outcomes = {
        run.row: outcome for run, outcome in execute(runs, runner, Place(processes=2, threads=1, retries=0), store)
    }
    assert isinstance(outcomes["plain"], RunResult)
    assert isinstance(outcomes["better"], Failure)
    assert "killed 1 times" in outcomes["better"].reason


def test_runs_that_end_while_the_command_stops_are_kept(tmp_path, shared):
    out = tmp_path / "out"
    assert carry_out(toy_study(), StoppingRunner(shared), range(3), out, processes=2, threads=1) == 75
    stopped = list(shared.glob("stopped-*"))
    assert stopped
    assert len(Store(out).load()) == len(stopped)


ORPHANED = """
from pathlib import Path
from congruency.studies.executor import Place, execute
from congruency.studies.store import Store
from toy_study import StoppingRunner, toy_study

if __name__ == "__main__":
    shared = Path({shared!r})
    runner = StoppingRunner(shared, ask=False)
    list(execute(toy_study().runs([0]), runner, Place(processes=2, threads=1), Store(shared / "out")))
"""


def test_workers_stop_when_their_command_was_killed(shared):
    """They would hold the GPU and the folders of their runs, which the resumed command needs."""
    script = shared / "orphaned.py"
    script.write_text(ORPHANED.format(shared=str(shared)))
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(congruency.__file__).parents[1])])
    command = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path})
    wait_for(lambda: len(list(shared.glob("began-*"))) == 2)
    command.kill()
    command.wait()
    wait_for(lambda: len(list(shared.glob("stopped-*"))) == 2)
    for pid in [int(marker.name.partition("-")[2]) for marker in shared.glob("stopped-*")]:
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists() or "Z" in state_of(pid))


def state_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_failed_runs_are_named_and_tried_again_and_the_others_continue(tmp_path, shared):
    study, out = toy_study(), tmp_path / "out"
    assert carry_out(study, ToyRunner(shared, broken="same"), range(2), out) == 1
    failed, finished = Store(out).failures(), Store(out).load()
    assert {("digest-same", 0), ("digest-same", 1)} <= failed.keys()  # and what was left of their batches
    assert not failed.keys() & finished.keys()
    assert finished.keys() | failed.keys() == {run.key for run in study.runs(range(2))}
    table = (out / "table.md").read_text()
    assert "RuntimeError: this run is broken" in table
    assert "failed" in table
    assert carry_out(study, ToyRunner(shared), range(2), out) == 0
    assert not Store(out).failures()
    assert not (out / "failed.json").exists()


def test_the_error_that_led_to_others_is_named(tmp_path, shared):
    """Running out of memory while a CUDA graph is captured is followed by an error of the capture, and advice."""

    class Capturing(ToyRunner):
        def run(self, batch, within):
            try:
                raise MemoryError("CUDA out of memory")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture\nfor debugging, consider")

    class Explaining(ToyRunner):
        def run(self, batch, within):
            raise ValueError("give other settings") from KeyError("lr")

    for kind, line in ((Capturing, "MemoryError: CUDA out of memory"), (Explaining, "ValueError: give other settings")):
        out = tmp_path / kind.__name__
        assert carry_out(toy_study(), kind(shared), [0], out) == 1
        assert {failure.line for failure in Store(out).failures().values()} == {line}


def test_wrong_input_is_reported_before_anything_is_executed(tmp_path):
    with pytest.raises(ValueError, match="is no folder"):
        carry_out(toy_study(), ToyRunner(tmp_path / "nowhere"), [0], tmp_path / "out")
    assert not (tmp_path / "out" / "finished.jsonl").exists()


def test_more_seeds_are_added_to_what_is_finished_and_other_settings_refused(tmp_path, shared):
    study, out = toy_study(), tmp_path / "out"
    carry_out(study, ToyRunner(shared), range(2), out)
    carry_out(study, ToyRunner(shared), range(4), out)
    assert read_results(out)["plain"]["seed"] == [0, 1, 2, 3]
    assert len(executed(shared)) == len(set(executed(shared))) == 12
    with pytest.raises(ValueError, match="toy was 1 and is 2"):
        Store(out).check_settings({"toy": 2})


def test_a_damaged_line_is_run_again(tmp_path, shared):
    study, out = toy_study(), tmp_path / "out"
    carry_out(study, ToyRunner(shared), [0], out)
    path = out / "finished.jsonl"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first[:20], *rest]) + "\n")
    with pytest.warns(UserWarning, match="line 1 of .* is damaged"):
        assert len(Store(out).pending(study.runs([0]))) == 1
    path.write_text("\n".join([*rest, first[:20]]))  # half a line at the end, as a killed process leaves it
    Store(out).add(study.runs([0])[0], RunResult({"error": 1.0}))
    with pytest.warns(UserWarning, match="damaged"):
        assert len(Store(out).load()) == 3


def test_arrays_of_a_run_are_kept(tmp_path):
    run = toy_study().runs([0])[0]
    Store(tmp_path).add(run, RunResult({"error": math.nan}, {"matrix": [[1.0, 2.0]]}))
    kept = Store(tmp_path).load()[run.key]
    assert kept.arrays == {"matrix": [[1.0, 2.0]]}
    assert math.isnan(kept.figures["error"])


def test_rows_share_a_job_and_run_it_once():
    study = toy_study()
    twice = Study(
        name="t", title="", lead="", columns=(),
        rows=(study.rows[0], Row(name="again", jobs=study.rows[0].jobs)),
    )  # fmt: skip
    assert [run.row for run in twice.runs([0])] == ["plain"]
    found = collect(twice, {twice.runs([0])[0].key: RunResult({"error": 1.0})})
    assert found["again"] == found["plain"] == {"seed": [0.0], "error": [1.0]}


def test_rows_are_found_by_settings_and_picked_by_name():
    study = toy_study()
    assert [row.name for row in study.find(s=-0.5)] == ["better"]
    assert [row.name for row in pick(study, ["better"]).rows] == ["better"]
    with pytest.raises(ValueError, match="no row 'beter'; similar: better"):
        pick(study, ["beter"])


RESULTS = {
    "plain": {"seed": [0.0, 1.0, 2.0], "error": [5.0, 6.0, 7.0]},
    "better": {"seed": [2.0, 0.0, 1.0], "error": [6.0, 4.1, 5.0]},
    "same": {"seed": [0.0, 1.0, 2.0], "error": [5.0, 6.0, 7.0]},
}


def test_values_are_paired_by_seed_whatever_their_order():
    assert paired(RESULTS, "better", "plain", "error") == ([4.1, 5.0, 6.0], [5.0, 6.0, 7.0])
    assert paired(RESULTS, "better", "nobody", "error") is None


def test_runs_that_diverged_are_not_identical():
    nothing = [math.nan, math.nan]
    results = {name: {"seed": [0.0, 1.0], "error": nothing} for name in ("plain", "better", "same")}
    study = toy_study()
    assert not any(one.identical for one in comparisons(study, results).values())
    table = summary_table(study, results)
    assert [row[0] for row in table.rows] == ["plain", "better", "same"]
    assert not any("identical" in cell or "same as" in cell for row in table.rows for cell in row)
    assert difference_charts(study, results) == []


def test_comparisons_are_corrected_by_holm_and_name_what_is_identical():
    study = toy_study()
    found = comparisons(study, RESULTS)
    better, same = found["better", "error"], found["same", "error"]
    assert better.difference.mean == pytest.approx(-29 / 30)
    assert better.adjusted == pytest.approx(min(1, 2 * better.p))
    assert not better.identical
    assert same.identical
    assert same.p == 1
    table = summary_table(study, RESULTS)
    assert table.columns == ["Row", "Seeds", "Error, %", "Error against"]
    assert [row[3] for row in table.rows] == ["-", "-0.97 ± 0.14 (p 0.001)", "identical to plain"]
    sentences = findings(study, RESULTS)
    assert sentences[0] == "better, against plain: Error falls by 0.97 points (p 0.001)."
    assert sentences[1] == "Identical on every seed to the row they are compared with: same."
    assert sentences[2].startswith("1 of 2 comparisons have p < 0.05, where 0.1 would by chance alone; 1 is left")


def test_runs_that_cannot_show_a_difference_say_so():
    """All rows identical: no p-value, and one sentence; rows that are equal to each other share theirs."""
    study = replace(toy_study(), holm=True)
    others = ("better", "same")
    results = {name: {**RESULTS["plain"], "seconds": [float(len(name))] * 3} for name in ("plain", *others)}
    table = summary_table(study, results)
    assert [row[:1] + row[3:5] for row in table.rows[1:]] == [["better (same as: same)", "identical to plain", "-"]]
    (sentence,) = findings(study, results)
    assert sentence.startswith("Nothing differs: on every seed every row is identical")
    assert "p <" not in sentence
    equal = {**RESULTS, "same": RESULTS["better"]}
    assert findings(study, equal)[0].startswith("better (same as: same), against plain: Error falls")
    assert [row[0] for row in summary_table(study, equal).rows] == ["plain", "better (same as: same)"]
    assert len(json.loads(unescape(difference_charts(study, equal)[0].chart.split("'")[1]))["samples"]) == 1
    printed = tuple(replace(row, paper={"error": float(len(row.name))}) for row in study.rows)
    assert summary_table(replace(study, rows=printed), equal).rows[1][5] == "6.00; 4.00"
    times = {name: {**metrics, "speed": [float(len(name))] * 3} for name, metrics in equal.items()}
    for speed, rows in ((True, 2), (False, 3)):
        column = Column(key="speed", speed=speed)
        assert len(summary_table(replace(study, extras=(column,)), times).rows) == rows, "speeds are not compared"
    one_seed = {name: {"seed": [0.0], "error": [5.0]} for name in ("plain", *others)}
    assert len(summary_table(study, one_seed).rows) == 3, "one seed may be equal by chance"
    mixed = summary_table(study, RESULTS)
    assert [row[4] for row in mixed.rows] == ["-", "0.002", "-"]


def test_results_are_read_back_as_written(tmp_path):
    results = {"a": {"seed": [0.0], "x": [math.nan]}}
    (tmp_path / "results.json").write_text(to_json(results))
    assert json.loads(to_json(results)) == {"a": {"seed": [0], "x": [None]}}
    assert math.isnan(read_results(tmp_path)["a"]["x"][0])
    (tmp_path / "results.json").write_text('{"surface": "paper"}')
    assert read_results(tmp_path) == {}
    assert read_results(tmp_path / "nowhere") is None


def test_a_table_has_the_paper_and_holm_where_there_are_some():
    study = Study(
        name="t", title="", lead="", holm=True, columns=(Column(key="error"),),
        rows=(
            Row(name="plain", jobs=toy_study().rows[0].jobs, paper={"error": 5.5}),
            Row(name="better", jobs=toy_study().rows[1].jobs, paper={"error": (4.0, 0.1)}, against="plain"),
            Row(name="quoted", jobs=(), paper={"error": 9.0}),
        ),
    )  # fmt: skip
    table = summary_table(study, {**RESULTS, "humans": {"error": [1.0]}})
    assert table.columns == ["Row", "Seeds", "error", "error against", "Holm's p", "error, paper"]
    assert [row[5] for row in table.rows] == ["5.50", "4.00 (sd 0.10)", "9.00", "-", "-"]
    assert [row[0] for row in table.rows] == ["plain", "better", "quoted", "same", "humans"]
    assert Run("r", toy_study().rows[0].jobs[0], 3).title == "r, seed 3"
