"""Silent misuse is silent no more: each mistake of a first hour gets a warning or an error that says what to do."""

import contextlib
import copy
import re
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch import nn

import congruency

BATCH = (torch.zeros(3, 4), torch.zeros(3, 2))


def made(**options):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, **options)


def train(model, optimizer, steps=1, scale=1.0):
    for _ in range(steps):
        optimizer.zero_grad()
        (scale * model(torch.randn(8, 4))).square().mean().backward()
        optimizer.step()


@pytest.fixture
def strict():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("kind", [congruency.DCL, congruency.Cautious])
def test_a_second_one_of_a_kind_warns(kind):
    model, optimizer = made(momentum=0.9)
    first = kind(optimizer)
    with pytest.warns(UserWarning, match=f"already has a {kind.__name__} for these parameters.*run that cell too"):
        second = kind(optimizer)
    second.detach()
    with pytest.warns(UserWarning, match="already"):
        kind(optimizer, model[2].parameters()).detach()  # some of them
    first.detach()


def test_what_may_stand_together_does_not_warn(strict):
    model, optimizer = made(momentum=0.9)
    congruency.DCL(optimizer, model[0].parameters())
    congruency.DCL(optimizer, model[2].parameters())  # others
    congruency.Cautious(optimizer)
    congruency.DCL(optimizer, attach=False)
    congruency.DCL(made()[1]).detach()
    copy.deepcopy((model, optimizer))
    _, optimizer = made()
    congruency.DCL(optimizer).detach()
    congruency.DCL(optimizer)


def test_correct_while_attached_is_refused():
    model, optimizer = made()
    dcl = congruency.DCL(optimizer)
    train(model, optimizer)
    with pytest.raises(RuntimeError, match=r"DCL is attached.*attach=False"):
        dcl.correct()
    assert dcl.stats.steps == 1
    dcl.detach()
    dcl.correct()
    assert dcl.stats.steps == 2


@pytest.mark.parametrize("what", ["optimizer", "optimizer after", "weights"])
def test_going_back_to_a_checkpoint_without_the_references(what):
    """The references stay what they were: with the optimizer's state loaded too, that is warned of, once."""
    model, optimizer = made()
    dcl = congruency.DCL(optimizer, window=50)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), dcl.state_dict()])
    reference = model[0].weight.detach().clone()
    train(model, optimizer, 3)
    model.load_state_dict(saved[0])
    if what != "weights":
        optimizer.load_state_dict(saved[1])
        with pytest.warns(UserWarning, match=r"references are still the weights from before.*reset\(\)"):
            train(model, optimizer)
    else:
        train(model, optimizer)
    assert torch.equal(dcl.references._slots[model[0].weight][0], reference)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 2)
        if what == "optimizer":
            optimizer.load_state_dict(saved[1])
            dcl.load_state_dict(saved[2])
        elif what == "optimizer after":
            dcl.load_state_dict(saved[2])
            optimizer.load_state_dict(saved[1])
        else:
            optimizer.load_state_dict(saved[1])
            dcl.reset()
        train(model, optimizer)


def test_cautious_has_no_references_to_lose(strict):
    model, optimizer = made(momentum=0.9)
    congruency.Cautious(optimizer)
    train(model, optimizer, 2)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer)


def test_replaced_parameters_warn_once():
    model, optimizer = made()
    dcl = congruency.DCL(optimizer)
    train(model, optimizer, 3)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    with pytest.warns(UserWarning, match=r"none of the 4 parameters .*assign=True") as caught:
        train(model, optimizer, 40)
    assert len(caught) == 1
    assert dcl.stats.steps == 43


def test_some_steps_without_gradients_do_not_warn(strict):
    model, optimizer = made()
    congruency.DCL(optimizer)
    for _ in range(5):
        train(model, optimizer)
        optimizer.zero_grad()
        for _ in range(6):
            optimizer.step()


def test_parameters_that_left_the_optimizer():
    model, optimizer = made()
    dcl = congruency.DCL(optimizer, model[2].parameters())
    optimizer.param_groups[0]["params"] = list(model[0].parameters())
    for use in (lambda: train(model, optimizer), lambda: dcl.stats):
        with pytest.raises(RuntimeError, match="none of the parameters to correct is in the optimizer any more"):
            use()


