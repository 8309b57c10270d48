"""A run of many that was stopped goes on where it was."""

import dataclasses

import pytest
import torch
from small_streams import digits, even_digits, plain

from congruency.continual import Method, incremental, permutations, rotations, run_together
from congruency.continual.stacked_learners import Consolidating, Constrained
from congruency.continual.vectorised import STACKED_KINDS, group

METHODS = [
    Method("single", "single"),
    Method("EWC", "ewc", strength=3.0),
    Method("GEM", "gem", memory_margin=0.5),
    Method("A-GEM", "agem"),
    Method("both", "dcl_memory", window=3, references=2),
    Method("DCL", "dcl", offset=1),
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
    """Counts the steps that are really taken."""
    taken = []
    for kind in (Consolidating, Constrained):
        original = kind.step

        def counted(self, *args, original=original):
            taken.append(self)
            original(self, *args)

        monkeypatch.setattr(kind, "step", counted)
    return taken


@pytest.mark.parametrize("stopped", [1, 4, 6, 11, 14, 16])
def test_an_interrupted_run_goes_on_to_the_same_outcome(stopped, steps, tmp_path):
    """Stopped in the middle of a group of methods, between two, and at the very end."""
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
    assert not list(tmp_path.glob("*.part"))


def test_incremental_classes_go_on_too(tmp_path):
    made = [incremental(*even_digits(), tasks=5, samples=30, seed=seed) for seed in (1, 2)]
    methods = [plain("gem", memory_margin=0.5), plain("ewc", strength=3.0)]
    whole = run_together(made, methods, **SETTINGS)

    def progress(done, _):
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        run_together(made, methods, resume=tmp_path / "state", progress=progress, **SETTINGS)
    assert same(run_together(made, methods, resume=tmp_path / "state", **SETTINGS), whole)


def test_a_state_from_before_losses_were_kept_goes_on_without_those_it_lacks(steps, tmp_path):
    whole = run_together(streams(), METHODS, **SETTINGS)
    in_all = len(steps)
    steps.clear()
    path = tmp_path / "state"
    with pytest.raises(Stopped):
        run_together(streams(), METHODS, resume=path, progress=stop_after(2), **SETTINGS)
    (file,) = tmp_path.iterdir()
    state = torch.load(file, weights_only=True)
    torch.save({**state, "history": [after[:2] for after in state["history"]]}, file)
    resumed = run_together(streams(), METHODS, resume=path, **SETTINGS)
    assert len(steps) == in_all  # nothing is learned again
    lacking = group(METHODS)[0]
    assert torch.isnan(resumed.losses[:, lacking, :2]).all()
    resumed.losses[:, lacking, :2] = whole.losses[:, lacking, :2]
    assert same(resumed, whole)


def test_a_save_cut_short_leaves_the_state_before(tmp_path, monkeypatch):
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
    assert len(list(tmp_path.glob("*.part"))) == 1  # as a power cut would leave it
    monkeypatch.setattr(torch, "save", original)
    assert same(run_together(streams(), METHODS, resume=path, **SETTINGS), whole)
    assert not list(tmp_path.glob("*.part"))


def test_a_part_is_never_taken_for_a_state(steps, tmp_path):
    path = tmp_path / "state"
    with pytest.raises(Stopped):
        run_together(streams(), METHODS, resume=path, progress=stop_after(2), **SETTINGS)
    (state,) = tmp_path.iterdir()
    state.rename(state.with_name(state.name + ".part"))
    steps.clear()
    run_together(streams(), METHODS, resume=path, **SETTINGS)
    first_group = len(streams()[0].tasks) * 3
    assert len(steps) == GROUPS * first_group  # from the very start


@pytest.mark.parametrize(
    "change",
    [
        {"methods": [*METHODS[:-1], Method("DCL", "dcl", offset=2)]},
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
    wanted = {"streams": streams(), "methods": METHODS, **SETTINGS}
    path = tmp_path / "state"
    with pytest.raises(Stopped):
        run_together(**wanted, resume=path, progress=stop_after(1))
    (state,) = tmp_path.iterdir()
    before = state.read_bytes()
    with pytest.raises(ValueError, match=rf"{state.name} holds another run, of other methods, streams or settings"):
        run_together(**{**wanted, **change}, resume=path)
    assert state.read_bytes() == before


@pytest.mark.parametrize("change", [{"memory": 11}, {"policy": "ring"}], ids=str)
def test_another_memory_is_another_run_only_to_those_that_have_one(change, tmp_path):
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


def test_a_run_that_did_not_follow_agreement_is_another_run(tmp_path):
    """Its finished tasks have none to show."""
    one, path = streams()[:1], tmp_path / "state"
    run_together(one, [plain("gem")], resume=path, agreement=False, **SETTINGS)
    with pytest.raises(ValueError, match="holds another run"):
        run_together(one, [plain("gem")], resume=path, **SETTINGS)


def test_two_runs_whose_names_share_a_beginning_do_not_share_a_file(tmp_path):
    """A dot in the name is part of the name."""
    for name in ("lr0.1", "lr0.2"):
        run_together(streams(), [plain("single")], resume=tmp_path / name, **SETTINGS)
    assert len(list(tmp_path.iterdir())) == 2


def test_states_are_plain_tensors(tmp_path):
    """They are read without trusting whoever wrote them, on whatever device there is."""
    run_together(streams(), METHODS, resume=tmp_path / "state", **SETTINGS)
    for file in tmp_path.iterdir():
        state = torch.load(file, weights_only=True, map_location="cpu")
        assert len(state["history"]) == TASKS
    assert len(list(tmp_path.iterdir())) == GROUPS


def test_every_stacked_kind_is_interrupted():
    assert {method.kind for method in METHODS} == set(STACKED_KINDS)
