"""An interrupted batched run resumes where it was."""

import dataclasses

import pytest
import torch
from small_streams import digits, even_digits, plain

from congruency.continual import LearnerConfig, incremental, permutations, rotations, run_together
from congruency.continual.batched_learners import BatchedConstrainedLearner, BatchedJointLearner
from congruency.continual.batched_runner import BATCHED_KINDS, group

METHODS = [
    LearnerConfig("single", "single"),
    LearnerConfig("EWC", "ewc", strength=3.0),
    LearnerConfig("GEM", "gem", memory_margin=0.5),
    LearnerConfig("A-GEM", "agem"),
    LearnerConfig("both", "dcl_memory", window=3, references=2),
    LearnerConfig("DCL", "dcl", offset=1),
]
OWN_STATE = [
    *(plain(kind) for kind in ("mas", "lwf", "er", "der", "derpp", "joint")),
    LearnerConfig("ring", "er", replay="ring", constraints="gem"),
    LearnerConfig("passes", "er", replay_order="passes"),
]
TASKS, GROUPS = 4, 4
SETTINGS = {"hidden": (9,), "memory": 12}


class Stopped(Exception):
    pass


def streams(make=rotations, **changes):
    settings = {"tasks": TASKS, "samples": 30, **changes}
    return [make(*digits(), seed=seed, **settings) for seed in (1, 2)]


def stop_after(tasks):
    def progress(done, whole):
        assert whole == TASKS * GROUPS
        if done == tasks:
            raise Stopped

    return progress


def same(a, b):
    return all(
        torch.equal(getattr(a, field.name).nan_to_num(-7.0), getattr(b, field.name).nan_to_num(-7.0))
        for field in dataclasses.fields(a)
    )


@pytest.fixture
def steps(monkeypatch):
    """Collects the steps that are actually taken."""
    taken = []
    for kind in (BatchedJointLearner, BatchedConstrainedLearner):
        original = kind.step

        def counted(self, *args, original=original):
            taken.append(self)
            original(self, *args)

        monkeypatch.setattr(kind, "step", counted)
    return taken


@pytest.mark.parametrize("stopped", [1, 4, 6, 11, 14, 16])
def test_an_interrupted_run_resumes_to_the_same_outcome(stopped, steps, tmp_path):
    """Stopped within a group of learners, between two groups, and at the end."""
    assert len(group(METHODS)) == GROUPS
    whole = run_together(streams(), METHODS, **SETTINGS)
    in_all = len(steps)
    steps.clear()
    path = tmp_path / "state"
    with pytest.raises(Stopped):
        run_together(streams(), METHODS, resume=path, progress=stop_after(stopped), **SETTINGS)
    done = len(steps)
    assert done == in_all * stopped // (TASKS * GROUPS)
    calls = []
    resumed = run_together(streams(), METHODS, resume=path, progress=lambda *c: calls.append(c), **SETTINGS)
    assert same(resumed, whole)
    assert len(steps) == in_all  # no step was taken twice
    assert calls == [(i + 1, TASKS * GROUPS) for i in range(TASKS * GROUPS)]
    again = run_together(streams(), METHODS, resume=path, **SETTINGS)
    assert same(again, whole)
    assert len(steps) == in_all
    assert not list(tmp_path.glob(".writing-*"))


@pytest.mark.parametrize("masked", [False, True], ids=["shared", "own classes"])
def test_losses_with_a_state_of_their_own_resume(masked, tmp_path):
    """Replayed samples and their outputs, importances, heads: stopped within several groups of learners."""
    methods = OWN_STATE
    made = [incremental(*even_digits(), tasks=5, samples=30, seed=seed) for seed in (1, 2)] if masked else streams()
    whole = run_together(made, methods, **SETTINGS)
    tasks = len(made[0])
    for stopped in range(3, tasks * len(methods), 7):  # within each group, after 3 tasks, 2, ...

        def progress(done, _, stopped=stopped):
            if done == stopped:
                raise Stopped

        path = tmp_path / str(stopped)
        with pytest.raises(Stopped):
            run_together(made, methods, resume=path, progress=progress, **SETTINGS)
        assert same(run_together(made, methods, resume=path, **SETTINGS), whole), stopped


