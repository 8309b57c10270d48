"""Batched networks against torch.nn and autograd, one network at a time."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from congruency.continual import mlp
from congruency.continual.batched_mlp import BatchedMLP, gram

SIZES = (6, 5, 4, 3)
SHAPES = [(1, 1, 1), (1, 1, 3), (1, 3, 1), (3, 1, 2), (2, 3, 4)]  # seeds, methods, sets


def one(weights, sizes=SIZES):
    """The torch network with these weights."""
    network = mlp(sizes).double()
    vector = weights[: sum(p.numel() for p in network.parameters())]
    nn.utils.vector_to_parameters(vector.clone(), network.parameters())
    return network


def random_weights(network, seeds, methods):
    flat = torch.zeros(seeds, methods, network.width, dtype=torch.float64)
    flat[..., : network.parameters] = torch.randn(seeds, methods, network.parameters, dtype=torch.float64)
    return flat


def random_masks(*shape, classes=3):
    """-inf for one class but the label's, which is 0 or 1."""
    mask = torch.zeros(*shape, classes, dtype=torch.float64)
    mask[..., 2] = torch.where(torch.rand(shape) < 0.7, -math.inf, 0.0)
    return mask


def gradient_of(loss, model):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("sizes", [SIZES, (7, 3), (64, 100, 100, 10)])
def test_parameters_are_counted_and_padded(sizes):
    network = BatchedMLP(sizes)
    assert network.parameters == sum(p.numel() for p in mlp(sizes).parameters())
    assert network.parameters <= network.width < network.parameters + 1024
    assert network.width % 1024 == 0
    model = mlp(sizes)
    flat = torch.zeros(network.width)
    flat[: network.parameters] = nn.utils.parameters_to_vector(model.parameters())
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    for (weight, bias), layer in zip(network.layers(flat), linear, strict=True):
        assert torch.equal(weight, layer.weight)
        assert torch.equal(bias, layer.bias)


