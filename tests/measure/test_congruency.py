"""The cosine, against numpy in long double, over shapes, dtypes and scales."""

import numpy as np
import pytest
import torch

from congruency.measure import congruency


def slow_cosine(g: torch.Tensor, a: torch.Tensor) -> float:
    x, y = (t.detach().cpu().double().numpy().astype(np.longdouble).ravel() for t in (g, a))
    return float((x * y).sum() / np.sqrt((x * x).sum()) / np.sqrt((y * y).sum()))


def test_known_angles(device):
    g = torch.tensor([1.0, 0.0], device=device)
    a = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-0.5, 0.0], [1.0, 1.0]], device=device)
    expected = torch.tensor([1.0, 0.0, -1.0, 0.5**0.5], device=device)
    torch.testing.assert_close(congruency(g, a), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equals_slow_cosine_in_every_dtype(device, dtype):
    g, a = torch.randn(2, 5, 300, device=device).to(dtype)
    nu = congruency(g, a)
    assert nu.dtype == dtype
    assert nu.device.type == device.type
    # 300 terms summed in float64 in any order, and the result rounded
    tolerance = torch.finfo(dtype).eps + 300 * torch.finfo(torch.float64).eps
    for i in range(5):
        assert nu[i].item() == pytest.approx(slow_cosine(g[i], a[i]), abs=tolerance)


def test_batches_broadcast(device):
    g, a = torch.randn(4, 1, 7, device=device), torch.randn(3, 7, device=device)
    nu = congruency(g, a)
    assert nu.shape == (4, 3)
    for i in range(4):
        for j in range(3):
            assert nu[i, j].item() == pytest.approx(slow_cosine(g[i, 0], a[j]), abs=1e-6)


@pytest.mark.parametrize("left", [1e-37, 1e-30, 1.0, 1e30, 1e37])
@pytest.mark.parametrize("right", [1e-30, 1e30])
def test_scale_does_not_matter_in_float32(device, left, right):
    g, a = torch.randn(2, 50, device=device)
    torch.testing.assert_close(congruency(left * g, right * a), congruency(g, a), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_scale_does_not_matter_in_float64(device, scale):
    g, a = torch.randn(2, 50, device=device, dtype=torch.float64)
    torch.testing.assert_close(congruency(scale * g, scale * a), congruency(g, a), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(congruency([scale * g], [scale * a]), congruency(g, a), rtol=1e-12, atol=1e-12)


def test_parallel_vectors_stay_within_one(device):
    g = torch.randn(2000, 11, device=device, dtype=torch.float64)
    nu = torch.cat([congruency(g, 3 * g), congruency(g, -0.1 * g)])
    assert nu.abs().max() <= 1
    torch.testing.assert_close(nu.abs(), torch.ones_like(nu), rtol=1e-14, atol=0)


def test_zero_and_non_finite_vectors_are_undefined(device):
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0], [float("inf"), 1.0], [float("nan"), 1.0]], device=device)
    assert congruency(x, torch.ones(2, device=device)).isnan().tolist() == [False, True, True, True]
    assert congruency(torch.ones(2, device=device), x).isnan().tolist() == [False, True, True, True]
    assert congruency([x[1]], [x[0]]).isnan()


def test_lists_of_tensors_are_one_vector(device):
    shapes = [(3, 4), (), (2, 5, 2)]
    g = [torch.randn(shape, device=device) for shape in shapes]
    a = [torch.randn(shape, device=device) * 1e25 for shape in shapes]
    nu = congruency(g, tuple(a))
    assert nu.shape == ()
    joined = [torch.cat([x.flatten() for x in side]) for side in (g, a)]
    assert nu.item() == pytest.approx(slow_cosine(*joined), abs=1e-6)
    # a layer of zeros is part of a vector that is not zero
    assert not congruency([g[0], 0 * g[1]], [a[0], a[1]]).isnan()


def test_lists_of_mixed_dtypes(device):
    g = [torch.randn(8, device=device).bfloat16(), torch.randn(8, device=device).half()]
    nu = congruency(g, g)
    assert nu.dtype == torch.float32
    assert nu.item() == 1.0


def test_can_be_differentiated(device):
    g, a = torch.randn(2, 2, 3, device=device, dtype=torch.float64, requires_grad=True).unbind()
    assert torch.autograd.gradcheck(congruency, (g, a))


@pytest.mark.parametrize(
    ("g", "a", "error", "message"),
    [
        (torch.ones(3), torch.ones(4), ValueError, r"last dimension, got \(3,\) and \(4,\)"),
        (torch.ones(2, 3), torch.ones(4, 3), ValueError, r"broadcast, got \(2, 3\) and \(4, 3\)"),
        (torch.tensor(1.0), torch.ones(1), ValueError, "last dimension to take"),
        (torch.ones(2, 0), torch.ones(2, 0), ValueError, "at least one element"),
        (torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64), TypeError, "floating-point"),
        (torch.ones(3), [torch.ones(3)], TypeError, "both be tensors, or both be sequences"),
        ([torch.ones(3)], [torch.ones(3)] * 2, ValueError, "gradient has 1 tensors and accumulated 2"),
        ([], [], ValueError, "at least one tensor"),
        ([torch.ones(3), torch.ones(2, 2)], [torch.ones(3), torch.ones(4)], ValueError, r"gradient\[1\] has shape"),
        ([torch.ones(3), None], [torch.ones(3), torch.ones(4)], TypeError, r"gradient\[1\] must be a tensor, got None"),
    ],
)
def test_errors_say_what_is_wrong(g, a, error, message):
    with pytest.raises(error, match=message):
        congruency(g, a)
