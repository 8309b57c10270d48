"""The meter, against a plain loop over recorded weights and gradients."""

import io
import math

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from problems import LargestResult
from processes import leave
from torch import nn

import congruency
from congruency import backends
from congruency.backends import torch as torch_backend
from congruency.measure.meter import CongruencyMeter, Measurement


def flat(tensors) -> np.ndarray:
    return np.concatenate([t.detach().cpu().double().numpy().ravel() for t in tensors] or [np.zeros(0)])


class SlowMeter:
    """Records everything and averages at the end."""

    def __init__(self, params, reference: str) -> None:
        self.params, self.reference = list(params), reference
        self.weights: list[list[torch.Tensor]] = []
        self.gradients: list[list[torch.Tensor | None]] = []

    def update(self) -> None:
        self.weights.append([p.detach().clone() for p in self.params])
        self.gradients.append([None if p.grad is None else p.grad.clone() for p in self.params])

    def compute(self, first: int = 0) -> Measurement:
        congruencies, magnitudes = [], []
        for i in range(first, len(self.weights)):
            if self.reference == "previous" and i == 0:
                continue
            old = self.weights[0] if self.reference == "start" else self.weights[i - 1]
            kept = [k for k, g in enumerate(self.gradients[i]) if g is not None]
            g = flat([self.gradients[i][k] for k in kept])
            d = flat([self.weights[i][k] for k in kept]) - flat([old[k] for k in kept])
            magnitudes.append(np.linalg.norm(d))
            if np.linalg.norm(g) > 0 and np.linalg.norm(d) > 0:
                congruencies.append(-(g @ d) / (np.linalg.norm(g) * np.linalg.norm(d)))
        mean = [float(np.mean(x)) if x else math.nan for x in (congruencies, magnitudes)]
        return Measurement(*mean, len(magnitudes))


def assert_same(found: Measurement, expected: Measurement, rel: float = 1e-9) -> None:
    assert found.steps == expected.steps
    assert found.congruency == pytest.approx(expected.congruency, rel=rel, nan_ok=True)
    assert found.magnitude == pytest.approx(expected.magnitude, rel=rel, nan_ok=True)


def network(device, dtype=torch.float32) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(27, 5), nn.Tanh(), nn.Linear(5, 2))
    return model.to(device, dtype)


def backward(model: nn.Module) -> None:
    model.zero_grad()
    param = next(model.parameters())
    x = torch.randn(4, 1, 5, 5).to(param)
    model(x).square().mean().backward()


@pytest.fixture(params=["start", "previous"])
def reference(request) -> str:
    return request.param


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_equals_slow_meter_over_epochs(device, reference, optimizer):
    model = network(device)
    step = optimizer(model.parameters(), lr=0.05)
    meter, slow = (kind(model.parameters(), reference) for kind in (CongruencyMeter, SlowMeter))
    for epoch in range(3):
        for _ in range(4):
            backward(model)
            meter.update()
            slow.update()
            step.step()
        assert_same(meter.compute(), slow.compute(first=4 * epoch))
        meter.reset()
        assert_same(meter.compute(), Measurement(math.nan, math.nan, 0))


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_cutting_tensors_changes_nothing(device, monkeypatch, chunk):
    for name in ("_HOST_CHUNK", "_DEVICE_CHUNK"):
        monkeypatch.setattr(torch_backend, name, chunk)
    for backend in (torch_backend.TorchBackend, backends.backend_for(device.type)):
        monkeypatch.setattr(backends, "backend_for", lambda _, backend=backend: backend)
        check_channels_last(device)


def check_channels_last(device):
    model = network(device)
    model.to(memory_format=torch.channels_last)
    meter, slow = (kind(model.parameters(), "start") for kind in (CongruencyMeter, SlowMeter))
    for _ in range(3):
        backward(model)
        meter.update()
        slow.update()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert_same(meter.compute(), slow.compute())


def test_known_answers(device):
    w = nn.Parameter(torch.tensor([0.0, 0.0], device=device))
    start, previous = CongruencyMeter([w]), CongruencyMeter(w, "previous")
    path = [((0.0, 0.0), (-3.0, 0.0)), ((3.0, 0.0), (0.0, -4.0)), ((3.0, 4.0), (-6.0, 0.0))]
    for weights, gradient in path:
        with torch.no_grad():
            w.copy_(torch.tensor(weights))
        w.grad = torch.tensor(gradient, device=device)
        start.update()
        previous.update()
    # from the start: undefined, orthogonal, then cos between (6, 0) and (3, 4); |d| = 0, 3, 5, the 0 counted
    assert start.compute() == Measurement(pytest.approx(0.3), pytest.approx(8 / 3), 3)
    # step by step: orthogonal twice; |d| = 3, 4
    assert previous.compute() == Measurement(pytest.approx(0.0), pytest.approx(3.5), 2)