@pytest.mark.parametrize("kind", [congruency.DCL, congruency.Cautious])
def test_nothing_but_nan_warns_once(kind, device):
    model, optimizer = made(momentum=0.9)
    model.to(device)
    corrector = kind(optimizer)
    data = torch.full((8, 4), torch.nan, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(200):  # on a GPU the counter arrives a little later
            optimizer.zero_grad()
            model(data).mean().backward()
            optimizer.step()
    assert len(caught) == 1
    assert "the last 20 steps all had a gradient or an update that is not finite" in str(caught[0].message)
    assert int(corrector.stats.nonfinite_steps) == 200


def test_a_few_overflows_do_not_warn(strict):
    model, optimizer = made()
    dcl = congruency.DCL(optimizer)
    for step in range(60):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        if step % 3:
            model[0].weight.grad.fill_(torch.inf)
            held = copy.deepcopy(model.state_dict())
        optimizer.step()
        if step % 3:
            model.load_state_dict(held)
    assert int(dcl.stats.nonfinite_steps) == 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model, optimizer: congruency.DCL(optimizer, 50), "params.*got 50; for a window write window=50"),
        (lambda model, optimizer: congruency.Cautious(optimizer, True), "params, the second argument"),
        (lambda model, optimizer: congruency.DCL(optimizer, model), "pass .* module.parameters()"),
        (lambda model, optimizer: congruency.CongruencyMeter(model), "params.*the Sequential itself.*model.parameters"),
        (lambda model, optimizer: congruency.CongruencyMeter(optimizer), "params.*got SGD"),
        (lambda model, optimizer: congruency.Cautious(optimizer, decay=0.1), "decay.*got 0.1.*the optimizer's"),
        (lambda model, optimizer: congruency.Cautious(optimizer, rescale=2.0), "rescale.*got 2.0; max_rescale"),
        (lambda model, optimizer: congruency.Cautious(optimizer, max_rescale="2"), "max_rescale must be a number"),
        (lambda model, optimizer: congruency.DCL(optimizer, returning="no"), "returning must be True or False"),
        (lambda model, optimizer: congruency.DCL(optimizer, capturable=1), "capturable must be True or False"),
        (lambda model, optimizer: congruency.head(optimizer), "model must be a torch.nn.Module, got SGD"),
        (
            lambda model, optimizer: congruency.Corrector(optimizer, constraints=[congruency.References]),
            r"such as congruency.References\(\), got <class",
        ),
        (
            lambda model, optimizer: congruency.DCL(torch.optim.lr_scheduler.StepLR(optimizer, 5)),
            "got StepLR; pass its .optimizer",
        ),
        (lambda model, optimizer: congruency.DCL(model), "got Sequential, a model; pass the optimizer that trains it"),
        (lambda model, optimizer: congruency.DCL([]), "optimizer must be .* got list; .*congruency.project"),
        (lambda model, optimizer: congruency.DCL(torch.optim.SGD), r"got the class SGD; make one first: SGD\(model"),
        (lambda model, optimizer: congruency.GEM(optimizer, model=model.parameters()), "model must be .* a generator"),
        (lambda model, optimizer: congruency.project([1.0], torch.ones(1, 1)), "gradient must be a tensor, got"),
        (lambda model, optimizer: congruency.project(torch.ones(1), [[1.0]]), "constraints must be a tensor, got"),
        (lambda model, optimizer: congruency.pairwise_similarity([[1.0]]), "inputs must be a tensor, got a list"),
        (
            lambda model, optimizer: congruency.pairwise_congruency(model.parameters(), nn.functional.mse_loss, *BATCH),
            "model must be a torch.nn.Module, got a generator",
        ),
        (
            lambda model, optimizer: congruency.pairwise_congruency(model, torch.tensor(1.0), *BATCH),
            "loss must be a function.* got a Tensor; pass the function, not its value",
        ),
        (
            lambda model, optimizer: congruency.pairwise_congruency(model, nn.functional.mse_loss, [1], BATCH[1]),
            "inputs must be a tensor, got a list",
        ),
    ],
    ids=[
        "window", "flag", "module", "meter of a model", "meter of an optimizer", "decay as a number",
        "rescale as a number", "max_rescale as a word", "returning as a word", "capturable as a number",
        "head of an optimizer", "a class", "a scheduler", "a model", "no optimizer",
        "a class of optimizers", "a memory of parameters", "a list to project", "a list of constraints",
        "a list to compare", "pairs of parameters", "a loss that was computed", "a list of samples",
    ],
)  # fmt: skip
def test_errors_name_the_argument(make, message):
    with pytest.raises(TypeError, match=message):
        make(*made())


