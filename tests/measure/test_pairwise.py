"""Congruency between samples, against one backward pass a sample."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import congruency.measure.pairwise as pairwise_module
from congruency.measure.pairwise import pairwise_congruency, pairwise_similarity
from congruency.modules import head

N = 7


class Net(nn.Module):
    """Convolution, batch norm, dropout, and a weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.hidden.weight
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).mean((2, 3))
        return self.fc(self.dropout(self.tied(torch.tanh(self.hidden(x)))))


@pytest.fixture
def problem(device):
    model = Net().to(device).eval()
    model.norm.running_mean.normal_()
    return model, torch.randn(N, 2, 5, 5, device=device), torch.arange(N, device=device) % 3


def slow_congruency(model, loss, inputs, targets, params) -> torch.Tensor:
    params = list(params)
    rows = []
    for i in range(len(inputs)):
        value = loss(model(inputs[i : i + 1]), targets[i : i + 1])
        gradients = torch.autograd.grad(value, params, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.double().flatten() for g in gradients]))
    nu = torch.empty(len(rows), len(rows), dtype=torch.float64, device=inputs.device)
    for i, j in itertools.product(range(len(rows)), repeat=2):
        nu[i, j] = rows[i] @ rows[j] / (rows[i].norm() * rows[j].norm())
    return nu


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
def test_equals_one_backward_pass_a_sample(problem, chunk_size):
    model, x, y = problem
    nu = pairwise_congruency(model, F.cross_entropy, x, y, chunk_size=chunk_size)
    assert nu.dtype == torch.float64
    assert torch.equal(nu, nu.T)
    assert torch.equal(nu.diagonal(), torch.ones_like(nu.diagonal()))
    torch.testing.assert_close(nu, slow_congruency(model, F.cross_entropy, x, y, model.parameters()), rtol=0, atol=1e-5)


def test_selected_parameters_or_names(problem):
    model, x, y = problem
    expected = slow_congruency(model, F.cross_entropy, x, y, model.fc.parameters())
    for params in (head(model).parameters(), ["fc.weight", "fc.bias"], [model.fc.weight, "fc.bias", "fc.bias"]):
        nu = pairwise_congruency(model, F.cross_entropy, x, y, params)
        assert not nu.requires_grad  # the parameters not selected record nothing
        torch.testing.assert_close(nu, expected, rtol=0, atol=1e-5)


def test_tied_parameter_under_either_name(problem):
    model, x, y = problem
    expected = slow_congruency(model, F.cross_entropy, x, y, [model.hidden.weight])
    for name in ("hidden.weight", "tied.weight"):
        nu = pairwise_congruency(model, F.cross_entropy, x, y, [name])
        torch.testing.assert_close(nu, expected, rtol=0, atol=1e-5)


def test_default_is_what_requires_a_gradient(problem):
    model, x, y = problem
    model.requires_grad_(False)
    model.fc.requires_grad_(True)
    expected = slow_congruency(model, F.cross_entropy, x, y, model.fc.parameters())
    torch.testing.assert_close(pairwise_congruency(model, F.cross_entropy, x, y), expected, rtol=0, atol=1e-5)


def test_wrapped_model_and_its_names(problem):
    model, x, y = problem
    expected = pairwise_congruency(model, F.cross_entropy, x, y, model.fc.parameters())
    for wrapped, prefix in ((torch.compile(model), "_orig_mod."), (nn.DataParallel(model), "module.")):
        for name in ("fc.", prefix + "fc."):
            nu = pairwise_congruency(wrapped, F.cross_entropy, x, y, [name + "weight", name + "bias"])
            assert torch.equal(nu, expected)


def test_mean_sum_and_unreduced_losses_agree(problem):
    model, x, _ = problem
    y = torch.randn(N, 3, device=x.device)
    results = [
        pairwise_congruency(model, nn.MSELoss(reduction=reduction), x, y) for reduction in ("mean", "sum", "none")
    ]
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])


def test_known_answer_on_a_linear_model(device):
    # the gradient of (w.x - t)^2 / 2 is (w.x - t) x: with w = 0, -t x
    model = nn.Linear(2, 1, bias=False).to(device)
    nn.init.zeros_(model.weight)
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [1.0, 1.0]], device=device)
    t = torch.tensor([[1.0], [1.0], [-1.0], [0.0]], device=device)
    nu = pairwise_congruency(model, F.mse_loss, x, t, chunk_size=3)
    nan = float("nan")
    expected = [[1, 0, -1, nan], [0, 1, 0, nan], [-1, 0, 1, nan], [nan, nan, nan, nan]]
    torch.testing.assert_close(nu, torch.tensor(expected, dtype=torch.float64, device=device), equal_nan=True)


