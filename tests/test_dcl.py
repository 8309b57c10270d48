"""DCL in training loops of every kind: the one line must do the same thing in all of them."""

import copy
import math

import pytest
import torch
from problems import batch, loss_of, network, train, weights
from torch import nn

import congruency

SETTINGS = {"window": 7, "references": 2, "mode": "anchor", "margin": 0.05}  # corrects at most steps


def flat(tensors):
    return torch.cat([t.detach().flatten().to("cpu", torch.float64) for t in tensors])


class Expectation:
    """Checks inside every step, after DCL's own hook, that the gradient is the projection of what it was before."""

    def __init__(self, optimizer, tensors, **settings):
        self.params = list(tensors)
        self.before = optimizer.register_step_pre_hook(lambda *_: self.note())
        self.dcl = congruency.DCL(optimizer, **{"floor": None, **settings})
        self.after = optimizer.register_step_pre_hook(lambda *_: self.check())
        self.start, self.corrected = None, 0
        self.ascent = -1 if optimizer.param_groups[0].get("maximize") else 1  # the gradients' sum is w - start there

    def note(self):
        self.gradient = flat(p.grad for p in self.params)
        self.weights = flat(self.params)

    def check(self):
        x = flat(p.grad for p in self.params)
        if self.start is None:
            self.start = self.weights
            expected = self.gradient
        else:
            expected = congruency.project(self.gradient, -self.ascent * (self.weights - self.start).unsqueeze(0))
        torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-6 * float(self.gradient.norm()))
        self.corrected += not torch.equal(x, self.gradient)


def optimizer_classes():
    others = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
    classes = [c for _, c in sorted(vars(torch.optim).items()) if isinstance(c, type)]
    return [c for c in classes if issubclass(c, torch.optim.Optimizer) and c not in others]


@pytest.mark.parametrize("cls", optimizer_classes(), ids=lambda cls: cls.__name__)
def test_every_optimizer_of_torch(cls, device):
    model = network(torch.float32, device=device)
    params = [p for p in model.parameters() if p.ndim == 2] if cls.__name__ == "Muon" else list(model.parameters())
    optimizer = cls(params, lr=0.1)
    expectation = Expectation(optimizer, params)
    train(model, optimizer, range(25))
    assert expectation.corrected > 0
    assert int(expectation.dcl.stats.corrected_steps) == expectation.corrected


@pytest.mark.parametrize(
    ("cls", "variant"),
    [
        (torch.optim.SGD, {"foreach": True, "momentum": 0.9}),
        (torch.optim.SGD, {"fused": True, "momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"maximize": True}),
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.Adam, {"fused": True, "amsgrad": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.Adagrad, {"fused": True}),
        (torch.optim.Adam, {"capturable": True}),
        (torch.optim.RMSprop, {"capturable": True, "foreach": True}),
    ],
    ids=str,
)
def test_variants(cls, variant, device):
    if variant.get("capturable") and device.type == "cpu":
        pytest.skip("capturable optimizers exist on accelerators only")
    if cls is torch.optim.Adagrad and device.type != "cpu":
        pytest.skip("fused Adagrad exists on the CPU only")
    model = network(torch.float32, device=device)
    first, last = model[0], model[2]
    groups = [{"params": first.parameters(), "lr": 0.02}, {"params": last.parameters(), "lr": 0.1}]
    optimizer = cls(groups, lr=0.1, **variant)
    expectation = Expectation(optimizer, model.parameters())
    train(model, optimizer, range(25))
    assert expectation.corrected > 0


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    congruency.DCL(optimizer)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match=r"sparse gradient.*sparse=False, or leave"):
        optimizer.step()
    with pytest.raises(TypeError, match="SparseAdam is not supported"):
        congruency.DCL(torch.optim.SparseAdam(embedding.parameters()))


def reference_path(**changes):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    congruency.DCL(optimizer, **{**SETTINGS, **changes})
    return torch.stack(train(model, optimizer, range(20)))


def test_correction_changes_training():
    model = network()
    plain = torch.stack(train(model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), range(20)))
    corrected = reference_path()
    assert torch.equal(plain[:2], corrected[:2])  # two recording steps use the plain gradient
    assert not torch.allclose(plain[3], corrected[3])


