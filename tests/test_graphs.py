"""CUDA graphs: a whole training step with DCL, captured once and replayed, equals the eager loop."""

import copy

import pytest
import torch
from problems import batch, network

import congruency

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")

SETTINGS = [
    {"window": 6, "floor": None},
    {"window": 6, "floor": 1.0, "returning": False},
    {"window": 6, "floor": 1.0, "momentum": 0.0},
    {"window": 6, "correct": "update", "floor": 1.0, "returning": False, "momentum": 0.0},
    {"window": 6, "correct": "update", "mode": "anchor", "margin": 0.05, "momentum": 0.0},
    {"window": None, "offset": 2, "mode": "anchor", "margin": 0.05},
    {"window": 7, "references": 3, "floor": None},
    {"window": 6, "references": 2, "accumulate": "gradients", "mode": "anchor", "margin": 0.05},
    {"window": 5, "blocks": "tensor", "trigger": "violated", "margin": 0.1, "floor": None},
]
CAUTIOUS = [{"kind": "Cautious"}, {"kind": "Cautious", "decay": True}, {"kind": "Cautious", "rescale": False}]
WARM, STEPS = 3, 25


def data(step):
    return batch(step, torch.float32, "cuda")


def make(settings, capturable):
    """``{"kind": "Cautious", ...}`` makes that, with AdamW; it has no clock, so that it is always capturable."""
    model = network(torch.float32, device="cuda")
    own = {name: value for name, value in settings.items() if name not in ("kind", "momentum")}
    if "kind" in settings:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, capturable=True)
        return model, optimizer, congruency.Cautious(optimizer, **own)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=settings.get("momentum", 0.9), foreach=True)
    return model, optimizer, congruency.DCL(optimizer, **own, capturable=capturable)


def eager_path(settings, capturable=False):
    model, optimizer, dcl = make(settings, capturable)
    path = []
    for step in range(STEPS):
        inputs, targets = data(step)
        optimizer.zero_grad(set_to_none=True)
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(path), dcl


def replayed_path(settings):
    model, optimizer, dcl = make(settings, capturable=True)
    inputs, targets = (t.clone() for t in data(0))
    path = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()

    def feed(i):
        for held, new in zip((inputs, targets), data(i), strict=True):
            held.copy_(new)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(WARM):
            feed(i)
            step()
            path.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for i in range(WARM, STEPS):
        feed(i)
        graph.replay()
        path.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(path), dcl


@pytest.mark.parametrize("settings", [*SETTINGS, *CAUTIOUS], ids=str)
def test_replayed_steps_equal_eager_ones(settings):
    eager, dcl = eager_path(settings)
    replayed, captured = replayed_path(settings)
    torch.testing.assert_close(replayed, eager, rtol=1e-5, atol=1e-6)
    assert int(captured.stats.corrected_steps) == int(dcl.stats.corrected_steps) > 0
    if "kind" not in settings:  # Cautious has no clock on the device: the host counts the steps that it runs
        assert int(captured.stats.steps) == STEPS
    torch.testing.assert_close(captured.stats.congruency, dcl.stats.congruency, rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_capturable_without_capture(settings):
    eager, _ = eager_path(settings)
    capturable, dcl = eager_path(settings, capturable=True)
    torch.testing.assert_close(capturable, eager, rtol=1e-5, atol=1e-6)
    state = copy.deepcopy(dcl.state_dict())
    assert state["sources"][0]["step"] == STEPS


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_two_graphs_of_one_memory_pool_in_any_order(order):
    """As for batches of two shapes: the gradients of both lie in the same places."""
    settings = {"window": None, "mode": "anchor", "margin": 0.05}
    steps = (*order, *order, 1, 1, 0)
    paths = []
    for captured in (False, True):
        model, optimizer, _ = make(settings, capturable=True)
        held = [[t.clone() for t in data(i)] for i in range(2)]

        def step(i, model=model, optimizer=optimizer, held=held):
            optimizer.zero_grad(set_to_none=True)
            (model(held[i][0]) - held[i][1]).square().mean().backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                step(0)
        torch.cuda.current_stream().wait_stream(side)
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        if captured:
            for i, graph in enumerate(graphs):
                optimizer.zero_grad(set_to_none=True)
                with torch.cuda.graph(graph, pool=graphs[0].pool() if i else None):
                    step(i)
        for i in steps:
            if captured:
                graphs[i].replay()
            else:
                step(i)
        paths.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*paths, rtol=1e-5, atol=1e-6)


def test_a_capture_after_the_watch_has_copied_a_counter():
    """The step after the twentieth looks at a copy that is under way, unless it is captured."""
    model, optimizer, dcl = make({"window": None, "mode": "anchor", "margin": 0.05}, capturable=True)
    inputs, targets = data(0)

    def step():
        optimizer.zero_grad(set_to_none=True)
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(20):
            step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    assert int(dcl.stats.steps) == 21


def test_reduce_overhead_training_step():
    expected, _ = eager_path({"window": 6, "floor": None})
    model, optimizer, _ = make({"window": 6, "floor": None}, capturable=False)
    forward = torch.compile(model, mode="reduce-overhead")
    for step in range(STEPS):
        inputs, targets = data(step)
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        (forward(inputs) - targets).square().mean().backward()
        optimizer.step()
        found = torch.cat([p.detach().flatten() for p in model.parameters()])
        torch.testing.assert_close(found, expected[step], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", [*SETTINGS, *CAUTIOUS], ids=str)
def test_no_host_synchronisation(settings):
    model, optimizer, corrector = make(settings, capturable=False)
    batches = [data(step) for step in range(24)]
    try:
        for i, (inputs, targets) in enumerate(batches):
            if i == 12:  # everything has been made and compiled
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            stats = corrector.stats
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert stats.congruency.device.type == "cuda"
