"""Lightning: a fit with the callback is the plain loop, bit for bit, resumed or not."""

import functools

import pytest
import torch
from lightning_models import (
    BATCHES,
    OPTIONS,
    Daily,
    DailyTwo,
    Manual,
    Regression,
    Two,
    batches,
    fit,
    loader,
    plain,
    plain_two,
    trainer,
)
from torch import nn

import congruency
from congruency.integrations.lightning import CautiousCallback, DCLCallback, _framework

import lightning  # isort: skip
import pytorch_lightning  # isort: skip
from lightning.pytorch.callbacks import ModelCheckpoint  # isort: skip
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger  # isort: skip
from lightning.pytorch.plugins import MixedPrecision  # isort: skip


def corrected(dcl):
    return int(dcl.stats.corrected_steps)


@pytest.mark.parametrize("module", [Regression, Manual])
def test_a_fit_equals_the_plain_loop(module):
    expected, dcl = plain(batches())
    found, callback = fit(module())
    assert torch.equal(found, expected)
    assert corrected(callback) == corrected(dcl) > 0
    assert callback.stats.steps == BATCHES


def steps_corrected(callback):
    return [corrected(dcl) for dcl in callback.dcls.values()]


def test_it_corrects_steps():
    uncorrected, _ = plain(batches(), options={"offset": BATCHES + 1})
    assert not torch.equal(fit(Regression())[0], uncorrected)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"accumulate": 3}, {"accumulate_grad_batches": 3}),  # 14 batches: the last step has two of them
        ({"clip": 0.3}, {"gradient_clip_val": 0.3}),
        ({"autocast": torch.bfloat16}, {"precision": "bf16-mixed"}),
    ],
    ids=["accumulation", "clipping", "bf16"],
)
def test_the_trainers_options(ours, theirs):
    expected, dcl = plain(batches(), **ours)
    found, callback = fit(Regression(), **theirs)
    assert torch.equal(found, expected)
    assert corrected(callback) == corrected(dcl) > 0


def test_float16_with_a_scaler_that_skips_steps():
    """The first scales overflow float16: skipped steps are no steps of DCL's, as in the plain loop."""
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**17, growth_interval=4) for _ in range(2)]
    expected, dcl = plain(batches(), autocast=torch.float16, scaler=scalers[0])
    plugin = MixedPrecision("16-mixed", "cpu", scalers[1])
    found, callback = fit(Regression(), plugins=[plugin])
    assert torch.equal(found, expected)
    assert callback.stats.steps == dcl.stats.steps
    assert 0 < dcl.stats.steps < BATCHES
    assert corrected(callback) == corrected(dcl) > 0


def test_several_optimizers_have_a_dcl_each():
    expected, dcls = plain_two(batches())
    found, callback = fit(Two())
    assert torch.equal(found, expected)
    assert [corrected(callback.dcls[i]) for i in (0, 1)] == [corrected(dcls[i]) for i in (0, 1)]
    assert callback.dcls[1].stats.steps == 2 * BATCHES
    with pytest.raises(RuntimeError, match="there are 2 correctors"):
        _ = callback.stats


@pytest.mark.parametrize("params", ["head", lambda module: module.net[2].parameters()])
def test_chosen_parameters(params):
    expected, _ = plain(batches(), params="head")
    assert torch.equal(fit(Regression(), DCLCallback(params, **OPTIONS))[0], expected)


def test_the_optimizer_of_the_head_alone_is_corrected():
    _, callback = fit(Two(), DCLCallback("head", **OPTIONS))
    assert list(callback.dcls) == [1]


@pytest.mark.parametrize("module", [Daily, DailyTwo])
@pytest.mark.parametrize("at", [1, 5, 8])  # recording references, correcting, after a restart of the window
def test_resumed_from_a_checkpoint(module, at, tmp_path):
    expected, uninterrupted = fit(module())
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(module(), callbacks=[keep])
    checkpoint = tmp_path / f"epoch={at - 1}.ckpt"
    assert torch.load(checkpoint, weights_only=True)["callbacks"]["DCLCallback"]["dcls"][0]["sources"][0]["step"] == at
    found, callback = fit(module(), ckpt_path=checkpoint)
    assert torch.equal(found, expected)
    assert steps_corrected(callback) == steps_corrected(uninterrupted)


def test_saved_after_the_fit(tmp_path):
    expected, _ = fit(Regression(), max_epochs=2)
    run = trainer(DCLCallback(**OPTIONS))
    run.fit(Regression(), loader())
    run.save_checkpoint(tmp_path / "end.ckpt")
    assert torch.equal(fit(Regression(), max_epochs=2, ckpt_path=tmp_path / "end.ckpt")[0], expected)


def test_resuming_without_the_state_warns(tmp_path):
    run = trainer(lightning.Callback())
    run.fit(Regression(), loader())
    run.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.warns(UserWarning, match=r"resumes without DCL's state, and its references restart: .*plain\.ckpt"):
        fit(Regression(), max_epochs=2, ckpt_path=tmp_path / "plain.ckpt")


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    run = trainer(DCLCallback(**OPTIONS))
    run.fit(Regression(), loader())
    run.save_checkpoint(tmp_path / "end.ckpt")
    with pytest.raises(ValueError, match="window was 6 when this state was saved and is 7 here"):
        fit(Regression(), DCLCallback(**{**OPTIONS, "window": 7}), max_epochs=2, ckpt_path=tmp_path / "end.ckpt")


