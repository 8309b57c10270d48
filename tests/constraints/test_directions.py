"""Constraints given by hand."""

import pytest
import torch
from problems import network

import congruency


def test_directions_over_some_of_the_parameters():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    directions = congruency.Directions()
    congruency.Corrector(optimizer, constraints=[directions])
    weight = model[2].weight
    directions.set([[torch.ones_like(weight)]], [weight])
    for p in model.parameters():
        p.grad = torch.full_like(p, -1.0)
    optimizer.step()
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    assert torch.equal(model[0].weight.grad, torch.full_like(model[0].weight, -1.0))


def test_directions_refuse_wrong_shapes():
    weight = torch.zeros(2, 3)
    directions = congruency.Directions()
    with pytest.raises(ValueError, match="direction 0 has 2 tensors for 1 parameters"):
        directions.set([[weight, weight]], [weight])
    with pytest.raises(ValueError, match=r"direction 1 has a tensor of shape \(3,\) for a parameter of shape \(2, 3\)"):
        directions.set([[weight], [torch.zeros(3)]], [weight])
