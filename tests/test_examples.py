"""Every example runs in a small form and prints its congruency."""

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# How many steps suffice for a gradient to be corrected.
ALONE = {
    "plain_pytorch": 60,
    "continual_learning": 20,
    "timm_optimizer": 6,
    "with_lightning": 64,
    "with_transformers": 25,
}
TWO_PROCESSES = {"ddp_torchrun": 60, "fsdp2": 60}


def run(command, folder):
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def run_one(name, steps):
    path = str(EXAMPLES / f"{name}.py")
    sys.argv = [path, "--steps", str(steps)]
    runpy.run_path(path, run_name="__main__")


def run_each():
    """Run the examples for one process, one after the other: starting Python takes longer than any of them."""
    results = {}
    for name, steps in ALONE.items():
        printed, error = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed):
                run_one(name, steps)
        except BaseException:
            error = traceback.format_exc()
        results[name] = {"printed": printed.getvalue(), "error": error}
    print("\n" + json.dumps(results))


def check(printed):
    found = re.findall(r"^congruency (?:with the way come )?(-?\d\.\d+)\b", printed, re.MULTILINE)
    assert len(found) == 1, printed
    assert -1 <= float(found[0]) <= 1
    corrected = re.findall(r"\b(\d+) of \d+ (?:gradients )?corrected", printed)
    assert len(corrected) == 1, printed
    assert int(corrected[0]) > 0, printed


def test_all_examples_are_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*ALONE, *TWO_PROCESSES}


def test_examples_for_one_process(tmp_path):
    result = run([__file__], tmp_path)
    assert result.returncode == 0, result.stderr[-5000:]
    results = json.loads(result.stdout.splitlines()[-1])
    assert set(results) == set(ALONE)
    for name, found in results.items():
        assert found["error"] is None, f"{name}: {found['error']}"
        check(found["printed"])
    assert not list(tmp_path.iterdir())  # they leave nothing behind


@pytest.mark.parametrize("name", TWO_PROCESSES)
def test_example_for_two_processes(name, tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = run([*torchrun, __file__, name], tmp_path)
    assert result.returncode == 0, result.stderr[-5000:]
    check(result.stdout)


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose datasets/ would pass for the package of that name
    if sys.argv[1:]:
        run_one(sys.argv[1], TWO_PROCESSES[sys.argv[1]])
        sys.stdout.flush()
        os._exit(0)  # at once: gloo's threads now and then abort a process while Python winds down
    run_each()
