"""Test losses: by hand, by a slow direct computation, and without extra forward passes."""

import math
from itertools import pairwise

import pytest
import torch
from small_streams import digits, even_digits, plain, setting, thirds
from torch import nn
from torch.nn import functional

from congruency.continual import Setting, incremental, learner, mlp, rotations, run, run_together
from congruency.continual.batched_mlp import count_and_loss

STILL = 1e-300  # a learning rate that moves nothing


def turned(samples=40, tasks=3, seed=0):
    return rotations(*digits(), tasks=tasks, samples=samples, seed=seed)


def pairs_of_digits(samples=40, seed=0):
    return incremental(*even_digits(), tasks=5, samples=samples, seed=seed)


def test_two_samples_by_hand():
    """Probabilities of 1/4 and 3/4: the first sample's label is the unlikely one."""
    logits = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0 + math.log(3.0)]], dtype=torch.float64)
    right, loss = count_and_loss(logits, torch.tensor([0, 1]))
    assert int(right) == 1
    assert float(loss) == pytest.approx(math.log(4) + math.log(4 / 3))


def test_masked_classes_do_not_count():
    logits = torch.tensor([[9.0, 0.0, math.log(3.0)]]) + torch.tensor([-math.inf, 0.0, 0.0])
    right, loss = count_and_loss(logits, torch.tensor([2]))
    assert int(right) == 1
    assert float(loss) == pytest.approx(math.log(4 / 3))


def test_large_outputs_do_not_overflow():
    right, loss = count_and_loss(torch.tensor([[1000.0, 0.0], [0.0, -1000.0]]), torch.tensor([1, 0]))
    assert (int(right), float(loss)) == (1, 1000.0)


def test_non_finite_outputs_have_no_loss():
    _, loss = count_and_loss(torch.tensor([[[math.inf, 0.0]], [[0.0, 0.0]]]), torch.tensor([0]))
    assert math.isnan(loss[0])
    assert float(loss[1]) == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples_last", [True, False])
def test_sums_equal_those_of_torch(dtype, samples_last):
    """Laid out like the outputs of batched networks: samples last in memory, labels shared or one set per seed."""
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(2, 3, 4, 7, 50, generator=generator, dtype=dtype)
    logits = logits.mT if samples_last else logits.mT.contiguous()
    for labels in (torch.randint(7, (50,), generator=generator), torch.randint(7, (2, 1, 1, 50), generator=generator)):
        wanted = labels.expand(logits.shape[:-1])
        each = functional.cross_entropy(logits.double().flatten(0, 3), wanted.flatten(), reduction="none")
        right, loss = count_and_loss(logits.clone(), labels)
        assert loss.dtype == torch.float64
        torch.testing.assert_close(loss, each.view(wanted.shape).sum(-1), rtol=1e-6, atol=0)
        assert torch.equal(right, (logits.argmax(-1) == labels).sum(-1, dtype=torch.float64))


def known_outputs(sizes, seed):
    """Parameters of a perceptron whose outputs are log 1, log 2, log 3, ... for any input."""
    outputs = torch.arange(1.0, sizes[-1] + 1, dtype=torch.float64).log()
    others = sum(into * out + out for into, out in pairwise(sizes)) - len(outputs)
    return torch.cat([torch.zeros(others, dtype=torch.float64), outputs])


