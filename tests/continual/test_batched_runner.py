"""Many runs at once against one run at a time: the same weights, not only the same scores."""

from dataclasses import replace

import pytest
import torch
from small_streams import digits, even_digits, plain, setting, weights

from congruency.continual import LearnerConfig, incremental, learner, permutations, rotations, run, run_together
from congruency.continual.batched_mlp import BatchedMLP
from congruency.continual.batched_runner import BATCHED_KINDS, group, learner_for
from congruency.continual.networks import initial_mlp

HIDDEN = (12, 9)
LOSSES = [  # other than the cross entropy of the batch
    LearnerConfig("MAS", "mas", strength=0.5),
    LearnerConfig("LwF", "lwf", strength=2.0),
    LearnerConfig("LwF 3", "lwf", temperature=3.0, lr=0.05),
    LearnerConfig("ER", "er"),
    LearnerConfig("ER ring", "er", replay="ring"),
    LearnerConfig("ER passes", "er", replay="ring", replay_order="passes"),
    LearnerConfig("DER", "der", strength=0.3),
    LearnerConfig("DER++", "derpp", strength=0.3, beta=0.7),
    LearnerConfig("joint", "joint"),
    LearnerConfig("ER, DCL", "er", constraints="dcl", window=4),
    LearnerConfig("DER++, GEM", "derpp", strength=0.2, constraints="gem", memory_margin=0.5),
    LearnerConfig("LwF, both", "lwf", constraints="dcl_memory", window=4, memory_margin=0.2),
    LearnerConfig("MAS, GEM", "mas", strength=0.1, constraints="gem"),
    LearnerConfig("EWC, DCL", "ewc", constraints="dcl", window=4),
    LearnerConfig("ER, A-GEM", "er", constraints="agem"),
]  # fmt: skip
METHODS = [
    LearnerConfig("single", "single"),
    LearnerConfig("slow", "single", lr=0.03),
    LearnerConfig("EWC", "ewc", strength=5.0),
    LearnerConfig("EWC weak", "ewc", lr=0.05, strength=0.5),
    LearnerConfig("GEM 0.5", "gem", memory_margin=0.5),
    LearnerConfig("GEM 0", "gem"),
    LearnerConfig("GEM always", "gem", memory_margin=0.1, trigger="always"),
    LearnerConfig("A-GEM", "agem"),
    LearnerConfig("A-GEM 0.2", "agem", memory_margin=0.2, lr=0.05),
    LearnerConfig("DCL", "dcl", window=4),
    LearnerConfig("DCL once", "dcl", references=2, offset=1),
    LearnerConfig("DCL anchor", "dcl", window=5, references=2, mode="anchor", reference_margin=0.1, trigger="always"),
    LearnerConfig("DCL idle", "dcl", offset=50),
    LearnerConfig("both", "dcl_memory", window=6),
    LearnerConfig("both 4", "dcl_memory", references=4, reference_margin=0.05, memory_margin=0.5),
    LearnerConfig("both anchor", "dcl_memory", window=5, references=2, offset=1, mode="anchor",
                  memory_margin=0.5, reference_margin=0.3),
    LearnerConfig("both always", "dcl_memory", window=5, references=3, offset=4, reference_margin=0.2,
                  trigger="always"),
    *LOSSES,
]  # fmt: skip
MASKED = [method for method in METHODS if method.constrained_by != "agem"]


def batched(streams, configs, memory):
    """One batched learner per group, as run_together builds them."""
    sizes = (64, *HIDDEN, streams[0].classes)
    network = BatchedMLP(sizes)
    start = torch.zeros(len(streams), network.width, dtype=torch.float64)
    for row, stream in zip(start, streams, strict=True):
        row[: network.parameters] = initial_mlp(sizes, stream.seed).double()
    seeds = [stream.seed for stream in streams]
    return [
        (members, learner_for(network, [configs[i] for i in members], start, seeds, memory, len(streams[0])))
        for members in group(configs)
    ]


def pixels(stream, task):
    images, labels = stream.training(task)
    return images.flatten(1).double() / 255, labels


def learn_task(together, streams, task, batch, memory, policy):
    """Train batched learners on a task, written out."""
    samples = [pixels(stream, task) for stream in streams]
    inputs, labels = (torch.stack([one[i] for one in samples]) for i in (0, 1))
    masks = [stream.mask(task) for stream in streams]
    mask = None if masks[0] is None else torch.stack(masks).double()
    count = inputs.shape[1]
    together.begin(task, inputs, batch)
    for first in range(0, count, batch):
        together.step(inputs[:, first : first + batch], labels[:, first : first + batch], mask)
    kept = slice(memory) if policy == "first" else slice(count - memory, count)
    together.remember(inputs[:, kept], labels[:, kept], mask)
    together.finish(inputs, labels, mask)


