"""Sources, blocks, missing gradients and skipped steps together: combinations that a random search found wrong."""

import pytest
import torch
from problems import parameter, step
from torch import nn
from torch.distributed import checkpoint

import congruency
from congruency.step.updates import _writes_to_gradients


def test_each_source_remembers_its_own_distances():
    """That another source starts over is no reason to forget how far the weights are from these references."""
    weight = parameter(0.0, 0.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    first, second = congruency.References(floor=1.0), congruency.References(window=4, floor=1.0)
    congruency.Corrector(optimizer, constraints=[first, second])
    for gradient in ([-2.0, 0.0], [-2.0, 0.0], [1.0, 0.0], [0.0, 0.0]):  # out to 4, back to 3
        step(optimizer, gradient)
    step(optimizer, [1.0, 1.0])  # the second source records: the first alone constrains, and the weights came back
    assert weight.grad.tolist() == pytest.approx([0.0, 1.0])


def test_a_distance_is_compared_over_the_same_parameters():
    """A parameter without a gradient makes the distance smaller, but the weights have not come back."""
    near, far = parameter(0.0, 0.0), parameter(0.0)
    optimizer = torch.optim.SGD([near, far], lr=1.0)
    congruency.DCL(optimizer, floor=1.0)
    step(optimizer, [-1.0, 0.0], [-9.0])
    step(optimizer, [-1.0, 0.0], [-9.0])
    step(optimizer, [1.0, 1.0], None)  # near moved away from its reference in the step before
    assert near.grad.tolist() == [1.0, 1.0]


def test_distances_resume_with_their_sources():
    weight = parameter(0.0, 0.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def made():
        sources = [congruency.References(floor=1.0), congruency.References(window=4, floor=1.0)]
        return congruency.Corrector(optimizer, constraints=sources)

    corrector = made()
    for gradient in ([-2.0, 0.0], [-2.0, 0.0], [1.0, 0.0], [0.0, 0.0]):
        step(optimizer, gradient)
    corrector.detach()
    resumed = made()
    resumed.load_state_dict(corrector.state_dict())
    step(optimizer, [1.0, 1.0])
    assert weight.grad.tolist() == pytest.approx([0.0, 1.0])
    state = resumed.state_dict()
    state["distances"]["counts"] = [1, 7]
    with pytest.raises(ValueError, match="distances of"):
        resumed.load_state_dict(state)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_distributed_checkpoint_of_the_middle_of_a_window_is_loaded_into_a_new_corrector(tmp_path):
    near, far = parameter(0.0), parameter(0.0)
    optimizer = torch.optim.SGD([near, far], lr=1.0)
    corrector = congruency.DCL(optimizer, window=9)
    for gradients in ([1.0], [1.0]), ([1.0], [1.0]), ([1.0], None):
        step(optimizer, *gradients)
    checkpoint.save({"dcl": corrector.state_dict()}, checkpoint_id=tmp_path)
    corrector.detach()
    resumed = congruency.DCL(optimizer, window=9)
    state = {"dcl": resumed.state_dict()}
    checkpoint.load(state, checkpoint_id=tmp_path)
    resumed.load_state_dict(state["dcl"])
    assert resumed.state_dict()["distances"] == {"squares": [[4.0]], "counts": [1], "left_out": [(1, 0)]}


@pytest.mark.parametrize(("correct", "blocks"), [("gradient", "element"), ("update", "joint"), ("update", "element")])
def test_a_gradient_that_is_not_finite_is_not_added_up_while_references_are_recorded(correct, blocks):
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=True)
    settings = {"mode": "anchor", "accumulate": "gradients", "correct": correct, "blocks": blocks}
    dcl = congruency.DCL(optimizer, references=2, **settings)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(1.0)  # as GradScaler sets them
    step(optimizer, [torch.inf, 0.0])
    assert dcl.references._slots[weight][0].tolist() == [0.0, 0.0]
    optimizer.found_inf.zero_()
    for _ in range(2):
        step(optimizer, [4.0, 0.0])
    assert int(dcl.stats.nonfinite_steps) == 1
    assert weight.tolist() == [-1.0, 0.0]  # the third step would go on along the sum of the gradients


def test_gradients_of_a_step_that_is_skipped_for_another_parameter_are_not_added_up():
    weight, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight, other], lr=1.0, fused=True)
    dcl = congruency.DCL(optimizer, [weight], mode="anchor", accumulate="gradients")
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(1.0)
    step(optimizer, [4.0], [torch.inf])
    assert dcl.references._slots[weight][0].tolist() == [0.0]


