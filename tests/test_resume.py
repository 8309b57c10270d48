"""Saving and going on: bit for bit, in another process, at any point of the window."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from problems import network, train, weights

import congruency

SETTINGS = [
    {"window": 6, "references": 2, "floor": None},
    {"window": 19, "floor": 1.0, "blocks": "row"},
    {"window": None, "references": 1, "mode": "anchor", "margin": 0.1},
    {"window": 5, "references": 1, "offset": 2, "accumulate": "gradients", "floor": None},
    {"window": 7, "references": 3, "accumulate": "gradients", "blocks": "tensor", "trigger": "violated", "margin": 0.2},
    {"correct": "update", "window": 7, "references": 2, "blocks": "tensor", "floor": 1.0},
    {"correct": "update", "window": 6, "blocks": "row", "floor": 0.9, "accumulate": "gradients"},
    {"correct": "update", "window": 6, "blocks": "element", "mode": "anchor", "margin": 0.05},
    {"kind": "Cautious", "decay": True, "max_rescale": 3.0},
]
STEPS = 20


def build(settings):
    model = network(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    own = {name: value for name, value in settings.items() if name != "kind"}
    return model, optimizer, getattr(congruency, settings.get("kind", "DCL"))(optimizer, **own)


def go_on(folder):
    """What the other process does: load every checkpoint, train to the end, save the weights."""
    for path in sorted(Path(folder).glob("at-*.pt")):
        saved = torch.load(path, weights_only=True)
        model, optimizer, dcl = build(saved["settings"])
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dcl.load_state_dict(saved["dcl"])
        train(model, optimizer, range(saved["step"], STEPS))
        torch.save({"weights": weights(model), "counts": int(dcl.stats.corrected_steps)}, f"{path}.done")


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_resume_in_a_new_process_at_every_step(settings, tmp_path):
    model, optimizer, dcl = build(settings)
    for step in range(STEPS):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "dcl": dcl.state_dict()}
        torch.save({**state, "settings": settings, "step": step}, tmp_path / f"at-{step:02}.pt")
        train(model, optimizer, range(step, step + 1))
    here = Path(__file__).parent
    code = f"import sys; sys.path.insert(0, {str(here)!r}); import test_resume; test_resume.go_on({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    results = sorted(tmp_path.glob("*.done"))
    assert len(results) == STEPS
    assert int(dcl.stats.corrected_steps) > 0
    for result in results:
        loaded = torch.load(result, weights_only=True)
        assert torch.equal(loaded["weights"], weights(model)), result.name
        assert loaded["counts"] == int(dcl.stats.corrected_steps)


def saved_state(**settings):
    model, optimizer, dcl = build({"window": 6, "references": 2, **settings})
    train(model, optimizer, range(9))
    return dcl.state_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 8}, "window was 6 when this state was saved and is 8 here; use the same settings"),
        ({"references": 1}, "references was 2 when this state was saved and is 1 here"),
        ({"mode": "anchor"}, "mode was 'concentrate' when this state was saved and is 'anchor' here"),
        ({"margin": 0.5}, "margin was 0.0 when"),
        ({"offset": 1}, "offset was 0 when"),
        ({"accumulate": "gradients"}, "accumulate was 'weights' when"),
        ({"trigger": "violated"}, "trigger was 'always' when"),
        ({"blocks": "tensor"}, "blocks was 'joint' when"),
        ({"floor": 0.1}, "floor was 0.3 when"),
        ({"correct": "update"}, "correct was 'gradient' when"),
    ],
    ids=str,
)
def test_other_settings_are_refused(changes, message):
    _, _, dcl = build({"window": 6, "references": 2, **changes})
    with pytest.raises(ValueError, match=message):
        dcl.load_state_dict(saved_state())


def refused(state, message, model=None):
    model = model or network(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    dcl = congruency.DCL(optimizer, window=6, references=2)
    train(model, optimizer, range(3))
    before = [slot.clone() for slots in dcl.sources[0]._slots.values() for slot in slots]
    with pytest.raises(ValueError, match=message):
        dcl.load_state_dict(state)
    after = [slot for slots in dcl.sources[0]._slots.values() for slot in slots]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert dcl.stats.steps == dcl.sources[0].step == 3


def test_states_that_do_not_fit_change_nothing():
    state = saved_state()
    refused({}, "this is not a state of a Corrector: it has no ")
    refused({**state, "version": 99}, "the state has version 99, this release reads version 3")
    refused(state, "the state is of 4 parameters, here there are 1", _one_tensor())
    wide = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    refused(state, r"the state holds a reference of shape \(5, 4\) for parameter 0, which has shape \(6, 4\)", wide)
    cut = {**state, "sources": [{**state["sources"][0], "slots": {"0": state["sources"][0]["slots"]["0"][:1]}}]}
    refused(cut, "the state holds 1 references of parameter 0, expected 2")
    half = network(torch.float32)
    half_state = {
        **state,
        "sources": [{**state["sources"][0], "slots": {"0": [t.half() for t in state["sources"][0]["slots"]["0"]]}}],
    }
    refused(half_state, "the state holds a reference in torch.float16 for parameter 0, expected torch.float32", half)


def _one_tensor():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False))