def test_sign_is_one_along_a_straight_descent(device, reference):
    w = nn.Parameter(torch.tensor([5.0, -5.0], device=device))
    meter = CongruencyMeter([w], reference)
    for _ in range(4):
        w.grad = w.detach().clone()
        meter.update()
        with torch.no_grad():
            w -= 0.1 * w.grad
    assert meter.compute().congruency == pytest.approx(1.0, abs=1e-6)


def test_reset_keeps_the_reference_unless_asked(device):
    w = nn.Parameter(torch.zeros(1, device=device))
    w.grad = torch.ones(1, device=device)
    meter = CongruencyMeter([w])
    meter.update()
    for restart, expected in ((False, 1.5), (True, 0.5)):
        with torch.no_grad():
            w.fill_(1.0)
        meter.reset(reference=restart)
        meter.update()
        with torch.no_grad():
            w.fill_(2.0)
        meter.update()
        assert meter.compute().magnitude == pytest.approx(expected)


def test_parameters_without_a_gradient_are_left_out(device, reference):
    model = network(device)
    meter, slow = (kind(model.parameters(), reference) for kind in (CongruencyMeter, SlowMeter))
    for i in range(6):
        backward(model)
        if i % 2:
            model[0].weight.grad = None
        meter.update()
        slow.update()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        with torch.no_grad():
            model[0].weight += 1.0  # moves, whether or not it has a gradient
    assert_same(meter.compute(), slow.compute())


def test_zero_gradients_have_a_magnitude_but_no_congruency(device):
    w = nn.Parameter(torch.zeros(2, device=device))
    meter = CongruencyMeter([w])
    for value, gradient in ((0.0, 1.0), (1.0, -1.0), (2.0, 0.0)):
        with torch.no_grad():
            w.fill_(value)
        w.grad = torch.full_like(w, gradient)
        meter.update()
    assert_same(meter.compute(), Measurement(1.0, 2**0.5, 3), rel=1e-12)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_non_finite_gradients_are_as_if_never_seen(device, reference, bad):
    model = network(device)
    meter, slow = (kind(model.parameters(), reference) for kind in (CongruencyMeter, SlowMeter))
    for i in range(6):
        backward(model)
        if i in (2, 5):
            model[2].bias.grad[0] = bad
            meter.update()
            continue  # a GradScaler takes no step
        meter.update()
        slow.update()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert_same(meter.compute(), slow.compute())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_exact(device, reference, dtype):
    params = [nn.Parameter(torch.randn(40, device=device, dtype=dtype)) for _ in range(2)]
    meter, slow = (kind(params, reference) for kind in (CongruencyMeter, SlowMeter))
    for _ in range(5):
        for p in params:
            p.grad = torch.randn_like(p)
        meter.update()
        slow.update()
        with torch.no_grad():
            for p in params:
                p -= 0.1 * p.grad
    # a difference taken in half precision would be off by 1e-3
    assert_same(meter.compute(), slow.compute(), rel=1e-12)


def test_mixed_dtypes(device, reference):
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    params = [nn.Parameter(torch.randn(6, 5, device=device, dtype=dtype)) for dtype in dtypes]
    meter, slow = (kind(params, reference) for kind in (CongruencyMeter, SlowMeter))
    for _ in range(4):
        for p in params:
            p.grad = torch.randn_like(p)
        meter.update()
        slow.update()
        with torch.no_grad():
            for p in params:
                p -= 0.1 * p.grad
    assert_same(meter.compute(), slow.compute(), rel=1e-12)
    assert [saved.dtype for saved in meter.state_dict()["weights"]] == list(dtypes)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales(device, scale):
    w = nn.Parameter(torch.zeros(3, device=device))
    meter = CongruencyMeter([w])
    for value in (0.0, 1.0):
        with torch.no_grad():
            w.copy_(value * scale * torch.tensor([1.0, 1.0, 0.0]))
        w.grad = scale * torch.tensor([-1.0, 0.0, 0.0], device=device)
        meter.update()
    assert meter.compute().congruency == pytest.approx(0.5**0.5)
    assert meter.compute().magnitude == pytest.approx(scale * 2**0.5 / 2)


def test_sparse_gradients(device):
    model = nn.Embedding(6, 3, sparse=True).to(device)
    meter = CongruencyMeter(model.parameters())
    dense = CongruencyMeter([weight := nn.Parameter(model.weight.detach().clone())])
    for ids in ([0, 1, 1], [1, 4]):
        model.zero_grad()
        model(torch.tensor(ids, device=device)).square().sum().backward()
        weight.grad = model.weight.grad.to_dense()
        meter.update()
        dense.update()
        for p in (model.weight, weight):
            torch.optim.SGD([p], lr=0.1).step()
    assert_same(meter.compute(), dense.compute(), rel=1e-6)  # a sparse step rounds differently


