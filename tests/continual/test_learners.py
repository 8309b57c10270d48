"""The learners one run at a time: each learns, and computes what its definition says."""

import copy
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from small_streams import digits, even_digits, plain, setting, thirds, weights
from torch import nn
from torch.nn import functional

import congruency
from congruency.continual import LEARNERS, Setting, incremental, learner, mlp, rotations, run, run_together
from congruency.continual.config import Kind
from congruency.continual.learners.icarl import herding


def turned(samples=60, tasks=3, seed=0):
    return rotations(*digits(), tasks=tasks, samples=samples, seed=seed)


def batches(stream, task, size=10):
    for images, labels in stream.batches(task, size):
        yield images.double() / 255, labels


def everything(stream, task, split="training"):
    images, labels = getattr(stream, split)(task)
    return images.double() / 255, labels


def mask_of(stream, task):
    mask = stream.mask(task)
    return None if mask is None else mask.double()


def learn(one, stream, task):
    one.begin(task, mask_of(stream, task))
    for inputs, labels in batches(stream, task):
        one.observe(inputs, labels)
    one.finish(*everything(stream, task))


def gradient_of(loss, model):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


SETTINGS = {
    "ewc": {"strength": 3.0},
    "mas": {"strength": 0.01},
    "dcl": {"window": 8},
    "dcl_memory": {"window": 8, "memory_margin": 0.5},
}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_learns(kind):
    """Accuracy on the task just learned is far above chance, which is 1/10, or 1/3 for tasks of three classes."""
    stream = thirds(300) if kind == "icarl" else turned(700)
    outcome = run(stream, plain(kind, **SETTINGS.get(kind, {})), setting(stream, (60,), torch.float32, memory=30))
    learned = outcome.matrix[0, 0].diagonal()
    assert (outcome.baseline < 0.4).all()
    assert (learned > (0.8 if kind == "icarl" else 0.45)).all(), learned
    assert ((outcome.matrix >= 0) & (outcome.matrix <= 1)).all()


def test_a_run_without_agreement_differs_in_nothing_else():
    stream = turned(40)
    config, made = plain("gem", memory_margin=0.5), setting(stream, dtype=torch.float32)
    measured, plainly = (run(stream, config, made, agreement=agreement) for agreement in (True, False))
    assert not measured.agreement[..., 1:].isnan().any()
    assert plainly.agreement.isnan().all()
    assert torch.equal(plainly.matrix, measured.matrix)
    assert torch.equal(plainly.losses, measured.losses)


def test_a_setting_for_another_stream_and_empty_batches_are_refused():
    stream = turned(samples=20, tasks=3)
    with pytest.raises(ValueError, match="the setting is for 3 tasks and the stream has 2; make them equal"):
        run(turned(samples=20, tasks=2), plain("er"), setting(stream))
    with pytest.raises(ValueError, match="batch must be a whole number of samples per step, at least 1, got 0"):
        run(stream, plain("single"), setting(stream), batch=0)
    with pytest.raises(TypeError, match=r"memory must be a whole number of samples per task, at least 1, got 2\.5"):
        run(stream, plain("gem"), replace(setting(stream), memory=2.5))


def test_a_learner_that_diverged_is_named():
    stream = turned(40, tasks=2)
    wild = replace(plain("single"), name="wild", lr=1e200)
    with pytest.warns(UserWarning, match="wild diverged on 1 of 1 streams: its losses are not finite"):
        run(stream, wild, setting(stream), dtype=torch.float64)
    with pytest.warns(UserWarning, match="wild diverged on 2 of 2 streams") as warned:
        run_together([stream, turned(40, tasks=2, seed=1)], [plain("single"), wild], hidden=(5,))
    assert len(warned) == 1


def test_a_network_with_too_few_outputs_is_refused():
    stream = turned(samples=20, tasks=2)
    made = replace(setting(stream), make=lambda share: mlp((64, 3)).double())
    message = rf"outputs of shape \(1, 3\) for one image, and the stream has {stream.classes} classes; let setting.make"
    with pytest.raises(ValueError, match=message):
        run(stream, plain("single"), made, dtype=torch.float64)


