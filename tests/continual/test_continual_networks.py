"""The networks of the tables."""

import copy
import math

import pytest
import torch
from small_streams import digits, even_digits, plain
from torch import nn
from torch.nn import functional

from congruency.backends import TorchBackend, backend_for
from congruency.constraints import EpisodicMemory
from congruency.continual import NarrowResNet18, Setting, incremental, learner, mlp, run
from congruency.continual.learners.constrained import LoopedMemory
from congruency.datasets import LabelledImages
from congruency.step.gather import Gather


def test_perceptron_starts_xavier_uniform_with_zero_biases():
    model = mlp((784, 100, 100, 10), seed=3)
    assert [type(layer) for layer in model] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert sum(p.numel() for p in model.parameters()) == 89_610
    for layer in model[1::2]:
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert layer.weight.abs().max() <= bound
        assert layer.weight.abs().max() > 0.99 * bound
        assert abs(layer.weight.mean().item()) < 0.05 * bound
        assert abs(layer.weight.std().item() / (bound / math.sqrt(3)) - 1) < 0.05
        assert (layer.bias == 0).all()
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_perceptron_depends_on_its_seed():
    vectors = [nn.utils.parameters_to_vector(mlp((9, 4, 2), seed).parameters()) for seed in (1, 1, 2)]
    torch.manual_seed(99)
    vectors.append(nn.utils.parameters_to_vector(mlp((9, 4, 2), 1).parameters()))
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[3])
    assert not torch.equal(vectors[0], vectors[2])


def test_narrow_resnet_has_the_parameters_of_gems():
    """Convolutions without biases, a scale and a shift for each channel, 1x1 convolutions where a stage begins smaller.

    stem     3*20*9 + 2*20                                        =     580
    stage 1  4 * (20*20*9 + 2*20)                                 =  14,560
    stage 2  20*40*9 + 3 * 40*40*9 + 20*40 + 5 * 2*40             =  51,600
    stage 3  40*80*9 + 3 * 80*80*9 + 40*80 + 5 * 2*80             = 205,600
    stage 4  80*160*9 + 3 * 160*160*9 + 80*160 + 5 * 2*160        = 820,800
    last     160*100 + 100                                        =  16,100
    """
    model = NarrowResNet18(classes=100, filters=20)
    assert sum(p.numel() for p in model.parameters()) == 1_109_240
    assert [sum(p.numel() for p in model.stages[2 * i : 2 * i + 2].parameters()) for i in range(4)] == [
        14_560, 51_600, 205_600, 820_800,
    ]  # fmt: skip


def test_narrow_resnet_shapes():
    model = NarrowResNet18(classes=7, filters=2)
    assert model(torch.rand(3, 3, 32, 32)).shape == (3, 7)
    assert model.stages[:6](torch.rand(1, 2, 32, 32)).shape == (1, 8, 8, 8)
    assert NarrowResNet18(classes=4, filters=3, channels=1)(torch.rand(2, 1, 8, 8)).shape == (2, 4)


def tiny_resnet(share=1.0, filters=2):
    torch.manual_seed(0)
    return NarrowResNet18(classes=10, filters=filters, channels=1).double()


def stream(samples=30):
    return incremental(*even_digits(), tasks=5, samples=samples)


def learned(kind, tasks, chunk=None, **settings):
    made = stream()
    one = learner(plain(kind, **settings), Setting(tiny_resnet, 5, memory=12, chunk=chunk))
    for task in range(tasks):
        one.begin(task, made.mask(task).double())
        for images, labels in made.batches(task, 10):
            one.observe(images.double() / 255, labels)
        one.finish(made.training(task)[0].double() / 255, made.training(task)[1])
    return one, made


def test_a_gem_step_leaves_running_averages_as_a_plain_step_would():
    one, made = learned("gem", 2, memory_margin=0.5)
    one.begin(2, made.mask(2).double())
    for images, labels in made.batches(2, 10):
        inputs = images.double() / 255
        plain_model = copy.deepcopy(one.model).train()
        plain_model(inputs)  # all that a plain step does to them
        one.observe(inputs, labels)
        for (name, found), wanted in zip(one.model.named_buffers(), plain_model.buffers(), strict=True):
            assert torch.equal(found, wanted), name
    assert one.constraints.memory.active == 2
    assert int(one.constraints.corrector.stats.corrected_steps)


def test_chunks_of_past_tasks_give_the_same():
    all_at_once, in_twos = (learned("dcl_memory", 4, chunk, memory_margin=0.5, window=2)[0] for chunk in (None, 2))
    for (name, a), b in zip(all_at_once.model.state_dict().items(), in_twos.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9, msg=name)
    assert int(all_at_once.constraints.corrector.stats.corrected_steps)


@pytest.mark.parametrize("kind", ["independent", "ewc", "icarl", "dcl_memory"])
def test_learners_take_any_network(kind):
    made = incremental(*even_digits(train=60), tasks=2, samples=300)
    lr = {"independent": 0.03, "ewc": 0.05}.get(kind, 0.1)  # at 0.1 a first task may not be learned, by rounding alone
    outcome = run(made, plain(kind, lr=lr), Setting(lambda share: tiny_resnet(filters=3).float(), 2, memory=10))
    assert outcome.matrix[0, 0].diagonal().mean() > 0.4  # of five classes


def test_the_mask_is_that_of_the_evaluated_task():
    made = stream()
    assert made.shape == (1, 8, 8)
    one, _ = learned("gem", 1)
    for task in range(5):
        inputs = digits()[1].images[:50].double() / 255
        guesses = set(one.predict(inputs, task, made.mask(task).double())[0].tolist())
        assert guesses <= set(made.tasks[task].classes)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("masked", [False, True], ids=["shared classes", "own classes"])
