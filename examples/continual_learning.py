"""A stream of tasks with GEM and DCL in one quadratic program: no step against the memory or against the way come."""

import argparse

import torch
from torch import nn

import congruency

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=100, help="of every task")
steps = parser.parse_args().steps

torch.manual_seed(0)
inputs = torch.randn(1000, 10)
targets = (inputs @ torch.randn(10, 4)).argmax(1)
tasks = [(inputs[:, torch.randperm(10)], targets) for _ in range(3)]  # the same samples, their features permuted


def learn(sources_of):
    """The mean accuracy over all tasks at the end, and what corrected the gradients."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    references, memory = sources_of(model)
    sources = [source for source in (references, memory) if source is not None]
    corrector = congruency.Corrector(optimizer, constraints=sources) if sources else None
    for task, (x, y) in enumerate(tasks):
        if references is not None:
            references.reset()  # the way come on the last task says nothing of this one
        for _ in range(steps):
            batch = torch.randint(0, len(x), (20,))
            if memory is not None:
                memory.observe(x[batch], y[batch], task)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        accuracies = [(model(x).argmax(1) == y).float().mean().item() for x, y in tasks]
    return sum(accuracies) / len(accuracies), corrector


alone, _ = learn(lambda model: (None, None))
gem, _ = learn(lambda model: (None, congruency.EpisodicMemory(model, size=100)))
both, corrector = learn(lambda model: (congruency.References(window=30), congruency.EpisodicMemory(model, size=100)))
print(
    f"mean accuracy after the last task: SGD {alone:.3f}, GEM {gem:.3f}, GEM and DCL {both:.3f} (one seed: no result)"
)
names = ["the way come", *(f"task {task}" for task in range(len(tasks) - 1))]
cosines = zip(names, corrector.stats.congruency.tolist(), strict=True)
print(f"{int(corrector.stats.corrected_steps)} of {corrector.stats.steps} gradients corrected; at the last step:")
print("congruency", ", ".join(f"with {name} {cosine:.3f}" for name, cosine in cosines))
