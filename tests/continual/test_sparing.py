"""GEM that spares arithmetic against the learner of one run: the same weights, and what it does not compute."""

from itertools import pairwise

import pytest
import torch
from small_streams import digits, even_digits, setting, weights
from torch.nn import functional

from congruency.continual import Method, incremental, learner, permutations, rotations, run_together
from congruency.continual.course import Course
from congruency.continual.sparing import SparingGEM, _in_sets, _Pass, spares
from congruency.continual.stacked_learners import Constrained
from congruency.continual.vectorised import learner_for

HIDDEN = (12, 9)


def stream_of(kind, samples=85):
    if kind == "incremental":
        return incremental(*even_digits(), tasks=5, samples=samples, seed=3)
    make = {"rotations": rotations, "permutations": permutations}[kind]
    return make(*digits(), tasks=4, samples=samples, seed=3)


def learned(stream, method, agreement, batch=10, memory=17, policy="first"):
    """The learner after all tasks, and its weights after each."""
    course = Course([stream], HIDDEN, batch, memory, policy, torch.device("cpu"), torch.float64)
    one = learner_for(course.network, [method], course.start(), [stream.seed], memory, agreement)
    return one, [course._widened(one.weights)[0, 0].clone() for _ in course.learn(one, None)]


@pytest.mark.parametrize("policy", ["first", "ring"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["rotations", "permutations", "incremental"])
def test_its_weights_are_those_of_the_run_alone(kind, margin, policy):
    """After every task, the last batch of each smaller; with steps that violate and steps that do not."""
    stream, method, memory = stream_of(kind), Method("GEM", "gem", memory_margin=margin), 17
    one, found = learned(stream, method, agreement=False, memory=memory, policy=policy)
    assert type(one) is SparingGEM
    slow = learner(method, setting(stream, HIDDEN, memory=memory, policy=policy))
    for task, after in enumerate(found):
        images, labels = stream.training(task)
        mask = stream.mask(task)
        slow.begin(task, None if mask is None else mask.double())
        for x, y in zip(images.flatten(1).split(10), labels.split(10), strict=True):
            slow.observe(x.double() / 255, y)
        slow.finish(images.flatten(1).double() / 255, labels)
        wanted = weights(slow.model)
        torch.testing.assert_close(after[: len(wanted)], wanted, rtol=0, atol=1e-9)
    corrected = int(slow.corrector.stats.corrected_steps)
    assert 0 < corrected < 9 * (len(stream) - 1)


def test_memory_gradients_are_made_only_where_a_constraint_is_violated(monkeypatch):
    """What it spares: the written gradients are counted, and those of the memory go with the corrections."""
    stream, method = stream_of("rotations"), Method("GEM", "gem")
    counts = {"corrected": 0, "written": 0}
    correct, write = SparingGEM._correct, _Pass.write
    monkeypatch.setattr(
        SparingGEM, "_correct", lambda self: (counts.update(corrected=counts["corrected"] + 1), correct(self))
    )
    monkeypatch.setattr(_Pass, "write", lambda *a: (counts.update(written=counts["written"] + 1), write(*a)))
    learned(stream, method, agreement=False)
    assert 0 < counts["corrected"] < 27 - 2
    assert counts["written"] == 2 * counts["corrected"]


def test_products_are_those_of_gradients_by_autograd():
    torch.manual_seed(0)
    sizes = (6, 5, 4, 3)
    layers = [
        (torch.randn(out, into, dtype=torch.float64), torch.randn(out, dtype=torch.float64))
        for into, out in pairwise(sizes)
    ]
    inputs = torch.randn(6, 3 + 2 * 7, dtype=torch.float64)
    labels = torch.randint(0, 3, (17,))
    parts = [slice(0, 3), slice(3, 10), slice(10, 17)]

    def gradient(part):
        leaves = [tensor.clone().requires_grad_() for layer in layers for tensor in layer]
        values = inputs[:, part].T
        for place in range(0, len(leaves), 2):
            values = functional.linear(values.relu() if place else values, leaves[place], leaves[place + 1])
        loss = functional.cross_entropy(values, labels[part])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])

    wanted = torch.stack([gradient(part) @ gradient(parts[0]) for part in parts[1:]])
    joined = [torch.cat([weight, bias.unsqueeze(1)], 1) for weight, bias in layers]
    batch, memory = functional.pad(inputs, (0, 0, 0, 1), value=1.0).split([3, 14], 1)
    own, theirs = _Pass(joined, 1, 3), _Pass(joined, 2, 7)
    for one, samples, answers in ((own, batch, labels[:3]), (theirs, memory, labels[3:])):
        sets = len(one.first)
        one.enter(_in_sets(samples, sets))
        one.run(answers.view(sets, 1, -1), None)
    torch.testing.assert_close(own.products(theirs, _in_sets(batch.T @ memory, 2)), wanted)


