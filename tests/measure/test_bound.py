"""Theorem 1 on functions whose Lipschitz constant is known: what holds, what does not."""

import itertools

import pytest
import torch
from torch import Tensor

from congruency.measure import congruency
from congruency.measure.bound import lower_bound

STEPS = 12
ROUNDING = 1e-9


def descend(gradient, x: Tensor, step_size: float) -> Tensor:
    """Gradients g_0..g_K of gradient descent from x."""
    gradients = []
    for _ in range(STEPS + 1):
        gradients.append(gradient(x))
        x = x - step_size * gradients[-1]
    return torch.stack(gradients)


def quadratic(seed: int, device, indefinite: bool = False):
    """x'Ax/2: the gradient's Lipschitz constant is the eigenvalue largest in size."""
    generator = torch.Generator().manual_seed(seed)
    eigenvalues = torch.rand(6, generator=generator, dtype=torch.float64) * 10
    if indefinite:
        eigenvalues[:3] *= -1
    basis = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0]
    hessian = (basis * eigenvalues @ basis.T).to(device)
    start = torch.randn(6, generator=generator, dtype=torch.float64).to(device)
    return lambda x: hessian @ x, start, eigenvalues.abs().max().item()


def logistic(seed: int, device):
    """mean log(1 + exp(-y a'x)): the Lipschitz constant is at most the largest eigenvalue of A'A / 4n."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(30, generator=generator, dtype=torch.float64).sign()
    lipschitz = torch.linalg.eigvalsh(a.T @ a / (4 * len(a))).max().item()
    rows = (y[:, None] * a).to(device)
    start = 3 * torch.randn(5, generator=generator, dtype=torch.float64).to(device)
    return lambda x: -(torch.sigmoid(-rows @ x) @ rows) / len(rows), start, lipschitz


PROBLEMS = {
    "quadratic": quadratic,
    "saddle": lambda seed, device: quadratic(seed, device, indefinite=True),
    "logistic": logistic,
}


def measured(gradients: Tensor) -> Tensor:
    return congruency(gradients[..., 1:, :], gradients.cumsum(-2)[..., :-1, :])


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.9, 1.0, 1.5, 1.9, 2.5])
def test_sharp_and_expanded_hold_below_and_above_one_over_l(device, problem, share):
    reached = 0
    for seed in range(10):
        gradient, start, lipschitz = PROBLEMS[problem](seed, device)
        gradients = descend(gradient, start, share / lipschitz)
        sharp, expanded = (
            lower_bound(gradients, share / lipschitz, lipschitz, form=form)[1:] for form in ("sharp", "expanded")
        )
        nu = measured(gradients)
        assert (sharp <= nu + ROUNDING).all()
        assert (expanded <= sharp + ROUNDING).all()
        reached += int((sharp > -1).sum())
    # a bound that is -1 everywhere would pass all of the above; beyond 2 / L, where descent may diverge, it may be
    assert reached > 0 or share > 2


def test_sharp_is_tight_without_a_step(device):
    gradients = torch.ones(4, 3, device=device)
    torch.testing.assert_close(lower_bound(gradients, 0.0, 1.0)[1:], torch.ones(3, device=device))


def test_too_small_a_lipschitz_constant_is_no_bound(device):
    # the gradient turns round, so that the congruency is -1; with the true L, 3, the bound is -1 as well
    gradients = descend(lambda x: 3 * x, torch.ones(1, device=device, dtype=torch.float64), 0.5)
    assert lower_bound(gradients, 0.5, 3.0)[1].item() == pytest.approx(-1.0)
    assert lower_bound(gradients, 0.5, 1.0)[1].item() > measured(gradients)[0].item() + 0.5


def test_printed_form_fails_for_two_equal_gradients(device):
    # f(x) = x'x/2 * 1e-3 with step 1: the gradients hardly change, and L eta = 1e-3
    gradients = descend(lambda x: 1e-3 * x, torch.ones(2, device=device, dtype=torch.float64), 1.0)
    printed = lower_bound(gradients, 1.0, 1e-3, form="printed")
    nu = measured(gradients)
    assert nu[1].item() == pytest.approx(1.0)
    assert printed[2].item() == pytest.approx(2.0, abs=0.01)
    assert (printed[2:] > nu[1:] + 0.5).all()
    assert (lower_bound(gradients, 1.0, 1e-3)[1:] <= nu + ROUNDING).all()


def test_printed_form_exceeds_measured_congruency_on_logistic_regression(device):
    gradient, start, lipschitz = logistic(0, device)
    gradients = descend(gradient, start, 0.01 / lipschitz)
    assert (lower_bound(gradients, 0.01 / lipschitz, lipschitz, form="printed")[2:] > measured(gradients)[1:]).all()


def test_printed_and_expanded_agree_after_one_step(device):
    gradients = torch.randn(2, 5, device=device, dtype=torch.float64)
    forms = [lower_bound(gradients, 0.2, 1.5, form=form)[1] for form in ("printed", "expanded")]
    torch.testing.assert_close(*forms)


def slow_bound(g: list[list[float]], curvature: float, k: int, form: str) -> float:
    def norm(x: list[float]) -> float:
        return sum(value * value for value in x) ** 0.5

    def past(i: int) -> list[float]:
        return [sum(row[column] for row in g[:i]) for column in range(len(g[0]))]

    if norm(g[k]) == 0 or norm(past(k)) == 0:
        return float("nan")
    squares = sum(norm(g[i]) ** 2 for i in range(k))
    crossed = sum(norm(g[i]) * norm(past(i)) for i in range(k))
    scale = norm(g[k]) * norm(past(k))
    if form == "sharp":
        value = ((1 - curvature / 2) * squares - curvature / 2 * norm(past(k)) ** 2) / scale
    elif form == "expanded":
        value = (1 - curvature) * squares / scale - curvature * crossed / scale
    else:
        value = (1 - curvature) * sum(norm(g[i]) / norm(g[k]) for i in range(k)) - curvature * crossed / scale
    return max(value, -1.0)


@pytest.mark.parametrize("form", ["sharp", "expanded", "printed"])
def test_equals_slow_loop_over_batches(device, form):
    gradients = torch.randn(2, 3, 6, 4, device=device, dtype=torch.float64)
    gradients[0, 0, 2] = 0  # no gradient at k = 2
    gradients[0, 1, 1] = -gradients[0, 1, 0]  # nothing accumulated at k = 2
    step_size = torch.rand(2, 1, device=device, dtype=torch.float64)
    lipschitz = torch.rand(3, device=device, dtype=torch.float64)
    bound = lower_bound(gradients, step_size, lipschitz, form=form)
    assert bound.shape == (2, 3, 6)
    for i, j, k in itertools.product(range(2), range(3), range(6)):
        curvature = (step_size[i, 0] * lipschitz[j]).item()
        expected = slow_bound(gradients[i, j].tolist(), curvature, k, form)
        assert bound[i, j, k].item() == pytest.approx(expected, nan_ok=True, rel=1e-9)
    assert bound[0, 0, 2].isnan()
    assert bound[0, 1, 2].isnan()
    assert bound[..., 0].isnan().all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scale_of_the_gradients_does_not_matter(device, scale):
    gradients = torch.randn(5, 8, device=device)
    scaled = lower_bound(scale * gradients, 0.1, 1.0)
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled, lower_bound(gradients, 0.1, 1.0), equal_nan=True)


def test_errors_say_what_is_wrong():
    gradients = torch.ones(3, 2)
    with pytest.raises(ValueError, match="form must be one of 'sharp', 'expanded', 'printed', got 'tight'"):
        lower_bound(gradients, 0.1, 1.0, form="tight")
    with pytest.raises(ValueError, match="step_size must be finite and at least 0, got -1"):
        lower_bound(gradients, -1, 1.0)
    with pytest.raises(ValueError, match="lipschitz must be finite and at least 0, got nan"):
        lower_bound(gradients, 0.1, float("nan"))
    with pytest.raises(ValueError, match=r"shape \(..., k \+ 1, p\), got \(2,\)"):
        lower_bound(gradients[0], 0.1, 1.0)
    with pytest.raises(TypeError, match="floating-point"):
        lower_bound(gradients.long(), 0.1, 1.0)
