"""The closed form of every sample's congruency, beside gradients by plain autograd, one sample at a time."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from congruency.experiments.audit.following import Follower, last_layer, matrix, measure, observe
from congruency.experiments.audit.scoring import along, among_class, errors, losses
from congruency.measure import congruency


def network(bias=True, features=6, classes=4):
    return nn.Sequential(nn.Linear(5, features), nn.Tanh(), nn.Linear(features, classes, bias=bias))


def samples(count=30, classes=4):
    return torch.randn(count, 5), torch.randint(0, classes, (count,))


def gradients_by_backward(model, layer, inputs, labels, smoothing):
    """(n, p): the last layer's gradient of each sample alone, the slow way."""
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        loss = functional.cross_entropy(model(x[None]), y[None], label_smoothing=smoothing)
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(layer.parameters()))]))
    return torch.stack(rows).double()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_every_score_is_that_of_the_samples_own_gradients(bias, smoothing):
    model = network(bias).double()
    layer = last_layer(model)
    inputs, labels = (part for part in samples())
    inputs = inputs.double()
    start = [torch.randn_like(parameter) for parameter in layer.parameters()]
    way = torch.cat([(p - s).detach().flatten() for p, s in zip(layer.parameters(), start, strict=True)])
    begun = torch.cat([start[0], start[1][:, None]], 1) if bias else start[0]
    rows = gradients_by_backward(model, layer, inputs, labels, smoothing)

    seen = observe(model, layer, [(inputs[:20], labels[:20]), (inputs[20:], labels[20:])])
    found = measure(seen, labels, matrix(layer) - begun, smoothing)

    close = {"atol": 1e-5, "rtol": 1e-4}  # observed features are float32
    torch.testing.assert_close(found["way"], congruency(rows, -way), **close)
    expected, directions = [], []
    for i, label in enumerate(labels):
        others = [j for j in range(len(labels)) if labels[j] == label and j != i]
        expected.append(congruency(rows[i], rows[others].mean(0)))
        directions.append(congruency(rows[i], functional.normalize(rows[others], dim=1).mean(0)))
    torch.testing.assert_close(found["class"], torch.stack(expected), **close)
    torch.testing.assert_close(found["direction"], torch.stack(directions), **close)
    one_by_one = [
        functional.cross_entropy(model(x[None]), y[None], label_smoothing=smoothing)
        for x, y in zip(inputs, labels, strict=True)
    ]
    torch.testing.assert_close(found["loss"], torch.stack(one_by_one).detach(), **close)


def test_it_is_that_of_per_sample_gradients_by_torch_func():
    model = network()
    layer = last_layer(model)
    inputs, labels = samples()

    def loss(parameters, x, y):
        return functional.cross_entropy(functional_call(model, parameters, x[None]), y[None])

    each = vmap(grad(loss), (None, 0, 0))(dict(model.named_parameters()), inputs, labels)
    rows = torch.cat([each["2.weight"].flatten(1), each["2.bias"]], 1).double()
    way = torch.randn(4, 7)
    flat = torch.cat([way[:, :6].flatten(), way[:, 6]]).double()
    found = measure(observe(model, layer, [(inputs, labels)]), labels, way)
    torch.testing.assert_close(found["way"], congruency(rows, -flat), atol=1e-5, rtol=1e-4)


def test_signs_a_step_along_a_samples_gradient_makes_it_congruent():
    """The way of plain descent on one sample is -lr times its gradient: congruency 1, and -1 for the way back."""
    error, features = errors(torch.randn(3, 4), torch.tensor([0, 1, 2])), torch.randn(3, 5)
    gradient = error[0][:, None] * features[0].double()
    assert float(along(error, features, -0.1 * gradient)[0]) == pytest.approx(1.0)
    assert float(along(error, features, 0.1 * gradient)[0]) == pytest.approx(-1.0)


def test_a_label_that_is_nearly_certain_still_has_a_direction():
    """1 - p rounds to 0 in float64 from about 37 on; the direction is known far beyond."""
    logits = torch.tensor([[60.0, 0.0, -1.0], [2.0, 0.0, -1.0]])
    error = errors(logits, torch.tensor([0, 0]))
    assert float(error[0, 0]) < 0
    torch.testing.assert_close(error.sum(1), torch.zeros(2, dtype=torch.float64), atol=1e-15, rtol=0)
    way = torch.randn(3, 2)
    nu = along(error, torch.ones(2, 2), way)
    assert nu.isfinite().all()
    torch.testing.assert_close(nu[0], nu[1])  # both ask for the same: away from the others as softmax weighs them


