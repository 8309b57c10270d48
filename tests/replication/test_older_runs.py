"""Runs of continual learning that were kept as one file each: they are read, and give the stored results."""

import json
from pathlib import Path

import pytest

from congruency.studies.continual.tables import StreamSettings, continual_study
from congruency.studies.results import collect, read_results
from congruency.studies.store import Store
from replication.older_runs import import_older_runs

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_runs_kept_one_by_one_give_the_stored_results(tmp_path):
    kept = [json.loads(path.read_text()) for path in sorted((RESULTS / "icifar100_clean" / "runs").glob("*.json"))]
    assert {"losses" in run for run in kept} == {True, False}
    import_older_runs(RESULTS / "icifar100_clean", tmp_path)
    import_older_runs(RESULTS / "icifar100_clean", tmp_path)  # finds them there and adds nothing
    finished = Store(tmp_path).load()
    assert len(finished) == len(kept) == len((tmp_path / "finished.jsonl").read_text().splitlines())
    study = continual_study(StreamSettings(table="icifar100", labels="clean"))
    results, stored = collect(study, finished), read_results(RESULTS / "icifar100_clean")
    assert results.keys() == stored.keys()
    for row, metrics in stored.items():
        for name, values in metrics.items():
            assert results[row][name] == pytest.approx(values, rel=1e-12, nan_ok=True)


def older_run(folder: Path, **changes) -> Path:
    record = json.loads(next((RESULTS / "icifar100_clean" / "runs").glob("EWC-seed0-*.json")).read_text()) | changes
    (folder / "runs").mkdir()
    path = folder / "runs" / "one.json"
    path.write_text(json.dumps(record))
    return path


@pytest.mark.parametrize("losses", [[[1.0]], None, "x"])
def test_a_damaged_older_run_is_named(losses, tmp_path):
    path = older_run(tmp_path, losses=losses)
    with pytest.raises(ValueError, match=rf"{path.name} is not a finished run .*; remove it"):
        import_older_runs(tmp_path, tmp_path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match="is not a finished run"):
        import_older_runs(tmp_path, tmp_path)
