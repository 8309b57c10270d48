"""A small LightningModule in several manners, its Trainer, and the plain loop that it must equal."""

from __future__ import annotations

import contextlib
import functools

import torch
from problems import batch, network
from torch import nn
from torch.utils.data import DataLoader

import congruency
from congruency.distributed import full
from congruency.integrations.common import attach
from congruency.integrations.lightning import DCLCallback

import lightning  # isort: skip  # after the integration, which makes torchvision importable where it is not

BATCHES = 14
OPTIONS = {"window": 6, "references": 2, "returning": False}  # corrects more often than the default


def batches(rank=None):
    """All batches, or one rank's half of each."""
    found = [batch(step, torch.float32) for step in range(BATCHES)]
    return found if rank is None else [(inputs[rank::2], targets[rank::2]) for inputs, targets in found]


def loader(rank=None):
    return DataLoader(batches(rank), batch_size=None)


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)


class Regression(lightning.LightningModule):
    """Automatic optimization."""

    def __init__(self):
        super().__init__()
        self.net = network(torch.float32)

    def loss(self, pair):
        inputs, targets = pair
        return (self.net(inputs) - targets).square().mean()

    def training_step(self, pair, index):
        return self.loss(pair)

    def configure_optimizers(self):
        return optimizer_of(self.net)


class Daily(Regression):
    """One batch an epoch, another one each, so that checkpoints may lie anywhere and no epoch is cut."""

    def train_dataloader(self):
        return DataLoader([batches()[self.current_epoch]], batch_size=None)


class Manual(Regression):
    """Manual optimization; with a closure at every other step."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, pair, index):
        optimizer = self.optimizers()

        def backward():
            optimizer.zero_grad()
            self.manual_backward(self.loss(pair))

        if index % 2:
            optimizer.step(closure=backward)
        else:
            backward()
            optimizer.step()


class Two(Manual):
    """One optimizer for each layer, the second twice as often."""

    def training_step(self, pair, index):
        first, second = self.optimizers()
        for optimizer in (first, second, second):
            first.zero_grad()
            second.zero_grad()
            self.manual_backward(self.loss(pair))
            optimizer.step()

    def configure_optimizers(self):
        return [optimizer_of(self.net[0]), torch.optim.Adam(self.net[2].parameters(), lr=0.05)]


class DailyTwo(Two, Daily):
    """Both."""


def trainer(callback, folder=None, *, framework=lightning, **settings):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    checkpoints = {"enable_checkpointing": False} if "callbacks" not in settings else {}
    given = {"accelerator": "cpu", "max_epochs": 1, **quiet, **checkpoints, **settings}
    others = given.pop("callbacks", [])
    return framework.Trainer(callbacks=[callback, *others], default_root_dir=folder, **given)


def fit(module, callback=None, folder=None, *, data=None, ckpt_path=None, **settings):
    """The weights after a fit, and its callback."""
    if isinstance(module, Daily):
        settings = {"max_epochs": BATCHES, "reload_dataloaders_every_n_epochs": 1, **settings}
    elif data is None:
        data = loader()
    callback = DCLCallback(**OPTIONS) if callback is None else callback
    trainer(callback, folder, **settings).fit(module, data, ckpt_path=ckpt_path)
    return flat(module.net), callback


def plain(pairs, *, params="all", options=OPTIONS, accumulate=1, clip=None, autocast=None, scaler=None, wrap=None):
    """The same training in a loop of one's own with ``congruency.DCL``."""
    net = network(torch.float32)
    net = net if wrap is None else wrap(net)
    optimizer = optimizer_of(net)
    chosen = None if params == "all" else congruency.head(net).parameters()
    dcl = congruency.DCL(optimizer, chosen, **options)
    precision = functools.partial(torch.autocast, "cpu", autocast) if autocast else contextlib.nullcontext
    for i, (inputs, targets) in enumerate(pairs):
        if i % accumulate == 0:
            optimizer.zero_grad()
        with precision():
            loss = (net(inputs) - targets).square().mean() / accumulate
        (loss if scaler is None else scaler.scale(loss)).backward()
        if (i + 1) % accumulate and i + 1 < len(pairs):
            continue
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return flat(net), dcl


def plain_two(pairs):
    """The two optimizers of :class:`Two`, each with a DCL of its own."""
    net = network(torch.float32)
    optimizers = [optimizer_of(net[0]), torch.optim.Adam(net[2].parameters(), lr=0.05)]
    dcls = attach(net, optimizers, "all", OPTIONS)
    for inputs, targets in pairs:
        for i in (0, 1, 1):
            for optimizer in optimizers:
                optimizer.zero_grad()
            (net(inputs) - targets).square().mean().backward()
            optimizers[i].step()
    return flat(net), dcls


def flat(net):
    return torch.cat([full(p.detach()).flatten().clone() for p in net.parameters()])