def test_a_second_fit_restarts_and_the_optimizer_is_detached():
    callback = DCLCallback(**OPTIONS)
    run = trainer(callback)
    run.fit(Regression(), loader())
    assert not run.optimizers[0]._optimizer_step_pre_hooks
    run = trainer(callback)
    run.fit(module := Regression(), loader())
    assert callback.stats.steps == BATCHES
    assert torch.equal(nn.utils.parameters_to_vector(module.net.parameters()), plain(batches())[0])


def test_an_interrupted_fit_detaches():
    class Failing(Regression):
        def training_step(self, pair, index):
            if index == 3:
                raise ZeroDivisionError
            return super().training_step(pair, index)

    run = trainer(DCLCallback(**OPTIONS))
    with pytest.raises(ZeroDivisionError):
        run.fit(Failing(), loader())
    assert not run.optimizers[0]._optimizer_step_pre_hooks


def expected_log(every):
    """What a plain loop finds at every n-th step, as means over those since the one before."""
    net = Regression().net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    dcl = congruency.DCL(optimizer, **OPTIONS)
    log, steps = {}, []
    for step, (inputs, targets) in enumerate(batches()):
        optimizer.zero_grad()
        (net(inputs) - targets).square().mean().backward()
        optimizer.step()
        stats = dcl.stats
        row = [stats.congruency, stats.corrected_congruency, stats.magnitude]
        steps.append(torch.stack([*(value.mean() for value in row), stats.corrected.double()]))
        if (step + 1) % every == 0:
            names = ("congruency", "corrected_congruency", "magnitude", "corrected_share")
            values = torch.stack(steps).nanmean(0).tolist()
            log[step] = {f"dcl/{name}": value for name, value in zip(names, values, strict=True) if value == value}
            steps = []
    return log


def test_tensorboard_receives_the_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(Regression(), logger=TensorBoardLogger(tmp_path), log_every_n_steps=2)
    events = EventAccumulator(str(next(tmp_path.rglob("events.*")).parent)).Reload()
    found = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            if name.startswith("dcl/"):
                found.setdefault(event.step, {})[name] = event.value
    expected = expected_log(2)
    assert len(expected) == BATCHES // 2
    assert found.keys() == expected.keys()
    for step, row in expected.items():
        assert found[step] == pytest.approx(row, rel=1e-5), step
    assert any("dcl/congruency" not in row for row in expected.values())  # while references are recorded
    assert sum("dcl/congruency" in row for row in expected.values()) > 2


class Logger(CSVLogger):
    """Keeps what it is given, and when."""

    def __init__(self, folder):
        super().__init__(folder)
        self.logged = []

    def log_metrics(self, metrics, step=None):
        if any(name.startswith("dcl/") for name in metrics):
            self.logged.append((step, metrics))


def test_accumulated_batches_are_logged_once_per_optimizer_step(tmp_path):
    logger = Logger(tmp_path)
    fit(Regression(), logger=logger, log_every_n_steps=1, accumulate_grad_batches=3)
    steps = [step for step, _ in logger.logged]
    assert steps == sorted(set(steps))
    assert len(steps) == -(-BATCHES // 3)


def test_weights_and_biases_receives_the_metrics(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=tmp_path, offline=True, log_model=False)
    fit(Regression(), logger=logger, log_every_n_steps=7)
    summary = dict(logger.experiment.summary)
    logger.experiment.finish()
    assert list(tmp_path.rglob("*.wandb"))
    expected = expected_log(7)[BATCHES - 1]
    assert {name: summary[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_only_logged_steps_wait_for_the_device(monkeypatch):
    asked = []
    means = congruency.DCL.means
    monkeypatch.setattr(congruency.DCL, "means", lambda dcl: (asked.append(1), means(dcl))[1])
    monkeypatch.setattr(congruency.DCL, "stats", property(lambda dcl: pytest.fail("it waited for the device")))
    fit(Regression(), log_every_n_steps=5)
    assert len(asked) == BATCHES // 5


def test_pytorch_lightning():
    """A Trainer of ``pytorch_lightning`` takes the callback as well."""

    class Module(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Regression().net

        def training_step(self, pair, index):
            return (self.net(pair[0]) - pair[1]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.2, momentum=0.9)

    found, _ = fit(Module(), framework=pytorch_lightning)
    assert torch.equal(found, plain(batches())[0])


def test_which_lightning_is_chosen():
    assert _framework({"pytorch_lightning": pytorch_lightning}) == "pytorch_lightning"
    both = {"pytorch_lightning": pytorch_lightning, "lightning.pytorch": lightning.pytorch}
    assert _framework(both) == "lightning.pytorch"
    assert _framework({}) == "lightning.pytorch"
    assert issubclass(DCLCallback, lightning.Callback)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"window": 0}, ValueError, "window must be a positive whole number of steps or None, got 0"),
        ({"windows": 3}, TypeError, "unknown option"),
        ({"params": "tail"}, ValueError, "params must be 'all', 'head' or a function"),
        ({"params": 50}, ValueError, "params must be .* got 50; for a window write window=50"),
        ({"params": nn.Linear(2, 2)}, ValueError, "params must be .* got a Linear"),  # a module can be called, too
    ],
)
def test_invalid_options_are_refused_on_construction(wrong, error, message):
    with pytest.raises(error, match=message):
        DCLCallback(**wrong)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (lambda module: [], ValueError, "chose no parameter that trains"),
        (lambda module: module.net.named_parameters(), TypeError, "must return parameters"),
        (lambda module: module.net[2], TypeError, "must return parameters.* got a Linear"),
        (lambda module: module.net[2].weight, TypeError, "must return parameters.* got a Parameter"),
        (lambda module: [nn.Parameter(torch.zeros(2))], ValueError, "are in no optimizer"),
    ],
)
def test_invalid_choices_are_refused_when_the_fit_starts(params, error, message):
    with pytest.raises(error, match=message):
        fit(Regression(), DCLCallback(params))