def test_gem_forgets_less_than_plain_sgd():
    streams = [turned(300, tasks=5, seed=seed) for seed in range(5)]
    methods = [plain("single"), plain("gem", memory_margin=0.5)]
    found = run_together(streams, methods, hidden=(40,), memory=50).scores()
    single, gem = found.backward_transfer.mean(0).tolist()
    assert single < -0.03
    assert gem > single + 0.07
    assert (found.accuracy[:, 1] > found.accuracy[:, 0]).all()


def test_a_plain_step_is_sgd():
    stream = turned(20)
    one = learner(plain("single", lr=0.3), setting(stream))
    (inputs, labels), _ = batches(stream, 0)
    before = weights(one.model)
    expected = before - 0.3 * gradient_of(functional.cross_entropy(one.model(inputs), labels), one.model)
    one.begin(0, None)
    one.observe(inputs, labels)
    torch.testing.assert_close(weights(one.model), expected)


def test_a_mask_excludes_other_classes_from_loss_and_prediction():
    stream = thirds(30)
    one = learner(plain("single"), setting(stream, ()))
    classes = list(stream.tasks[0].classes)
    others = [c for c in range(9) if c not in classes]
    before = one.model[-1].weight.detach().clone()
    learn(one, stream, 0)
    moved = (one.model[-1].weight - before).abs().sum(1) > 0
    assert moved.nonzero().flatten().tolist() == classes
    with torch.no_grad():
        one.model[-1].bias[others] += 100.0
    guesses = one.predict(everything(stream, 0, "testing")[0], 0, mask_of(stream, 0))[0]
    assert set(guesses.tolist()) <= set(classes)


@pytest.mark.parametrize("make", [turned, thirds], ids=["shared", "own classes"])
def test_ewc_of_zero_strength_is_plain_sgd(make):
    stream = make(40)
    single, ewc = (learner(method, setting(stream)) for method in (plain("single"), plain("ewc", strength=0.0)))
    for task in range(3):
        for one in (single, ewc):
            learn(one, stream, task)
        assert torch.equal(weights(single.model), weights(ewc.model))
    methods = plain("single"), plain("ewc", strength=0.0)
    together = run_together([stream], methods, hidden=(9,), memory=5, dtype=torch.float64)
    assert torch.equal(together.matrix[:, 0], together.matrix[:, 1])


@pytest.mark.parametrize("make", [turned, thirds], ids=["shared", "own classes"])
def test_ewc_penalises_by_the_fisher_diagonal_of_every_past_task(make):
    """Each step's gradient is the loss's and strength * sum_k F_k (w - w_k), F_k sample by sample, class by class."""
    stream, strength = make(30), 4.0
    one = learner(plain("ewc", strength=strength), setting(stream, (7,)))
    past = []
    for task in range(3):
        mask = mask_of(stream, task)
        one.begin(task, mask)
        for inputs, labels in batches(stream, task):
            before = weights(one.model)
            outputs = one.model(inputs) + (0 if mask is None else mask)
            expected = gradient_of(functional.cross_entropy(outputs, labels), one.model)
            expected += strength * sum(fisher * (before - then) for fisher, then in past)
            one.observe(inputs, labels)
            torch.testing.assert_close(weights(one.model), before - 0.1 * expected, rtol=1e-9, atol=1e-12)
        inputs, labels = everything(stream, task)
        one.finish(inputs, labels)
        there = range(10) if mask is None else stream.tasks[task].classes
        fisher = torch.zeros_like(weights(one.model))
        for x in inputs:
            for c in range(len(there)):
                log_p = one.model(x.unsqueeze(0))[0, list(there)].log_softmax(-1)[c]
                fisher += log_p.exp().detach() * gradient_of(log_p, one.model).square() / len(inputs)
        past.append((fisher, weights(one.model)))


@pytest.mark.parametrize("kind", ["dcl", "dcl_memory"])
def test_references_restart_with_every_task(kind):
    """The first step of a task is unconstrained, the next is not; kept references would correct the first as well."""
    stream = turned(40)
    method = plain(kind, mode="anchor", reference_margin=0.3, trigger="always")
    one = learner(method, setting(stream))
    learn(one, stream, 0)
    kept = copy.deepcopy(one)
    one.begin(1, None)
    kept.task = 1  # as if the references were kept
    for step, (inputs, labels) in enumerate(list(batches(stream, 1))[:2]):
        steps = []
        for each in (one, kept):
            rows = []
            if kind == "dcl_memory":
                past = everything(stream, 0)
                loss = functional.cross_entropy(each.model(past[0][:20]), past[1][:20])
                rows = [gradient_of(loss, each.model)]
            g = gradient_of(functional.cross_entropy(each.model(inputs), labels), each.model)
            expected = congruency.project(g, torch.stack(rows)) if rows else g
            before = weights(each.model)
            each.observe(inputs, labels)
            steps.append(((before - weights(each.model)) / 0.1 - expected).abs().max())
        assert (steps[0] < 1e-9) == (step == 0)
        assert steps[1] > 1e-3


