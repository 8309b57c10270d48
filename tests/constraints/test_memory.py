"""Episodic memory: what it keeps, and rows that are the gradients of what it keeps."""

import copy
import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import congruency
from congruency import EpisodicMemory


def perceptron():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def normalised():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(),
        nn.Linear(5, 4),
    ).double()  # fmt: skip


def samples(model, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (1, 2, 3) if isinstance(model[0], nn.Conv2d) else (6,)
    inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 2, (count,), generator=generator)


def masks(task):
    """One more class for odd tasks than for even ones; labels are 0 and 1."""
    mask = torch.zeros(4, dtype=torch.float64)
    mask[2 + task % 2 :] = -math.inf
    return mask


def filled(model, counts, masked=False, **settings):
    """A memory of these many samples a task, in the last of which learning is."""
    memory = EpisodicMemory(model, **settings)
    for task, count in enumerate(counts):
        memory.observe(*samples(model, count, task), task, masks(task) if masked else None)
    return memory


def slow_rows(memory, model, loss=functional.cross_entropy):
    """A backward for every past task, on a copy, since batch normalisation writes down what it sees."""
    found = []
    for task in memory.past:
        twin = copy.deepcopy(model)
        episode = memory._episodes[task]
        outputs = twin(episode.inputs)
        value = loss(outputs if episode.mask is None else outputs + episode.mask, episode.targets)
        found.append(torch.autograd.grad(value, [p for p in twin.parameters() if p.requires_grad]))
    return found


def assert_rows(memory, model, loss=functional.cross_entropy):
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = memory.gradients()
    expected = slow_rows(memory, model, loss)
    assert sorted(found) == sorted(names)
    for i, name in enumerate(names):
        assert found[name].shape[0] == len(memory.past)
        for row, wanted in zip(found[name], expected, strict=True):
            torch.testing.assert_close(row, wanted[i])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name  # running averages too


@pytest.mark.parametrize("chunk", [None, 1, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("counts", [(4, 4, 4, 1), (3, 5, 3, 5, 4)], ids=["even", "uneven"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [perceptron, normalised])
def test_rows_are_the_gradients_of_every_past_task(make, training, counts, masked, chunk):
    model = make().train(training)
    assert_rows(filled(model, counts, masked, chunk=chunk), model)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [perceptron, normalised])
def test_tasks_one_by_one_give_the_same(make, training, masked, monkeypatch):
    monkeypatch.setattr("congruency.constraints.memory._LARGE", 0)
    monkeypatch.delattr("congruency.constraints.memory.vmap")  # no batched call
    model = make().train(training)
    assert_rows(filled(model, (3, 5, 3, 5, 4), masked), model)


def convolutional():
    """A network of several input and output channels, whose memory formats differ."""
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4)).double()


@pytest.mark.parametrize("batches", [True, False], ids=["batched", "one-by-one"])
@pytest.mark.parametrize("counts", [(4, 4, 4), (3, 5, 3, 4)], ids=["even", "uneven"])
def test_gradients_lie_in_memory_as_the_parameters_do(counts, batches, monkeypatch):
    """The compiled passes walk all tensors of a parameter in memory order; others are computed by slow operations."""
    if not batches:
        monkeypatch.setattr("congruency.constraints.memory._LARGE", 0)
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model = convolutional().to(memory_format=memory_format)
        memory = EpisodicMemory(model)
        generator = torch.Generator().manual_seed(0)
        for task, count in enumerate(counts):
            inputs = torch.randn(count, 3, 4, 4, generator=generator, dtype=torch.float64)
            inputs = inputs.contiguous(memory_format=memory_format)
            memory.observe(inputs[:1], torch.zeros(1, dtype=torch.int64), task)
            memory.observe(inputs[1:], torch.randint(4, (count - 1,), generator=generator), task)
        assert_rows(memory, model)
        memory.begin(list(model.parameters()))
        for parameter in model.parameters():
            assert {row.stride() for row in memory.basis(parameter).tensors} == {parameter.stride()}
        assert memory._episodes[0].inputs.is_contiguous(memory_format=memory_format)
        found.append(memory.gradients())
    for name, gradients in found[0].items():
        torch.testing.assert_close(gradients, found[1][name])


