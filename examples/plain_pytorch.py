"""Cautious AdamW in a plain training loop: one line, and a meter that measures the congruency of the run."""

import argparse

import torch
from torch import nn

import congruency

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

torch.manual_seed(options.seed)
inputs = torch.randn(512, 10)
targets = (inputs @ torch.randn(10, 3)).argmax(1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
cautious = congruency.Cautious(optimizer)  # the one line; for DCL: congruency.DCL(optimizer, window=50)
meter = congruency.CongruencyMeter(model.parameters())  # measures, and changes nothing

losses = []
for _ in range(options.steps):
    batch = torch.randint(0, len(inputs), (32,))
    loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    meter.update()  # between backward() and step()
    optimizer.step()  # the update is corrected in here
    losses.append(loss.item())

measured, stats = meter.compute(), cautious.stats
print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")
print(f"{int(stats.corrected_steps)} of {stats.steps} updates corrected, {stats.kept:.0%} of the last one kept")
print(f"congruency {measured.congruency:.3f}, mean distance from the start {measured.magnitude:.3f}")