def test_frozen_parameters_of_the_head_are_left_out():
    module = Regression()
    module.net[2].bias.requires_grad_(False)
    module.configure_optimizers = functools.partial(
        lambda net: torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1), module.net
    )
    _, callback = fit(module, DCLCallback("head", **OPTIONS))
    assert callback.state_dict()["dcls"][0]["sources"][0]["parameters"] == 1


def by_hand(*corrections):
    """Weights and stats of a loop of one's own: each correction is a class and its options."""
    net = Regression().net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    made = [kind(optimizer, **options) for kind, options in corrections]
    for inputs, targets in batches():
        optimizer.zero_grad()
        (net(inputs) - targets).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(net.parameters()), [each.stats for each in made]


@pytest.mark.parametrize(
    "options",
    [
        {"floor": 0.5, "returning": False},
        {"mode": "anchor", "margin": 0.5, "correct": "update"},
        {"floor": None, "blocks": "row"},
        {"correct": "update", "blocks": "element"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:floor=None is the paper's form")
def test_every_option_of_dcl_reaches_it(options):
    options = {"window": 6, **options}
    expected, (stats,) = by_hand((congruency.DCL, options))
    run = trainer(DCLCallback(**options), log_every_n_steps=BATCHES)
    run.fit(module := Regression(), loader())
    assert torch.equal(nn.utils.parameters_to_vector(module.net.parameters()), expected)
    assert int(stats.corrected_steps) > 0
    assert ("dcl/kept" in run.callback_metrics) == ("element" in options.values())


@pytest.mark.parametrize("options", [{}, {"rescale": False, "decay": True}, {"max_rescale": 1.2}], ids=str)
def test_cautious_equals_the_plain_loop_and_is_logged(options):
    expected, (stats,) = by_hand((congruency.Cautious, options))
    run = trainer(CautiousCallback(**options), log_every_n_steps=1)  # the last one's are that of one step
    run.fit(module := Regression(), loader())
    assert torch.equal(nn.utils.parameters_to_vector(module.net.parameters()), expected)
    assert not torch.equal(expected, by_hand()[0])
    logged = {name: float(v) for name, v in run.callback_metrics.items() if name.startswith("cautious/")}
    wanted = {"cautious/kept": float(stats.kept), "cautious/congruency": float(stats.congruency)}
    assert logged == pytest.approx(wanted, rel=1e-6)
    assert 0 < logged["cautious/kept"] < 1


def test_cautious_beside_dcl_is_resumed_from_a_checkpoint(tmp_path):
    def both(**settings):
        dcl, cautious = DCLCallback(**OPTIONS), CautiousCallback()
        callbacks = [cautious, *settings.pop("callbacks", [])]
        return fit(Daily(), dcl, callbacks=callbacks, **settings)[0], dcl.stats, cautious.stats

    expected, (dcl, cautious) = by_hand((congruency.DCL, OPTIONS), (congruency.Cautious, {}))
    found, _, _ = both(callbacks=[ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)])
    resumed, dcl_resumed, cautious_resumed = both(enable_checkpointing=False, ckpt_path=tmp_path / "epoch=7.ckpt")
    assert torch.equal(found, expected)
    assert torch.equal(resumed, expected)
    assert int(dcl_resumed.corrected_steps) == int(dcl.corrected_steps) > 0
    assert cautious_resumed.steps == BATCHES
    assert int(cautious_resumed.corrected_steps) == int(cautious.corrected_steps) > 0


def test_invalid_options_of_cautious_are_refused():
    with pytest.raises(ValueError, match="max_rescale must be at least 1"):
        CautiousCallback(max_rescale=0.5)
    with pytest.raises(
        TypeError, match=r"unknown option\(s\) window; Cautious's options are decay, max_rescale, rescale"
    ):
        CautiousCallback(window=5)