def test_batch_norm_sees_every_task_for_itself():
    """In one batch of all tasks, means and variances would mix; this tells the two apart."""
    model = normalised()
    memory = filled(model, (4, 4, 4))
    inputs = torch.cat([memory._episodes[task].inputs for task in memory.past])
    targets = torch.cat([memory._episodes[task].targets for task in memory.past])
    twin = copy.deepcopy(model)
    mixed = torch.autograd.grad(functional.cross_entropy(twin(inputs), targets), list(twin.parameters()))
    assert not torch.allclose(memory.gradients()["0.weight"].mean(0), mixed[0])


class Operations(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.counts[operation.overloadpacket.__name__] += 1
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("training", [True, False])
def test_running_averages_are_neither_copied_nor_updated_in_training(training, monkeypatch):
    """In a narrow ResNet-18 that would be 80 operations per task."""
    monkeypatch.setattr("congruency.constraints.memory._LARGE", 0)
    model = normalised().train(training)
    memory = filled(model, (4, 4, 4))
    with Operations() as operations:
        memory.gradients()
    assert operations.counts["clone"] == (0 if training else 2 * len(list(model.buffers())))
    assert not operations.counts["add_"]
    assert all(layer.track_running_stats for layer in (model[1], model[5]))


def test_other_buffers_are_each_tasks_own(monkeypatch):
    """Those of a subclass too, which may use its running averages in training."""

    class Renormalised(nn.BatchNorm1d):
        def forward(self, inputs):
            self.running_mean.mul_(0.5).add_(inputs.detach().mean(0), alpha=0.5)
            return inputs - self.running_mean

    monkeypatch.setattr("congruency.constraints.memory._LARGE", 0)
    model = nn.Sequential(nn.Linear(6, 5), Renormalised(5, affine=False), nn.Linear(5, 4)).double()
    assert_rows(filled(model, (4, 4, 4)), model)


def test_masked_and_unmasked_tasks_side_by_side():
    model = perceptron()
    memory = EpisodicMemory(model)
    for task in range(5):
        memory.observe(*samples(model, 3, task), task, masks(task) if task % 2 else None)
    assert_rows(memory, model)


def test_tasks_of_images_of_different_sizes():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)).double()
    memory = EpisodicMemory(model)
    for task, side in enumerate((3, 5, 3, 4)):
        memory.observe(torch.randn(6, 1, side, side, dtype=torch.float64), torch.randint(4, (6,)), task)
    assert_rows(memory, model)


def test_memories_are_stacked_anew_only_when_a_task_ends():
    model = perceptron()
    memory = filled(model, (4, 4, 4), size=6)
    assert_rows(memory, model)
    before = memory._stacks()
    memory.observe(*samples(model, 2, seed=9), 2)  # more of the present task
    assert memory._stacks() is before
    assert_rows(memory, model)
    for task in (3, 0, 1):  # a new task, and two old ones that are taken up again
        memory.observe(*samples(model, 2, seed=10 + task), task)
        assert_rows(memory, model)
    state = memory.state_dict(list(model.parameters()))
    memory.reset()
    assert memory.gradients() == {}
    memory.load_state_dict(state, list(model.parameters()))
    assert_rows(memory, model)


def test_another_loss():
    model = perceptron()

    def loss(outputs, targets):
        return (outputs - targets).square().sum()

    memory = EpisodicMemory(model, loss)
    for task in range(3):
        generator = torch.Generator().manual_seed(task)
        memory.observe(
            torch.randn(3, 6, generator=generator, dtype=torch.float64),
            torch.randn(3, 4, generator=generator, dtype=torch.float64),
            task,
        )
    assert_rows(memory, model, loss)


@pytest.mark.parametrize("tasks", [2, 3])
def test_a_frozen_model_has_no_rows(tasks):
    model = perceptron().requires_grad_(False)
    assert filled(model, (3,) * tasks).gradients() == {}


def test_frozen_parameters_have_no_rows():
    model = perceptron()
    model[0].weight.requires_grad_(False)
    memory = filled(model, (3, 3, 3))
    assert_rows(memory, model)
    memory.begin(list(model.parameters()))
    (first, second) = memory.basis(model[0].weight).tensors
    assert first.shape == second.shape == model[0].weight.shape
    assert not first.any()
    assert not second.any()


def test_a_parameter_of_another_model_has_zero_rows():
    memory = filled(perceptron(), (3, 3))
    memory.begin([])
    (row,) = memory.basis(torch.ones(2, 3)).tensors
    assert torch.equal(row, torch.zeros(2, 3))