def test_incremental_classes_resume(tmp_path):
    made = [incremental(*even_digits(), tasks=5, samples=30, seed=seed) for seed in (1, 2)]
    methods = [plain("gem", memory_margin=0.5), plain("ewc", strength=3.0)]
    whole = run_together(made, methods, **SETTINGS)

    def progress(done, _):
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        run_together(made, methods, resume=tmp_path / "state", progress=progress, **SETTINGS)
    assert same(run_together(made, methods, resume=tmp_path / "state", **SETTINGS), whole)


def test_an_interrupted_save_leaves_the_previous_state(tmp_path, monkeypatch):
    whole = run_together(streams(), METHODS, **SETTINGS)
    saves = []
    original = torch.save

    def cut_short(state, file):
        saves.append(file)
        if len(saves) == 6:
            file.write(b"half a state")
            raise Stopped
        original(state, file)

    monkeypatch.setattr(torch, "save", cut_short)
    path = tmp_path / "state"
    with pytest.raises(Stopped):
        run_together(streams(), METHODS, resume=path, **SETTINGS)
    monkeypatch.setattr(torch, "save", original)
    assert same(run_together(streams(), METHODS, resume=path, **SETTINGS), whole)
    assert not list(tmp_path.glob(".writing-*"))


def test_a_partial_file_is_never_loaded(steps, tmp_path):
    path = tmp_path / "state"
    with pytest.raises(Stopped):
        run_together(streams(), METHODS, resume=path, progress=stop_after(2), **SETTINGS)
    (state,) = tmp_path.iterdir()
    (tmp_path / ".writing-1").mkdir()  # as a power cut would leave it
    state.rename(tmp_path / ".writing-1" / state.name)
    steps.clear()
    run_together(streams(), METHODS, resume=path, **SETTINGS)
    first_group = len(streams()[0].tasks) * 3
    assert len(steps) == GROUPS * first_group  # from the very start


@pytest.mark.parametrize(
    "change",
    [
        {"configs": [*METHODS[:-1], LearnerConfig("DCL", "dcl", offset=2)]},
        {"streams": streams(permutations)},
        {"streams": streams()[::-1]},
        {"streams": streams(samples=31)},
        {"streams": streams(tasks=5)},
        {"streams": streams(degrees=90.0)},
        {"hidden": (10,)},
        {"batch": 5},
        {"dtype": torch.float64},
    ],
    ids=["method", "kind", "seeds", "samples", "tasks", "angles", "hidden", "batch", "dtype"],
)
def test_the_state_of_another_run_is_refused(change, tmp_path):
    wanted = {"streams": streams(), "configs": METHODS, **SETTINGS}
    path = tmp_path / "state"
    with pytest.raises(Stopped):
        run_together(**wanted, resume=path, progress=stop_after(1))
    (state,) = tmp_path.iterdir()
    before = state.read_bytes()
    with pytest.raises(ValueError, match=rf"{state.name} holds another run \(of other learners, streams or settings\)"):
        run_together(**{**wanted, **change}, resume=path)
    assert state.read_bytes() == before


@pytest.mark.parametrize("change", [{"memory": 11}, {"policy": "ring"}], ids=str)
def test_another_memory_is_refused_only_by_learners_that_have_one(change, tmp_path):
    path = tmp_path / "state"
    for methods, refused in (([plain("single"), plain("ewc")], False), ([plain("gem")], True)):
        for file in tmp_path.iterdir():
            file.unlink()
        first = run_together(streams(), methods, resume=path, **SETTINGS)
        if refused:
            with pytest.raises(ValueError, match="holds another run"):
                run_together(streams(), methods, resume=path, **{**SETTINGS, **change})
        else:
            assert same(run_together(streams(), methods, resume=path, **{**SETTINGS, **change}), first)


def test_names_with_dots_do_not_share_a_file(tmp_path):
    """A dot in the name is part of the name."""
    for name in ("lr0.1", "lr0.2"):
        run_together(streams(), [plain("single")], resume=tmp_path / name, **SETTINGS)
    assert len(list(tmp_path.iterdir())) == 2


def test_states_are_plain_tensors(tmp_path):
    """Loaded with ``weights_only=True``, on any device."""
    run_together(streams(), METHODS, resume=tmp_path / "state", **SETTINGS)
    for file in tmp_path.iterdir():
        state = torch.load(file, weights_only=True, map_location="cpu")
        assert len(state["history"]) == TASKS
    assert len(list(tmp_path.iterdir())) == GROUPS


def test_every_batched_kind_is_interrupted():
    assert {method.kind for method in METHODS + OWN_STATE} == set(BATCHED_KINDS)
