"""Two real processes: DDP keeps its ranks identical, FSDP2 equals one process."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed_worker import FAMILY, SETTINGS, STEPS, build, learn_tasks, step_loss, train_family
from problems import network, weights

import congruency

HERE = Path(__file__).parent


def run(case, folder):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, str(HERE / "distributed_worker.py"), case, str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-5000:]


def one_process(settings):
    """Both halves of every batch in one process: the mean of the ranks' gradients."""
    model, optimizer, dcl = build(settings)
    meter = congruency.CongruencyMeter(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        (sum(step_loss(model, step, rank) for rank in (0, 1)) / 2).backward()
        meter.update()
        optimizer.step()
    return weights(model), int(dcl.stats.corrected_steps), meter.compute()


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_two_processes_equal_one(case, tmp_path):
    run(case, tmp_path)
    for name, settings in SETTINGS.items():
        (first, corrected), (second, _) = (torch.load(tmp_path / f"{case}-{name}-{rank}.pt") for rank in (0, 1))
        expected, expected_corrected, _ = one_process(settings)
        assert torch.equal(first, second), name
        torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
        assert corrected == expected_corrected > 0


@pytest.mark.parametrize("case", ["ddp_family", "fsdp_family"])
def test_updates_rows_and_elements_in_two_processes_equal_one(case, tmp_path):
    """The kept share is that of whole tensors: it is summed over the processes that hold parts of them."""
    run(case, tmp_path)
    for name in FAMILY:
        first, second = (torch.load(tmp_path / f"{case}-{name}-{rank}.pt") for rank in (0, 1))
        expected, corrected, shares = train_family(name)
        assert torch.equal(first[0], second[0]), name
        torch.testing.assert_close(first[0], expected, rtol=1e-9, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")
        for _, count, kept in (first, second):
            torch.testing.assert_close(kept, shares, equal_nan=True)
            # each process counts the steps in which one of its own rows was corrected
            assert 0 < count <= corrected if name == "row" else count == corrected > 0
        assert torch.isnan(shares).all() == name.startswith(("update", "row"))


def test_a_memory_on_every_process_gives_the_rows_of_one(tmp_path):
    run("ddp_gem", tmp_path)
    (first, corrected), (second, _) = (torch.load(tmp_path / f"gem-{rank}.pt") for rank in (0, 1))
    expected, expected_corrected = learn_tasks(network(torch.float32))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)
    assert corrected == expected_corrected > 0


def test_sharded_and_full_state(tmp_path):
    run("fsdp_state", tmp_path)
    full = torch.load(tmp_path / "full-0.pt", weights_only=True)
    model, _, dcl = build(SETTINGS["three"])
    dcl.load_state_dict(full)  # a checkpoint of two processes resumes in one
    assert dcl.stats.steps == 9
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert [tuple(full["sources"][0]["slots"][str(i)][0].shape) for i in range(4)] == shapes


def test_meter_over_shards(tmp_path):
    run("fsdp_meter", tmp_path)
    _, _, result = one_process(SETTINGS["one"])
    expected = (float(result.congruency), float(result.magnitude))
    for rank in (0, 1):
        assert torch.load(tmp_path / f"meter-{rank}.pt") == pytest.approx(expected, rel=1e-4)
