"""L2-SP in the training loop, against the same run with the penalty written into the loss."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from training_toy import CLASSES, DEVICE, Numbers, build, flat, network

from congruency.training import Correction, Place, TrainingConfig, load_checkpoint, train
from congruency.training.state import seed_everything

ALPHA, BETA, EPOCHS = 0.3, 0.05, 3
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.3),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.3),
}


def slowly(make):
    """The penalty as a term of the loss, its gradient by autograd; no weight decay."""
    seed_everything(5)
    model = network().to(DEVICE)
    start = [parameter.detach().clone() for parameter in model[0].parameters()]
    optimizer = make(model.parameters(), weight_decay=0.0)
    data = Numbers(Place(DEVICE))
    for epoch in range(EPOCHS):
        for inputs, targets in data.train_batches(epoch):
            drift = sum((p - p0).square().sum() for p, p0 in zip(model[0].parameters(), start, strict=True))
            size = sum(p.square().sum() for p in model[3].parameters())
            loss = F.cross_entropy(model(inputs.to(DEVICE)), targets.to(DEVICE))
            optimizer.zero_grad()
            (loss + ALPHA / 2 * drift + BETA / 2 * size).backward()
            optimizer.step()
    return model


def trained(make, folder, **method):
    settings = TrainingConfig(epochs=EPOCHS, seed=5, accelerator=DEVICE.type, method=Correction(**method))
    task = partial(build, optimizer=lambda model: make(model.parameters()), schedule=None)
    result = train(task, settings, folder)
    model = network()
    model.load_state_dict(load_checkpoint(result.checkpoint)["model"])
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_penalty_is_that_of_the_loss(name, tmp_path):
    make = OPTIMIZERS[name]
    ours = trained(make, tmp_path / "l2sp", name="l2sp", scope="all", strength=ALPHA, head_strength=BETA)
    torch.testing.assert_close(flat(ours), flat(slowly(make)), rtol=1e-4, atol=1e-5)
    plain = trained(make, tmp_path / "plain")
    assert (flat(ours) - flat(plain)).norm() > 0.05 * flat(plain).norm()
    assert ours[3].weight.shape[0] == CLASSES


def test_a_strength_belongs_to_l2sp_alone():
    for wrong in ({"name": "l2sp", "scope": "all"}, {"strength": 0.1}, {"name": "l2sp", "strength": 0.1}):
        with pytest.raises(ValueError, match="l2sp, and nothing else, needs a strength above 0"):
            Correction(**wrong)
    with pytest.raises(ValueError, match="head_strength must be finite and at least 0, got -1"):
        Correction(name="l2sp", scope="all", strength=0.1, head_strength=-1)
    assert "strength" not in Correction().settings()
