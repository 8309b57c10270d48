"""The fast GEM against the learner of one run: the same weights, fewer memory gradients."""

from itertools import pairwise

import pytest
import torch
from small_streams import digits, even_digits, setting, weights
from torch.nn import functional

from congruency.continual import LearnerConfig, gem_fast, incremental, learner, permutations, rotations, run_together
from congruency.continual.batched_runner import BatchedRunner
from congruency.continual.gem_fast import FastGEM, _matrix, _Pass, _Sparse

HIDDEN = (12, 9)


def stream_of(kind, samples=85):
    if kind == "incremental":
        return incremental(*even_digits(), tasks=5, samples=samples, seed=3)
    make = {"rotations": rotations, "permutations": permutations}[kind]
    return make(*digits(), tasks=4, samples=samples, seed=3)


@pytest.fixture
def choose_products(monkeypatch):
    """Sparse or dense products with the inputs, whatever suits these."""

    def choose(form):
        monkeypatch.setattr(gem_fast, "_SPARSE", {torch.float32, torch.float64})
        monkeypatch.setattr(gem_fast, "_FEW", 1.0 if form == "sparse" else -1.0)

    return choose


def trained(stream, config, batch=10, memory=17, policy="first"):
    """The weights after each task."""
    runner = BatchedRunner([stream], HIDDEN, batch, memory, policy, torch.device("cpu"), torch.float64)
    one = FastGEM(runner.network, [config], runner.initial_weights(), [stream.seed], memory)
    return [runner.widened(one.weights)[0, 0].clone() for _ in runner.learn(one, None)]


def run_fast(stream, config, **settings):
    return run_together([stream], [config], agreement=False, **settings)


def both(stream, config, **settings):
    """The outcomes with agreement measured and without."""
    return run_together([stream], [config], **settings), run_fast(stream, config, **settings)


@pytest.mark.parametrize("policy", ["first", "ring"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize(
    "constraints",
    [
        {"kind": "gem"},
        {"kind": "dcl_memory", "window": 4},
        {"kind": "dcl_memory", "window": 5, "references": 2, "mode": "anchor", "offset": 1, "reference_margin": 0.1},
    ],
    ids=["GEM", "DCL", "anchors"],
)
@pytest.mark.parametrize("kind", ["rotations", "permutations", "incremental"])
def test_weights_equal_those_of_the_learner_of_one_run(kind, constraints, margin, policy, choose_products):
    """After every task, the last batch of each smaller; some steps violate a constraint and some do not."""
    stream, config, memory = stream_of(kind), LearnerConfig("fast", memory_margin=margin, **constraints), 17
    found = []
    for form in ("sparse", "dense"):
        choose_products(form)
        found.append(trained(stream, config, memory=memory, policy=policy))
    slow = learner(config, setting(stream, HIDDEN, memory=memory, policy=policy))
    for task, after in enumerate(zip(*found, strict=True)):
        images, labels = stream.training(task)
        mask = stream.mask(task)
        slow.begin(task, None if mask is None else mask.double())
        for x, y in zip(images.flatten(1).split(10), labels.split(10), strict=True):
            slow.observe(x.double() / 255, y)
        slow.finish(images.flatten(1).double() / 255, labels)
        wanted = weights(slow.model)
        for each in after:
            torch.testing.assert_close(each[: len(wanted)], wanted, rtol=0, atol=1e-9)
    corrected = int(slow.constraints.corrector.stats.corrected_steps)
    assert 0 < corrected < 9 * (len(stream) - (config.kind == "gem"))  # GEM alone leaves the first task as it is


def test_memory_gradients_are_computed_only_if_a_constraint_is_violated(monkeypatch):
    """Gradients are written once for the batch and once for the memory per corrected step."""
    counts = {"corrected": 0, "written": 0}
    correct, write = FastGEM._correct_layers, _Pass.write
    monkeypatch.setattr(
        FastGEM, "_correct_layers", lambda self: (counts.update(corrected=counts["corrected"] + 1), correct(self))
    )
    monkeypatch.setattr(_Pass, "write", lambda *a: (counts.update(written=counts["written"] + 1), write(*a)))
    trained(stream_of("rotations"), LearnerConfig("GEM", "gem"))
    assert 0 < counts["corrected"] < 27 - 2
    assert counts["written"] == 2 * counts["corrected"]


@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_inner_products_equal_those_of_autograd_gradients(form, choose_products):
    choose_products(form)
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
        for i in range(0, len(leaves), 2):
            values = functional.linear(values.relu() if i else values, leaves[i], leaves[i + 1])
        loss = functional.cross_entropy(values, labels[part])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])

    wanted = torch.stack([gradient(part) @ gradient(parts[0]) for part in parts[1:]])
    joined = [torch.cat([weight.T, bias.unsqueeze(0)]) for weight, bias in layers]
    batch, *memory = functional.pad(inputs.T, (0, 1), value=1.0).split([3, 7, 7])
    own, past = _Pass(joined, 1, 3), _Pass(joined, 2, 7)
    for one, samples, targets in ((own, [batch], labels[:3]), (past, memory, labels[3:])):
        one.enter([(_matrix(each), _matrix(each.T)) for each in samples])
        one.run(targets.view(len(samples), 1, -1), None)
    torch.testing.assert_close(own.products(past, batch @ torch.stack(memory).mT), wanted)


@pytest.mark.parametrize("kind", ["rotations", "incremental"])
def test_outcomes_equal_those_of_gem_except_for_agreement(kind):
    stream, config = stream_of(kind, samples=40), LearnerConfig("GEM", "gem", memory_margin=0.5)
    usual, fast = both(stream, config, hidden=HIDDEN, memory=11, dtype=torch.float64)
    torch.testing.assert_close(fast.matrix, usual.matrix, rtol=0, atol=1e-12)
    torch.testing.assert_close(fast.losses, usual.losses, rtol=1e-8, atol=0)
    assert torch.equal(fast.baseline, usual.baseline)
    assert not usual.agreement[0, 0, 1:].isnan().any()
    assert fast.agreement.shape == usual.agreement.shape
    assert fast.agreement.isnan().all()


