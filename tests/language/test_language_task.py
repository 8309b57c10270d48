"""Training a GPT on the one loop: it learns, is paired, resumes bit for bit, and divides batches without a change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from language_toy import SHAPE, small, write_texts

from congruency.language import Windows, build, read_corpus, task, training_config
from congruency.training import METHODS, Place, load_checkpoint, method_named, read_record, train, without_times

HERE = Path(__file__).parent
CPU = Place(torch.device("cpu"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return read_corpus(write_texts(tmp_path_factory.mktemp("text") / "words"))


def trained(setup, corpus, folder, method="baseline", **machine):
    """The record and the last checkpoint of a run."""
    config = training_config(setup, METHODS[method], **{"accelerator": "cpu", "flush_every": 4, **machine})
    result = train(build(setup, corpus), config, folder, resume=True)
    assert result.finished
    return read_record(folder), load_checkpoint(result.checkpoint)


def assert_same_weights(a, b, **tolerance):
    for name in a["model"]:
        torch.testing.assert_close(a["model"][name], b["model"][name], **(tolerance or {"rtol": 0, "atol": 0}))


def test_it_learns_and_records_what_it_trained_on(corpus, tmp_path):
    record, _ = trained(small(steps=120, evaluate_steps=40), corpus, tmp_path, "paper-10")
    losses = [line["evaluation"]["loss"] for line in record.epochs]
    assert len(losses) == 3
    assert losses[-1] < 2.5 < 5.0 < record.steps[0]["loss"]
    assert record.run["task"]["corpus_hash"] == corpus.digest
    assert record.run["task"]["training_bytes"] == len(corpus.train)
    assert record.run["steps"] == 120
    assert sum(line["corrected_share"] for line in record.epochs) > 0


def test_windows_are_paired_and_start_anywhere(corpus):
    data, same, other = (Windows(corpus.train, small(seed=seed), CPU) for seed in (0, 0, 1))
    first = list(data.train_batches(1))
    assert len(first) == len(data) == 4
    for (inputs, targets), (inputs_again, _) in zip(first[2:], same.train_batches(1, 2), strict=True):
        assert torch.equal(inputs, inputs_again)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert inputs.shape == (8, SHAPE.context)
    assert not torch.equal(first[0][0], next(other.train_batches(1))[0])
    assert not torch.equal(first[0][0], next(data.train_batches(0))[0])
    text = bytes(corpus.train.tolist())
    assert all(bytes(row.tolist()) in text for inputs, targets in first for row in torch.cat([inputs, targets]))


def test_the_last_byte_can_be_drawn(corpus):
    """A text of one byte more than the context is one window."""
    data = Windows(corpus.train[: SHAPE.context + 1], small(), CPU)
    inputs, targets = next(data.train_batches(0))
    assert (inputs == corpus.train[: SHAPE.context]).all()
    assert (targets[:, -1] == corpus.train[SHAPE.context]).all()


def test_processes_share_the_windows_of_one(corpus):
    whole = next(Windows(corpus.train, small(), CPU).train_batches(0))[0]
    parts = [next(Windows(corpus.train, small(), Place(CPU.device, rank, 2)).train_batches(0))[0] for rank in range(2)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("method", ["baseline", "paper-10"])
def test_accumulation_equals_the_large_batch(method, corpus, tmp_path):
    record, one = trained(small(), corpus, tmp_path / "one", method)
    divided, four = trained(small(accumulate=4), corpus, tmp_path / "four", method)
    assert_same_weights(one, four, rtol=1e-3, atol=1e-5)
    assert len(divided.steps) == len(record.steps) == 12
    for theirs, ours in zip(divided.steps, record.steps, strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4)


class PowerFailure(Exception):
    """Stands for a power failure."""


@pytest.mark.parametrize("method", ["baseline", "paper-10", "anchor-10"])
def test_resume_bit_for_bit(method, corpus, tmp_path, monkeypatch):
    setup = small(steps=24, evaluate_steps=8, accumulate=2)
    expected, whole = trained(setup, corpus, tmp_path / "whole", method, checkpoint_steps=3)
    usual = Windows.train_batches

    def failing(self, epoch, start=0):
        for i, batch in enumerate(usual(self, epoch, start), start=start):
            if (epoch, i) == (1, 10):
                raise PowerFailure
            yield batch

    monkeypatch.setattr(Windows, "train_batches", failing)
    with pytest.raises(PowerFailure):
        trained(setup, corpus, tmp_path / "broken", method, checkpoint_steps=3)
    monkeypatch.setattr(Windows, "train_batches", usual)
    record, resumed = trained(setup, corpus, tmp_path / "broken", method, checkpoint_steps=3)
    assert_same_weights(resumed, whole)
    assert without_times(record.epochs) == without_times(expected.epochs)
    assert without_times(record.steps) == without_times(expected.steps)


KILLED = """
import os, signal, sys
import torch
from language_toy import small
from congruency.language import Windows, build, read_corpus, training_config
from congruency.training import METHODS, train