def test_a_fused_optimizer_has_divided_the_gradients_of_an_update_by_the_scale():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=True)
    dcl = congruency.DCL(optimizer, mode="anchor", accumulate="gradients", correct="update")
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    step(optimizer, [4.0])
    assert dcl.references._slots[weight][0].tolist() == [1.0]


def test_a_margin_of_an_update_takes_the_rates_of_parameters_with_a_gradient():
    """So that it agrees with the correction of the gradient under plain SGD."""
    moved = []
    for correct in ("gradient", "update"):
        slow, fast = parameter(0.0), parameter(0.0)
        optimizer = torch.optim.SGD([{"params": [slow], "lr": 0.1}, {"params": [fast], "lr": 10.0}])
        directions = congruency.Directions(margin=1.0)
        congruency.Corrector(optimizer, constraints=[directions], correct=correct)
        directions.set([[torch.ones(1, dtype=torch.float64)]], [slow])
        step(optimizer, [1.0], None)
        moved.append(slow.item())
    assert moved == pytest.approx([-0.2, -0.2])


@pytest.mark.parametrize("kind", ["descent", "cautious"])
def test_a_gradient_whose_negation_is_pending_constrains_with_its_own_sign(kind):
    weight = parameter(0.0, 0.0)
    optimizer = torch.optim.SGD([weight], lr=1.0, foreach=False)
    if kind == "cautious":
        congruency.Cautious(optimizer)
    else:
        congruency.Corrector(optimizer, constraints=[congruency.Descent()], correct="update")
    weight.grad = torch._neg_view(torch.tensor([-1.0, 2.0], dtype=torch.float64))
    optimizer.step()
    assert weight.tolist() == [-1.0, 2.0]


@pytest.mark.parametrize("foreach", [False, True])
def test_cautious_compares_with_the_gradient_before_nesterov_momentum(foreach):
    """Torch's foreach form writes the gradient with its momentum to the gradient itself."""
    weight = parameter(0.0, 0.0)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9, nesterov=True, foreach=foreach)
    congruency.Cautious(optimizer, rescale=False)
    step(optimizer, [4.0, 4.0])
    before = weight.tolist()
    step(optimizer, [-1.0, 1.0])  # the momentum outweighs the first element: its update is left out
    assert weight.tolist() == pytest.approx([before[0], before[1] - 5.14])


@pytest.mark.parametrize("foreach", [False, True])
def test_gradients_are_added_up_without_nesterov_momentum(foreach):
    weight = parameter(0.0)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9, nesterov=True, foreach=foreach)
    dcl = congruency.DCL(optimizer, mode="anchor", accumulate="gradients", correct="update")
    step(optimizer, [1.0])
    assert dcl.references._slots[weight][0].tolist() == [1.0]
    assert weight.grad.tolist() == [1.0]


def test_only_a_foreach_form_overwrites_gradients():
    """Torch's Muon, which has Nesterov's momentum and no such form, takes closures on a GPU too."""
    group = {"nesterov": True, "params": [torch.empty(1, device="meta")]}  # as on a GPU: torch chooses foreach
    assert _writes_to_gradients({**group, "foreach": None})
    assert not _writes_to_gradients(group)


def test_gradients_of_a_closure_that_nesterov_overwrites_are_refused():
    weight = parameter(0.0)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5, nesterov=True, foreach=True)
    congruency.Cautious(optimizer)

    def closure():
        weight.grad = torch.ones_like(weight)
        return 0.0

    with pytest.raises(RuntimeError, match="pass foreach=False"):
        optimizer.step(closure)


@pytest.mark.parametrize("blocks", ["joint", "element"])
def test_a_margin_is_that_of_the_gradient_without_its_scale(blocks):
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=True)
    directions = congruency.Directions(margin=2.0)
    congruency.Corrector(optimizer, constraints=[directions], blocks=blocks)
    directions.set([[torch.ones(1)]], [weight])
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    step(optimizer, [4.0])
    assert weight.tolist() == [-3.0]
