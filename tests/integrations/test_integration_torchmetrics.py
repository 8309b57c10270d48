"""torchmetrics: the metric is the meter."""

import copy
import math

import pytest
import torch
from problems import loss_of, network

import congruency
from congruency.integrations.torchmetrics import RunCongruency

from torchmetrics import MeanMetric, MetricCollection  # isort: skip

STEPS = 9


def train(model, steps, *, metrics=(), meters=(), values=None, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        for meter in meters:
            meter.update()
        for metric in metrics:
            metric.update(model.parameters())
        if values is not None:
            values.update(value=loss.detach(), parameters=list(model.parameters()))
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("reference", ["start", "previous"])
@pytest.mark.parametrize("quantity", ["congruency", "magnitude"])
def test_it_equals_the_meter(reference, quantity):
    model = network()
    meter = congruency.CongruencyMeter(model.parameters(), reference)
    metric = RunCongruency(reference, quantity)
    optimizer = None
    for epoch in range(3):
        steps = range(epoch * STEPS, (epoch + 1) * STEPS)
        optimizer = train(model, steps, metrics=[metric], meters=[meter], optimizer=optimizer)
        expected = getattr(meter.compute(), quantity)
        assert math.isfinite(expected)
        assert metric.compute().item() == expected
        assert metric.compute().dtype == torch.float64
        meter.reset()
        metric.reset()


def test_forget_makes_the_next_update_the_first():
    model = network()
    metric = RunCongruency(quantity="magnitude")
    train(model, range(4), metrics=[metric])
    assert metric.compute() > 0
    metric.forget()
    train(model, range(1), metrics=[metric])
    assert metric.compute() == 0


def test_nothing_measured_is_nan():
    model = network()
    metric = RunCongruency()
    train(model, range(1), metrics=[metric])
    assert metric.compute().isnan()


def test_forward_returns_the_step_and_accumulates_the_run():
    model, metric = network(), RunCongruency()
    meter = congruency.CongruencyMeter(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        meter.update()
        seen.append(metric(model.parameters()).item())
        optimizer.step()
    assert metric.compute().item() == pytest.approx(meter.compute().congruency, rel=1e-12)
    assert sum(seen[1:]) / (STEPS - 1) == pytest.approx(meter.compute().congruency, rel=1e-12)


def test_in_a_collection_with_others():
    model = network()
    meters = [congruency.CongruencyMeter(model.parameters(), reference) for reference in ("start", "previous")]
    collection = MetricCollection(
        {
            "loss": MeanMetric(),
            "start": RunCongruency(),
            "previous": RunCongruency("previous"),
            "distance": RunCongruency(quantity="magnitude"),
        }
    )
    train(model, range(STEPS), meters=meters, values=collection)
    found = collection.compute()
    start, previous = (meter.compute() for meter in meters)
    assert found["start"].item() == start.congruency
    assert found["previous"].item() == previous.congruency
    assert found["distance"].item() == start.magnitude
    assert found["loss"] > 0
    groups = {frozenset(names) for names in collection.compute_groups.values()}
    assert groups == {frozenset({"loss"}), frozenset({"start", "distance"}), frozenset({"previous"})}


@pytest.mark.parametrize("reference", ["start", "previous"])
def test_resumes_from_its_state(reference, tmp_path):
    model = network()
    metric = RunCongruency(reference)
    metric.persistent(True)
    optimizer = train(model, range(5), metrics=[metric])
    torch.save(metric.state_dict(), tmp_path / "metric.pt")
    again = RunCongruency(reference)
    again.persistent(True)
    again.load_state_dict(torch.load(tmp_path / "metric.pt", weights_only=True))
    copied = copy.deepcopy(metric)
    train(model, range(5, STEPS), metrics=[metric, again, copied], optimizer=optimizer)
    assert again.compute() == metric.compute() == copied.compute()


def test_states_are_not_persistent_unless_asked_for():
    model = network()
    metric = RunCongruency()
    train(model, range(3), metrics=[metric])
    assert metric.state_dict() == {}


def test_runs_merge():
    """The mean over two runs' steps together."""
    metrics, totals = [], []
    for seed in (0, 1):
        model = network(seed=seed)
        meter = congruency.CongruencyMeter(model.parameters())
        metrics.append(RunCongruency())
        train(model, range(4 + seed), metrics=[metrics[-1]], meters=[meter])
        totals.append(meter.state_dict()["totals"])
    metrics[0].merge_state(metrics[1])
    together = sum(totals)
    assert metrics[0].compute() == together[0] / together[1]


def test_invalid_input():
    with pytest.raises(ValueError, match="reference must be one of 'start', 'previous'"):
        RunCongruency("end")
    with pytest.raises(ValueError, match="quantity must be one of 'congruency', 'magnitude'"):
        RunCongruency(quantity="angle")
    with pytest.raises(RuntimeError, match="no parameter has a gradient"):
        RunCongruency().update(network().parameters())
    with pytest.raises(ValueError, match="params is empty"):
        RunCongruency().update([])
    model = network()
    metric = RunCongruency()
    train(model, range(2), metrics=[metric])
    with pytest.raises(ValueError, match="the state holds 4 parameters, here there are 2"):
        metric.update(model[0].parameters())


def test_a_model_instead_of_its_parameters_is_refused():
    with pytest.raises(TypeError, match=r"got the Sequential itself; pass model.parameters\(\)"):
        RunCongruency().update(network())
