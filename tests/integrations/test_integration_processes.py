"""Lightning on two real processes, replicated (DDP) and sharded (FSDP2); torchmetrics over them."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from lightning_models import OPTIONS, batches, flat, optimizer_of
from problems import network

import congruency

HERE = Path(__file__).parent


def run_worker(folder):
    """Two processes that compare fits with plain loops, and resumed fits with uninterrupted ones, bit for bit."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, str(HERE / "lightning_worker.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{HERE.parent}"},
    )
    assert result.returncode == 0, result.stderr[-6000:]


def one_process():
    """Both halves of every batch in one process: the mean of the ranks' gradients."""
    net = network(torch.float32)
    optimizer = optimizer_of(net)
    dcl = congruency.DCL(optimizer, **OPTIONS)
    for halves in zip(batches(0), batches(1), strict=True):
        optimizer.zero_grad()
        (sum((net(inputs) - targets).square().mean() for inputs, targets in halves) / 2).backward()
        optimizer.step()
    return flat(net), int(dcl.stats.corrected_steps)


def test_two_processes(tmp_path):
    """One test, since the processes take most of its time."""
    run_worker(tmp_path)
    expected, expected_corrected = one_process()
    for kind in ("Regression", "Sharded"):
        (first, corrected), (second, _) = (torch.load(tmp_path / f"{kind}-{rank}.pt") for rank in (0, 1))
        assert torch.equal(first, second), kind
        torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5, msg=lambda text, kind=kind: f"{kind}: {text}")
        assert corrected == expected_corrected > 0, kind
    shapes = [tuple(parameter.shape) for parameter in network().parameters()]
    for path in (tmp_path / "fsdp2.ckpt" / "meta.pt", tmp_path / "ddp.ckpt"):  # whole references, sharded or not
        state = torch.load(path, weights_only=True)["callbacks"]["DCLCallback"]["dcls"][0]
        slots = state["sources"][0]["slots"]
        assert [tuple(slots[str(i)][0].shape) for i in range(len(shapes))] == shapes, path