def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
    stream, config = stream_of("rotations"), LearnerConfig("GEM", "gem", memory_margin=0.5)
    settings = {"hidden": HIDDEN, "memory": 17, "dtype": torch.float64}
    whole = run_fast(stream, config, **settings)

    class Stopped(Exception):
        pass

    def stop_at_task_2(self, task, *args):
        if task == 2:
            raise Stopped
        begin(self, task, *args)

    begin = FastGEM.begin
    monkeypatch.setattr(FastGEM, "begin", stop_at_task_2)
    with pytest.raises(Stopped):
        run_fast(stream, config, resume=tmp_path / "state", **settings)
    monkeypatch.setattr(FastGEM, "begin", begin)
    resumed = run_fast(stream, config, resume=tmp_path / "state", **settings)
    assert torch.equal(resumed.matrix, whole.matrix)
    assert torch.equal(resumed.losses, whole.losses)


def test_a_state_without_agreement_is_not_resumed_with_it(tmp_path):
    """Its finished tasks have no agreement."""
    stream, config = stream_of("rotations", samples=40), LearnerConfig("GEM", "gem")
    settings = {"hidden": HIDDEN, "memory": 11, "resume": tmp_path / "state"}
    run_fast(stream, config, **settings)
    with pytest.raises(ValueError, match="holds another run"):
        run_together([stream], [config], **settings)


def test_many_runs_without_agreement_equal_those_with_it():
    """Learners that the fast one does not suit, here plain SGD and an always corrected GEM, still run as one batch."""
    streams = [rotations(*digits(), tasks=3, samples=40, seed=seed) for seed in (3, 4)]
    configs = [
        LearnerConfig("GEM", "gem", memory_margin=0.5),
        LearnerConfig("single", "single"),
        LearnerConfig("always", "gem", trigger="always"),
        LearnerConfig("both", "dcl_memory", window=4),
    ]
    settings = {"hidden": HIDDEN, "memory": 11, "dtype": torch.float64}
    done = []
    usual = run_together(streams, configs, **settings)
    fast = run_together(streams, configs, agreement=False, progress=lambda *now: done.append(now), **settings)
    torch.testing.assert_close(fast.losses, usual.losses, rtol=1e-8, atol=0)
    assert torch.equal(fast.baseline, usual.baseline)
    assert fast.agreement[:, [0, 1, 3]].isnan().all()
    torch.testing.assert_close(fast.agreement[:, 2], usual.agreement[:, 2], equal_nan=True)
    assert done == [(i + 1, 18) for i in range(18)]  # two groups and four single runs of three tasks


@pytest.mark.parametrize(
    ("configs", "seeds", "message"),
    [
        ([LearnerConfig("GEM", "gem")] * 2, 1, "one learner and one seed on the CPU, got 2 and 1 on cpu"),
        ([LearnerConfig("GEM", "gem")], 2, "one learner and one seed on the CPU, got 1 and 2 on cpu"),
        ([LearnerConfig("GEM", "gem", trigger="always")], 1, "trigger 'violated', got 'gem' with 'always'"),
        ([LearnerConfig("ER", "er")], 1, "kinds 'gem' and 'dcl_memory' .* got 'er' with 'violated'"),
    ],
)
def test_only_single_runs_with_a_memory_are_accepted(configs, seeds, message):
    network = BatchedRunner(
        [stream_of("rotations")], HIDDEN, 10, 17, "first", torch.device("cpu"), torch.float64
    ).network
    with pytest.raises(ValueError, match=message):
        FastGEM(network, configs, torch.zeros(seeds, network.width), range(seeds), 17)


def test_a_diverging_run_ends():
    outcome = run_fast(stream_of("rotations"), LearnerConfig("GEM", "gem", lr=1e6), hidden=HIDDEN, memory=17)
    assert outcome.matrix.shape == (1, 1, 4, 4)
    assert not outcome.losses.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_products_equal_dense_ones(dtype):
    """Rows without an entry, and a matrix without any, included."""
    torch.manual_seed(0)
    matrix, other = torch.randn(6, 5, dtype=dtype).relu(), torch.randn(5, 100, dtype=dtype)
    matrix[[0, 3, 5]] = 0
    for one in (matrix, matrix.T, torch.zeros_like(matrix)):
        columns = other if one.shape[1] == 5 else torch.randn(100, 6, dtype=dtype).T
        torch.testing.assert_close(_Sparse(one) @ columns, one @ columns)


def test_few_nonzero_entries_make_a_matrix_sparse(monkeypatch):
    few = torch.eye(10)
    monkeypatch.setattr(gem_fast, "_SPARSE", {torch.float32})
    assert isinstance(_matrix(few), _Sparse)
    assert not isinstance(_matrix(few + 1), _Sparse)
    assert not isinstance(_matrix(few.double()), _Sparse)


@pytest.mark.parametrize(("hidden", "memory"), [((), 11), (HIDDEN, 3)], ids=["no hidden layer", "small memory"])
def test_shallow_networks_and_small_memories_are_learned_alike(hidden, memory):
    stream, config = stream_of("rotations", samples=45), LearnerConfig("GEM", "gem", memory_margin=0.5)
    usual, fast = both(stream, config, hidden=hidden, memory=memory, dtype=torch.float64)
    torch.testing.assert_close(fast.losses, usual.losses, rtol=1e-8, atol=0)