def test_independent_networks_are_separate():
    stream = turned(60)
    one = learner(plain("independent"), setting(stream, (30,)))
    assert [net[1].out_features for net in one.model] == [10, 10, 10]  # shares of the hidden units
    learn(one, stream, 0)
    before = copy.deepcopy(one.model)
    learn(one, stream, 1)
    for k, (old, new) in enumerate(zip(before, one.model, strict=True)):
        assert torch.equal(weights(old), weights(new)) == (k != 1)
    outcome = run(stream, plain("independent"), setting(stream, (30,)), dtype=torch.float64)
    matrix = outcome.matrix[0, 0]
    for i in range(3):
        for j in range(3):
            assert matrix[i, j] == (matrix[j, j] if i >= j else outcome.baseline[0, j])


def test_multimodal_shares_all_but_the_first_layer():
    stream = turned(60)
    one = learner(plain("multimodal"), setting(stream, (8, 7)))
    firsts, rest = one.model["first"], one.model["rest"]
    assert len(firsts) == 3
    sizes = [64 * 8 + 8] * 3 + [8 * 7 + 7 + 7 * 10 + 10]
    assert sum(p.numel() for p in one.model.parameters()) == sum(sizes)
    learn(one, stream, 0)
    before = copy.deepcopy(one.model)
    inputs, _ = everything(stream, 0)
    answers = one.outputs(inputs, 0)
    learn(one, stream, 1)
    assert [torch.equal(weights(a), weights(b)) for a, b in zip(before["first"], firsts, strict=True)] == [
        True, False, True,
    ]  # fmt: skip
    assert not torch.equal(weights(before["rest"]), weights(rest))
    assert not torch.equal(one.outputs(inputs, 0), answers)  # the rest moved under it


def test_multimodal_refuses_a_network_without_a_first_layer():
    class Network(nn.Module):
        pass

    with pytest.raises(ValueError, match=r"needs a network that is an nn\.Sequential.*got Network"):
        learner(plain("multimodal"), Setting(lambda share: Network(), 2))


def test_gem_corrects_against_the_memory_of_every_past_task():
    stream = turned(40)
    one = learner(plain("gem", memory_margin=0.5), setting(stream, memory=15))
    for task in range(2):
        learn(one, stream, task)
    one.begin(2, None)
    corrected_steps = 0
    for inputs, labels in batches(stream, 2):
        rows = []
        for task in range(2):
            x, y = (part[:15] for part in everything(stream, task))
            rows.append(gradient_of(functional.cross_entropy(one.model(x), y), one.model))
        g = gradient_of(functional.cross_entropy(one.model(inputs), labels), one.model)
        rows = torch.stack(rows)
        expected = congruency.project(g, rows, 0.5) if (rows @ g < 0).any() else g
        corrected_steps += not torch.equal(expected, g)
        before = weights(one.model)
        one.observe(inputs, labels)
        torch.testing.assert_close(weights(one.model), before - 0.1 * expected, rtol=1e-9, atol=1e-12)
        cosines = rows @ expected / (rows.norm(dim=1) * expected.norm())
        torch.testing.assert_close(one.agreement(), cosines.mean())
    assert corrected_steps


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_agem_has_one_constraint_from_a_sample_of_all_past_tasks(margin):
    stream = turned(40, seed=5)
    one = learner(plain("agem", memory_margin=margin), setting(stream, memory=12))
    for task in range(2):
        learn(one, stream, task)
    one.begin(2, None)
    known = [torch.cat([everything(stream, task)[i][:12] for task in range(2)]) for i in (0, 1)]
    drawn = np.random.RandomState([5, 2])
    for inputs, labels in batches(stream, 2):
        indices = drawn.randint(24, size=12)
        row = gradient_of(functional.cross_entropy(one.model(known[0][indices]), known[1][indices]), one.model)
        g = gradient_of(functional.cross_entropy(one.model(inputs), labels), one.model)
        expected = congruency.project(g, row.unsqueeze(0), margin) if row @ g < 0 else g
        before = weights(one.model)
        one.observe(inputs, labels)
        torch.testing.assert_close(weights(one.model), before - 0.1 * expected, rtol=1e-9, atol=1e-12)
        assert one.constraints.corrector.stats.congruency.shape == (1,)
    assert int(one.constraints.corrector.stats.corrected_steps)