def run(step_of, make_dcl=None, zero=True):
    """Train with a step of the test's own; the path of the weights."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    dcl = make_dcl(optimizer) if make_dcl else congruency.DCL(optimizer, **SETTINGS)
    path = []
    for step in range(20):
        if zero:
            optimizer.zero_grad()
        step_of(model, optimizer, dcl, step)
        path.append(weights(model))
    return torch.stack(path)


def test_closure_equals_plain_loop():
    def step_of(model, optimizer, dcl, step):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss

        loss = optimizer.step(closure) if step % 2 else optimizer.step(closure=closure)
        assert isinstance(loss, torch.Tensor)

    assert torch.equal(run(step_of, zero=False), reference_path())


def test_by_hand_equals_attached():
    def step_of(model, optimizer, dcl, step):
        loss_of(model, step).backward()
        dcl.correct()
        optimizer.step()

    assert torch.equal(run(step_of, lambda o: congruency.DCL(o, **SETTINGS, attach=False)), reference_path())


def test_gradient_accumulation_counts_optimizer_steps():
    def step_of(model, optimizer, dcl, step):
        for _ in range(4):
            (loss_of(model, step) / 4).backward()
        optimizer.step()

    torch.testing.assert_close(run(step_of), reference_path(), rtol=1e-9, atol=1e-12)


def test_zero_grad_either_way():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    congruency.DCL(optimizer, **SETTINGS)
    path = train(model, optimizer, range(20), set_to_none=False)
    assert torch.equal(torch.stack(path), reference_path())


def test_clipping_before_and_after():
    limit = 0.1
    norms = {}

    def clip_first(model, optimizer, dcl, step):
        loss_of(model, step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        before = flat(p.grad for p in model.parameters())
        optimizer.step()
        norms.setdefault("before", []).append(float(before.norm()))

    def clip_last(model, optimizer, dcl, step):
        loss_of(model, step).backward()
        dcl.correct()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        norms.setdefault("after", []).append(float(flat(p.grad for p in model.parameters()).norm()))
        optimizer.step()

    first = run(clip_first)
    last = run(clip_last, lambda o: congruency.DCL(o, **SETTINGS, attach=False))
    assert max(norms["before"] + norms["after"]) <= limit * (1 + 1e-6)
    assert not torch.allclose(first, last)


@pytest.mark.parametrize("accumulate", ["weights", "gradients"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("references", [1, 2])
def test_grad_scaler(fused, accumulate, references, device):
    """Scaled and unscaled training agree, for a positive margin too, and a skipped step harms nothing."""
    settings = {**SETTINGS, "accumulate": accumulate, "references": references}

    def path_of(scale):
        model = network(torch.float32, device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, fused=fused)
        dcl = congruency.DCL(optimizer, **settings)
        scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=scale)
        for step in range(20):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            scaler.step(optimizer)
            scaler.update()
        return weights(model), int(dcl.stats.corrected_steps)

    scaled, corrected = path_of(True)
    plain, expected = path_of(False)
    assert corrected == expected > 0
    torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=1e-5)


def test_grad_scaler_overflow_with_fused_optimizer(device):
    model = network(torch.float32, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, fused=True)
    dcl = congruency.DCL(optimizer, accumulate="gradients", window=9, floor=None)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        if step == 4:
            model[0].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
    assert int(dcl.stats.nonfinite_steps) == 1
    assert torch.isfinite(dcl.stats.congruency).all()
    assert torch.isfinite(weights(model)).all()


@pytest.mark.parametrize("references", [1, 2])
@pytest.mark.parametrize("accumulate", ["weights", "gradients"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_gradient_passes_untouched(bad, accumulate, references, device):
    model = network(device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    dcl = congruency.DCL(optimizer, references=references, accumulate=accumulate, margin=0.1, floor=None, attach=False)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        if step in (0, 4):  # while recording, and while correcting
            model[0].weight.grad[1, 2] = bad
            before = [p.grad.clone() for p in model.parameters()]
            dcl.correct()
            for p, g in zip(model.parameters(), before, strict=True):
                assert torch.equal(p.grad.nan_to_num(), g.nan_to_num())
                assert torch.equal(p.grad.isnan(), g.isnan())
            assert not bool(dcl.stats.corrected)
        else:
            dcl.correct()
            optimizer.step()
    stats = dcl.stats
    assert int(stats.nonfinite_steps) == 2
    assert stats.steps == 6
    for values in (stats.congruency, stats.corrected_congruency, stats.magnitude, stats.multipliers):
        assert torch.isfinite(values).all()


def test_compiled_model():
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.2, momentum=0.9)
    congruency.DCL(optimizer, **SETTINGS)
    path = []
    for step in range(20):
        optimizer.zero_grad()
        loss_of(compiled, step).backward()
        optimizer.step()
        path.append(weights(model))
    torch.testing.assert_close(torch.stack(path), reference_path(), rtol=1e-9, atol=1e-12)


def test_compiled_training_step():
    """Forward, backward and the optimizer's step in one compiled function, the correction inside it."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    congruency.DCL(optimizer, **SETTINGS)

    @torch.compile(backend="aot_eager")
    def step_of(inputs, targets):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()

    path = []
    for step in range(20):
        step_of(*batch(step))
        path.append(weights(model))
    torch.testing.assert_close(torch.stack(path), reference_path(), rtol=1e-9, atol=1e-12)