torch.set_num_threads(1)
usual = Windows.train_batches
def killed(self, epoch, start=0):
    for i, batch in enumerate(usual(self, epoch, start), start=start):
        if (epoch, i) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
Windows.train_batches = killed
config = training_config(small(), METHODS["paper-10"], accelerator="cpu", flush_every=4, checkpoint_steps=5)
train(build(small(), read_corpus(sys.argv[1])), config, sys.argv[2])
"""


def test_killed_and_resumed(tmp_path):
    folder = write_texts(tmp_path / "words")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "killed")], capture_output=True, text=True,
        timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == -9, done.stderr
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        record, resumed = trained(small(), read_corpus(folder), tmp_path / "killed", "paper-10", checkpoint_steps=5)
        expected, whole = trained(small(), read_corpus(folder), tmp_path / "whole", "paper-10", checkpoint_steps=5)
    finally:
        torch.set_num_threads(threads)
    assert_same_weights(resumed, whole)
    assert without_times(record.steps) == without_times(expected.steps)


def test_only_matrices_decay(corpus):
    model = build(small(), corpus)(CPU).model
    optimizer = task._optimizer(small(weight_decay=0.3, betas=(0.8, 0.9)), model, CPU)
    matrices, others = optimizer.param_groups
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in others["params"]} == {1}
    assert (matrices["weight_decay"], others["weight_decay"], matrices["betas"]) == (0.3, 0.0, (0.8, 0.9))
    assert len(matrices["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_the_rate_rises_and_falls(corpus, tmp_path):
    record, _ = trained(small(steps=40, evaluate_steps=20, warmup=9, final_rate=0.2), corpus, tmp_path)
    rates = [line["lr"] for line in record.steps]
    assert rates[:10] == pytest.approx([0.001 * n for n in range(1, 11)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert 0.002 < rates[-1] < 0.0022


def test_evaluation_is_the_mean_over_fixed_windows(corpus, tmp_path):
    setup = small(steps=4)
    made = build(setup, corpus)(CPU)
    with torch.no_grad():
        found = made.evaluate(made.model)["loss"]
        last = len(corpus.held_out) - SHAPE.context - 1
        starts = [int(i * (last / 15)) for i in range(16)]
        windows = torch.stack([corpus.held_out[s : s + SHAPE.context + 1].long() for s in starts])
        logits = made.model(windows[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    assert found == pytest.approx(expected, rel=1e-5)
    assert starts[-1] + SHAPE.context + 1 >= len(corpus.held_out) - 1


def test_bf16_is_close(corpus, tmp_path):
    _, plain = trained(small(), corpus, tmp_path / "plain")
    record, low = trained(small(), corpus, tmp_path / "low", precision="bf16")
    assert_same_weights(low, plain, rtol=0.1, atol=0.05)
    assert record.epochs[-1]["evaluation"]["loss"] < record.steps[0]["loss"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 10, "evaluate_steps": 4}, "steps must be a multiple of evaluate_steps, got 10 and 4"),
        ({"batch_size": 8, "accumulate": 3}, "batch_size must be a multiple of accumulate"),
        ({"warmup": 12}, "warmup must be shorter than the 12 steps, got 12"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"final_rate": 2.0}, "final_rate must be a share from 0 to 1"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
    ],
)
def test_wrong_setups_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_what_does_not_fit_is_refused(corpus, tmp_path):
    (tmp_path / "short.txt").write_text("sixteen letters!" * 10)
    short = read_corpus(tmp_path / "short.txt")
    with pytest.raises(ValueError, match=r"the held-out text of short\.txt has 16 bytes, too few for a context of 16"):
        build(small(), short)
    with pytest.raises(ValueError, match=r"accumulated batches times processes, got 8 and 1 \* 3"):
        build(small(), corpus)(Place(CPU.device, 0, 3))
    with pytest.raises(ValueError, match="there is no method 'magic'; choose one of baseline, cautious"):
        method_named("magic")
