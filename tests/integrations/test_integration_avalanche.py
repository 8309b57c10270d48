"""Avalanche: a strategy with the plugin is the plain loop, bit for bit, resumed or not."""

import importlib.util
import pickle
import re
from pathlib import Path

import pytest
import torch
from learning import SEEDS, run_block
from torch import nn

import congruency

if importlib.util.find_spec("avalanche") is None:
    pytest.skip("Avalanche has an environment of its own, its dependencies are old: make test-avalanche",
                allow_module_level=True)  # fmt: skip

from congruency.integrations.avalanche import DCLPlugin

from avalanche.benchmarks import benchmark_from_datasets, class_incremental_benchmark  # isort: skip
from avalanche.benchmarks.utils import as_classification_dataset  # isort: skip
from avalanche.logging import TensorboardLogger  # isort: skip
from avalanche.models import IncrementalClassifier, MultiTaskModule  # isort: skip
from avalanche.training.plugins import EvaluationPlugin, GEMPlugin  # isort: skip
from avalanche.training.supervised import GEM, Naive  # isort: skip

TASKS, SAMPLES, BATCH = 3, 36, 6
OPTIONS = {"window": 4, "references": 2, "returning": False}  # by default so short a run corrects no step


class Labelled(torch.utils.data.TensorDataset):
    @property
    def targets(self):
        return self.tensors[1].tolist()


def tasks():
    """Three tasks with the same classes, each in a direction of its own."""
    generator = torch.Generator().manual_seed(4)
    found = []
    for _ in range(TASKS):
        inputs = torch.randn(SAMPLES, 5, generator=generator)
        found.append((inputs, (inputs @ torch.randn(5, 3, generator=generator)).argmax(1)))
    return found


def experiences():
    datasets = [as_classification_dataset(Labelled(*pair)) for pair in tasks()]
    return list(benchmark_from_datasets(train=datasets).train_stream)


def class_incremental():
    """Two new classes an experience."""
    inputs = torch.cat([pair[0] for pair in tasks()])
    dataset = as_classification_dataset(Labelled(inputs, torch.arange(len(inputs)) % 6))
    return class_incremental_benchmark({"train": dataset}, num_experiences=TASKS, seed=0)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def strategy_of(plugins, model=None, kind=Naive, evaluator=None, **settings):
    model = network() if model is None else model
    return kind(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=2,
        evaluator=EvaluationPlugin() if evaluator is None else evaluator,
        plugins=plugins,
        **settings,
    )


def learn(strategy, stream):
    for experience in stream:
        strategy.train(experience, shuffle=False, num_workers=0)
    return flat(strategy.model)


def plain(memories=None, strength=0.0, **options):
    """A loop of one's own: DCL's references, joined with a memory that observes what Avalanche's kept."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    trigger = options.pop("trigger", "always")
    references = congruency.References(options.pop("references", 1), **options)
    episodes = congruency.EpisodicMemory(model, size=SAMPLES, margin=strength)
    sources = [references] if memories is None else [references, episodes]
    corrector = congruency.Corrector(optimizer, constraints=sources, trigger=trigger)
    corrected = []
    for task, (inputs, targets) in enumerate(tasks()):
        references.reset()
        episodes.observe(inputs[:0], targets[:0], task)
        before = int(corrector.stats.corrected_steps)
        for _ in range(2):
            for x, y in zip(inputs.split(BATCH), targets.split(BATCH), strict=True):
                optimizer.zero_grad()
                x = x.clone()  # memory of its own, as a loader gives it: on some CPUs alignment changes the rounding
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        corrected.append(int(corrector.stats.corrected_steps) - before)
        if memories is not None:
            episodes.observe(*memories[task], task)
    return flat(model), corrected


def flat(model):
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def kept(memory):
    return [(memory.memory_x[task], memory.memory_y[task]) for task in range(TASKS)]


@pytest.mark.parametrize("options", [OPTIONS, {"mode": "anchor", "margin": 0.1, "offset": 1}])
def test_dcl_alone_equals_the_plain_loop(options):
    plugin = DCLPlugin(**options)
    strategy = strategy_of([plugin])
    found = learn(strategy, experiences())
    expected, corrected = plain(**options)
    assert torch.equal(found, expected)
    assert int(plugin.stats.corrected_steps) == corrected[-1] > 0
    assert plugin.stats.steps == 2 * SAMPLES // BATCH  # those of the last experience
    assert not strategy.optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize("trigger", ["always", "violated"])
def test_dcl_joined_with_the_memory_equals_the_plain_loop(strength, trigger):
    memory = GEMPlugin(patterns_per_experience=10, memory_strength=strength)
    plugin = DCLPlugin(memory=memory, trigger=trigger, **OPTIONS)
    found = learn(strategy_of([plugin]), experiences())
    assert [len(memory.memory_x[task]) for task in range(TASKS)] == [10] * TASKS
    expected, corrected = plain(kept(memory), strength, trigger=trigger, **OPTIONS)
    assert torch.equal(found, expected)
    assert int(plugin.stats.corrected_steps) == corrected[-1] > 0
    assert plugin.stats.congruency.shape == (2 + TASKS - 1,)
    assert not torch.equal(found, plain(**OPTIONS)[0])  # the memory does something
    assert not torch.equal(found, plain(kept(memory), strength, trigger=trigger, offset=99)[0])  # and so does DCL


def test_without_references_it_is_avalanches_gem():
    """Rows of the memory alone; Avalanche adds 1e-3 to its Gram matrix, whence the tolerance."""
    memory = GEMPlugin(patterns_per_experience=SAMPLES, memory_strength=0.5)  # all of them: nothing is left to chance
    ours = learn(strategy_of([DCLPlugin(memory=memory, trigger="violated", offset=99)]), experiences())
    theirs = learn(strategy_of([], kind=GEM, patterns_per_exp=SAMPLES, memory_strength=0.5), experiences())
    naive = learn(strategy_of([]), experiences())
    assert (ours - theirs).norm() < 0.02 * (naive - theirs).norm()


@pytest.mark.parametrize("joined", [False, True])
def test_resumed_between_experiences(joined, tmp_path):
    def plugin():
        return DCLPlugin(memory=GEMPlugin(10, 0.2) if joined else None, **OPTIONS)

    torch.manual_seed(7)
    first = strategy_of([plugin()])
    learn(first, experiences()[:1])
    random_state = torch.random.get_rng_state()
    states = (first.model.state_dict(), first.optimizer.state_dict(), first.plugins[0].state_dict())
    torch.save(states, tmp_path / "state.pt")
    expected = learn(first, experiences()[1:])

    again = strategy_of([plugin()])
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    for part, state in zip((again.model, again.optimizer, again.plugins[0]), loaded, strict=True):
        part.load_state_dict(state)
    again.check_model_and_optimizer = check_but_keep_momentum(again)
    torch.random.set_rng_state(random_state)
    assert torch.equal(learn(again, experiences()[1:]), expected)


def check_but_keep_momentum(strategy):
    """Avalanche empties the optimizer's state the first time that a strategy trains: that is not for a resumed one."""
    usual = strategy.check_model_and_optimizer

    def check(**kwargs):
        if strategy.optimized_param_id is None:
            strategy.optimized_param_id = {}
            strategy.make_optimizer(**kwargs)
        usual(**kwargs)

    return check