def test_the_current_task_gives_no_row():
    model = perceptron()
    memory = EpisodicMemory(model)
    assert memory.past == []
    assert memory.gradients() == {}
    for task, past in ((7, []), (7, []), (3, [7]), (9, [7, 3]), (7, [3, 9]), (3, [7, 9])):
        memory.observe(*samples(model, 2), task)
        assert sorted(memory.past) == sorted(past)
        assert memory.active == memory.capacity == len(past)
        assert memory.combination().tolist() == torch.eye(len(past)).tolist()
        if past:
            assert_rows(memory, model)


@pytest.mark.parametrize("policy", ["ring", "first"])
@pytest.mark.parametrize("size", [1, 3, 5, 100])
def test_policies_keep_the_right_samples(size, policy):
    """Uneven batches, smaller and larger than the memory, two tasks taking turns: against lists."""
    memory = EpisodicMemory(perceptron(), size=size, policy=policy)
    seen = {0: [], 1: []}
    start = 0
    for task, count in ((0, 2), (0, 1), (1, 4), (0, 7), (1, 1), (1, 3), (0, 1)):
        values = torch.arange(start, start + count, dtype=torch.float64)
        memory.observe(values.unsqueeze(1).expand(-1, 6), values.long(), task)
        seen[task] += values.tolist()
        start += count
        kept = seen[task][:size] if policy == "first" else seen[task][-size:]
        assert memory._episodes[task].inputs[:, 0].tolist() == kept
        assert memory._episodes[task].targets.tolist() == kept


def test_kept_samples_do_not_change_with_the_batch():
    model = perceptron()
    inputs, targets = samples(model, 4)
    inputs = inputs.requires_grad_()
    memory = EpisodicMemory(model)
    memory.observe(inputs, targets, 0)
    before = memory._episodes[0].inputs.clone()
    assert not memory._episodes[0].inputs.requires_grad
    with torch.no_grad():
        inputs.zero_()  # as a loader that reuses its buffer does
    assert torch.equal(memory._episodes[0].inputs, before)


@pytest.mark.parametrize("policy", ["ring", "first"])
def test_no_more_is_held_than_is_kept(policy):
    """A view of a large batch would keep, and save, all of it."""
    memory = EpisodicMemory(perceptron(), size=5, policy=policy)
    for count in (100, 3, 100):
        memory.observe(torch.zeros(count, 6), torch.zeros(count, dtype=torch.int64), 0)
        episode = memory._episodes[0]
        for part in (episode.inputs, episode.targets):
            assert len(part) == 5
            assert part.untyped_storage().nbytes() == part.nbytes


def test_an_empty_batch_is_no_memory():
    """The mean loss of no samples is nan, which would lift all constraints."""
    model = perceptron()
    memory = filled(model, (3, 0, 2))
    assert memory.past == [0]
    assert_rows(memory, model)


def test_a_layer_that_is_replaced_is_constrained_too():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = EpisodicMemory(model)
    congruency.Corrector(optimizer, constraints=[memory])
    inputs, targets = samples(model, 5)
    memory.observe(inputs, targets, 0)
    model[2] = nn.Linear(5, 4).double()
    optimizer.add_param_group({"params": model[2].parameters()})
    memory.observe(inputs, targets, 1)
    for row, parameter in zip(slow_rows(memory, model)[0], model.parameters(), strict=True):
        parameter.grad = -row  # against the past task
    optimizer.step()
    assert all(parameter.grad.abs().max() < 1e-9 for parameter in model.parameters())


def test_reset_forgets():
    memory = filled(perceptron(), (3, 3, 3))
    memory.reset()
    assert memory.active == 0
    assert memory.gradients() == {}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be a positive whole number of samples per task, got 0"),
        ({"size": -1}, ValueError, "size must be a positive whole number of samples per task, got -1"),
        ({"size": 2.0}, ValueError, "size must be a positive whole number of samples per task, got 2.0"),
        ({"size": True}, ValueError, "size must be a positive whole number of samples per task, got True"),
        ({"policy": "last"}, ValueError, "policy must be one of 'ring', 'first', got 'last'"),
        ({"margin": -0.5}, ValueError, "margin must be finite and at least 0, got -0.5"),
        ({"margin": float("nan")}, ValueError, "margin must be finite and at least 0, got nan"),
        ({"margin": "0.5"}, TypeError, "margin must be a number, got '0.5'"),
        ({"chunk": 0}, ValueError, "chunk must be a positive whole number of tasks or None, got 0"),
        ({"loss": "mse"}, TypeError, "loss must be a function .* or None, got 'mse'"),
        ({"loss": torch.tensor(1.0)}, TypeError, "loss must be a function .* or None, got tensor"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings, error, message):
    model = perceptron()
    with pytest.raises(error, match=message):
        EpisodicMemory(model, **settings)
    with pytest.raises(error, match=message):
        congruency.GEM(torch.optim.SGD(model.parameters(), lr=0.1), model=model, **settings)