def test_frozen_parameters_stay_and_join_when_unfrozen():
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    dcl = congruency.DCL(optimizer, margin=0.1, mode="anchor")
    frozen = model[0].weight.clone()
    train(model, optimizer, range(5))
    assert torch.equal(model[0].weight, frozen)
    assert set(dcl.sources[0]._slots) == {model[2].weight, model[2].bias}  # no memory for what does not train
    model[0].requires_grad_(True)
    train(model, optimizer, range(5, 8))
    assert not torch.equal(model[0].weight, frozen)
    start = torch.cat([frozen.flatten(), dcl.sources[0]._slots[model[0].bias][0].flatten()])
    now = torch.cat([model[0].weight.detach().flatten(), model[0].bias.detach().flatten()])
    assert float((now - start).norm()) <= float(
        flat(p - s[0] for p, s in dcl.sources[0]._slots.items()).norm()
    )  # the joined layers' way counts from where they were when they joined


@pytest.mark.parametrize("correct", ["gradient", "update"])
@pytest.mark.parametrize("accumulate", ["weights", "gradients"])
@pytest.mark.parametrize("blocks", ["joint", "tensor"])
def test_many_references_while_gradients_come_and_go(blocks, accumulate, correct):
    """Products of fixed segments are those of the parameters that take part: as with all products at every step."""

    def path(every_product):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dcl = congruency.DCL(
            optimizer, references=3, window=9, floor=None, accumulate=accumulate, blocks=blocks, correct=correct
        )
        if every_product:
            dcl.sources[0].begin = _beginning(dcl.sources[0])
        for step in range(24):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if step % 5 == 1:
                model[2].bias.grad = None
            if step % 9 == 7:
                model[0].weight.grad = None
            optimizer.step()
        assert dcl.stats.corrected_steps > 5
        return weights(model)

    torch.testing.assert_close(path(False), path(True), rtol=1e-9, atol=1e-12)


def _beginning(references):
    """Begin steps as ever, but have what is fixed recorded anew each time."""
    begin = references.begin

    def anew(parameters):
        references._recorded += 1
        begin(parameters)

    return anew


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Linear(4, 4, bias=False)
            self.decode = nn.Linear(4, 4, bias=False)
            self.decode.weight = self.encode.weight

        def forward(self, x):
            return self.decode(torch.tanh(self.encode(x)))[:, :3]

    torch.manual_seed(0)
    model = Tied().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    expectation = Expectation(optimizer, [model.encode.weight], params=[model.encode.weight, model.decode.weight])
    train(model, optimizer, range(20))
    assert expectation.corrected > 0


def test_add_param_group_after_attaching():
    model = network()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.3)
    dcl = congruency.DCL(optimizer, floor=None)
    train(model, optimizer, range(4))
    joined = [p.detach().clone() for p in model[0].parameters()]
    optimizer.add_param_group({"params": model[0].parameters()})
    for step in range(4, 20):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        gradient = flat(p.grad for p in model.parameters())
        starts = [*joined, *(dcl.sources[0]._slots[p][0] for p in model[2].parameters())]
        way = weights(model) - flat(starts)
        optimizer.step()
        expected = congruency.project(gradient, -way.unsqueeze(0))
        torch.testing.assert_close(flat(p.grad for p in model.parameters()), expected)


def test_explicit_params_leave_the_others_alone():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    congruency.DCL(optimizer, model[2].parameters(), mode="anchor", margin=1.0)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        body, head = (flat(p.grad for p in layer.parameters()) for layer in (model[0], model[2]))
        optimizer.step()
        assert torch.equal(flat(p.grad for p in model[0].parameters()), body)
        assert torch.equal(flat(p.grad for p in model[2].parameters()), head) == (step == 0)


def test_two_on_one_optimizer_with_different_parameters():
    def path(**layers):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        dcls = [congruency.DCL(optimizer, model[i].parameters(), **settings) for i, settings in layers.values()]
        train(model, optimizer, range(15))
        return weights(model), [int(d.stats.corrected_steps) for d in dcls]

    both, corrected = path(a=(0, {"window": 5}), b=(2, {"mode": "anchor", "margin": 0.1}))
    blocks, _ = path(b=(2, {"mode": "anchor", "margin": 0.1}), a=(0, {"window": 5}))
    assert min(corrected) > 0
    assert torch.equal(both, blocks)  # in whatever order they were attached