@pytest.mark.parametrize("joined", [False, True])
def test_a_pickled_strategy(joined):
    """As Avalanche's checkpoints do, there with dill, which cannot store any strategy beside typing_extensions 4.16."""
    torch.manual_seed(7)
    strategy = strategy_of([DCLPlugin(memory=GEMPlugin(10, 0.2) if joined else None, **OPTIONS)])
    learn(strategy, experiences()[:1])
    stored = pickle.dumps(strategy)
    random_state = torch.random.get_rng_state()
    expected = learn(strategy, experiences()[1:])
    again = pickle.loads(stored)
    torch.random.set_rng_state(random_state)
    assert torch.equal(learn(again, experiences()[1:]), expected)


def test_a_head_that_grows():
    """Avalanche replaces the parameters of a growing head; the references are of those that are there."""

    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body, self.head = nn.Linear(5, 6), IncrementalClassifier(6, 1)

        def forward(self, inputs):
            return self.head(self.body(inputs).tanh())

    plugin = DCLPlugin(memory=GEMPlugin(10, 0.1), **OPTIONS)
    model = Growing()
    learn(strategy_of([plugin], model), class_incremental().train_stream)
    assert model.head.classifier.out_features == 6
    assert int(plugin.stats.corrected_steps) > 0
    assert flat(model).isfinite().all()


def test_the_strategys_loggers_receive_the_metrics(tmp_path, monkeypatch):
    """Once per epoch: the means over its steps."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read, means = [], congruency.Corrector.means
    monkeypatch.setattr(congruency.Corrector, "means", lambda corrector: (read.append(means(corrector)), read[-1])[1])
    plugin = DCLPlugin(window=5, references=1)
    logger = TensorboardLogger(tmp_path)
    strategy = strategy_of([plugin], evaluator=EvaluationPlugin(loggers=[logger]))
    learn(strategy, experiences()[:1])
    logger.writer.flush()
    events = EventAccumulator(str(tmp_path)).Reload()
    last = events.Scalars("dcl/congruency")[-1]
    assert last.step == 2 * SAMPLES // BATCH
    assert last.value == pytest.approx(read[-1]["congruency"], rel=1e-5)
    shares = [event.value for event in events.Scalars("dcl/corrected_share")]
    assert sum(shares) * (SAMPLES / BATCH) == pytest.approx(int(plugin.stats.corrected_steps))
    assert strategy.evaluator.get_last_metrics()["dcl/corrected_share"] == pytest.approx(shares[-1])


class MultiTask(MultiTaskModule):
    def __init__(self):
        super().__init__()
        self.net = network()

    def adaptation(self, experience):
        """Nothing grows."""

    def forward(self, inputs, task_labels):
        return self.net(inputs)


def test_invalid_input():
    memory = GEMPlugin(10, 0.5)
    with pytest.raises(TypeError, match="memory must be Avalanche's GEMPlugin or None, got a dict"):
        DCLPlugin(memory={})
    with pytest.raises(ValueError, match="window must be a positive number"):
        DCLPlugin(window=0)
    with pytest.raises(RuntimeError, match="no stats before"):
        _ = DCLPlugin().stats
    with pytest.raises(ValueError, match="pass it only to DCLPlugin"):
        learn(strategy_of([memory, DCLPlugin(memory=memory)]), experiences()[:1])
    with pytest.raises(TypeError, match="needs task labels too"):
        learn(strategy_of([DCLPlugin(memory=memory)], MultiTask()), experiences())
    with pytest.raises(ValueError, match="saved without a memory, here DCL is joined with one"):
        DCLPlugin(memory=memory).load_state_dict({})


def test_the_documentation_page_learns():
    """Run here, in the environment that has Avalanche; `make test` leaves the page out."""
    page = Path(__file__).parents[2] / "docs" / "howto" / "avalanche.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for seed in SEEDS:
        torch.manual_seed(seed)
        namespace = {"__name__": "page"}
        assert all(run_block(block, page.name, namespace) for block in blocks)