def test_inputs_without_targets_are_refused():
    memory = EpisodicMemory(perceptron())
    with pytest.raises(ValueError, match="got 3 inputs and 2 targets; give one target for each input"):
        memory.observe(torch.zeros(3, 6), torch.zeros(2, dtype=torch.int64), 0)
    assert memory.active == 0


@pytest.mark.parametrize("model", [perceptron().parameters(), perceptron, "model"], ids=["parameters", "maker", "word"])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(
        TypeError, match=r"model must be the torch.nn.Module being trained, got a (generator|function|str)"
    ):
        EpisodicMemory(model)


@pytest.mark.parametrize(
    ("inputs", "targets", "error", "message"),
    [
        ([[0.0] * 6], torch.tensor([0]), TypeError, "inputs must be a tensor, got a list"),
        ({"x": torch.zeros(1, 6)}, torch.tensor([0]), TypeError, "inputs must be a tensor, got a dict"),
        (torch.zeros(1, 6), [0], TypeError, "targets must be a tensor, got a list"),
        (torch.zeros(2, 6), torch.zeros(2), ValueError, "not class probabilities.*functional.mse_loss"),
        (torch.zeros(2, 6), torch.ones(2, 1), ValueError, "not class probabilities"),  # a loss of 0 otherwise
        (torch.zeros(2, 6), torch.randn(2, 4), ValueError, "not class probabilities"),
    ],
)
def test_samples_that_the_loss_cannot_take_are_refused(inputs, targets, error, message):
    memory = EpisodicMemory(perceptron())
    with pytest.raises(error, match=message):
        memory.observe(inputs, targets, 0)
    assert not memory._episodes


def test_real_targets_with_a_loss_and_probabilities_without_are_kept():
    chosen, default = EpisodicMemory(perceptron(), functional.mse_loss), EpisodicMemory(perceptron())
    chosen.observe(torch.zeros(2, 6), torch.randn(2, 4), 0)
    default.observe(torch.zeros(2, 6), torch.rand(2, 4).softmax(1), 0)
    assert len(chosen._episodes) == len(default._episodes) == 1


def test_a_loss_of_every_sample_is_refused():
    model = perceptron()
    memory = filled(model, (3, 3), loss=nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(ValueError, match=r"loss must return one number, got shape \(3,\); return its mean"):
        memory.gradients()


def test_a_model_that_looks_at_values_is_computed_task_by_task():
    """torch.func.vmap refuses it."""

    class Looks(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs if inputs.sum().item() > 0 else -inputs)

    model = Looks(6, 4).double()
    memory = EpisodicMemory(model)
    for task in range(4):
        memory.observe(*samples(perceptron(), 3, task), task)
    for _ in range(2):
        assert_rows(memory, model)


def test_tasks_may_have_samples_of_different_sizes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)).double()
    memory = EpisodicMemory(model)
    for task, size in enumerate((4, 6, 4, 5)):
        memory.observe(torch.randn(3, 1, size, size, dtype=torch.float64), torch.tensor([0, 1, 2]), task)
    assert_rows(memory, model)


def test_a_task_has_samples_of_one_size():
    memory = filled(perceptron(), (3,))
    with pytest.raises(ValueError, match=r"inputs of task 0 had shape \(6,\) per sample before and have \(7,\) now"):
        memory.observe(torch.zeros(1, 7), torch.tensor([0]), 0)
    memory.observe(torch.zeros(0), torch.zeros(0), 0)  # no samples have no size


def test_samples_may_be_chosen_at_the_end_of_a_task():
    """An observation of no samples says that the next task begins: only then does the last one constrain."""
    memory = filled(perceptron(), (3,))
    assert memory.past == []
    inputs, targets = samples(perceptron(), 3)
    memory.observe(inputs[:0], targets[:0], 1)
    assert memory.past == [0]
