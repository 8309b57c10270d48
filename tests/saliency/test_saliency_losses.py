"""The losses, each by hand and against its metric; sums; images without fixations."""

import math

import pytest
import torch
from saliency_maps import problem

from congruency.saliency import metrics
from congruency.saliency.losses import LOSSES, SaliencyLoss, Target, make_loss


def target():
    density = torch.rand(3, 12, 17, generator=torch.Generator().manual_seed(3))
    return Target(density, problem()[1])


def test_losses_by_hand():
    saliency = torch.tensor([[[1.0, 1.0], [1.0, 1.0]]])
    truth = Target(torch.tensor([[[2.0, 0.0], [0.0, 2.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]))
    assert make_loss("l1")(saliency, truth).item() == pytest.approx(4 * 0.25)
    assert make_loss("kl")(saliency, truth).item() == pytest.approx(math.log(2), abs=1e-5)
    assert make_loss("bhattacharyya")(saliency, truth).item() == pytest.approx(math.log(2) / 2, abs=1e-5)
    assert make_loss("cosine")(saliency, truth).item() == pytest.approx(1 - math.sqrt(0.5), abs=1e-6)
    uneven = torch.tensor([[[3.0, 1.0], [1.0, 3.0]]])
    assert make_loss("cc")(uneven, truth).item() == pytest.approx(0, abs=1e-6)
    assert make_loss("cc")(4 - uneven, truth).item() == pytest.approx(2)
    assert make_loss("nss")(uneven, truth).item() == pytest.approx(-1)  # mean 2, deviation 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kl", lambda s, t: metrics.kl(s, t.density)),
        ("l1", lambda s, t: 2 - 2 * metrics.sim(s, t.density)),
        ("cc", lambda s, t: 1 - metrics.cc(s, t.density)),
        ("nss", lambda s, t: -metrics.nss(s, t.fixations)),
    ],
)
def test_losses_agree_with_the_metrics(name, expected):
    saliency = problem(seed=5)[0] + 0.01
    assert LOSSES[name](saliency, target()).item() == pytest.approx(
        expected(saliency, target()).mean().item(), rel=1e-4
    )


def test_l1_ignores_the_scale_and_is_2_without_overlap():
    saliency = torch.tensor([[[1.0, 0.0]]])
    truth = Target(torch.tensor([[[0.0, 5.0]]]), torch.tensor([[[0.0, 1.0]]]))
    assert make_loss()(saliency, truth).item() == pytest.approx(2)
    assert make_loss()(7 * truth.density, truth).item() == pytest.approx(0, abs=1e-6)


def test_sums_are_parsed():
    saliency = problem(seed=5)[0]
    loss = make_loss("kl + 0.5*cc+nss")
    parts = {name: LOSSES[name](saliency, target()) for name in LOSSES}
    torch.testing.assert_close(loss(saliency, target()), parts["kl"] + 0.5 * parts["cc"] + parts["nss"])
    assert str(loss) == "kl+0.5*cc+nss"
    as_dict = {"density": target().density, "fixations": target().fixations}
    torch.testing.assert_close(loss(saliency, as_dict), loss(saliency, target()))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_have_finite_gradients_even_for_constant_maps(name):
    for saliency in (torch.full((3, 12, 17), 0.5), torch.zeros(3, 12, 17), problem()[0]):
        saliency.requires_grad_()
        make_loss(name)(saliency, target()).backward()
        assert saliency.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_an_image_without_fixations_has_no_gradient(name):
    saliency, truth = problem(seed=5)[0].requires_grad_(), target()
    truth.density[1], truth.fixations[1] = 0, 0
    make_loss(name)(saliency, truth).backward()
    assert (saliency.grad[1] == 0).all()
    assert (saliency.grad[0] != 0).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l2", "losses must be among l1, cosine, bhattacharyya, kl, cc, nss, got 'l2'"),
        ("x*kl", "a weight that is not a number: 'x'"),
        ("-1*kl", "a weight that is not a positive number: '-1'"),
        ("kl+nan*cc", "a weight that is not a positive number: 'nan'"),
    ],
)
def test_unknown_losses_are_reported(text, message):
    with pytest.raises(ValueError, match=message):
        make_loss(text)
    with pytest.raises(ValueError, match="got none"):
        SaliencyLoss({})
