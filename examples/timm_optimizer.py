"""Cautious updates with an optimizer from timm: its factory, parameter groups and scheduler do not change.

timm's training script creates a model by name, an optimizer with ``create_optimizer_v2`` (one group of parameters
without weight decay) and a scheduler. ``Cautious`` takes the optimizer, whatever its groups.
"""

import argparse

import torch
from torch import nn

import congruency
import congruency._torchvision_compat  # makes torchvision importable where it is half installed; timm needs it

import timm  # isort: skip
from timm.optim import create_optimizer_v2  # isort: skip
from timm.scheduler import create_scheduler_v2  # isort: skip

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--model", default="test_efficientnet", help="any of timm.list_models()")
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

torch.manual_seed(options.seed)
model = timm.create_model(options.model, num_classes=4, in_chans=3)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.01, filter_bias_and_bn=True)
scheduler, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=10, warmup_epochs=1, warmup_lr=1e-4)
cautious = congruency.Cautious(optimizer)

losses = []
for step in range(options.steps):
    targets = torch.randint(0, 4, (32,))
    images = 0.5 * torch.randn(32, 3, 64, 64) + targets.view(-1, 1, 1, 1)  # the brighter, the higher the class
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), targets)
    loss.backward()
    optimizer.step()
    scheduler.step(10 * step // options.steps)
    losses.append(loss.item())

rate = optimizer.param_groups[0]["lr"]
print(f"{options.model}: {len(optimizer.param_groups)} parameter groups, learning rate {rate:.2g} at the end")
print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")
stats = cautious.stats
print(f"{int(stats.corrected_steps)} of {stats.steps} updates corrected, {stats.kept:.0%} of the last one kept")
print(f"congruency {stats.congruency.item():.3f} of the last update and gradient")