def test_parameters_that_were_read_already_are_empty():
    model, _ = made()
    parameters = model.parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with pytest.raises(ValueError, match=r"params is empty.*a generator that was read once.*call parameters\(\) again"):
        congruency.DCL(optimizer, parameters)


def test_a_bound_of_no_rescaling_is_refused():
    with pytest.raises(ValueError, match="no effect with rescale=False"):
        congruency.Cautious(made()[1], rescale=False, max_rescale=2.0)


@pytest.mark.parametrize("rest", [{"momentum": 0.9}, {"weight_decay": 0.1}], ids=str)
def test_cautious_without_momentum_says_that_it_does_nothing(rest):
    with pytest.warns(UserWarning, match=r"steps along the gradient itself.*use an optimizer with momentum") as caught:
        congruency.Cautious(made()[1])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        congruency.Cautious(made(**rest)[1])


def test_a_memory_needs_the_optimizers_model_and_tasks_that_can_be_told_apart():
    model, optimizer = made()
    with pytest.raises(ValueError, match="none of the optimizer's parameters is in the memory's model"):
        congruency.GEM(optimizer, model=copy.deepcopy(model))
    gem = congruency.GEM(optimizer, model=model)
    with pytest.raises(TypeError, match=r"task must be a number or a name, got a Tensor; pass int\(task\)"):
        gem.observe(torch.randn(2, 4), torch.tensor([0, 1]), torch.tensor(0))


def test_parameters_that_have_no_inner_products_here():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of nested tensors
        nested = nn.Parameter(torch.nested.nested_tensor([torch.randn(3), torch.randn(4)]))
    with pytest.raises(TypeError, match="parameter 0 is a nested tensor"):
        congruency.DCL(torch.optim.SGD([nested], lr=0.1))


class OwnSGD(torch.optim.SGD):
    """An optimizer that does something of its own around the step it inherits; torch calls every hook twice."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("closure", [False, True], ids=["no closure", "closure"])
@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: congruency.DCL(optimizer, window=7, floor=None),
        lambda optimizer: congruency.DCL(optimizer, window=7, floor=None, correct="update"),
        lambda optimizer: congruency.Cautious(optimizer),
    ],
    ids=["gradient", "update", "cautious"],
)
def test_an_inherited_step_is_corrected_once(make, closure):
    found = []
    for kind in (torch.optim.SGD, OwnSGD):
        torch.manual_seed(0)
        model, _ = made()
        optimizer = kind(model.parameters(), lr=0.5, weight_decay=0.1)
        corrector = make(optimizer)

        def loss(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            value = (model(torch.randn(8, 4)) - 1).square().mean()
            value.backward()
            return value

        for _ in range(30):
            if not closure:
                loss()
            optimizer.step(loss if closure else None)
        found.append((nn.utils.parameters_to_vector(model.parameters()), corrector.stats))
    (plain, expected), (own, stats) = found
    assert torch.equal(plain, own)
    assert stats.steps == expected.steps == 30
    assert stats.corrected_steps == expected.corrected_steps > 0
    corrector.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("name", ["target", "trigger", "blocks"])
def test_settings_are_not_changed_afterwards(name):
    """It would have no effect."""
    _, optimizer = made()
    for corrector in (congruency.DCL(optimizer), congruency.Cautious(optimizer)):
        with pytest.raises(AttributeError, match=name):
            setattr(corrector, name, getattr(corrector, name))


class TwiceSGD(torch.optim.SGD):
    """Takes the step that it inherits twice, and refuses to if told so."""

    refuses = False

    def step(self, closure=None):
        super().step(closure)
        if self.refuses:
            raise FloatingPointError
        return super().step(closure)


def test_a_step_that_raises_or_inherits_twice_is_one_step():
    """The step after an exception is corrected again, and of two inherited steps only the first counts."""
    model, _ = made()
    optimizer = TwiceSGD(model.parameters(), lr=0.1)
    dcl = congruency.DCL(optimizer, window=7, floor=None)
    for step in range(12):
        optimizer.refuses = step % 4 == 1
        model(torch.randn(8, 4)).square().mean().backward()
        with pytest.raises(FloatingPointError) if optimizer.refuses else contextlib.nullcontext():
            optimizer.step()
        assert dcl.stats.steps == step + 1


@pytest.fixture
def alone():
    """A process group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("use_orig_params", [False, True])
