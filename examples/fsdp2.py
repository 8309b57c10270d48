"""DCL with sharded parameters (FSDP2); start it with: torchrun --nproc-per-node=2 examples/fsdp2.py

Each process holds a part of every parameter and of every reference. DCL only communicates the small matrix of inner
products: four numbers per step for one reference.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import congruency

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)

torch.manual_seed(options.seed)
truth = torch.randn(10, 3).to(device)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # after sharding, as always with FSDP2
dcl = congruency.DCL(optimizer, window=50, floor=None)  # the paper's form, for optimizers without momentum

torch.manual_seed(1000 * options.seed + rank + 1)  # other samples on every process
losses = []
for _ in range(options.steps):
    inputs = torch.randn(32, 10).to(device)
    loss = nn.functional.cross_entropy(model(inputs), (inputs @ truth).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

state = dcl.state_dict(full_tensors=True)  # whole tensors: loads into any number of processes, also into one
if rank == 0:
    whole = sum(parts[0].numel() for parts in state["sources"][0]["slots"].values())
    here = sum(parameter.to_local().numel() for parameter in model.parameters())
    corrected = int(dcl.stats.corrected_steps)
    print(f"{here} of {whole} parameters on this process, {corrected} of {options.steps} gradients corrected")
    print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"congruency {dcl.stats.congruency.item():.3f} at the last step")
dist.barrier()
dist.destroy_process_group()
