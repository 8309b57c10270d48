"""The study of language models: both stages as data, steps saved, and the commands on a small slice."""

import json
import math
import pickle
import random
from functools import partial
from typing import get_args, get_type_hints

import command_line
import pytest
from command_line import said

from congruency.cli.reproduce.language import language
from congruency.cli.train_lm import train_lm as command
from congruency.language import LanguageSetup
from congruency.studies.language.runner import LanguageRunner
from congruency.studies.language.study import RATES, SETUPS, LanguageJob, language_study
from congruency.studies.network_runs import Machine
from congruency.studies.store import RunResult
from congruency.studies.tuned import Choice, steps_saved
from congruency.training import METHODS, Correction, choose_methods, read_record

call = partial(command_line.call, columns=120)

SETUP = SETUPS["tiny"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for i in range(40):
        drawn = random.Random(i)
        (folder / f"{i}.txt").write_text(" ".join(drawn.choice(("one", "two", "three", "four")) for _ in range(120)))
    return folder


def test_every_method_gets_every_rate():
    study = language_study("tiny", SETUP, METHODS, RATES["tiny"]).tuning()
    assert len(study.rows) == len(METHODS) * len(RATES["tiny"])
    for name, method in METHODS.items():
        jobs = [row.jobs[0] for row in study.find(method=name)]
        assert [job.setup.learning_rate for job in jobs] == list(RATES["tiny"])
        assert {job.method for job in jobs} == {method}
    assert len({job.digest() for row in study.rows for job in row.jobs}) == len(study.rows)


def test_digests_are_of_what_changes_the_result():
    job = LanguageJob(LanguageSetup(), METHODS["dcl-50"])
    assert job.digest() == LanguageJob(LanguageSetup(seed=7), METHODS["dcl-50"]).digest()
    assert job.digest() != LanguageJob(LanguageSetup(learning_rate=2e-3), METHODS["dcl-50"]).digest()
    assert LanguageJob(LanguageSetup(), Correction()).digest() == "66fd834d2c5f", (
        "finished runs would no longer be found"
    )


def test_the_best_rate_is_of_the_lowest_mean():
    study = language_study("tiny", SETUP, choose_methods(["dcl-10"]), (0.1, 0.2, 0.4))
    losses = {
        "baseline, 0.1": [2.0, 2.2], "baseline, 0.2": [1.8, 2.3], "baseline, 0.4": [1.0, math.nan],
        "dcl-10, 0.1": [3.0, 3.0], "dcl-10, 0.2": [math.nan, math.nan], "dcl-10, 0.4": [2.9, 3.0],
    }  # fmt: skip
    results = {row: {"seed": [0.0, 1.0], "validation loss": values} for row, values in losses.items()}
    found = study.best(results)
    assert found == {"baseline": Choice("baseline", 0.2), "dcl-10": Choice("dcl-10", 0.4)}
    compared = study.comparison(found, [7, 8])
    assert "Chosen from 0.1, 0.2, 0.4 on 2 seeds of their own, 6 runs per method." in compared.lead
    assert [(row.name, row.against, row.jobs[0].setup.learning_rate) for row in compared.rows] == [
        ("baseline", None, 0.2), ("dcl-10", "baseline", 0.4),
    ]  # fmt: skip
    assert "At the edge of the grid, so that a better rate may lie beyond: dcl-10." in compared.lead
    assert compared.holm


def curve(*losses):
    return {"steps": [10 * (i + 1) for i in range(len(losses))], "validation_loss": list(losses)}


def test_steps_saved():
    baseline = curve(5.0, 4.0, 3.0, 2.0)
    assert steps_saved(curve(5.0, 4.0, 2.0, 1.0), baseline, "validation_loss") == 10
    assert steps_saved(curve(4.0, 3.0, 2.5, 1.5), baseline, "validation_loss") == pytest.approx(
        5
    )  # halfway between two evaluations
    assert steps_saved(baseline, baseline, "validation_loss") == 0
    assert steps_saved(curve(5.0, 4.5, 4.0, 3.5), baseline, "validation_loss") == pytest.approx(
        -15
    )  # the baseline had 3.5 at step 25
    assert steps_saved(curve(1.0, 1.0, 1.0, 1.0), baseline, "validation_loss") == 30
    assert math.isnan(steps_saved(curve(9.0, 9.0, 9.0, math.nan), baseline, "validation_loss"))
    assert steps_saved(curve(9.0, 9.0, 9.0, 9.0), baseline, "validation_loss") == -30


def test_steps_saved_are_paired():
    tuned = language_study("tiny", SETUP, choose_methods(["dcl-10"]), (0.1,))
    study = tuned.comparison({name: Choice(name, 0.1) for name in ("baseline", "dcl-10")})
    plain, dcl = (row.jobs[0].digest() for row in study.rows)
    finished = {
        (plain, 0): RunResult({}, curve(4.0, 3.0, 2.0)), (plain, 1): RunResult({}, curve(4.0, 2.0, 1.0)),
        (dcl, 0): RunResult({}, curve(4.0, 2.0, 1.0)), (dcl, 1): RunResult({}, curve(4.0, 3.0, 2.0)),
        (dcl, 2): RunResult({}, curve(4.0, 3.0, 2.0)),
    }  # fmt: skip
    results = {"baseline": {"seed": [0.0, 1.0]}, "dcl-10": {"seed": [0.0, 1.0, 2.0]}}
    saved = tuned.with_steps_saved(study, results, finished)["dcl-10"]["steps saved"]
    assert saved[:2] == [10, -10]
    assert math.isnan(saved[2])


SLICE = [
    "reproduce", "language", "tiny", "--row", "dcl-10", "--seeds", 2, "--tuning-seeds", 1, "--steps", 10,
    "--batch-size", 2, "--device", "cpu", "--threads", 1,
]  # fmt: skip


def test_the_command_tunes_then_compares_and_is_not_repeated(texts, tmp_path):
    words = [*SLICE, "--corpus", texts, "--out", tmp_path / "out"]
    result = call(*words, "--rate", 0.002, "--rate", 0.02)
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    tuned = json.loads((out / "tuning" / "results.json").read_text())
    assert set(tuned) == {"baseline, 0.002", "baseline, 0.02", "dcl-10, 0.002", "dcl-10, 0.02"}
    assert {tuple(row["seed"]) for row in tuned.values()} == {(10_000,)}
    found = json.loads((out / "results.json").read_text())
    assert {name: row["seed"] for name, row in found.items()} == {"baseline": [0, 1], "dcl-10": [0, 1]}
    assert len(found["dcl-10"]["steps saved"]) == 2
    page = (out / "table.md").read_text()
    assert "Steps saved" in page
    assert "Learning rates: baseline 0.02, dcl-10 0.02." in page
    assert "Holm's p" in page
    assert "Validation loss by step" in (out / "index.html").read_text()
    assert "Validation loss by learning rate" in (out / "tuning" / "index.html").read_text()
    runs = sorted((out / "runs").iterdir())
    assert len(runs) == 4
    record = read_record(runs[0])
    assert record.run["task"]["corpus_hash"]
    assert len(record.epochs) == 10
    assert not (runs[0] / "checkpoints").exists()
    first = {seed: read_record(path).epochs[0]["loss"] for seed, path in enumerate(runs[:2])}
    assert first[0] != first[1]

    again = call(*words, "--rate", 0.002, "--rate", 0.02)
    assert again.exit_code == 0, again.output
    assert len((out / "finished.jsonl").read_text().splitlines()) == 4
    other = call(*words, "--rate", 0.002, "--precision", "bf16")
    assert other.exit_code == 2
    assert "other settings" in said(other)


def test_one_rate_is_not_tuned(texts, tmp_path):
    result = call(*SLICE, "--corpus", texts, "--rate", 0.01, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "tuning").exists()
    assert len(json.loads((tmp_path / "results.json").read_text())["dcl-10"]["seed"]) == 2


def test_the_study_refuses(texts, tmp_path, monkeypatch):
    assert "there is no method 'magic'" in said(call(*SLICE, "--row", "magic", "--out", tmp_path))
    assert "must differ" in said(call(*SLICE, "--first-seed", 9999, "--out", tmp_path))
    assert "there is no folder or file" in said(call(*SLICE, "--corpus", tmp_path / "no", "--out", tmp_path))
    runner = LanguageRunner(folder=tmp_path, machine=Machine(), corpus=str(texts))
    assert pickle.loads(pickle.dumps(runner)) == runner, "other processes execute runs too"
    with pytest.raises(ValueError, match=r"has the hash .* here and 0000 where the study began"):
        LanguageRunner(folder=tmp_path, machine=Machine(), corpus=str(texts), corpus_hash="0000").text()
    assert "capture needs a GPU" in said(call(*SLICE, "--corpus", texts, "--capture", "--out", tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "leave torchrun out" in said(call(*SLICE, "--corpus", texts, "--out", tmp_path))
    assert list(tmp_path.iterdir()) == []


def train_lm(*words):
    small = ["--batch-size", 4, "--context", 16, "--device", "cpu", "--steps", 8, "--evaluate-every", 4]
    return call("train-lm", *small, *words)


def test_train_lm_trains_and_resumes(texts, tmp_path):
    words = ["--corpus", texts, "--method", "dcl-10", "--window", 3, "--out", tmp_path]
    result = train_lm(*words)
    assert result.exit_code == 0, result.output
    assert "validation" in result.output
    record = read_record(tmp_path)
    assert f"{record.epochs[-1]['evaluation']['loss']:.4f}" in result.output
    assert record.run["config"]["method"]["window"] == 3
    assert (record.run["row"], record.run["data"]) == ("dcl-10", texts.name)
    assert len(record.steps) == 8

    assert "give --resume to continue it" in said(train_lm(*words))
    before = (tmp_path / "record.jsonl").read_bytes()
    assert train_lm(*words, "--resume").exit_code == 0
    assert (tmp_path / "record.jsonl").read_bytes() == before
    changed = train_lm(*words, "--resume", "--lr", 0.5)
    assert changed.exit_code == 2
    assert "learning_rate was 0.001 and is 0.5" in said(changed)


def test_train_lm_changes_settings_of_a_method(texts, tmp_path):
    words = ["--floor", 0.1, "--no-returning", "--correct", "update", "--blocks", "row", "--cautious", "--mask-decay"]
    result = train_lm("--corpus", texts, "--method", "dcl-10", *words, "--out", tmp_path / "dcl")
    assert result.exit_code == 0, result.output
    described = (
        "(DCL-10-1 concentrate, whole network, floor 0.1, returning off, corrects the update, by row, cautious, "
        "masked decay)"
    )
    assert described in said(result)
    record = read_record(tmp_path / "dcl")
    assert record.run["config"]["method"] == Correction(
        name="dcl", scope="all", window=10, floor=0.1, returning=False, correct="update", blocks="row", cautious=True,
        mask_decay=True,
    ).settings()  # fmt: skip
    assert all(0 < line["kept"] <= 1 for line in record.steps)
    assert min(line["kept"] for line in record.steps) < 1
    cautious = train_lm("--corpus", texts, "--method", "cautious", "--max-rescale", 2, "--out", tmp_path / "cautious")
    assert "method cautious (Cautious, rescaled at most 2.0)" in said(cautious)
    refused = train_lm("--corpus", texts, "--method", "anchor-10", "--floor", 0.1, "--out", tmp_path / "anchor")
    assert refused.exit_code == 2
    assert "--floor: needs DCL in mode concentrate" in said(refused)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "magic"], "there is no method 'magic'"),
        (["--corpus", "/nowhere"], "there is no folder or file /nowhere"),
        (["--evaluate-every", "3"], "steps must be a multiple of evaluate_steps"),
        (["--context", "100000000"], "too few for a context of"),
        (["--method", "cautious", "--window", "5"], "--window: needs DCL"),
    ],
)
def test_train_lm_refuses(words, message, texts, tmp_path):
    result = train_lm("--corpus", texts, "--out", tmp_path / "run", *words)
    assert result.exit_code == 2
    assert message in said(result)
    assert not (tmp_path / "run").exists()


def test_sizes_on_the_command_line_are_those_of_the_study():
    for function, name in ((command, "model"), (language, "table")):
        assert list(get_args(get_type_hints(function)[name])) == list(SETUPS) == list(RATES)