@pytest.mark.filterwarnings("ignore")  # FSDP1's own: it is deprecated, and one process shards nothing
def test_flattened_parameters_are_refused(alone, use_orig_params):
    cpu = torch.device("cpu")
    model = dist.fsdp.FullyShardedDataParallel(made()[0], device_id=cpu, use_orig_params=use_orig_params)
    with pytest.raises(TypeError, match=r"sharded by FullyShardedDataParallel \(FSDP1\).*use FSDP2"):
        congruency.DCL(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # on import of torch.distributed.optim
def test_an_optimizer_of_sharded_states_is_corrected_as_it_is(alone, strict):
    """Not the one inside, as with SAM: on several processes that has only a part of the parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer
    found = []
    for kind in (ZeroRedundancyOptimizer, None):
        torch.manual_seed(0)
        model, optimizer = made(momentum=0.9)
        if kind is not None:
            optimizer = kind(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
        cautious = congruency.Cautious(optimizer)
        train(model, optimizer, 20)
        assert int(cautious.stats.corrected_steps) > 10
        found.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    assert torch.equal(*found)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization as it is usually written: two half steps, neither called step()."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["weights"] = p.data.clone()
                p.add_(p.grad, alpha=group["rho"] / float(norm + 1e-12))

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["weights"]
        self.base_optimizer.step()


def half_steps(model, optimizer, inputs):
    for half in (optimizer.first_step, optimizer.second_step):
        model.zero_grad()
        model(inputs).square().mean().backward()
        half()


def test_a_wrapper_that_never_steps_warns():
    model = nn.Linear(4, 2)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.warns(UserWarning, match=r"SAM wraps another optimizer, SGD.*pass .* optimizer.base_optimizer"):
        dcl = congruency.DCL(optimizer, floor=None)
    half_steps(model, optimizer, torch.randn(8, 4))
    assert dcl.stats.steps == 0


def test_a_wrapper_without_hooks_names_the_optimizer_inside():
    import congruency._torchvision_compat  # timm imports torchvision

    timm = pytest.importorskip("timm.optim")
    inner = made()[1]
    for kind in (congruency.DCL, congruency.Cautious):
        with pytest.raises(TypeError, match=r"Lookahead has no hooks.*pass .* \(optimizer._base_optimizer\)"):
            kind(timm.Lookahead(inner))


def test_sam_is_corrected_at_the_inner_optimizer(strict):
    """Each gradient at the perturbed weights is projected by hand against the displacement of the unperturbed ones."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False).double()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.3)
    dcl = congruency.DCL(optimizer.base_optimizer, window=4, floor=None)
    expected, start = model.weight.detach().clone(), None
    corrected = 0
    for step in range(12):
        inputs = torch.randn(8, 4).double()
        gradient = lambda weight, inputs=inputs: inputs.T @ (inputs @ weight.T) / inputs.shape[0]  # noqa: E731
        first = gradient(expected).T
        perturbed = gradient(expected + 0.05 * first / first.norm()).T
        if step % 4 == 0:
            start = expected.clone()
        elif (perturbed * (start - expected)).sum() < 0:
            perturbed = congruency.project(perturbed.flatten(), (start - expected).flatten()[None]).view_as(perturbed)
            corrected += 1
        half_steps(model, optimizer, inputs)
        expected = expected - 0.3 * perturbed
        torch.testing.assert_close(model.weight.detach(), expected)
    assert dcl.stats.steps == 12
    assert int(dcl.stats.corrected_steps) == corrected > 0


class LoRA(nn.Module):
    """A frozen layer and a low-rank update of it."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, inputs):
        return self.base(inputs) + inputs @ self.down.T @ self.up.T


def test_lora_trains_and_its_head_is_refused(strict):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).requires_grad_(False)
    assert congruency.head(model) is model[2]  # nothing trains: no mistake yet
    model[0], model[2] = LoRA(model[0]), LoRA(model[2])
    with pytest.raises(ValueError, match=r"last layer, Linear, is frozen.*LoRA.*4 other parameters train"):
        congruency.head(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    dcl = congruency.DCL(optimizer, model[2].parameters(), window=10, floor=None)  # the frozen are left out
    with pytest.raises(ValueError, match="all frozen"):
        congruency.DCL(optimizer, model[2].base.parameters())
    losses = []
    inputs = torch.randn(32, 4)
    for _ in range(60):
        loss = (model(inputs) - inputs[:, :2]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert set(dcl.references._slots) == {model[2].down, model[2].up}
    assert re.search(r"step 60\b", repr(dcl))


@pytest.mark.parametrize("places", [["cpu"], ["cpu", "meta"]], ids=str)
def test_capturable_steps_are_for_one_cuda_device(places):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2, device=place)) for place in places], lr=0.1)
    congruency.DCL(optimizer, capturable=True)
    with pytest.raises(RuntimeError, match=f"parameters on one CUDA device, these are on {', '.join(places)}$"):
        optimizer.step()


def test_warnings_point_at_the_line_of_the_program_that_led_to_them():
    """Not into torch, whose hooks run the correction, nor into the package."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, optimizer = made(momentum=0.9)
        congruency.DCL(optimizer, references=3, window=3)  # never corrects
        congruency.DCL(optimizer, window=5, floor=None)  # a second one, and the paper's form with momentum
        wraps = torch.optim.SGD(model.parameters(), lr=0.1)
        wraps.inside = optimizer
        congruency.Cautious(wraps)
        other, plain = made()
        dcl = congruency.DCL(plain, window=5)
        state = plain.state_dict()
        train(other, plain)
        plain.load_state_dict(state)
        train(other, plain)  # with the old references
        for _ in range(10):
            plain.zero_grad()
            plain.step()  # without gradients
        train(other, plain, 120, scale=float("nan"))
    assert len({str(one.message)[:40] for one in caught}) == len(caught) == 8
    assert {one.filename for one in caught} == {__file__}
    assert dcl.stats.steps == 132


@pytest.mark.parametrize(
    ("attach", "advice"),
    [(True, "pass the optimizer whose step() runs"), (False, "with attach=False call DCL.correct() before each")],
)
def test_means_of_a_corrector_that_sees_no_step_warn_once(attach, advice):
    model, optimizer = made()
    dcl = congruency.DCL(optimizer, window=5, attach=attach)
    mistaken = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            train(model, mistaken)
            assert dcl.means() == {"steps": 0.0}
    (warning,) = caught
    assert f"this DCL has not seen a step yet: {'step()' if attach else 'with'}" in str(warning.message)
    assert advice in str(warning.message)
    assert warning.filename == __file__


def test_means_without_new_steps_do_not_warn(strict):
    model, optimizer = made()
    dcl = congruency.DCL(optimizer, window=5)
    dcl.means()  # before the first step, as a logger may
    train(model, optimizer)
    for _ in range(5):
        dcl.means()


def test_a_memory_without_samples_warns_once():
    model, optimizer = made()
    congruency.GEM(optimizer, model=model)
    with pytest.warns(
        UserWarning, match=r"no samples after 1000 steps.*call observe\(inputs, targets, task\)"
    ) as caught:
        train(model, optimizer, 1010)
    (warning,) = caught
    assert warning.filename == __file__


def test_a_first_task_that_is_observed_does_not_warn(strict):
    model, optimizer = made()
    gem = congruency.GEM(optimizer, model=model)
    gem.observe(torch.randn(2, 4), torch.tensor([0, 1]), 0)
    train(model, optimizer, 1010)
