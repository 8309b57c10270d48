"""The examples in the docstrings of all public names run and print what they say."""

import doctest
import importlib

import pytest
import torch

import congruency

NAMES = [name for name in congruency.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name):
    documented = getattr(congruency, name)
    module = importlib.import_module(documented.__module__)
    finder = doctest.DocTestFinder(recurse=False)
    (found,) = finder.find(documented, name, module, globs={"torch": torch, "congruency": congruency})
    assert found.examples, f"congruency.{name} has no example in its docstring"
    result = doctest.DocTestRunner().run(found)
    assert result.failed == 0, f"the example of congruency.{name} fails: see the captured output"


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(getattr(congruency, name), type)])
def test_every_class_says_what_it_is(name):
    assert getattr(congruency, name).__repr__ is not object.__repr__


def test_reprs_say_what_they_do():
    model = torch.nn.Linear(3, 2)

    def optimizer():
        return torch.optim.SGD(model.parameters(), lr=0.1)

    references, memory = congruency.References(2, window=9), congruency.EpisodicMemory(model, size=4)
    tail = "correct='gradient', trigger='always', blocks='joint', step 0, 0 corrected)"
    assert repr(congruency.DCL(optimizer(), window=50)) == (
        f"DCL(window=50, references=1, mode='concentrate', margin=0.0, floor=0.3, {tail}"
    )
    assert repr(references) == (
        "References(references=2, window=9, offset=0, mode='concentrate', margin=0.0, floor=0.3, returning=True, "
        "accumulate='weights', step 0)"
    )
    assert repr(memory) == "EpisodicMemory(margin=0.0, size=4, policy='ring', 0 tasks)"
    assert repr(congruency.Corrector(optimizer(), constraints=[references, memory])) == (
        f"Corrector(constraints=[{references!r}, {memory!r}], {tail}"
    )
    gem = congruency.GEM(optimizer(), model=model, size=4)
    assert repr(gem) == f"GEM(size=4, policy='ring', margin=0.5, 0 past tasks, {tail.replace('always', 'violated')}"
