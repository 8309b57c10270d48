"""A stream of tasks with GEM and DCL in one quadratic program.

No step may raise the loss on the memory of past tasks or oppose the displacement since the reference point.
"""

import argparse

import torch
from torch import nn

import congruency

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=100, help="per task")
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

torch.manual_seed(options.seed)
inputs = torch.randn(1000, 10)
targets = (inputs @ torch.randn(10, 4)).argmax(1)
tasks = [(inputs[:, torch.randperm(10)], targets) for _ in range(3)]  # the same samples, their features permuted
losses = {}  # of the batches, by method and task


def learn(name, sources_of):
    """Return the mean accuracy over all tasks at the end, and the corrector."""
    torch.manual_seed(options.seed + 1)
    model = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    references, memory = sources_of(model)
    sources = [source for source in (references, memory) if source is not None]
    corrector = congruency.Corrector(optimizer, constraints=sources) if sources else None
    for task, (x, y) in enumerate(tasks):
        if references is not None:
            references.reset()  # the displacement on the last task says nothing about this one
        run = losses[f"{name}, task {task}"] = []
        for _ in range(options.steps):
            batch = torch.randint(0, len(x), (20,))
            if memory is not None:
                memory.observe(x[batch], y[batch], task)
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.append(loss.item())
    with torch.no_grad():
        accuracies = [(model(x).argmax(1) == y).float().mean().item() for x, y in tasks]
    return sum(accuracies) / len(accuracies), corrector


alone, _ = learn("SGD", lambda model: (None, None))
gem, _ = learn("GEM", lambda model: (None, congruency.EpisodicMemory(model, size=100)))
both, corrector = learn(
    "GEM and DCL", lambda model: (congruency.References(window=30), congruency.EpisodicMemory(model, size=100))
)
for name, run in losses.items():
    print(f"{name}, loss: {run[0]:.3f} -> {run[-1]:.3f}")
print(f"mean accuracy after the last task (one seed only): SGD {alone:.3f}, GEM {gem:.3f}, GEM and DCL {both:.3f}")
names = ["the accumulated gradient", *(f"task {task}" for task in range(len(tasks) - 1))]
cosines = zip(names, corrector.stats.congruency.tolist(), strict=True)
print(f"{int(corrector.stats.corrected_steps)} of {corrector.stats.steps} gradients corrected; at the last step:")
print("congruency", ", ".join(f"with {name} {cosine:.3f}" for name, cosine in cosines))
