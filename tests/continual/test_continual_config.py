"""Learner configurations as plain data: invalid ones are refused on construction."""

import pytest

from congruency.continual import LearnerConfig
from congruency.continual.config import memory_slice


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"kind": "sgd"}, ValueError, "kind must be one of 'single', 'independent', .*, 'dcl_memory', got 'sgd'"),
        ({"lr": 0.0}, ValueError, "lr must be positive and finite, got 0.0"),
        ({"lr": float("nan")}, ValueError, "lr must be positive and finite, got nan"),
        ({"lr": float("inf")}, ValueError, "lr must be positive and finite, got inf"),
        ({"trigger": "sometimes"}, ValueError, "trigger must be one of 'always', 'violated', got 'sometimes'"),
        ({"memory_margin": -0.5}, ValueError, "margin must be finite and at least 0, got -0.5"),
        ({"reference_margin": -0.5}, ValueError, "margin must be finite and at least 0, got -0.5"),
        ({"mode": "concentrated"}, ValueError, "mode must be one of 'concentrate', 'anchor', got 'concentrated'"),
        ({"references": 0}, ValueError, "references must be a positive whole number, got 0"),
        ({"window": 0}, ValueError, "window must be a positive whole number of steps or None, got 0"),
        ({"window": 5, "offset": 5}, ValueError, r"offset must be below the window \(5\), got 5"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        LearnerConfig("mine", **{"kind": "dcl_memory", **settings})


def test_a_window_that_never_corrects_is_warned_of():
    with pytest.warns(UserWarning, match="a window of 1 steps with 1 reference.* never corrects anything"):
        LearnerConfig("mine", "dcl", window=1)


@pytest.mark.parametrize(
    ("kind", "references", "memory"),
    [
        ("single", False, False),
        ("ewc", False, False),
        ("icarl", False, True),
        ("gem", False, True),
        ("agem", False, True),
        ("dcl", True, False),
        ("dcl_memory", True, True),
    ],
)
def test_which_kinds_have_references_and_memory(kind, references, memory):
    config = LearnerConfig("mine", kind)
    assert (config.has_references, config.has_memory) == (references, memory)


def test_memory_slices():
    seen = list(range(10))
    assert seen[memory_slice("first", 3, 10)] == [0, 1, 2]
    assert seen[memory_slice("ring", 3, 10)] == [7, 8, 9]
    assert seen[memory_slice("ring", 10, 10)] == seen[memory_slice("first", 10, 10)] == seen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("last", 3, 10), "policy must be one of 'ring', 'first', got 'last'"),
        (("ring", 0, 10), "memory must be a whole number of samples per task, at least 1, got 0"),
        (
            ("first", 11, 10),
            "a memory of 11 samples per task is larger than a task of 10 samples; take a smaller memory",
        ),
    ],
)
def test_invalid_memories_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        memory_slice(*arguments)
