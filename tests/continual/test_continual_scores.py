"""Accuracy and transfers, by hand."""

import math

import pytest
import torch

from congruency.continual import Outcome, scores

MATRIX = [[0.9, 0.3, 0.2], [0.7, 0.8, 0.5], [0.4, 0.6, 1.0]]
BASELINE = [0.05, 0.1, 0.2]
# accuracy: (0.4 + 0.6 + 1.0) / 3 = 2/3
# backward: (0.4 - 0.9) + (0.6 - 0.8) = -0.7, over 2 terms
# forward: (0.3 - 0.1) + (0.5 - 0.2) = 0.5, over the same
# forgetting: (0.9 - 0.4) + (0.8 - 0.6) = 0.7, over 2 terms


def test_by_hand():
    found = scores(MATRIX, BASELINE)
    assert float(found.accuracy) == pytest.approx(2 / 3)
    assert float(found.backward_transfer) == pytest.approx(-0.35)
    assert float(found.forward_transfer) == pytest.approx(0.25)


def test_forgetting_counts_from_the_best_accuracy_at_any_time():
    assert float(scores(MATRIX, BASELINE).forgetting) == pytest.approx(0.35)
    improved = [
        [0.5, 0.9, 0.0],
        [0.8, 0.6, 0.0],
        [0.7, 0.7, 1.0],
    ]  # best: 0.8, learned later; 0.9, before it was learned
    assert float(scores(improved, BASELINE).forgetting) == pytest.approx(((0.8 - 0.7) + (0.9 - 0.7)) / 2)
    assert math.isnan(float(scores([[0.5]], [0.1]).forgetting))


def test_baselines_are_shared_or_one_per_matrix():
    three, two = torch.tensor(MATRIX).repeat(3, 1, 1), torch.tensor(BASELINE).repeat(2, 1)
    with pytest.raises(ValueError, match=r"one for all or one per matrix, got \(2, 3\) for \(3, 3, 3\)"):
        scores(three, two)
    shared, own = scores(three, BASELINE), scores(three, torch.tensor(BASELINE).repeat(3, 1))
    torch.testing.assert_close(shared.forward_transfer, own.forward_transfer)


def test_leading_dimensions_are_a_batch():
    matrix, baseline = torch.rand(4, 2, 5, 5), torch.rand(4, 1, 5)
    together = scores(matrix, baseline)
    for i in range(4):
        for j in range(2):
            alone = scores(matrix[i, j].tolist(), baseline[i, 0].tolist())
            for name in ("accuracy", "backward_transfer", "forward_transfer"):
                value = getattr(together, name)
                assert value.shape == (4, 2)
                torch.testing.assert_close(value[i, j], getattr(alone, name))


def test_extreme_backward_transfers():
    keeps = torch.tril(torch.ones(4, 4))
    assert float(scores(keeps, torch.zeros(4)).backward_transfer) == 0.0
    forgets = torch.eye(4)
    assert float(scores(forgets, torch.zeros(4)).backward_transfer) == -1.0
    assert float(scores(forgets, torch.zeros(4)).accuracy) == 0.25
    assert float(scores(forgets, torch.full((4,), 0.1)).forward_transfer) == pytest.approx(-0.1)


def test_one_task_has_no_transfer():
    found = scores([[0.7]], [0.1])
    assert float(found.accuracy) == pytest.approx(0.7)
    assert math.isnan(found.backward_transfer)
    assert math.isnan(found.forward_transfer)


@pytest.mark.parametrize("shape", [(), (3,), (0, 0), (2, 3), (5, 3, 2)])
def test_matrices_that_are_not_square_are_refused(shape):
    with pytest.raises(ValueError, match=r"matrix must be square, \(\.\.\., T, T\)"):
        scores(torch.zeros(shape), torch.zeros(3))


@pytest.mark.parametrize("shape", [(), (2,), (3, 4)])
def test_baselines_of_another_length_are_refused(shape):
    with pytest.raises(ValueError, match=r"baseline must be \(\.\.\., 3\), one accuracy per task"):
        scores(torch.zeros(3, 3), torch.zeros(shape))


def test_an_outcome_scores_every_run_with_the_baseline_of_its_seed():
    matrix = torch.tensor(MATRIX).expand(2, 3, 3, 3)
    baseline = torch.tensor([BASELINE, [0.0, 0.0, 0.0]])
    outcome = Outcome(matrix, baseline, torch.full((2, 3, 3), torch.nan), torch.full((2, 3, 3, 3), torch.nan))
    forward = outcome.scores().forward_transfer
    torch.testing.assert_close(forward, torch.tensor([[0.25] * 3, [0.4] * 3], dtype=torch.float64))
