"""Two real processes, replicated and sharded, against one."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from training_toy import assert_same, build, everything, flat, network
from training_worker import METHODS, adam, config

from congruency.training import load_checkpoint, read_record, train

HERE = Path(__file__).parent
FIGURES = ("congruency", "corrected_congruency", "magnitude", "magnitude_previous", "loss", "error", "corrected_share")


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def two(request, tmp_path_factory):
    """The folder of all runs of two processes under one strategy."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, str(HERE / "training_worker.py"), request.param, str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{HERE.parent}"},
    )
    assert result.returncode == 0, result.stderr[-6000:]
    return folder


def weights(folder):
    newest = sorted((folder / "checkpoints").glob("*.pt"))[-1]
    model = network()
    model.load_state_dict(load_checkpoint(newest)["model"])
    return flat(model)


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_equal_one(name, two, tmp_path):
    train(partial(build, optimizer=adam), config("auto", **METHODS[name]), tmp_path)
    torch.testing.assert_close(weights(two / name), weights(tmp_path), rtol=1e-4, atol=1e-5)
    expected, found = read_record(tmp_path), read_record(two / name)
    assert found.run["processes"] == 2
    assert len(found.steps) == len(expected.steps)
    for theirs, ours in zip(found.epochs, expected.epochs, strict=True):
        assert theirs["samples"] == ours["samples"]
        assert theirs["evaluation"] == pytest.approx(ours["evaluation"], rel=1e-3)
        for figure in FIGURES:
            assert theirs[figure] == pytest.approx(ours[figure], rel=1e-3, abs=1e-4), figure
        assert theirs.get("kept") == (pytest.approx(ours["kept"], abs=1e-2) if "cautious" in name else None)
    assert sum(line["corrected_share"] for line in expected.epochs) > 0 or name in ("baseline", "l2sp")


def test_stopped_and_resumed_together(two):
    assert_same(everything(two / "stopped"), everything(two / "whole"))


def test_other_numbers_of_processes_are_refused(two):
    if two.name.startswith("ddp"):  # fsdp alone is refused before
        with pytest.raises(ValueError, match=r"the run had 2 process\(es\), now there are 1"):
            train(partial(build, optimizer=adam), config("ddp", **METHODS["dcl"]), two / "dcl", resume=True)