def test_small_gradients_do_not_vanish(problem):
    model, x, y = problem
    scaled = pairwise_congruency(model, lambda o, t: 1e-25 * F.cross_entropy(o, t), x, y)
    torch.testing.assert_close(scaled, pairwise_congruency(model, F.cross_entropy, x, y), rtol=0, atol=1e-4)


def test_leaves_the_model_as_it_was(problem):
    model, x, y = problem
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    pairwise_congruency(model, F.cross_entropy, x, y)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model.fc.weight.grad, torch.ones_like(model.fc.weight))
    assert model.conv.weight.grad is None
    assert not model.training


def test_holds_at_most_two_chunks_of_gradients(problem, monkeypatch):
    model, x, y = problem
    made = pairwise_module._per_sample_gradients
    alive, most = [], 0

    def counting(*args):
        inner = made(*args)

        def gradients(*batch):
            nonlocal most
            result = inner(*batch)
            alive.append(torch.multiprocessing.reductions.StorageWeakRef(result["fc.weight"].untyped_storage()))
            most = max(most, sum(not ref.expired() for ref in alive))
            assert len(result["fc.weight"]) <= 2
            return result

        return gradients

    monkeypatch.setattr(pairwise_module, "_per_sample_gradients", counting)
    pairwise_congruency(model, F.cross_entropy, x, y, chunk_size=2)
    assert len(alive) == 4 * 5 // 2
    assert most == 2


def test_batch_norm_in_training_mode_is_refused(problem):
    model, x, y = problem
    model.norm.train()
    with pytest.raises(RuntimeError, match=r"BatchNorm2d 'norm' is in training mode.*call model\.eval\(\)"):
        pairwise_congruency(model, F.cross_entropy, x, y, model.fc.parameters())


def test_batch_norm_without_statistics_is_refused(device):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)).to(device).eval()
    with pytest.raises(RuntimeError, match="BatchNorm1d '1' keeps no running statistics"):
        pairwise_congruency(model, F.mse_loss, torch.ones(3, 2, device=device), torch.ones(3, 2, device=device))


def test_dropout_in_training_mode_is_refused(problem):
    model, x, y = problem
    model.dropout.train()
    with pytest.raises(RuntimeError, match=r"draws random numbers.*call model\.eval\(\)"):
        pairwise_congruency(model, F.cross_entropy, x, y)


def test_other_errors_pass_unchanged(problem):
    model, x, y = problem
    with pytest.raises(RuntimeError, match="channels"):
        pairwise_congruency(model, F.cross_entropy, x[:, :1], y)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ([], ValueError, "no parameters selected"),
        (["fc.wait"], ValueError, "params holds 'fc.wait', which is not a parameter of Net"),
        ([torch.ones(2, 3)], ValueError, r"a tensor of shape \(2, 3\), which is not a parameter of Net"),
        ("fc.weight", TypeError, "iterable of parameters or names, got str"),
        (nn.Sequential(nn.Linear(2, 2)), TypeError, "got Sequential"),
    ],
)
def test_errors_about_params(problem, params, error, message):
    model, x, y = problem
    with pytest.raises(error, match=message):
        pairwise_congruency(model, F.cross_entropy, x, y, params)


def test_errors_about_samples(problem):
    model, x, y = problem
    with pytest.raises(ValueError, match="the same length, got 7 and 6"):
        pairwise_congruency(model, F.cross_entropy, x, y[1:])
    with pytest.raises(ValueError, match="chunk_size must be a positive"):
        pairwise_congruency(model, F.cross_entropy, x, y, chunk_size=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32])
def test_similarity_equals_slow_loop(device, dtype):
    x = (torch.rand(5, 3, 4, 4, device=device) * 200).to(dtype)
    x[2] = 0
    sim = pairwise_similarity(x)
    assert torch.equal(sim.nan_to_num(), sim.nan_to_num().T)
    for i, j in itertools.product(range(5), repeat=2):
        a, b = x[i].double().flatten(), x[j].double().flatten()
        expected = float("nan") if 2 in (i, j) else (a @ b / (a.norm() * b.norm())).item()
        assert sim[i, j].item() == pytest.approx(expected, nan_ok=True, abs=1e-12)


def test_similarity_of_extreme_scales(device):
    x = torch.randn(3, 4, device=device, dtype=torch.float64)
    scales = torch.tensor([[1e-200], [1.0], [1e200]], device=device, dtype=torch.float64)
    torch.testing.assert_close(pairwise_similarity(scales * x), pairwise_similarity(x))


def test_similarity_refuses_shapes_without_samples():
    with pytest.raises(ValueError, match=r"shape \(n, ...\) with elements, got \(3,\)"):
        pairwise_similarity(torch.ones(3))
    with pytest.raises(ValueError, match=r"got \(3, 0\)"):
        pairwise_similarity(torch.ones(3, 0))
    assert pairwise_similarity(torch.ones(0, 4)).shape == (0, 0)
