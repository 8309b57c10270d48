"""Rankings with known answers, flips and folds that keep their promises, and verdicts that follow from the numbers."""

import numpy
import pytest
import torch
from cleanlab.rank import get_label_quality_scores
from sklearn.metrics import roc_auc_score

from congruency.experiments.audit.audit import Audit, agreement, pooled, scored
from congruency.experiments.audit.flipping import flip
from congruency.experiments.audit.quality import label_quality
from congruency.experiments.audit.ranking import RANKINGS, area, most, overlap, precision, rank_correlation, suspicion
from congruency.experiments.audit.subject import Network, subject
from congruency.experiments.audit.training import folds
from congruency.experiments.audit.verdict import findings, verdict


def test_areas_by_hand():
    wrong = torch.tensor([True, True, False, False])
    assert area(torch.tensor([4.0, 3.0, 2.0, 1.0]), wrong) == 1.0
    assert area(torch.tensor([1.0, 2.0, 3.0, 4.0]), wrong) == 0.0
    assert area(torch.tensor([4.0, 1.0, 3.0, 2.0]), wrong) == 0.5
    assert area(torch.zeros(4), wrong) == 0.5
    with pytest.raises(ValueError, match="wrong and samples that are not"):
        area(torch.zeros(4), torch.zeros(4, dtype=torch.bool))


def test_areas_are_scikit_learns():
    for _ in range(5):
        suspected, wrong = torch.randn(200).round(decimals=1), torch.rand(200) < 0.2
        assert area(suspected, wrong) == pytest.approx(roc_auc_score(wrong.numpy(), suspected.numpy()))


def test_precision_by_hand():
    suspected, wrong = torch.tensor([0.1, 0.9, 0.8, 0.7]), torch.tensor([True, True, False, True])
    assert [precision(suspected, wrong, count) for count in (1, 2, 3, 4)] == pytest.approx([1, 1 / 2, 2 / 3, 3 / 4])
    assert most(suspected, 2).tolist() == [1, 2]
    with pytest.raises(ValueError, match="from 1 to the 4 samples, got 5"):
        precision(suspected, wrong, 5)


def test_low_congruency_and_high_loss_are_suspicious_and_no_gradient_is_not():
    values = torch.tensor([0.5, -0.5, float("nan")])
    assert most(suspicion("congruency", {"congruency": values}), 3).tolist() == [1, 0, 2]
    assert most(suspicion("loss", {"loss": values}), 3).tolist() == [0, 1, 2]


def test_likeness_of_rankings_by_hand():
    up = torch.arange(10.0)
    assert rank_correlation(up, up.square()) == pytest.approx(1.0)
    assert rank_correlation(up, -up) == pytest.approx(-1.0)
    assert overlap(up, -up, 5) == 0.0
    assert overlap(up, torch.cat([up[:8], up[8:].flip(0)]), 2) == 1.0


@pytest.mark.parametrize("share", [0.1, 0.2, 0.75])
def test_as_many_labels_are_flipped_as_asked_each_to_another_class(share):
    labels = torch.arange(1000) % 10
    given, flipped = flip(labels, share, 10, seed=3)
    assert int(flipped.sum()) == 1000 * share
    assert torch.equal(given != labels, flipped)
    assert set(given.tolist()) == set(range(10))
    assert torch.equal(given, flip(labels, share, 10, seed=3)[0])
    assert not torch.equal(given, flip(labels, share, 10, seed=4)[0])


def test_every_other_class_is_as_likely():
    given, flipped = flip(torch.zeros(20_000, dtype=torch.int64), 0.9, 10, seed=0)
    counts = torch.bincount(given[flipped], minlength=10)
    assert counts[0] == 0
    assert ((counts[1:] - 2000).abs() < 5 * 2000**0.5).all()  # 5 standard deviations


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, 20.0, float("nan")])
def test_shares_that_cannot_be_flipped(share):
    with pytest.raises(ValueError, match="--flip must be a share of the labels above 0 and below 1"):
        flip(torch.zeros(10, dtype=torch.int64), share, 2, 0)


def test_flips_that_change_nothing_are_refused():
    with pytest.raises(ValueError, match="flips 0; take more samples"):
        flip(torch.zeros(10, dtype=torch.int64), 0.01, 2, 0)
    with pytest.raises(ValueError, match="two classes or more"):
        flip(torch.zeros(10, dtype=torch.int64), 0.5, 1, 0)


