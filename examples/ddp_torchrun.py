"""Cautious AdamW with DistributedDataParallel; start it with: torchrun --nproc-per-node=2 examples/ddp_torchrun.py

Every process makes the same update from the same averaged gradient and corrects it in the same way, so nothing has to
be communicated.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import congruency

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")

torch.manual_seed(options.seed)  # the same task and first weights everywhere
truth = torch.randn(10, 3).to(device)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
cautious = congruency.Cautious(optimizer)

torch.manual_seed(1000 * options.seed + rank + 1)  # other samples on every process
losses = []
for _ in range(options.steps):
    inputs = torch.randn(32, 10).to(device)
    loss = nn.functional.cross_entropy(model(inputs), (inputs @ truth).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

weights = nn.utils.parameters_to_vector(model.parameters()).detach()
first = weights.clone()
dist.broadcast(first, src=0)
assert torch.equal(weights, first), "the processes have diverged"
if rank == 0:
    stats = cautious.stats
    print(f"{dist.get_world_size()} processes, {int(stats.corrected_steps)} of {options.steps} updates corrected")
    print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"congruency {stats.congruency.item():.3f} of update and gradient, {stats.kept:.0%} kept, at the last step")
dist.barrier()
dist.destroy_process_group()