@pytest.mark.parametrize("kind", ["rotations", "incremental"])
def test_outcomes_without_agreement_are_the_same_but_for_it(kind):
    stream, method = stream_of(kind, samples=40), Method("GEM", "gem", memory_margin=0.5)
    settings = {"hidden": HIDDEN, "memory": 11, "dtype": torch.float64}
    followed, spared = (run_together([stream], [method], agreement=a, **settings) for a in (True, False))
    torch.testing.assert_close(spared.matrix, followed.matrix, rtol=0, atol=1e-12)
    torch.testing.assert_close(spared.losses, followed.losses, rtol=1e-8, atol=0)
    assert not followed.agreement[0, 0, 1:].isnan().any()
    assert spared.agreement.isnan().all()


def test_agreement_can_be_left_out_of_any_methods():
    stream = stream_of("rotations", samples=40)
    methods = [Method("GEM", "gem"), Method("both", "dcl_memory", window=6), Method("EWC", "ewc")]
    settings = {"hidden": HIDDEN, "memory": 11, "dtype": torch.float64}
    followed, spared = (run_together([stream], methods, agreement=a, **settings) for a in (True, False))
    assert torch.equal(spared.matrix, followed.matrix)
    assert spared.agreement.isnan().all()


def test_an_interrupted_run_goes_on(tmp_path):
    stream, method = stream_of("rotations"), Method("GEM", "gem", memory_margin=0.5)
    settings = {"hidden": HIDDEN, "memory": 17, "dtype": torch.float64, "agreement": False}
    whole = run_together([stream], [method], **settings)

    class Enough(Exception):
        pass

    def stop(done, total):
        if done == 2:
            raise Enough

    with pytest.raises(Enough):
        run_together([stream], [method], resume=tmp_path / "state", progress=stop, **settings)
    resumed = run_together([stream], [method], resume=tmp_path / "state", **settings)
    assert torch.equal(resumed.matrix, whole.matrix)
    assert torch.equal(resumed.losses, whole.losses)


def test_only_single_runs_of_gem_are_spared():
    gem, start = Method("GEM", "gem"), torch.zeros(1, 8)
    assert spares([gem], start)
    assert not spares([gem, gem], start)
    assert not spares([gem], torch.zeros(2, 8))
    assert not spares([Method("GEM", "gem", trigger="always")], start)
    assert not spares([Method("both", "dcl_memory")], start)
    assert type(learned(stream_of("rotations", 40), gem, agreement=True)[0]) is Constrained


def test_a_run_that_diverges_ends():
    outcome = run_together(
        [stream_of("rotations")], [Method("GEM", "gem", lr=1e6)], hidden=HIDDEN, memory=17, agreement=False
    )
    assert outcome.matrix.shape == (1, 1, 4, 4)
    assert not outcome.losses.isfinite().all()


def test_inputs_dark_in_a_task_and_its_memory_are_left_out_of_its_steps():
    stream, method = stream_of("rotations"), Method("GEM", "gem", memory_margin=0.5)
    course = Course([stream], HIDDEN, 10, 17, "first", torch.device("cpu"), torch.float64)
    one = learner_for(course.network, [method], course.start(), [stream.seed], 17, agreement=False)
    inputs = [course._training_inputs(task) for task in range(2)]
    inputs[1][:, :, :9] = 0
    inputs[0][:, :17, :7] = 0  # the memory's; beyond it the first task lights them
    labels = [course._labels("training", task) for task in range(2)]
    for task in range(2):
        before = one.weights.clone()
        one.begin(task, inputs[task], 10)
        for x, y in zip(inputs[task].split(10, 1), labels[task].split(10, 1), strict=True):
            one.step(x, y, None)
        one.remember(inputs[task][:, :17], labels[task][:, :17], None)
        one.finish(inputs[task], None)
    moved = (course.network.layers(one.weights)[0][0] != course.network.layers(before)[0][0])[0, 0].any(0)
    lit = (inputs[1][0] != 0).any(0) | (inputs[0][0, :17] != 0).any(0)
    assert not lit.all()
    assert not lit[:7].any()
    assert torch.equal(moved, lit)
    assert one._layers[0].shape[1] == int(lit.sum()) + 1


def test_networks_without_hidden_layers_are_learned_alike():
    stream, method = stream_of("rotations", samples=45), Method("GEM", "gem", memory_margin=0.5)
    settings = {"hidden": (), "memory": 11, "dtype": torch.float64}
    followed, spared = (run_together([stream], [method], agreement=a, **settings) for a in (True, False))
    torch.testing.assert_close(spared.losses, followed.losses, rtol=1e-8, atol=0)


def test_a_memory_smaller_than_a_batch_is_learned_alike():
    stream, method = stream_of("rotations", samples=45), Method("GEM", "gem", memory_margin=0.5)
    settings = {"hidden": HIDDEN, "memory": 3, "dtype": torch.float64}
    followed, spared = (run_together([stream], [method], agreement=a, **settings) for a in (True, False))
    torch.testing.assert_close(spared.losses, followed.losses, rtol=1e-8, atol=0)