def learn_task_alone(one, stream, task, batch):
    """Train a learner of one run on a task, written out."""
    inputs, labels = pixels(stream, task)
    mask = stream.mask(task)
    one.begin(task, None if mask is None else mask.double())
    for x, y in zip(inputs.split(batch), labels.split(batch), strict=True):
        one.observe(x, y)
    one.finish(inputs, labels)


def streams_of(kind, samples=45):
    if kind in ("incremental", "class"):
        scenario = "class" if kind == "class" else "task"
        return [incremental(*even_digits(), tasks=5, samples=samples, seed=seed, scenario=scenario) for seed in (0, 3)]
    make = {"rotations": rotations, "permutations": permutations}[kind]
    return [make(*digits(), tasks=4, samples=samples, seed=seed) for seed in (0, 3)]


@pytest.mark.parametrize("policy", ["first", "ring"])
@pytest.mark.parametrize("kind", ["rotations", "permutations", "incremental"])
def test_batched_weights_equal_those_of_dcl_and_gem_one_run_at_a_time(kind, policy):
    """Two seeds and all learners, the last batch of a task smaller, compared after every task.

    The learners of one run correct by ``congruency.DCL`` and by a ``Corrector`` over ``EpisodicMemory``, as
    ``congruency.GEM`` does.
    """
    batch, memory = 10, 17
    streams, methods = streams_of(kind), MASKED if kind == "incremental" else METHODS
    if policy == "ring" or kind == "permutations":  # which say nothing new about a loss
        methods = [method for method in methods if method not in LOSSES]
    together = batched(streams, methods, memory)
    alone = [[learner(m, setting(s, HIDDEN, memory=memory, policy=policy)) for m in methods] for s in streams]
    corrected = set()
    for task in range(len(streams[0])):
        for members, learners in together:
            learn_task(learners, streams, task, batch, memory, policy)
            for i, stream in enumerate(streams):
                for j, member in enumerate(members):
                    one = alone[i][member]
                    learn_task_alone(one, stream, task, batch)
                    found = learners.weights[i, j]
                    wanted = weights(one.model)
                    difference = (found[: len(wanted)] - wanted).abs().max()
                    assert difference < 1e-9, f"{methods[member].name}, task {task}: {difference}"
                    assert (found[len(wanted) :] == 0).all()
                    if one.constraints is not None and int(one.constraints.corrector.stats.corrected_steps):
                        corrected.add(methods[member].name)
    constrained = {m.name for m in methods if m.constrained_by != "none"} - {"DCL idle"}
    assert corrected == constrained  # every learner corrected some step


def test_every_batched_kind_is_compared():
    assert {method.kind for method in METHODS} == set(BATCHED_KINDS)


@pytest.mark.parametrize("kind", ["rotations", "incremental", "class"])
def test_outcomes_equal_those_of_single_runs(kind):
    methods = {"rotations": METHODS, "incremental": MASKED, "class": LOSSES}[kind]
    streams = streams_of(kind, samples=24)
    kept = {"memory": 11, "policy": "ring"}
    together = run_together(streams, methods, hidden=HIDDEN, batch=7, dtype=torch.float64, **kept)
    tasks = len(streams[0])
    assert together.matrix.shape == (2, len(methods), tasks, tasks)
    for i, stream in enumerate(streams):
        for j, method in enumerate(methods):
            one = run(stream, method, setting(stream, HIDDEN, **kept), batch=7, dtype=torch.float64)
            assert one.matrix.shape == (1, 1, tasks, tasks)
            torch.testing.assert_close(together.matrix[i, j], one.matrix[0, 0], rtol=0, atol=1e-12)
            torch.testing.assert_close(together.baseline[i], one.baseline[0], rtol=0, atol=1e-12)
            torch.testing.assert_close(together.agreement[i, j], one.agreement[0, 0], rtol=0, atol=1e-8, equal_nan=True)
            torch.testing.assert_close(together.losses[i, j], one.losses[0, 0], rtol=1e-8, atol=0)
            assert torch.isnan(one.agreement[0, 0]).tolist() == [True] + [not method.has_episodes] * (tasks - 1)