def test_what_has_no_angle_is_nan():
    error = errors(torch.tensor([[2000.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
    features = torch.ones(3, 2)
    assert along(error, features, torch.ones(2, 2)).isnan().tolist() == [True, False, False]
    assert along(error, features, torch.zeros(2, 2)).isnan().all()
    found = among_class(error, features, torch.tensor([0, 0, 1]))  # no gradient; its only peer; the only one
    assert found.isnan().all()
    assert among_class(error, features, torch.tensor([0, 0, 1]), unit=True).isnan().all()


def test_a_mean_leaves_its_own_sample_out():
    """Two samples of a class with opposite gradients: each is -1 to the other, whatever their sizes."""
    error = torch.tensor([[-1.0, 1.0], [0.01, -0.01]])
    nu = among_class(error, torch.ones(2, 3), torch.tensor([0, 0]))
    assert nu.tolist() == pytest.approx([-1.0, -1.0])


def test_a_gradient_that_dwarfs_its_class_is_compared_exactly():
    """Others of size 1e-9 beside one of size 1: their sum must not be drowned by rounding."""
    torch.manual_seed(1)
    error, features = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    error[1:] *= 1e-9
    rows = (error[:, :, None] * features[:, None, :]).flatten(1)
    nu = among_class(error, features, torch.zeros(6, dtype=torch.int64))
    expected = [congruency(rows[i], rows[[j for j in range(6) if j != i]].mean(0)) for i in range(6)]
    torch.testing.assert_close(nu, torch.stack(expected), atol=1e-12, rtol=1e-9)


def test_a_class_learned_by_heart_keeps_its_angles():
    """Errors of 1e-200, whose squares are 0 in float64: the cosines are those of the same errors at size 1."""
    error, features = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 4)
    labels = torch.zeros(5, dtype=torch.int64)
    for unit in (False, True):
        nu = among_class(error, features, labels, unit=unit)
        torch.testing.assert_close(among_class(1e-200 * error, features, labels, unit=unit), nu)


def test_directions_count_alike_where_means_follow_the_largest():
    """Three gradients of size 1 one way, one of size 100 the other: the mean follows the one, directions do not."""
    error = torch.tensor([[-1.0, 1.0]] * 3 + [[100.0, -100.0]])
    labels = torch.zeros(4, dtype=torch.int64)
    features = torch.ones(4, 2)
    assert among_class(error, features, labels)[0] == pytest.approx(-1.0)
    assert among_class(error, features, labels, unit=True)[0] == pytest.approx(1.0)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"must be \(4, 5\), classes by features, got \(4, 6\)"):
        along(torch.zeros(3, 4), torch.zeros(3, 5), torch.zeros(4, 6))
    with pytest.raises(ValueError, match="3 samples and features of 2"):
        along(torch.zeros(3, 4), torch.zeros(2, 5), torch.zeros(4, 5))


def test_losses_are_cross_entropy():
    logits, labels = torch.randn(7, 3), torch.randint(0, 3, (7,))
    torch.testing.assert_close(losses(logits, labels).mean(), functional.cross_entropy(logits.double(), labels))


def test_networks_without_one_linear_layer_at_their_end_are_refused():
    with pytest.raises(ValueError, match=r"Conv2d; an audit needs one nn\.Linear"):
        last_layer(nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten()))
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
    with pytest.raises(ValueError, match="not those of its last linear layer"):
        observe(model, last_layer(model), [(torch.randn(3, 5), torch.zeros(3))])


def test_a_follower_keeps_every_epoch_and_where_the_way_began():
    model = network()
    inputs, labels = samples()
    first = matrix(last_layer(model))
    follower = Follower(model, labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ways = []
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        follower(model, [(inputs, labels)])
        ways.append(matrix(last_layer(model)) - first)
    followed = follower.followed()
    assert followed.scores["way"].shape == (3, 30)
    seen = observe(model, last_layer(model), [(inputs, labels)])
    torch.testing.assert_close(followed.scores["way"][2], measure(seen, labels, ways[2])["way"])
    ranked = followed.ranked()
    torch.testing.assert_close(ranked["congruency"], followed.scores["way"].mean(0))
    torch.testing.assert_close(ranked["congruency_last"], followed.scores["way"][2])
    torch.testing.assert_close(followed.probabilities, model(inputs).softmax(1).detach())