@pytest.mark.parametrize("sizes", [SIZES, (6, 3), (6, 4, 3)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("seeds", "methods", "_"), SHAPES)
def test_logits(seeds, methods, _, masked, sizes):
    network = BatchedMLP(sizes)
    flat = random_weights(network, seeds, methods)
    inputs = torch.randn(seeds, 7, 6, dtype=torch.float64)
    mask = random_masks(seeds) if masked else None
    found = network.logits(flat, inputs, mask)
    assert found.shape == (seeds, methods, 7, 3)
    for s in range(seeds):
        for m in range(methods):
            expected = one(flat[s, m], sizes)(inputs[s]).detach()
            torch.testing.assert_close(found[s, m], expected if mask is None else expected + mask[s])


@pytest.mark.parametrize("sizes", [SIZES, (6, 3)])
@pytest.mark.parametrize(("seeds", "methods", "tasks"), SHAPES)
def test_permuting_the_weights_equals_permuting_the_pixels(seeds, methods, tasks, sizes):
    """Permutations, pixels without a source, one pixel used several times."""
    network = BatchedMLP(sizes)
    flat = random_weights(network, seeds, methods)
    before = flat.clone()
    inputs = torch.randn(7, 6, dtype=torch.float64)
    pixels = torch.randint(-1, 6, (seeds, tasks, 6))
    pixels[0, 0] = torch.randperm(6)
    with_ones = torch.nn.functional.pad(inputs, (0, 1), value=1.0)
    found = network.logits_from_first_layer(network.permuted_first_layer(flat, pixels, 6), flat, with_ones)
    assert found.shape == (seeds, methods, tasks, 7, 3)
    for t in range(tasks):
        permuted = torch.stack([torch.where(p >= 0, inputs[:, p.clamp(min=0)], 0.0) for p in pixels[:, t]])
        torch.testing.assert_close(found[:, :, t], network.logits(flat, permuted))
    assert torch.equal(flat, before)


@pytest.mark.parametrize("sizes", [SIZES, (6, 3)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(("seeds", "methods", "sets"), SHAPES)
def test_gradients_of_every_set(seeds, methods, sets, count, masked, sizes):
    """A first set of another size, then ``sets`` of ``count`` samples, side by side."""
    network = BatchedMLP(sizes)
    flat = random_weights(network, seeds, methods)
    ends = [3 + k * count for k in range(sets + 1)]
    inputs = torch.randn(seeds, ends[-1], 6, dtype=torch.float64)
    labels = torch.randint(0, 2, inputs.shape[:2])
    of_sets = random_masks(seeds, sets + 1) if masked else None
    lengths = torch.tensor([3] + [count] * sets)
    mask = None if of_sets is None else of_sets.repeat_interleave(lengths, 1)
    rows = torch.full((seeds, methods, sets + 3, network.width), 7.0, dtype=torch.float64)
    network.gradients(flat, inputs, labels, rows[:, :, 1:-1], [(1, 3), (sets, count)], mask)
    assert (rows[:, :, [0, -1]] == 7).all()  # the neighbours are unchanged
    assert (rows[..., network.parameters :] == 7).all()
    for s in range(seeds):
        for m in range(methods):
            for k, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                model = one(flat[s, m], sizes)
                outputs = model(inputs[s, start:end]) + (0 if of_sets is None else of_sets[s, k])
                expected = gradient_of(functional.cross_entropy(outputs, labels[s, start:end]), model)
                torch.testing.assert_close(rows[s, m, 1 + k, : network.parameters], expected)


@pytest.mark.parametrize("sizes", [SIZES, (6, 3)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [1, 7])  # fewer and more samples than outputs of a layer
@pytest.mark.parametrize(("seeds", "methods", "_"), SHAPES)
def test_descent_is_a_step_against_the_gradient(seeds, methods, _, count, masked, sizes):
    network = BatchedMLP(sizes)
    flat = random_weights(network, seeds, methods)
    before = flat.clone()
    inputs = torch.randn(seeds, count, 6, dtype=torch.float64)
    labels = torch.randint(0, 2, (seeds, count))
    mask = random_masks(seeds, count) if masked else None
    rates = 0.1 + torch.rand(1, methods, 1, 1, dtype=torch.float64)
    network.descend(flat, inputs, labels, rates, mask)
    assert torch.equal(flat[..., network.parameters :], before[..., network.parameters :])
    for s in range(seeds):
        for m in range(methods):
            model = one(before[s, m], sizes)
            outputs = model(inputs[s]) + (0 if mask is None else mask[s])
            gradient = gradient_of(functional.cross_entropy(outputs, labels[s]), model)
            expected = before[s, m, : network.parameters] - rates[0, m, 0, 0] * gradient
            torch.testing.assert_close(flat[s, m, : network.parameters], expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("seeds", "methods", "_"), SHAPES)
def test_fisher_sample_by_sample_and_class_by_class(seeds, methods, _, masked):
    network = BatchedMLP(SIZES)
    flat = random_weights(network, seeds, methods)
    inputs = torch.randn(seeds, 4, 6, dtype=torch.float64)
    mask = random_masks(seeds) if masked else None
    found = network.fisher_diagonal(flat, inputs, mask)
    assert (found[..., network.parameters :] == 0).all()
    for s in range(seeds):
        for m in range(methods):
            model = one(flat[s, m])
            expected = torch.zeros(network.parameters, dtype=torch.float64)
            for x in inputs[s]:
                there = [c for c in range(3) if mask is None or mask[s, c] == 0]
                for c in there:
                    log_p = (model(x.unsqueeze(0))[0, there]).log_softmax(-1)[there.index(c)]
                    expected += log_p.exp().detach() * gradient_of(log_p, model).square() / 4
            torch.testing.assert_close(found[s, m, : network.parameters], expected)


@pytest.mark.parametrize("length", [1, 700, 8192, 8193, 20_000])
@pytest.mark.parametrize(("batch", "count"), [(1, 1), (1, 4), (3, 5)])
def test_gram_is_computed_in_float64(batch, count, length):
    vectors = torch.randn(batch, count, length)
    found = gram(vectors)
    exact = vectors.double() @ vectors.double().mT
    assert found.dtype == torch.float64
    assert found.shape == (batch, count, count)
    scale = exact.diagonal(dim1=-2, dim2=-1).sqrt()
    assert ((found - exact).abs() / (scale.unsqueeze(-1) * scale.unsqueeze(-2))).max() < 1e-6
    torch.testing.assert_close(gram(vectors.double()), exact, rtol=1e-12, atol=1e-10)