def test_runs_are_independent_of_each_other():
    """Alone, with other learners, with other seeds: the same numbers."""
    streams = streams_of("rotations")
    settings = {"hidden": HIDDEN, "memory": 20, "dtype": torch.float64}
    together = run_together(streams, METHODS, **settings)
    for j in (0, 2, 4, 7, 9, 13, 15):
        for i in (0, 1):
            alone = run_together([streams[i]], [METHODS[j]], **settings)
            torch.testing.assert_close(alone.matrix[0, 0], together.matrix[i, j], rtol=0, atol=1e-12)
            torch.testing.assert_close(
                alone.agreement[0, 0], together.agreement[i, j], rtol=0, atol=1e-8, equal_nan=True
            )
    reversed_ = run_together(streams[::-1], METHODS[::-1], **settings)
    torch.testing.assert_close(reversed_.matrix.flip(0, 1), together.matrix, rtol=0, atol=1e-12)
    torch.testing.assert_close(reversed_.losses.flip(0, 1), together.losses, rtol=1e-8, atol=0)


@pytest.mark.parametrize("kind", BATCHED_KINDS)
def test_a_diverging_run_does_not_affect_the_others(kind):
    streams = streams_of("rotations")
    methods = [plain(kind), LearnerConfig("wild", kind, lr=1e200), plain(kind, lr=0.05)]
    settings = {"hidden": HIDDEN, "memory": 20, "dtype": torch.float64}
    found = run_together(streams, methods, **settings)
    alone = run_together(streams, methods[::2], **settings)
    torch.testing.assert_close(found.matrix[:, ::2], alone.matrix, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.agreement[:, ::2], alone.agreement, rtol=0, atol=1e-8, equal_nan=True)


def test_baseline_is_the_accuracy_at_initialisation():
    (stream, _) = streams_of("rotations")
    outcome = run_together([stream], [plain("single")], hidden=HIDDEN, dtype=torch.float64)
    model = setting(stream, HIDDEN).make(1.0)
    for task in range(len(stream)):
        images, labels = stream.testing(task)
        right = (model(images.double() / 255).argmax(-1) == labels).double().mean()
        assert outcome.baseline[0, task] == right


def test_separate_test_sets_are_evaluated_like_shared_ones():
    """Copies of the images, and tasks that are tested on a part of them."""
    streams = streams_of("rotations")
    settings = {"hidden": HIDDEN, "memory": 20, "dtype": torch.float64}
    shared = run_together(streams, METHODS[:5], **settings)
    copied = [replace(s, test_images=s.test_images.subset(range(len(s.test_images)))) for s in streams]
    apart = run_together(copied, METHODS[:5], **settings)
    torch.testing.assert_close(apart.matrix, shared.matrix, rtol=0, atol=1e-12)
    torch.testing.assert_close(apart.losses, shared.losses, rtol=1e-8, atol=0)
    for make in (lambda indices: indices.flip(0), lambda indices: indices[:7]):
        part = [replace(s, tasks=tuple(replace(t, test=make(t.test)) for t in s.tasks)) for s in streams]
        found = run_together(part, METHODS[:5], **settings)
        for i, stream in enumerate(part):
            one = run(stream, METHODS[4], setting(stream, HIDDEN), dtype=torch.float64)
            torch.testing.assert_close(found.matrix[i, 4], one.matrix[0, 0], rtol=0, atol=1e-12)
            torch.testing.assert_close(found.losses[i, 4], one.losses[0, 0], rtol=1e-8, atol=0)


@pytest.mark.parametrize("kind", ["rotations", "incremental"])
def test_large_evaluations_are_split(kind, monkeypatch):
    streams = streams_of(kind)
    settings = {"hidden": HIDDEN, "memory": 20, "dtype": torch.float64}
    whole = run_together(streams, [plain("gem"), plain("single")], **settings)
    monkeypatch.setattr(
        "congruency.continual.batched_runner._EVALUATION_BYTES", (40_000, 40_000)
    )  # a few images at a time
    split = run_together(streams, [plain("gem"), plain("single")], **settings)
    torch.testing.assert_close(split.matrix, whole.matrix, rtol=0, atol=1e-12)
    torch.testing.assert_close(split.losses, whole.losses, rtol=1e-8, atol=0)


def test_float32_stays_near_float64():
    """A short run, so that rounding errors cannot grow: scores agree except for a few borderline images."""
    streams = streams_of("rotations", samples=30)
    methods = [plain("gem", memory_margin=0.5), plain("dcl_memory", window=3)]
    exact, single = (run_together(streams, methods, hidden=HIDDEN, memory=10, dtype=d)
                     for d in (torch.float64, torch.float32))  # fmt: skip
    assert (exact.matrix - single.matrix).abs().max() < 0.02
    assert (exact.losses / single.losses - 1).abs().max() < 1e-3
    assert (exact.agreement - single.agreement).nan_to_num(0).abs().max() < 1e-3


