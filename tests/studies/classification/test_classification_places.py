"""The same study in this process, in several processes and on Ray: the same results, bit for bit."""

import json

import pytest
from typer.testing import CliRunner

from congruency import cli

STUDY = [
    "reproduce", "classification", "cifar10_grid", "--dataset", "digits", "--model", "mlp", "--epochs", "1",
    "--batch-size", "128", "--device", "cpu", "--row", "baseline", "--row", "DCL-5-1, concentrate, margin 0, all",
    "--seeds", "2", "--threads", "1",
]  # fmt: skip


def results(out, *place):
    result = CliRunner().invoke(cli.build(), [*STUDY, *place, "--out", str(out)], env={"COLUMNS": "160"})
    if "Ray could not be started" in result.output:
        pytest.skip(f"Ray does not start on this machine: {result.output[-300:]}")
    assert result.exit_code == 0, result.output
    times = ("seconds", "images_per_second")
    found = json.loads((out / "results.json").read_text())
    return {row: {name: v for name, v in metrics.items() if name not in times} for row, metrics in found.items()}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return results(tmp_path_factory.mktemp("here"))


@pytest.mark.parametrize("place", [["--processes", "2"], ["--ray", "local", "--processes", "2"]], ids=" ".join)
def test_results_are_the_same_everywhere(here, place, tmp_path):
    if "--ray" in place:
        pytest.importorskip("ray", reason="ray is not installed: it comes with congruency[cluster]")
    assert list(here) == ["baseline", "DCL-5-1, concentrate, margin 0, all"]
    assert all(metrics["seed"] == [0, 1] for metrics in here.values())
    assert here["baseline"]["test error"] != here["DCL-5-1, concentrate, margin 0, all"]["test error"]
    assert results(tmp_path, *place) == here
