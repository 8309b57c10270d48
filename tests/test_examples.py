"""Every example runs in a small form, learns, and prints its loss, its congruency and how many steps were corrected."""

import contextlib
import io
import itertools
import json
import os
import re
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from learning import assert_learns

EXAMPLES = Path(__file__).parent.parent / "examples"
# How many steps suffice to learn and for a step to be corrected.
ALONE = {
    "plain_pytorch": 100,
    "continual_learning": 60,
    "timm_optimizer": 40,
    "with_lightning": 160,
    "with_transformers": 100,
}
SEEDS = range(3)
TWO_PROCESSES = {"ddp_torchrun": 100, "fsdp2": 100}


def run(command, folder, **variables):
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables},
    )


def run_one(name, steps, seed):
    """Run an example as a program; returns its variables."""
    path = str(EXAMPLES / f"{name}.py")
    sys.argv = [path, "--steps", str(steps), "--seed", str(seed)]
    return runpy.run_path(path, run_name="__main__")


def run_each():
    """Run the examples for one process, one after the other: starting Python takes longer than any of them."""
    results = {name: [] for name in ALONE}
    for name, seed in itertools.product(ALONE, SEEDS):
        printed, losses, error = io.StringIO(), None, None
        try:
            with contextlib.redirect_stdout(printed):
                losses = run_one(name, ALONE[name], seed)["losses"]
        except BaseException:
            error = traceback.format_exc()
        results[name].append({"printed": printed.getvalue(), "losses": losses, "error": error})
    print("\n" + json.dumps(results))


def check(printed):
    printed_losses = re.findall(r"\bloss: (\d\S*) -> (\d[\d.e-]*)", printed)
    assert printed_losses, printed
    assert_learns(dict(enumerate(printed_losses)), printed)
    found = re.findall(r"^congruency (?:with the accumulated gradient )?(-?\d\.\d+)\b", printed, re.MULTILINE)
    assert len(found) == 1, printed
    assert -1 <= float(found[0]) <= 1
    corrected = re.findall(r"\b(\d+) of \d+ (?:gradients|updates) corrected", printed)
    assert len(corrected) == 1, printed
    assert int(corrected[0]) > 0, printed


def test_all_examples_are_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*ALONE, *TWO_PROCESSES}


def test_examples_for_one_process(tmp_path):
    result = run([__file__], tmp_path)
    assert result.returncode == 0, result.stderr[-5000:]
    results = json.loads(result.stdout.splitlines()[-1])
    assert set(results) == set(ALONE)
    for name, runs in results.items():
        assert len(runs) == len(SEEDS)
        for found in runs:
            assert found["error"] is None, f"{name}: {found['error']}"
            assert_learns(found["losses"], name)
            check(found["printed"])
    assert not list(tmp_path.iterdir())  # they leave nothing behind


def test_the_notebook_runs(tmp_path):
    """Its code cells in order, in a process of their own; no output is stored, no cell id twice."""
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    program = "\n".join("".join(cell["source"]) for cell in cells)
    (tmp_path / "notebook.py").write_text("import warnings\nwarnings.simplefilter('error')\n" + program, "utf-8")
    result = run(["notebook.py"], tmp_path, MPLBACKEND="agg")
    assert result.returncode == 0, result.stderr[-5000:]
    losses = re.findall(r"^(\w+) +loss: (\d\S*) -> (\d\S*)$", result.stdout, re.MULTILINE)
    assert [name for name, *_ in losses] == ["AdamW", "Cautious", "DCL"]
    assert_learns({name: pair for name, *pair in losses}, "first_steps.ipynb")
    assert re.search(r"^Cautious .*'kept': 0\.\d", result.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", TWO_PROCESSES)
def test_example_for_two_processes(name, tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = run([*torchrun, __file__, name], tmp_path)
    assert result.returncode == 0, result.stderr[-5000:]
    check(result.stdout)


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose datasets/ would pass for the package of that name
    if sys.argv[1:]:
        run_one(sys.argv[1], TWO_PROCESSES[sys.argv[1]], seed=0)
        sys.stdout.flush()
        os._exit(0)  # at once: gloo's threads now and then abort a process while Python winds down
    run_each()