def test_memory_gradients_one_by_one_are_those_of_one_batched_call(device, masked, memory_format):
    """With batch normalisation, over steps and tasks, and with weights that move to other memory.

    On a GPU the second step of a task, and the second after a move, capture a CUDA graph, and the third replay it.
    """
    torch.manual_seed(0)
    model = NarrowResNet18(6, filters=3).to(device, torch.float64).to(memory_format=memory_format).train()
    model.unused = nn.Parameter(torch.zeros(2, device=device, dtype=torch.float64))
    memories = [kind(model, size=4) for kind in (EpisodicMemory, LoopedMemory)]
    for task in range(3):
        mask = torch.full((6,), -math.inf, dtype=torch.float64, device=device)
        mask[2 * task : 2 * task + 2] = 0
        inputs = torch.rand(5, 3, 8, 8, dtype=torch.float64, device=device).contiguous(memory_format=memory_format)
        labels = 2 * task + torch.randint(2, (5,), device=device)
        for step in range(6):
            for memory in memories:
                memory.observe(inputs[step:], labels[step:], task, mask if masked else None)
            if step == 3:
                kept = [parameter.data for parameter in model.parameters()]  # so that none takes another's place
                for parameter in model.parameters():
                    parameter.data = parameter.data.clone()
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            expected, found = (memory.gradients() for memory in memories)
            assert list(found) == list(expected)
            for name, gradient in expected.items():
                assert gradient.shape[0] == task
                torch.testing.assert_close(found[name], gradient, rtol=1e-8, atol=1e-11)
            for name, buffer in model.named_buffers():
                assert torch.equal(buffer, before[name])
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.02 * torch.randn_like(parameter)
        assert all(old.data_ptr() != new.data_ptr() for old, new in zip(kept, model.parameters(), strict=True))


class Centred(nn.Module):
    """Subtracts a running average that every forward pass updates first."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(3, dtype=torch.float64))
        self.linear = nn.Linear(3, 2).double()

    def forward(self, inputs):
        self.average.mul_(0.5).add_(inputs.detach().mean(0), alpha=0.5)
        return self.linear(inputs - self.average)


@pytest.mark.parametrize("kind", [EpisodicMemory, LoopedMemory])
def test_the_memory_of_a_task_starts_from_the_buffers_of_the_step(kind):
    """Not from what the pass over an earlier task's memory has written."""
    torch.manual_seed(0)
    model = Centred()
    memory = kind(model, size=5)
    for task in range(4):
        memory.observe(task + torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1]), task)
    found = memory.gradients()
    for task in memory.past:
        twin, episode = copy.deepcopy(model), memory._episodes[task]
        functional.cross_entropy(twin(episode.inputs), episode.targets).backward()
        for name, parameter in twin.named_parameters():
            torch.testing.assert_close(found[name][task], parameter.grad)
    assert not model.average.any()


@pytest.mark.parametrize("kind", ["gem", "dcl_memory"])
def test_steps_of_a_task_write_memory_gradients_to_one_place(kind, monkeypatch):
    """What is prepared for the compiled passes is used again, and the weights are those of steps prepared anew."""
    made = []
    prepare = Gather._make
    monkeypatch.setattr(Gather, "_make", lambda self, *args: made.append(1) or prepare(self, *args))
    settings = {"memory_margin": 0.5} | ({"window": 2} if kind == "dcl_memory" else {})
    again, _ = learned(kind, 3, **settings)
    few = len(made)
    monkeypatch.setattr(LoopedMemory, "layout", None)
    anew, _ = learned(kind, 3, **settings)
    if backend_for("cpu") is not TorchBackend:
        assert few <= 6 < len(made) - few
    assert int(again.constraints.corrector.stats.corrected_steps)
    for (name, found), wanted in zip(again.model.state_dict().items(), anew.model.state_dict().values(), strict=True):
        assert torch.equal(found, wanted), name


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_images_are_in_the_memory_format_of_the_network(memory_format, monkeypatch):
    """Those that are learned, kept and evaluated; and the corrections' slow passes have nothing left to do."""
    slow, seen = [], set()
    prepare = TorchBackend.__init__
    monkeypatch.setattr(TorchBackend, "__init__", lambda self, *args: slow.append(1) or prepare(self, *args))
    colours = [torch.randint(256, (60, 3, 8, 8), dtype=torch.uint8) for _ in range(2)]
    sets = [LabelledImages(images, torch.arange(60) % 6, tuple("abcdef")) for images in colours]

    def make(share):
        model = NarrowResNet18(6, filters=2).double().to(memory_format=memory_format)
        model.register_forward_pre_hook(
            lambda model, inputs: seen.add(inputs[0].is_contiguous(memory_format=memory_format))
        )
        return model

    settings = {"window": 2, "memory_margin": 0.5}
    made = Setting(make, 3, memory=10)
    run(incremental(*sets, tasks=3, samples=20), plain("dcl_memory", **settings), made, dtype=torch.float64)
    assert seen == {True}
    assert not slow or backend_for("cpu") is TorchBackend


def test_networks_with_convolutions_take_their_memory_gradients_one_by_one():
    for model, kind in ((NarrowResNet18(6, filters=3), LoopedMemory), (mlp((9, 4, 2)), EpisodicMemory)):
        one = learner(plain("gem"), Setting(lambda share, model=model: model, 3, memory=4))
        assert type(one.constraints.memory) is kind