@pytest.mark.parametrize("make", [turned, pairs_of_digits], ids=["shared classes", "own classes"])
def test_known_outputs_have_known_losses(make, monkeypatch):
    """p(c) is (c + 1) over the sum of that over the task's classes, so the loss follows from the labels."""
    stream = make()
    wanted = []
    for task in range(len(stream)):
        classes = stream.tasks[task].classes or range(stream.classes)
        whole = sum(c + 1 for c in classes)
        labels = stream.testing(task)[1].tolist()
        wanted.append(sum(math.log(whole / (label + 1)) for label in labels) / len(labels))
    wanted = torch.tensor(wanted, dtype=torch.float64).expand(len(stream), -1)
    sizes = (64, 3, stream.classes)

    def known(share):
        network = mlp(sizes).double()
        nn.utils.vector_to_parameters(known_outputs(sizes, 0), network.parameters())
        return network

    method = plain("single", lr=STILL)
    alone = run(stream, method, Setting(known, len(stream)), dtype=torch.float64)
    assert alone.losses.shape == (1, 1, len(stream), len(stream))
    assert alone.losses.dtype == torch.float64
    torch.testing.assert_close(alone.losses[0, 0], wanted, rtol=1e-12, atol=0)
    monkeypatch.setattr("congruency.continual.batched_runner.initial_mlp", known_outputs)
    together = run_together([stream], [method], hidden=(3,), dtype=torch.float64)
    torch.testing.assert_close(together.losses[0, 0], wanted, rtol=1e-12, atol=0)


def slow_loss(outputs, labels, classes):
    """One image after the other, one class after the other."""
    total = 0.0
    for row, label in zip(outputs.tolist(), labels.tolist(), strict=True):
        total -= math.log(math.exp(row[label]) / sum(math.exp(row[c]) for c in classes))
    return total / len(labels)


@pytest.mark.parametrize("kind", ["single", "ewc", "independent", "multimodal", "gem", "icarl"])
def test_losses_are_those_of_the_network_of_the_task(kind):
    """Trained again by hand; every loss computed slowly from the outputs of the network for each task."""
    stream = thirds(60)
    chosen = setting(stream, (12,), memory=9)
    outcome = run(stream, plain(kind), chosen, dtype=torch.float64)
    one = learner(plain(kind), chosen)
    for task in range(3):
        inputs, labels = stream.training(task)
        one.begin(task, stream.mask(task).double())
        for x, y in stream.batches(task):
            one.observe(x.double() / 255, y)
        one.finish(inputs.double() / 255, labels)
        for other in range(3):
            images, wanted = stream.testing(other)
            one.model.eval()
            outputs = one.outputs(images.double() / 255, other).detach()
            slow = slow_loss(outputs, wanted, stream.tasks[other].classes)
            assert float(outcome.losses[0, 0, task, other]) == pytest.approx(slow, rel=1e-9)


def test_learned_tasks_have_a_lower_loss_than_unseen_ones():
    stream = turned(400, tasks=3)
    losses = run(stream, plain("single"), setting(stream, (60,), torch.float32)).losses[0, 0]
    not_met = losses[torch.ones_like(losses, dtype=torch.bool).triu(1)]
    assert losses.diagonal().max() < 0.8 * not_met.min()


@pytest.mark.parametrize("kind", ["single", "icarl"])
def test_a_prediction_takes_one_forward_pass(kind):
    stream = thirds(60)
    one = learner(plain(kind), setting(stream, (12,), memory=9))
    images, labels = stream.training(0)
    inputs = images.double() / 255
    one.begin(0, stream.mask(0).double())
    one.observe(inputs, labels)
    one.finish(inputs, labels)
    one.predict(inputs, 0, stream.mask(0).double())  # iCaRL computes its class means
    passes = []
    one.model.register_forward_hook(lambda *_: passes.append(1))
    guesses, outputs = one.predict(inputs, 0, stream.mask(0).double())
    assert len(passes) == 1
    assert set(guesses.tolist()) <= set(stream.tasks[0].classes)
    assert not outputs.requires_grad
    assert torch.isfinite(outputs).any(0).nonzero().flatten().tolist() == list(stream.tasks[0].classes)


def test_a_diverging_run_has_no_loss_and_does_not_affect_the_others():
    methods = [plain("single"), plain("single", lr=1e200)]
    found = run_together([turned()], methods, hidden=(5,), dtype=torch.float64)
    assert torch.isfinite(found.losses[0, 0]).all()
    assert torch.isnan(found.losses[0, 1]).all()
