"""The step meter against the meter of the core."""

import pytest
import torch
from training_toy import network

import congruency
from congruency.training.step_meter import StepMeter
from congruency.training.step_meter import measures as measures_of


@pytest.mark.parametrize("corrects", [False, True])
def test_against_the_meter(corrects):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.8)
    step_meter = StepMeter(model.parameters())
    step_meter.watch_before(optimizer)
    start, after, previous = (congruency.CongruencyMeter(model.parameters(), k) for k in ("start", "start", "previous"))
    for meter in (start, previous):
        optimizer.register_step_pre_hook(lambda *_, meter=meter: meter.update())
    if corrects:
        with pytest.warns(UserWarning, match="floor=None is the paper's form"):
            dcl = congruency.DCL(optimizer, window=6, floor=None)
        step_meter.watch_after(optimizer)
    optimizer.register_step_pre_hook(lambda *_: after.update())
    taken, corrected = [], []
    for i in range(30):
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(i))
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(step_meter.take())
        corrected.append(bool(dcl.stats.corrected) if corrects else False)
    measures = [measures_of(step) for step in step_meter.gather(taken).tolist()]

    def mean(name):
        defined = [step[name] for step in measures if step[name] == step[name]]
        return sum(defined) / len(defined)

    assert mean("congruency") == pytest.approx(start.compute().congruency, rel=1e-9)
    assert mean("magnitude") == pytest.approx(start.compute().magnitude, rel=1e-9)
    assert mean("congruency_previous") == pytest.approx(previous.compute().congruency, rel=1e-9)
    assert mean("magnitude_previous") == pytest.approx(previous.compute().magnitude, rel=1e-9)
    assert mean("corrected_congruency") == pytest.approx(after.compute().congruency, rel=1e-6)
    assert [bool(step["corrected"]) for step in measures] == corrected
    assert any(corrected) == corrects
    assert measures[0]["magnitude"] == 0.0
    assert measures[0]["magnitude_previous"] != measures[0]["magnitude_previous"]


def test_a_parameter_without_a_gradient_and_a_step_that_was_none():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step_meter = StepMeter(model.parameters())
    step_meter.watch_before(optimizer)
    for _ in range(2):
        model[0].weight.grad = torch.ones_like(model[0].weight)
        optimizer.step()
        taken = step_meter.take()
    (measures,) = map(measures_of, step_meter.gather([taken]).tolist())
    assert measures["congruency"] == pytest.approx(1.0)
    assert measures["magnitude"] == pytest.approx(0.1 * 48**0.5)
    (nothing,) = map(measures_of, step_meter.gather([step_meter.take()]).tolist())
    assert all(value != value for value in nothing.values())


def test_a_state_of_other_parameters_is_refused():
    state = StepMeter(network().parameters()).state_dict()
    with pytest.raises(ValueError, match="measures 4 parameters, here there are 2"):
        StepMeter(congruency.head(network()).parameters()).load_state_dict(state)
