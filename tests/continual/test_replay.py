"""Replay, distillation, importance penalties and joint training against slow versions, alone and under constraints."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from small_streams import digits, even_digits, plain, setting, thirds, weights
from torch.nn import functional

import congruency
from congruency.continual import LearnerConfig, incremental, learner, rotations, run, run_together
from congruency.continual.replay import ReplaySlots

LR = 0.1


def turned(samples=40, tasks=3, seed=4):
    return rotations(*digits(), tasks=tasks, samples=samples, seed=seed)


def gradient_of(loss, model):
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(found, model.parameters(),
                                                                                          strict=True)])  # fmt: skip


def cross_entropy(outputs, label):
    """Of one sample, written out."""
    return -(outputs[label] - outputs.exp().sum().log())


class Slow:
    """A stream seen sample by sample, with a reservoir that is a list of (input, label, mask, outputs)."""

    def __init__(self, stream, memory):
        self.stream, self.capacity = stream, memory * len(stream)
        self.kept, self.seen = [], 0

    def begin(self, task):
        self.task = task
        mask = self.stream.mask(task)
        self.mask = None if mask is None else mask.double()
        self.draws, self.insertions = (np.random.RandomState([self.stream.seed, task, use]) for use in (1, 2))

    def batches(self, task):
        for images, labels in self.stream.batches(task, 10):
            yield images.double() / 255, labels

    def samples(self, task):
        images, labels = self.stream.training(task)
        return images.double() / 255, labels

    def draw(self, count):
        return [self.kept[i] for i in self.draws.randint(len(self.kept), size=count)] if self.kept else []

    def insert(self, inputs, labels, outputs):
        for x, y, z in zip(inputs, labels, outputs, strict=True):
            if len(self.kept) < self.capacity:
                self.kept.append((x, y, self.mask, z))
            else:
                j = self.insertions.randint(self.seen + 1)
                if j < self.capacity:
                    self.kept[j] = (x, y, self.mask, z)
            self.seen += 1


def of_sample(model, x, y, mask):
    outputs = model(x.unsqueeze(0))[0]
    if mask is not None:  # only the classes of the task exist
        present = mask.isfinite().nonzero().flatten().tolist()
        return cross_entropy(outputs[present], present.index(int(y)))
    return cross_entropy(outputs, int(y))


def slow_loss(config, model, slow, inputs, labels):
    """The equations of the classes, one sample at a time."""
    own = [of_sample(model, x, y, slow.mask) for x, y in zip(inputs, labels, strict=True)]
    first = slow.draw(len(inputs))
    if config.kind == "er":
        return sum(own + [of_sample(model, x, y, mask) for x, y, mask, _ in first]) / (len(own) + len(first))
    loss = sum(own) / len(own)
    if first:
        apart = [(model(x.unsqueeze(0))[0] - z).square().sum() / len(z) for x, _, _, z in first]
        loss = loss + config.strength * sum(apart) / len(first)
    if config.kind == "derpp":
        second = slow.draw(len(inputs))
        if second:
            loss = loss + config.beta * sum(of_sample(model, x, y, mask) for x, y, mask, _ in second) / len(second)
    return loss


@pytest.mark.parametrize("make", [turned, thirds], ids=["shared", "own classes"])
@pytest.mark.parametrize("kind", ["er", "der", "derpp"])
def test_replay_step_by_step(kind, make):
    """The reservoir has 24 slots for 120 samples, so that samples are replaced."""
    stream, config = make(40), plain(kind, strength=0.4, beta=0.7)
    one, slow = learner(config, setting(stream, (7,), memory=8)), Slow(stream, 8)
    for task in range(3):
        slow.begin(task)
        one.begin(task, slow.mask)
        for inputs, labels in slow.batches(task):
            before, outputs = weights(one.model), one.model(inputs).detach()
            expected = before - LR * gradient_of(slow_loss(config, one.model, slow, inputs, labels), one.model)
            one.observe(inputs, labels)
            slow.insert(inputs, labels, outputs)
            torch.testing.assert_close(weights(one.model), expected, rtol=1e-9, atol=1e-12)
        one.finish(*slow.samples(task))
    assert len(slow.kept) == 24


def test_a_ring_replays_the_last_samples_of_past_tasks():
    stream = turned(40)
    one, slow = learner(plain("er", replay="ring"), setting(stream, (7,), memory=8)), Slow(stream, 8)
    for task in range(3):
        slow.begin(task)
        one.begin(task, None)
        for inputs, labels in slow.batches(task):
            before = weights(one.model)
            loss = slow_loss(one.config, one.model, slow, inputs, labels)
            expected = before - LR * gradient_of(loss, one.model)
            one.observe(inputs, labels)
            torch.testing.assert_close(weights(one.model), expected, rtol=1e-9, atol=1e-12)
        inputs, labels = slow.samples(task)
        one.finish(inputs, labels)
        slow.kept += [(x, y, None, None) for x, y in zip(inputs[-8:], labels[-8:], strict=True)]


@pytest.mark.parametrize("replay", ["ring", "reservoir"])
def test_passes_replay_every_sample_once_before_any_again(replay):
    """A memory of 12, then 24 samples in draws of 10: the last draw of a pass has what is left of it."""
    slots = ReplaySlots(12, 3, replay, seed=5, order="passes")
    assert slots.draw(10) is None
    for task in range(1, 3):
        for _ in range(2):
            slots.observe(6)
        slots.finish()
        slots.begin(task)
        drawn = [slots.draw(10) for _ in range(2 * (task + 1) + 1)]  # two passes, and the first draw of a third
        half = task + 1
        for one in (drawn[:half], drawn[half:-1]):
            assert [len(each) for each in one] == ([10, 2] if task == 1 else [10, 10, 4])
            assert sorted(np.concatenate(one)) == list(range(12 * task))
        assert not np.array_equal(np.concatenate(drawn[:half]), np.concatenate(drawn[half:-1]))
        again = ReplaySlots(12, 3, replay, seed=5, order="passes")
        again.load(slots.owners, slots.offsets, slots.seen)
        again.begin(task)
        assert np.array_equal(again.draw(10), drawn[0])  # a task can be resumed


def test_passes_are_learned_as_batches_of_the_memory():
    """The loss is the mean over the samples of both, however many the memory gives."""
    stream, config = turned(40), plain("er", replay="ring", replay_order="passes")
    one, slow = learner(config, setting(stream, (7,), memory=8)), Slow(stream, 8)
    for task in range(3):
        slow.begin(task)
        one.begin(task, None)
        left = []
        for inputs, labels in slow.batches(task):
            left = left or list(slow.draws.permutation(len(slow.kept)))
            replayed, left = [slow.kept[i] for i in left[:10]], left[10:]
            losses = [of_sample(one.model, x, y, None) for x, y in zip(inputs, labels, strict=True)]
            losses += [of_sample(one.model, x, y, None) for x, y, _, _ in replayed]
            expected = weights(one.model) - LR * gradient_of(sum(losses) / len(losses), one.model)
            one.observe(inputs, labels)
            torch.testing.assert_close(weights(one.model), expected, rtol=1e-9, atol=1e-12)
        inputs, labels = slow.samples(task)
        one.finish(inputs, labels)
        slow.kept += [(x, y, None, None) for x, y in zip(inputs[-8:], labels[-8:], strict=True)]


def test_a_reservoir_is_a_uniform_sample_of_the_stream():
    """How often each of 60 samples is kept in 12 slots, over 2000 streams: chi-square."""
    counts, runs = np.zeros(60), 2000
    for seed in range(runs):
        slots = ReplaySlots(4, 3, "reservoir", seed)
        for task in range(3):
            slots.begin(task)
            for _ in range(4):
                slots.observe(5)
        np.add.at(counts, slots.owners * 20 + slots.offsets, 1)
    assert counts.sum() == 12 * runs
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("make", [turned, thirds], ids=["shared", "own classes"])
def test_lwf_step_by_step(make):
    """KL of the softened outputs of the network before the task, head by head and sample by sample."""
    stream, config = make(40), plain("lwf", strength=1.5, temperature=3.0)
    one, slow = learner(config, setting(stream, (7,))), Slow(stream, 8)
    old, heads, seen = None, [], set()
    for task in range(3):
        slow.begin(task)
        one.begin(task, slow.mask)
        for inputs, labels in slow.batches(task):
            before = weights(one.model)
            loss = sum(of_sample(one.model, x, y, slow.mask) for x, y in zip(inputs, labels, strict=True)) / len(inputs)
            for head in heads:
                for x in inputs:
                    p, q = ((net(x.unsqueeze(0))[0, head] / 3.0).exp() for net in (old, one.model))
                    p, q = p.detach() / p.detach().sum(), q / q.sum()
                    loss = loss + 1.5 * (p * (p / q).log()).sum() / len(inputs)
            expected = before - LR * gradient_of(loss, one.model)
            one.observe(inputs, labels)
            torch.testing.assert_close(weights(one.model), expected, rtol=1e-9, atol=1e-12)
        inputs, labels = slow.samples(task)
        one.finish(inputs, labels)
        old = setting(stream, (7,)).make(1.0)
        old.load_state_dict(one.model.state_dict())
        seen |= set(labels.tolist())
        heads = [*heads, list(stream.tasks[task].classes)] if slow.mask is not None else [sorted(seen)]


@pytest.mark.parametrize("make", [turned, thirds], ids=["shared", "own classes"])
def test_mas_step_by_step(make):
    """The penalty by autograd, importances one sample at a time, anchored at the weights after the latest task."""
    stream, strength = make(30), 0.3
    one, slow = learner(plain("mas", strength=strength), setting(stream, (7,))), Slow(stream, 8)
    importance = anchor = torch.zeros_like(weights(one.model))
    for task in range(3):
        slow.begin(task)
        one.begin(task, slow.mask)
        for inputs, labels in slow.batches(task):
            before = weights(one.model)
            loss = sum(of_sample(one.model, x, y, slow.mask) for x, y in zip(inputs, labels, strict=True)) / len(inputs)
            flat = torch.cat([p.flatten() for p in one.model.parameters()])
            loss = loss + strength * (importance * (flat - anchor).square()).sum()
            expected = before - LR * gradient_of(loss, one.model)
            one.observe(inputs, labels)
            torch.testing.assert_close(weights(one.model), expected, rtol=1e-9, atol=1e-12)
        inputs, labels = slow.samples(task)
        one.finish(inputs, labels)
        classes = range(10) if slow.mask is None else stream.tasks[task].classes
        of_task = [gradient_of(one.model(x.unsqueeze(0))[0, list(classes)].square().sum(), one.model) for x in inputs]
        importance, anchor = importance + torch.stack(of_task).abs().mean(0), weights(one.model)


@pytest.mark.parametrize("make", [turned, thirds], ids=["shared", "own classes"])
def test_joint_training_starts_again_on_all_samples_so_far(make):
    stream = make(25)
    one, slow = learner(plain("joint"), setting(stream, (7,))), Slow(stream, 8)
    known = []
    for task in range(3):
        slow.begin(task)
        one.begin(task, slow.mask)
        for inputs, labels in slow.batches(task):
            one.observe(inputs, labels)
        one.finish(*slow.samples(task))
        known += [(x, y, slow.mask) for x, y in zip(*slow.samples(task), strict=True)]
        model = setting(stream, (7,)).make(1.0)
        order = np.random.RandomState([stream.seed, task]).permutation(len(known))
        for first in range(0, len(known), 10):
            batch = [known[i] for i in order[first : first + 10]]
            loss = sum(of_sample(model, *each) for each in batch) / len(batch)
            step = weights(model) - LR * gradient_of(loss, model)
            torch.nn.utils.vector_to_parameters(step, model.parameters())
        torch.testing.assert_close(weights(one.model), weights(model), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kind", "constraints"), [("er", "dcl"), ("derpp", "gem"), ("derpp", "dcl_memory")])
def test_constraints_project_the_gradient_of_the_learners_own_loss(kind, constraints):
    """One mechanism: the loss of the kind, then the projection onto the constraints, here written out."""
    stream = turned(40)
    config = LearnerConfig(kind, kind, strength=0.4, constraints=constraints, window=3, memory_margin=0.3)
    one, slow = learner(config, setting(stream, (7,), memory=12)), Slow(stream, 12)
    corrected = 0
    for task in range(3):
        slow.begin(task)
        one.begin(task, None)
        for step, (inputs, labels) in enumerate(slow.batches(task)):
            rows, margins = [], []
            for past in range(task if constraints != "dcl" else 0):
                x, y = (part[:12] for part in slow.samples(past))
                rows.append(gradient_of(functional.cross_entropy(one.model(x), y), one.model))
                margins.append(0.3)
            before, outputs = weights(one.model), one.model(inputs).detach()
            if step % 3 == 0:
                reference = before
            elif constraints != "gem":
                rows, margins = [*rows, reference - before], [*margins, 0.0]
            g = gradient_of(slow_loss(config, one.model, slow, inputs, labels), one.model)
            wanted = g
            if rows and (torch.stack(rows) @ g < 0).any():
                wanted = congruency.project(g, torch.stack(rows), torch.tensor(margins, dtype=torch.float64))
                corrected += 1
            one.observe(inputs, labels)
            slow.insert(inputs, labels, outputs)
            torch.testing.assert_close(weights(one.model), before - LR * wanted, rtol=1e-8, atol=1e-11)
        one.finish(*slow.samples(task))
    assert corrected


def test_cautious_masks_the_update_of_an_optimizer_with_momentum():
    stream = turned(40)
    momentum = partial(torch.optim.SGD, momentum=0.9)
    plainly, cautious = (
        learner(plain("er", cautious=on, lr=0.02), setting(stream, (7,), optimizer=momentum)) for on in (False, True)
    )
    by_hand = learner(plain("er", lr=0.02), setting(stream, (7,), optimizer=momentum))
    congruency.Cautious(by_hand.optimizer)
    for one in (plainly, cautious, by_hand):
        one.begin(0)
        for images, labels in stream.batches(0, 10):
            one.observe(images.double() / 255, labels)
    assert torch.equal(weights(cautious.model), weights(by_hand.model))
    assert not torch.equal(weights(cautious.model), weights(plainly.model))


def test_cautious_plain_sgd_is_warned_of_and_not_batched():
    stream = turned(40)
    with pytest.warns(UserWarning, match="cautious=True changes nothing here: the update of plain SGD is the gradient"):
        learner(plain("single", cautious=True), setting(stream))
    with pytest.raises(ValueError, match="cautious=True needs an optimizer with momentum"):
        run_together([stream], [plain("single", cautious=True)])


def test_replay_and_joint_training_end_above_plain_sgd():
    streams = [rotations(*digits(), tasks=4, samples=300, seed=seed) for seed in range(3)]
    kinds = ("single", "er", "derpp", "joint")
    accuracy = run_together(streams, [plain(kind) for kind in kinds], hidden=(20,), memory=50).scores().accuracy.mean(0)
    single, er, derpp, joint = accuracy.tolist()
    assert min(er, derpp, joint) > single + 0.03


ALL = ["single", "joint", "ewc", "mas", "lwf", "er", "der", "derpp", "gem", "dcl", "dcl_memory"]


def test_tasks_of_one_class_are_learned_without_harm():
    """Their masked loss is 0 whatever the weights are: nothing moves, nothing becomes nan."""
    stream = incremental(*even_digits(), tasks=10, samples=20)
    outcome = run_together([stream], [plain(kind) for kind in ALL], hidden=(7,), memory=5)
    assert (outcome.matrix == 1).all()
    assert torch.isfinite(outcome.losses).all()
    for kind in ("icarl", "derpp"):
        one = run(stream, plain(kind), setting(stream, (7,), memory=5), dtype=torch.float64)
        assert (one.matrix == 1).all()


@pytest.mark.parametrize("kind", ["er", "der", "derpp", "gem", "agem", "dcl_memory"])
def test_a_memory_of_nothing_is_refused(kind):
    stream = turned(20)
    message = "memory must be a whole number of samples per task, at least 1, got 0"
    with pytest.raises(ValueError, match=message):
        run_together([stream], [plain(kind)], memory=0)
    with pytest.raises(ValueError, match=message):
        run(stream, plain(kind), setting(stream, memory=0), dtype=torch.float64)
    without = run_together([stream], [plain("single"), plain("lwf")], hidden=(5,), memory=0)  # these keep no samples
    assert torch.isfinite(without.losses).all()


def uneven():
    """Three tasks of 12, 30 and 21 samples."""
    from dataclasses import replace

    stream = turned(30)
    sizes = (12, 30, 21)
    return replace(stream, tasks=tuple(replace(t, train=t.train[:n]) for t, n in zip(stream.tasks, sizes, strict=True)))


@pytest.mark.parametrize("memory", [8, 25])
def test_tasks_of_different_sizes(memory):
    """A replay memory keeps what there is where a task is smaller; constraints need equally many of each task."""
    stream, configs = uneven(), [plain(kind) for kind in ALL] + [LearnerConfig("ring", "er", replay="ring")]
    if memory > 12:
        with pytest.raises(ValueError, match="a memory of 25 samples per task is larger than a task of 12 samples"):
            run_together([stream], configs, hidden=(7,), memory=memory)
        configs = [config for config in configs if not config.has_episodes]
    together = run_together([stream], configs, hidden=(7,), memory=memory, dtype=torch.float64)
    for j, config in enumerate(configs):
        one = run(stream, config, setting(stream, (7,), memory=memory), dtype=torch.float64)
        torch.testing.assert_close(one.losses[0, 0], together.losses[0, j], rtol=1e-8, atol=0)
        assert math.isfinite(one.losses.sum())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "er", "replay": "last"}, "replay must be one of 'reservoir', 'ring', got 'last'"),
        ({"kind": "er", "constraints": "ewc"}, "constraints must be one of 'none', 'gem', .*, got 'ewc'"),
        ({"kind": "gem", "constraints": "dcl"}, "kind 'gem' takes no further constraints, got 'dcl'"),
        ({"kind": "joint", "constraints": "gem"}, "kind 'joint' takes no further constraints, got 'gem'"),
        ({"kind": "der", "replay": "ring"}, "DER stores outputs while it learns, in a reservoir"),
        ({"kind": "er", "replay_order": "sorted"}, "replay_order must be one of 'random', 'passes', got 'sorted'"),
        ({"kind": "der", "replay_order": "passes"}, "DER draws at random; replay_order='passes' is for kind 'er'"),
        ({"kind": "der", "strength": -1.0}, "strength must be finite and at least 0, got -1.0"),
        ({"kind": "derpp", "beta": math.inf}, "beta must be finite and at least 0, got inf"),
        ({"kind": "lwf", "temperature": 0.0}, "temperature must be positive, got 0.0"),
    ],
    ids=str,
)
def test_settings_without_a_meaning_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LearnerConfig("mine", **settings)
