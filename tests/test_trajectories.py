"""Whole trajectories of DCL against the slow numpy version, over the grid of its settings."""

import itertools

import numpy as np
import pytest
import torch
from problems import loss_of, network, weights
from slow_dcl import SlowDCL, adam, rmsprop, sgd

import congruency

STEPS = 18

OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.3), lambda: sgd(0.3)),
    "momentum": (
        lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, weight_decay=0.01),
        lambda: sgd(0.2, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.05), lambda: adam(0.05)),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=0.05), lambda: rmsprop(0.05)),
}

GRID = list(
    itertools.product(
        ("concentrate", "anchor"),
        (None, 5, 7),
        (1, 2, 3),
        (0, 1),
        (0.0, 0.3),
        ("always", "violated"),
        ("joint", "group", "tensor"),
        ("weights", "gradients"),
    )
)


def groups_of(model):
    first, last = model[0], model[2]
    return [{"params": [first.weight, last.bias]}, {"params": [first.bias, last.weight]}]


def indices_of(model, blocks):
    """Where the flat vector holds each block's entries."""
    spans, start = {}, 0
    for p in model.parameters():
        spans[p] = np.arange(start, start + p.numel())
        start += p.numel()
    if blocks == "joint":
        return [np.arange(start)]
    if blocks == "tensor":
        return list(spans.values())
    return [np.concatenate([spans[p] for p in group["params"]]) for group in groups_of(model)]


def flat_gradient(model):
    parts = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]
    present = [torch.full((p.numel(),), p.grad is not None) for p in model.parameters()]
    return torch.cat(parts).numpy(), torch.cat(present).numpy()


def compute_gradients(model, step, drop_first):
    """Backward; with ``drop_first`` every third step leaves the first layer's weight without a gradient."""
    model.zero_grad()
    loss_of(model, step).backward()
    if drop_first and step % 3 == 2:
        model[0].weight.grad = None


def slow_path(settings, update, drop_first=False):
    model = network()
    blocks = settings.pop("blocks")
    slow = SlowDCL(indices_of(model, blocks), **settings)
    path, corrected = [], 0
    for step in range(STEPS):
        compute_gradients(model, step, drop_first)
        gradient, present = flat_gradient(model)
        w = weights(model).numpy()
        x = slow.correct(w, gradient, present)
        corrected += not np.allclose(x, gradient, rtol=1e-12, atol=0)
        w = update(w, x, present)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(w), model.parameters())
        path.append(w)
    return np.stack(path), corrected


def fast_path(settings, make_optimizer, drop_first=False):
    model = network()
    optimizer = make_optimizer(groups_of(model))
    dcl = congruency.DCL(optimizer, **settings)
    path = []
    for step in range(STEPS):
        compute_gradients(model, step, drop_first)
        optimizer.step()
        path.append(weights(model).numpy())
    return np.stack(path), int(dcl.stats.corrected_steps)


FLOORS = [{"floor": None}, {"floor": 0.3, "returning": False}, {"floor": 0.6}, {"floor": 1.0}]


def compare(index, drop_first):
    names = ("mode", "window", "references", "offset", "margin", "trigger", "blocks", "accumulate")
    settings = dict(zip(names, GRID[index], strict=True))
    settings |= FLOORS[index // 8 % 4] if settings["mode"] == "concentrate" else {"floor": None}  # the anchor has none
    make_optimizer, make_update = OPTIMIZERS[list(OPTIMIZERS)[index % 4 if not drop_first else 0]]
    fast, corrected = fast_path(dict(settings), make_optimizer, drop_first)
    slow, expected = slow_path({"returning": True} | settings, make_update(), drop_first)
    np.testing.assert_allclose(fast, slow, rtol=1e-6, atol=1e-8, err_msg=str(settings))
    return corrected, expected


# 864 settings; each chunk takes its share, so that two workers can split them
@pytest.mark.parametrize("chunk", range(8))
def test_grid_equals_slow_version(chunk):
    changed = 0
    for index in range(chunk, len(GRID), 8):
        corrected, expected = compare(index, drop_first=False)
        changed += expected
        assert corrected >= expected
    assert changed > 100  # the grid really corrects


@pytest.mark.parametrize("index", range(0, len(GRID), 23))
def test_missing_gradients_equal_slow_version(index):
    compare(index, drop_first=True)