def test_folds_hold_every_sample_once_and_every_label_evenly():
    labels = torch.cat([torch.zeros(23), torch.ones(40), torch.full((9,), 2.0)]).long()
    parts = folds(labels, 5, seed=1)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(72))
    assert {len(part) for part in parts} == {14, 15}
    for label in range(3):
        counts = [int((labels[part] == label).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1
    with pytest.raises(ValueError, match="--folds must be from 2 to the 72 samples, got 1"):
        folds(labels, 1, seed=1)


def test_cleanlabs_quality_is_its_own_and_ranks_as_the_loss_of_unseen_samples():
    probabilities, labels = torch.randn(50, 4).softmax(1), torch.randint(0, 4, (50,))
    quality = label_quality(probabilities, labels)
    numpy.testing.assert_allclose(quality, get_label_quality_scores(labels.numpy(), probabilities.numpy()), rtol=1e-6)
    loss = -probabilities.gather(1, labels[:, None])[:, 0].log()
    assert rank_correlation(-quality, loss) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="of 50 samples are not numbers: a training diverged"):
        label_quality(torch.full((50, 4), torch.nan), labels)


def values(auc, precision):
    return {"auc": auc, "precision": precision}


LOSS = values([0.80, 0.82, 0.81], [0.50, 0.52, 0.51])


def test_a_verdict_says_better_only_where_it_is():
    better = verdict("Mine", values([0.90, 0.92, 0.915], [0.60, 0.62, 0.615]), LOSS)
    assert better.startswith("Mine: better than the loss: AUC 0.9117 against 0.8100 (+0.1017 ±")
    same = verdict("Mine", values([0.70, 0.92, 0.815], [0.51, 0.51, 0.51]), LOSS)
    assert same.startswith("Mine: no better than the loss: AUC")
    worse = verdict("Mine", values([0.70, 0.72, 0.715], [0.40, 0.52, 0.61]), LOSS)
    assert worse.startswith("Mine: no better than the loss, and worse by AUC: AUC")
    half = verdict("Mine", values([0.90, 0.92, 0.915], [0.50, 0.52, 0.51]), LOSS)
    assert half.startswith("Mine: better than the loss by AUC alone: AUC")
    one = verdict("Mine", values([0.9], [0.6]), values([0.8], [0.5]))
    assert (
        one
        == "Mine: one seed cannot tell it from the loss: AUC 0.9000 against 0.8000; precision 0.6000 against 0.5000."
    )


def test_the_first_finding_names_what_beats_the_loss_or_says_that_nothing_does():
    good, bad = values([0.90, 0.92, 0.915], [0.60, 0.62, 0.615]), values([0.70, 0.72, 0.715], [0.4, 0.42, 0.41])
    scores = {"congruency": good, "congruency_last": bad, "loss": LOSS, "loss_last": LOSS, "cleanlab": good}
    told = findings(scores)
    assert told[0] == "Better than the loss, by AUC or precision: Congruency (way come), mean over epochs."
    assert [text.partition(":")[0] for text in told[1:]] == [
        RANKINGS[name].title for name in ("congruency", "congruency_last", "cleanlab")
    ]
    scores["congruency"] = bad
    assert findings(scores)[0] == "No ranking by congruency finds the flipped labels better than the loss does."
    one = {name: values(found["auc"][:1], found["precision"][:1]) for name, found in scores.items()}
    assert findings(one)[0].startswith("One seed cannot say")


def test_congruency_at_the_end_is_judged_against_the_loss_at_the_end():
    """Its mean over epochs was better than either: that is another ranking's comparison."""
    late = values([0.60, 0.61, 0.62], [0.3, 0.31, 0.32])
    end = values([0.70, 0.715, 0.72], [0.4, 0.412, 0.42])
    told = findings({"congruency_last": end, "loss": LOSS, "loss_last": late})
    assert told[1].startswith(
        "Congruency (way come), at the end: better than the loss at the end: AUC 0.7117 against 0.61"
    )


def made(scores, given, flipped=None, probabilities=None):
    shown = torch.eye(2)[given] if probabilities is None else probabilities
    return Audit("0", given, flipped, shown, scores, {name: score[None] for name, score in scores.items()})


def test_audits_are_scored_by_what_was_flipped():
    given, flipped = torch.tensor([0, 1, 0, 1]), torch.tensor([True, False, False, False])
    scores = {"congruency": torch.tensor([-1.0, 0.0, 0.5, 1.0]), "loss": torch.tensor([0.5, 0.1, 0.9, 0.2])}
    found = scored([made(scores, given, flipped)] * 2)
    assert found["congruency"] == {"auc": [1.0, 1.0], "precision": [1.0, 1.0]}
    assert found["loss"]["precision"] == [0.0, 0.0]
    assert found["loss"]["auc"] == pytest.approx([2 / 3, 2 / 3])
    assert agreement([made(scores, given)])["loss"] == {"rank_correlation": [1.0], "overlap": [1.0]}


def test_seeds_of_the_same_labels_are_one_audit_of_means():
    given = torch.tensor([0, 1])
    first = made(
        {"loss": torch.tensor([1.0, float("nan")])}, given, probabilities=torch.tensor([[0.9, 0.1], [0.5, 0.5]])
    )
    second = made({"loss": torch.tensor([3.0, 4.0])}, given, probabilities=torch.tensor([[0.3, 0.7], [0.4, 0.6]]))
    both = pooled([first, second])
    assert both.scores["loss"].tolist() == [2.0, 4.0]
    assert both.predicted.tolist() == [0, 1]
    assert pooled([first]) is first
    with pytest.raises(ValueError, match="only audits of the same labels"):
        pooled([first, made({"loss": torch.zeros(2)}, torch.tensor([1, 1]))])


def test_a_recipe_of_the_paper_is_trained_as_it_says():
    found = subject("cifar/DenseNet-100-12 SGD DCL-90-1", "cifar100", epochs=30)
    assert isinstance(found, Network)
    assert found.settings["model"] == "densenet100_12"
    assert found.settings["epochs"] == 30
    assert found.settings["milestones"] == (15, 22)
    assert found.method.name == "dcl"
    assert found.method.window == 90
    with pytest.raises(ValueError, match="recipe for cifar10, cifar100, not for mnist"):
        subject("cifar/DenseNet-100-12 SGD", "mnist")
    with pytest.raises(ValueError, match="has no row 'DenseNet'"):
        subject("cifar/DenseNet", "cifar10")


def test_what_is_neither_a_run_nor_a_network_is_said(tmp_path):
    assert subject(str(tmp_path), "digits") == tmp_path
    assert subject("mlp", "digits").settings["epochs"] == 30
    with pytest.raises(ValueError, match="no run or checkpoint that is there, and no network"):
        subject("runs/frist", "digits")
    with pytest.raises(FileNotFoundError, match="is missing; give a run's folder"):
        subject(str(tmp_path / "checkpoint-1.pt"), "digits")