def test_tied_parameters_count_once(device):
    w = nn.Parameter(torch.zeros(1, device=device))
    w.grad = torch.ones(1, device=device)
    meter = CongruencyMeter([w, w])
    meter.update()
    with torch.no_grad():
        w.fill_(2.0)
    meter.update()
    assert meter.compute().magnitude == pytest.approx(1.0)


def test_neither_weights_nor_gradients_are_touched(device, reference):
    model = network(device)
    meter = CongruencyMeter(model.parameters(), reference)
    for _ in range(2):
        backward(model)
        before = [(p.detach().clone(), p.grad.clone()) for p in model.parameters()]
        meter.update()
        for p, (w, g) in zip(model.parameters(), before, strict=True):
            assert torch.equal(p, w)
            assert torch.equal(p.grad, g)


def test_state_goes_through_a_file_bit_for_bit(device, reference):
    torch.manual_seed(1)
    model = network(device, torch.bfloat16)
    meter = CongruencyMeter(model.parameters(), reference)
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        backward(model)
        meter.update()
        step.step()
    file = io.BytesIO()
    torch.save(meter.state_dict(), file)
    file.seek(0)
    again = CongruencyMeter(model.parameters(), reference)
    again.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        backward(model)
        meter.update()
        again.update()
        step.step()
    assert again.compute() == meter.compute()
    saved, other = meter.state_dict(), again.state_dict()
    assert torch.equal(saved["totals"], other["totals"])
    assert all(torch.equal(a, b) for a, b in zip(saved["weights"], other["weights"], strict=True))


def test_loaded_state_shares_no_memory(device):
    w = nn.Parameter(torch.zeros(1, device=device))
    w.grad = torch.ones(1, device=device)
    meter, again = (CongruencyMeter([w], "previous") for _ in range(2))
    meter.update()
    again.load_state_dict(meter.state_dict())
    with torch.no_grad():
        w.fill_(1.0)
    meter.update()  # moves its own reference to 1
    again.update()
    assert again.compute().magnitude == 1.0


def test_state_from_before_the_first_update(device):
    w = nn.Parameter(torch.zeros(1, device=device))
    w.grad = torch.ones(1, device=device)
    meter, fresh = CongruencyMeter([w]), CongruencyMeter([w])
    meter.update()
    meter.load_state_dict(fresh.state_dict())
    with torch.no_grad():
        w.fill_(3.0)
    meter.update()
    assert meter.compute().magnitude == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": "previous"}, "measured from 'previous', this meter measures 'start'"),
        ({"weights": [torch.zeros(2, 3)]}, "holds 1 parameters, here there are 2"),
        ({"weights": [torch.zeros(2, 3), torch.zeros(5)]}, r"shape \(5,\) for parameter 1, .* of shape \(4,\)"),
        ({"weights": [torch.zeros(2, 3), torch.zeros(4).half()]}, "float16 .* for parameter 1, torch.float32"),
        ({"totals": torch.zeros(4)}, "totals must be 4 numbers in a float64 tensor"),
        ({"extra": 1}, "the state must hold"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_changes_nothing(device, change, message):
    params = [nn.Parameter(torch.ones(2, 3, device=device)), nn.Parameter(torch.ones(4, device=device))]
    meter = CongruencyMeter(params)
    for p in params:
        p.grad = torch.ones_like(p)
    meter.update()
    state = meter.state_dict()
    with pytest.raises(ValueError, match=message):
        meter.load_state_dict({**state, **change})
    after = meter.state_dict()
    assert torch.equal(after["totals"], state["totals"])
    assert all(a is b for a, b in zip(after["weights"], state["weights"], strict=True))


def test_errors_say_what_is_wrong():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="reference must be one of 'start', 'previous', got 'end'"):
        CongruencyMeter(model.parameters(), "end")
    with pytest.raises(ValueError, match="params is empty"):
        CongruencyMeter([])
    with pytest.raises(TypeError, match=r"as model.parameters\(\) gives them, got tuple"):
        CongruencyMeter(model.named_parameters())
    with pytest.raises(TypeError, match="floating-point"):
        CongruencyMeter([torch.zeros(2, dtype=torch.int64)])
    with pytest.raises(RuntimeError, match=r"call update\(\) after backward\(\) and before step\(\)"):
        CongruencyMeter(model.parameters()).update()


def test_memory_beside_the_reference_is_bounded(device):
    """No temporary is as large as a tensor of the model, for all the elements are worked on a few at a time."""
    size = 3 * torch_backend._HOST_CHUNK
    weight = nn.Parameter(torch.randn(size, device=device))
    weight.grad = torch.randn_like(weight)
    meter = CongruencyMeter([weight])
    meter.update()
    with LargestResult() as mode:
        meter.update()
    assert mode.largest <= torch_backend._HOST_CHUNK * 8 * 2