def test_detach_leaves_the_optimizer_as_before():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    before = {k: v for k, v in vars(optimizer).items() if k != "state"}
    before = copy.deepcopy({k: before[k] for k in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")})
    dcl = congruency.DCL(optimizer, **SETTINGS)
    dcl.detach()
    dcl.detach()
    assert {k: getattr(optimizer, k) for k in before} == before
    path = torch.stack(train(model, optimizer, range(20)))
    plain = network()
    expected = train(plain, torch.optim.SGD(plain.parameters(), lr=0.2, momentum=0.9), range(20))
    assert torch.equal(path, torch.stack(expected))


@pytest.mark.parametrize("floor", [None, 1.0])
def test_reset_starts_over(floor):
    """After reset() the next steps are those of a DCL newly made at that point."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    settings = {"references": 2, "margin": 0.1, "floor": floor}
    dcl = congruency.DCL(optimizer, **settings)
    train(model, optimizer, range(7))
    fresh = copy.deepcopy(model)
    dcl.reset()
    assert torch.isnan(dcl.stats.congruency).all()
    fresh_optimizer = torch.optim.SGD(fresh.parameters(), lr=0.2)
    fresh_dcl = congruency.DCL(fresh_optimizer, **settings)
    assert torch.equal(
        torch.stack(train(model, optimizer, range(7, 15))), torch.stack(train(fresh, fresh_optimizer, range(7, 15)))
    )
    assert int(fresh_dcl.stats.corrected_steps) > 0


def test_deepcopy_of_model_and_optimizer():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    dcl = congruency.DCL(optimizer, **SETTINGS)
    train(model, optimizer, range(9))
    plain_model, plain_optimizer = copy.deepcopy((model, optimizer))
    twin_model, twin_optimizer, twin = copy.deepcopy((model, optimizer, dcl))
    expected = train(model, optimizer, range(9, 20))
    assert torch.equal(torch.stack(train(twin_model, twin_optimizer, range(9, 20))), torch.stack(expected))
    assert twin.stats.steps == dcl.stats.steps == 20
    assert not torch.equal(torch.stack(train(plain_model, plain_optimizer, range(9, 20))), torch.stack(expected))


def test_mixed_precision_keeps_small_displacements(device):
    """Weights in three precisions, moved by one unit in the last place: the displacement is exact."""
    params = [
        nn.Parameter(torch.ones(300, dtype=dtype, device=device))
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    ]
    optimizer = torch.optim.SGD(params, lr=0.0)
    for references in (1, 2):
        dcl = congruency.DCL(optimizer, references=references, attach=False)
        for step in range(references + 1):
            for p in params:
                p.grad = torch.full_like(p, -1.0 if step < references else 0.5)
            dcl.correct()
            with torch.no_grad():
                for p in params:
                    p.add_(torch.finfo(p.dtype).eps)
        # d is known exactly: (references - i) units in the last place of each precision at the last correction
        units = sum(300 * torch.finfo(p.dtype).eps ** 2 for p in params) ** 0.5
        expected = torch.tensor([units * (references - i) for i in range(references)], dtype=torch.float64)
        torch.testing.assert_close(dcl.stats.magnitude.cpu(), expected, rtol=1e-6, atol=0)
        with torch.no_grad():
            for p in params:
                p.fill_(1.0)


def test_gradient_sums_do_not_round_in_bfloat16(device):
    p = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16, device=device))
    optimizer = torch.optim.SGD([p], lr=0.0)
    dcl = congruency.DCL(optimizer, accumulate="gradients", attach=False)
    for step in range(513):
        p.grad = torch.full_like(p, 1.0 if step == 0 else 2.0**-10)  # each is lost beside 1 in bfloat16
        dcl.correct()
    p.grad = torch.ones_like(p)
    dcl.correct()
    torch.testing.assert_close(dcl.stats.magnitude.cpu(), torch.tensor([1.5 * 2], dtype=torch.float64))


def test_channels_last_and_mismatched_layouts(device):
    for layout in ("weights", "both", "transposed"):
        torch.manual_seed(0)
        w = torch.randn(4, 3, 5, 5, dtype=torch.float64, device=device)
        g = torch.randn_like(w)
        p = nn.Parameter(
            w.clone(memory_format=torch.channels_last if layout != "transposed" else torch.preserve_format)
        )
        optimizer = torch.optim.SGD([p], lr=0.0)
        for references in (1, 2):
            dcl = congruency.DCL(optimizer, references=references, mode="anchor", margin=0.5, attach=False)
            for _ in range(references):
                p.grad = g.clone()
                dcl.correct()
                with torch.no_grad():
                    p.add_(torch.randn(w.shape, dtype=w.dtype, device=device), alpha=0.1)
            if layout == "both":
                p.grad = g.clone(memory_format=torch.channels_last)
            elif layout == "transposed":
                p.grad = g.transpose(0, 1).contiguous().transpose(0, 1)
            else:
                p.grad = g.clone()
            rows = torch.stack([(p.detach() - r).flatten() for r in dcl.sources[0]._slots[p]])
            expected = congruency.project(g.flatten(), rows, margin=0.5)
            strides = p.grad.stride()
            dcl.correct()
            torch.testing.assert_close(p.grad.flatten(), expected)
            assert p.grad.stride() == strides


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second kind of device: a GPU")
def test_parameters_on_several_devices():
    params = [nn.Parameter(torch.randn(50, dtype=torch.float64, device=d)) for d in ("cpu", "cuda", "cuda")]
    optimizer = torch.optim.SGD(params, lr=0.1)
    expectation = Expectation(optimizer, params)
    for step in range(10):
        for p in params:
            p.grad = torch.randn(50, generator=torch.Generator().manual_seed(step), dtype=torch.float64).to(p.device)
        optimizer.step()
    assert expectation.corrected > 0


def test_stats_against_definitions():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    dcl = congruency.DCL(optimizer, references=2, window=6, floor=None)
    assert torch.isnan(dcl.stats.congruency).all()
    points = []
    corrected = 0
    for step in range(18):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        g, w = flat(p.grad for p in model.parameters()), weights(model)
        points = [] if step % 6 == 0 else points
        optimizer.step()
        x, stats = flat(p.grad for p in model.parameters()), dcl.stats
        if len(points) < 2:
            points.append(w)
            assert torch.isnan(stats.congruency).all()
            assert not bool(stats.corrected)
            continue
        away = torch.stack([w - r for r in points])
        torch.testing.assert_close(stats.congruency, congruency.congruency(g, -away))
        torch.testing.assert_close(stats.corrected_congruency, congruency.congruency(x, -away), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(stats.magnitude, away.norm(dim=1))
        torch.testing.assert_close(x, g - stats.multipliers @ away)
        corrected += not torch.equal(x, g)
        assert bool(stats.corrected) == (not torch.equal(x, g))
    assert int(stats.corrected_steps) == corrected > 0
    assert stats.steps == 18


def test_congruent_gradient_keeps_its_bits(device):
    p = nn.Parameter(torch.zeros(1000, device=device))
    optimizer = torch.optim.SGD([p], lr=0.1)
    for references in (1, 3):
        dcl = congruency.DCL(optimizer, references=references, floor=None, attach=False)
        for _ in range(references):
            p.grad = torch.ones_like(p)
            dcl.correct()
            optimizer.step()
        p.grad = torch.rand_like(p)
        p.grad[0] = -0.0
        before = p.grad.clone()
        dcl.correct()
        assert torch.equal(p.grad.view(torch.int32), before.view(torch.int32))
        assert not bool(dcl.stats.corrected)


def test_anchor_with_margin_is_a_proximal_term():
    """The finding about the published code: v >= 0.5 adds at least half the displacement to the gradient."""
    p = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.SGD([p], lr=1.0)
    dcl = congruency.DCL(optimizer, mode="anchor", margin=0.5)
    p.grad = torch.tensor([-1.0, -2.0, 0.0], dtype=torch.float64)
    optimizer.step()
    p.grad = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)  # already points back to the reference
    optimizer.step()
    assert torch.equal(dcl.stats.multipliers, torch.tensor([0.5], dtype=torch.float64))
    torch.testing.assert_close(p.grad, torch.tensor([1.5, 3.0, 5.0], dtype=torch.float64))


def test_concentrate_by_hand():
    """One step along +x, then a gradient that would go back: its x part is removed."""
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = torch.optim.SGD([p], lr=1.0)
    dcl = congruency.DCL(optimizer, floor=None)
    for gradient, expected in (([-1.0, 0.0], [1.0, 0.0]), ([3.0, 4.0], [1.0, -4.0])):
        p.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        torch.testing.assert_close(p.detach(), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(dcl.stats.congruency, torch.tensor([-0.6], dtype=torch.float64))
    torch.testing.assert_close(dcl.stats.corrected_congruency, torch.tensor([0.0], dtype=torch.float64))
    torch.testing.assert_close(dcl.stats.multipliers, torch.tensor([3.0], dtype=torch.float64))