def test_progress_counts_the_tasks_of_all_groups():
    calls = []
    run_together(
        streams_of("rotations", samples=10), METHODS, hidden=(3,), memory=5, progress=lambda *done: calls.append(done)
    )
    groups = len(group(METHODS))
    assert calls == [(i + 1, 4 * groups) for i in range(4 * groups)]
    calls.clear()
    (stream, _) = streams_of("rotations", samples=10)
    run(stream, plain("single"), setting(stream), dtype=torch.float64, progress=lambda *done: calls.append(done))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_learners_that_need_the_same_work_are_grouped():
    groups = group(METHODS)
    assert sorted(i for part in groups for i in part) == list(range(len(METHODS)))
    for part in groups:
        members = [METHODS[i] for i in part]
        assert len({(m.objective, m.has_episodes, m.constrained_by == "agem") for m in members}) == 1
        assert len({m.replay for m in members}) == 1
    assert {METHODS[i].kind for i in groups[0]} == {"single", "dcl"}


@pytest.mark.parametrize("policy", ["first", "ring"])
@pytest.mark.parametrize("kind", ["gem", "agem", "dcl_memory"])
def test_a_memory_larger_than_the_task_is_refused(kind, policy):
    (stream, _) = streams_of("rotations", samples=30)
    message = "a memory of 31 samples per task is larger than a task of 30 samples; take a smaller memory"
    with pytest.raises(ValueError, match=message):
        run_together([stream], [plain("single"), plain(kind)], memory=31, policy=policy)
    with pytest.raises(ValueError, match=message):
        run(stream, plain(kind), setting(stream, memory=31, policy=policy))


def test_a_memory_as_large_as_the_task_is_accepted():
    streams = streams_of("rotations", samples=10)
    run_together(streams, [plain("gem")], hidden=(3,), memory=10)
    run_together(streams, [plain("single"), plain("ewc")], hidden=(3,), memory=11)  # these keep no samples


@pytest.mark.parametrize("kind", ["independent", "multimodal", "icarl"])
def test_a_kind_that_cannot_run_batched_is_refused(kind):
    with pytest.raises(ValueError, match=rf"mine \({kind}\) cannot run batched; use congruency.continual.run"):
        run_together(streams_of("rotations"), [LearnerConfig("mine", kind)])


def test_agem_needs_shared_classes():
    streams = streams_of("incremental")
    message = "A-GEM draws from all tasks at once, which needs tasks that share their classes"
    with pytest.raises(ValueError, match=message):
        run_together(streams, [plain("agem")], hidden=(3,), memory=5)
    with pytest.raises(ValueError, match=message):
        run(streams[0], plain("agem"), setting(streams[0], (3,), memory=5), dtype=torch.float64)


def test_streams_of_other_sizes_are_refused():
    one = rotations(*digits(), tasks=2, samples=30)
    for other in (
        rotations(*digits(), tasks=3, samples=30),
        rotations(*digits(), tasks=2, samples=31),
        rotations(*(images.converted(9, 1) for images in digits()), tasks=2, samples=30),
    ):
        with pytest.raises(ValueError, match="the streams must have the same tasks, samples, classes and image size"):
            run_together([one, other], [plain("single")])


def test_streams_whose_masks_differ_in_kind_are_refused():
    train, test = even_digits()
    one = permutations(train, test.subset(range(28 * 2)), tasks=5, samples=20)
    other = incremental(train, test, tasks=5, samples=20)
    with pytest.raises(ValueError, match="the streams must have the same tasks, samples, classes and image size"):
        run_together([one, other], [plain("single")])


@pytest.mark.parametrize("learners", [[plain("single")], []], ids=["no stream", "no learner"])
def test_nothing_to_learn_is_refused(learners):
    streams = [] if learners else [rotations(*digits(), tasks=2, samples=20)]
    with pytest.raises(ValueError, match="give at least one stream and one learner"):
        run_together(streams, learners)


@pytest.mark.parametrize("settings", [{"batch": 0}, {"hidden": (0,)}, {"hidden": (5, -1)}], ids=str)
def test_impossible_sizes_are_refused(settings):
    with pytest.raises(ValueError, match=r"must be .*, at least 1, got"):
        run_together([rotations(*digits(), tasks=2, samples=20)], [LearnerConfig("plain", "single")], **settings)