def test_update_does_not_wait_for_the_device(device, reference):
    if device.type != "cuda":
        pytest.skip("needs an accelerator to wait for")
    model = network(device)
    meter = CongruencyMeter(model.parameters(), reference)
    backward(model)
    meter.update()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            meter.update()
            meter.reset()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def shards(rank: int, folder: str) -> None:
    """On each of two processes: the meter over shards finds what the meter over whole tensors finds."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    # uneven shards, one process with an empty shard, a replicated tensor, and one that is no DTensor
    shapes = [((5, 3), Shard(0)), ((1, 4), Shard(0)), ((2, 7), Shard(1)), ((6,), Replicate()), ((2,), None)]
    whole = [nn.Parameter(torch.randn(shape)) for shape, _ in shapes]
    layouts = [placement for _, placement in shapes]

    def laid_out(tensors):
        return [
            t.clone() if layout is None else distribute_tensor(t, mesh, [layout])
            for t, layout in zip(tensors, layouts, strict=True)
        ]

    sharded = [nn.Parameter(t) for t in laid_out([p.detach() for p in whole])]
    for reference in ("start", "previous"):
        meter, expected = CongruencyMeter(sharded, reference), CongruencyMeter(whole, reference)
        for i in range(4):
            gradients = [torch.randn_like(p) for p in whole]
            if i == 2:
                gradients[0][0, 0] = math.nan  # on one process only; both must skip the step
            for params, values in ((whole, gradients), (sharded, laid_out(gradients))):
                for p, g in zip(params, values, strict=True):
                    p.grad = g
            meter.update()
            expected.update()
            if i != 2:
                for p in (*whole, *sharded):
                    p.data.add_(p.grad, alpha=-0.1)
        found = meter.compute()
        assert_same(found, expected.compute(), rel=1e-6)
        assert found.steps == (3 if reference == "start" else 2)
        both: list = [None, None]
        torch.distributed.all_gather_object(both, found)
        assert both[0] == both[1]
        # whole tensors saved by one process can be loaded into shards
        again = CongruencyMeter(sharded, reference)
        again.load_state_dict(expected.state_dict())
        again.update()
        expected.update()
        assert_same(again.compute(), expected.compute(), rel=1e-6)
        again.load_state_dict(meter.state_dict())
        assert again.compute() == found
    leave()


def test_shards_on_two_processes(tmp_path):
    mp.spawn(shards, (str(tmp_path),), nprocs=2)


def test_beside_dcl_it_measures_the_same_without_reading(device, monkeypatch):
    """One pass for both: the meter that shares it agrees with one of its own, to the accuracy of a correction."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    dcl = congruency.DCL(optimizer, floor=None, attach=False)
    own, shared = CongruencyMeter(model.parameters()), CongruencyMeter(model.parameters(), beside=dcl)
    for step in range(12):
        inputs = torch.randn(4, 6).to(device)  # the same numbers on every device
        optimizer.zero_grad()
        (model(inputs) - inputs[:, :3]).square().mean().backward()
        if step == 5:
            model.weight.grad[0, 0] = math.inf
        if step == 7:
            model.bias.grad = None
        own.update()
        dcl.correct()
        if step != 5:
            optimizer.step()
        with monkeypatch.context() as patch:
            patch.setattr(backends.Passes, "gram", lambda *_, **__: pytest.fail("the meter read the parameters"))
            shared.update()
    assert int(dcl.stats.corrected_steps) > 0
    expected, found = own.compute(), shared.compute()
    assert found.steps == expected.steps == 11
    assert found.congruency == pytest.approx(expected.congruency, abs=1e-5)
    assert found.magnitude == pytest.approx(expected.magnitude, rel=1e-5)
    assert shared.state_dict()["weights"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 5}, "one reference, window=None and offset=0"),
        ({"references": 2}, "one reference, window=None and offset=0"),
        ({"blocks": "tensor"}, "blocks='tensor'"),
        ({"correct": "update"}, "correct='update'"),
        ({"params": "head"}, "it corrects other parameters"),
    ],
    ids=str,
)
def test_beside_what_measures_something_else_is_refused(settings, message):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = model[1].parameters() if settings.pop("params", None) else None
    dcl = congruency.DCL(optimizer, chosen, **settings)
    with pytest.raises(ValueError, match=message):
        CongruencyMeter(model.parameters(), beside=dcl)
    whole = congruency.DCL(optimizer)
    with pytest.raises(ValueError, match="this meter's is 'previous'"):
        CongruencyMeter(model.parameters(), "previous", beside=whole)
