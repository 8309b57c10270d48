"""Two processes, replicated and sharded, train the model that one trains, tied weights included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from language_toy import write_texts
from language_worker import STRATEGIES, run

from congruency.training import load_checkpoint, read_record

HERE = Path(__file__).parent


def weights(folder):
    return load_checkpoint(sorted((folder / "checkpoints").glob("*.pt"))[-1])["model"]


def test_two_processes_equal_one(tmp_path):
    texts = write_texts(tmp_path / "words")
    run("auto", texts, tmp_path / "one")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(HERE / "language_worker.py"), str(texts), str(tmp_path)], capture_output=True, text=True,
        timeout=200, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{HERE.parent}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    expected = weights(tmp_path / "one")
    for strategy in STRATEGIES:
        found = weights(tmp_path / strategy)
        assert expected.keys() == found.keys()
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=1e-3, atol=1e-5)
        theirs, ours = (read_record(tmp_path / name).epochs[-1]["evaluation"] for name in (strategy, "one"))
        assert theirs == pytest.approx(ours, rel=1e-4)