def test_herding_by_hand():
    """Mean 3.25: first 2, nearest; then 1, as (2 + 1) / 2 is nearest; then 10, as 13 / 3 is; then what is left."""
    values = torch.tensor([[0.0], [1.0], [2.0], [10.0]])
    assert herding(values, 4).tolist() == [2, 1, 3, 0]
    assert herding(values, 2).tolist() == [2, 1]
    assert herding(values, 9).tolist() == [2, 1, 3, 0]


@pytest.mark.parametrize("seed", range(5))
def test_herding_one_by_one(seed):
    vectors = torch.randn(9, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chosen = []
    for _ in range(6):
        distances = {
            i: float((vectors.mean(0) - vectors[[*chosen, i]].mean(0)).norm()) for i in range(9) if i not in chosen
        }
        chosen.append(min(distances, key=distances.get))
    assert herding(vectors, 6).tolist() == chosen


def test_icarl_predicts_the_nearest_class_mean():
    stream = thirds(60)
    one = learner(plain("icarl"), setting(stream, (20,), memory=14))
    for task in range(3):
        learn(one, stream, task)

    def features(inputs):
        return functional.normalize(one.model[:-1](inputs), dim=-1).detach()

    held = 0
    for task in range(3):
        classes = list(stream.tasks[task].classes)
        inputs, _ = everything(stream, task, "testing")
        means = []
        for label in classes:
            exemplars = one._exemplars[label]
            assert len(exemplars) == 4  # 14 for three classes
            own = [x for x, y in zip(*everything(stream, task), strict=True) if y == label]
            assert all(any(torch.equal(e, x) for x in own) for e in exemplars)
            means.append(functional.normalize(features(exemplars).mean(0), dim=-1))
            held += len(exemplars)
        nearest = [classes[int((torch.stack(means) - f).norm(dim=-1).argmin())] for f in features(inputs)]
        found = one.predict(inputs, task, mask_of(stream, task))[0].tolist()
        assert found == nearest
        assert set(found) <= set(classes)
    assert held == sum(len(part) for part in one._inputs)


def test_icarl_predicts_among_all_classes_so_far_where_the_task_is_not_given():
    stream = incremental(*even_digits(9), tasks=3, samples=60, scenario="class")
    one = learner(plain("icarl"), setting(stream, (20,), memory=12))
    known = []
    for task in range(2):
        learn(one, stream, task)
        known = sorted({*known, *stream.training(task)[1].tolist()})
        assert sorted(one._exemplars) == known
        inputs, _ = everything(stream, 2, "testing")  # of classes that are not known yet
        features = functional.normalize(one.model[:-1](inputs), dim=-1).detach()
        means = [functional.normalize(one._unit_features(one._exemplars[c]).mean(0), dim=-1) for c in known]
        nearest = [known[int((torch.stack(means) - f).norm(dim=-1).argmin())] for f in features]
        assert one.predict(inputs, 2, None)[0].tolist() == nearest


def test_icarl_without_distillation_is_plain_sgd():
    stream = thirds(60)
    single, bare, icarl = (
        learner(method, setting(stream))
        for method in (plain("single"), plain("icarl", strength=0.0), plain("icarl", strength=1.0))
    )
    for task in range(3):
        for one in (single, bare, icarl):
            learn(one, stream, task)
        torch.testing.assert_close(weights(bare.model), weights(single.model), rtol=0, atol=1e-12)
        assert torch.equal(weights(icarl.model), weights(single.model)) == (task == 0)
        assert torch.isfinite(weights(icarl.model)).all()


def test_icarl_refuses_tasks_that_share_classes():
    stream = turned(20)
    message = "iCaRL is for tasks that bring classes of their own; this stream's tasks share them"
    with pytest.raises(ValueError, match=message):
        run(stream, plain("icarl"), setting(stream), dtype=torch.float64)


def test_every_kind_has_a_learner():
    assert {plain(kind).objective for kind in get_args(Kind)} == set(LEARNERS)
