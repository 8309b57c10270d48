import json
import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "training_loop.py"


def test_the_loop_is_timed_beside_a_plain_one(tmp_path, monkeypatch, capsys):
    size = ["--model", "mlp", "--images", "128", "--side", "8", "--channels", "1", "--batch-size", "32"]
    out = tmp_path / "made" / "loop.json"
    words = [str(SCRIPT), "--device", "cpu", *size, "--epochs", "2", "--repeats", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(out.read_text())
    assert found["ratio_to_plain"]["plain loop, by hand"] == 1
    assert all(rate > 0 for rates in found["images_per_second"].values() for rate in rates)
    assert len(found["ratio_to_plain"]) == 5
    assert "our loop" in capsys.readouterr().out
