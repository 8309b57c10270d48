"""transformers: training with the callback is the plain loop, bit for bit, resumed or not."""

import contextlib
import math

import pytest
import torch
from torch.nn import functional

import congruency
from congruency.integrations.transformers import CautiousCallback, DCLCallback

from accelerate import Accelerator  # isort: skip
from accelerate.optimizer import AcceleratedOptimizer  # isort: skip
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments  # isort: skip
from transformers import set_seed, trainer as trainer_module  # isort: skip

# tests/datasets is on the path of the tests, and would pass for the package `datasets`, which need not be installed
trainer_module.is_datasets_available = lambda: False

STEPS, BATCH = 12, 4
OPTIONS = {"window": 6, "references": 2, "returning": False}  # corrects more often than the default


def text(size=64):
    """Sequences of synthetic tokens, and whether the first is larger than the last."""
    tokens = torch.randint(0, 30, (size, 6), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": int(row[0] > row[-1])} for row in tokens]


def classifier(dropout=0.0, seed=0):
    torch.manual_seed(seed)
    drop = dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout"), dropout)
    sizes = {"vocab_size": 30, "dim": 8, "n_heads": 2, "n_layers": 1, "hidden_dim": 16, "max_position_embeddings": 8}
    return DistilBertForSequenceClassification(DistilBertConfig(num_labels=2, **sizes, **drop))


def optimizer_and_scheduler(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 20)


class InOrder(Trainer):
    """Batches in order, as in the plain loop."""

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(folder, model, *, callbacks=None, **settings):
    given = {"per_device_train_batch_size": BATCH, "max_steps": STEPS, "save_strategy": "no", "logging_steps": 1}
    quiet = {"disable_tqdm": True, "report_to": "none", "use_cpu": True}
    return InOrder(
        model=model,
        args=TrainingArguments(str(folder), **{**given, **quiet, **settings}),
        train_dataset=text(),
        optimizers=optimizer_and_scheduler(model),
        callbacks=callbacks,
    )


def train(folder, model=None, callback=None, **settings):
    """The weights after training, its callback and its Trainer."""
    model = classifier() if model is None else model
    callback = DCLCallback(**OPTIONS) if callback is None else callback
    resume = settings.pop("resume_from_checkpoint", None)
    run = trainer(folder, model, **settings)
    callback.add_to(run)
    run.train(resume_from_checkpoint=resume)
    return flat(model), callback, run


def plain(*, accumulate=1, autocast=None, params="all", kind=congruency.DCL, options=OPTIONS):
    """By hand: the loss (the model gets the number of samples of a step), clipping, the step, the scheduler; logs."""
    model = classifier()
    model.train()
    optimizer, scheduler = optimizer_and_scheduler(model)
    dcl = kind(optimizer, None if params == "all" else congruency.head(model).parameters(), **options)
    batches = [text()[i : i + BATCH] for i in range(0, 64, BATCH)]
    log = []
    for step in range(STEPS):
        for i in range(accumulate):
            batch = batches[(step * accumulate + i) % len(batches)]
            tokens = torch.stack([sample["input_ids"] for sample in batch])
            labels = torch.tensor([sample["labels"] for sample in batch])
            with contextlib.nullcontext() if autocast is None else torch.autocast("cpu", autocast):
                loss = model(input_ids=tokens, labels=labels, num_items_in_batch=torch.tensor(accumulate * BATCH)).loss
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        stats = dcl.stats
        log.append(
            {
                "grad_norm": float(norm),
                "dcl/congruency": float(stats.congruency.mean()),
                "dcl/corrected_congruency": float(stats.corrected_congruency.mean()),
                "dcl/magnitude": float(stats.magnitude.mean()),
                "dcl/corrected_share": float(stats.corrected),  # every step is logged
                "cautious/congruency": float(stats.congruency.mean()),
                "cautious/kept": float(stats.kept),
            }
        )
    return flat(model), dcl, [{name: v for name, v in row.items() if not math.isnan(v)} for row in log]


def flat(model):
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"accumulate": 2}, {"gradient_accumulation_steps": 2}),
        ({"autocast": torch.bfloat16}, {"bf16": True}),
        ({"params": "head"}, {"callback": DCLCallback("head", **OPTIONS)}),
    ],
    ids=["default", "accumulation", "bf16", "head"],
)
def test_training_equals_the_plain_loop(ours, theirs, tmp_path):
    expected, dcl, log = plain(**ours)
    found, callback, run = train(tmp_path, **theirs)
    assert torch.equal(found, expected)
    assert int(callback.stats.corrected_steps) == int(dcl.stats.corrected_steps) > 0
    assert callback.stats.steps == STEPS
    history = [{name: row[name] for name in row if name.startswith("dcl/")} for row in run.state.log_history[:-1]]
    expected_log = [{name: row[name] for name in row if name.startswith("dcl/")} for row in log]
    assert history == [pytest.approx(row, rel=1e-12, abs=1e-15) for row in expected_log]  # means are rounded
    assert all("dcl/congruency" not in row for row in history[:2])
    assert max(row["grad_norm"] for row in log) > 1 or "params" in ours  # clipping had something to do
    assert "dcl/congruency" not in run.state.log_history[-1]  # the summary of the run


def test_it_hooks_the_wrapped_optimizer_and_detaches(tmp_path):
    _, callback, run = train(tmp_path, max_steps=3)
    assert isinstance(run.optimizer, AcceleratedOptimizer)
    assert callback.dcl.optimizer is run.optimizer.optimizer
    assert not callback.dcl.optimizer._optimizer_step_pre_hooks


def test_a_custom_loop_with_accelerate():
    """The optimizer itself goes to DCL; Accelerate steps it at the end of every accumulation."""
    results = []
    for accelerated in (False, True):
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dcl = congruency.DCL(optimizer, **OPTIONS)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        prepared = accelerator.prepare(optimizer) if accelerated else optimizer
        for i, sample in enumerate(text(32)):
            with accelerator.accumulate(model):
                logits = model(input_ids=sample["input_ids"][None]).logits
                loss = functional.cross_entropy(logits, torch.tensor([sample["labels"]]))
                accelerator.backward(loss)  # divides by 2
                if accelerated or i % 2:
                    prepared.step()
                    prepared.zero_grad()
        assert dcl.stats.steps == 16
        results.append(flat(model))
    assert torch.equal(*results)


def test_accelerates_wrapper_is_refused_and_the_wrapped_optimizer_named():
    prepared = Accelerator(cpu=True).prepare(torch.optim.SGD(classifier().parameters(), lr=0.1))
    with pytest.raises(TypeError, match=r"AcceleratedOptimizer .*\(optimizer\.optimizer\)"):
        congruency.DCL(prepared)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An uninterrupted run with dropout, its checkpoints, its last weights and its log."""
    folder = tmp_path_factory.mktemp("saved")
    set_seed(3)
    weights, callback, run = train(folder, classifier(dropout=0.2), save_strategy="steps", save_steps=4)
    return folder, weights, int(callback.stats.corrected_steps), run.state.log_history


@pytest.mark.parametrize(("step", "elsewhere"), [(4, False), (8, False), (4, True)])
def test_resumed_from_a_checkpoint(step, elsewhere, saved, tmp_path):
    folder, expected, corrected, log = saved
    checkpoint = folder / f"checkpoint-{step}"
    assert not list(checkpoint.glob(".*"))  # nothing is left of writing aside
    callback = DCLCallback(resume_from=checkpoint if elsewhere else None, **OPTIONS)
    found, _, run = train(
        tmp_path if elsewhere else folder,
        classifier(dropout=0.2, seed=9),
        callback,
        resume_from_checkpoint=str(checkpoint),
    )
    assert torch.equal(found, expected)
    assert int(callback.stats.corrected_steps) == corrected > 0
    congruencies = [
        [row.get("dcl/congruency") for row in rows if "loss" in row] for rows in (run.state.log_history, log)
    ]
    assert congruencies[0] == congruencies[1]


def test_resuming_without_the_state_warns(saved, tmp_path):
    folder, expected, _, _ = saved
    with pytest.warns(UserWarning, match="resumes at step 8 without DCL's state, and its references restart"):
        found, callback, _ = train(
            tmp_path, classifier(dropout=0.2), resume_from_checkpoint=str(folder / "checkpoint-8")
        )
    assert callback.stats.steps == STEPS - 8
    assert not torch.equal(found, expected)


def test_the_state_of_another_run_is_refused(saved, tmp_path):
    folder, _, _, _ = saved
    train(tmp_path, classifier(seed=5), save_strategy="steps", save_steps=8)
    with pytest.raises(ValueError, match="it belongs to another checkpoint"):
        train(tmp_path, classifier(dropout=0.2), resume_from_checkpoint=str(folder / "checkpoint-8"))
    with pytest.raises(FileNotFoundError, match=r"holds no dcl\.pt"):
        train(
            tmp_path,
            classifier(dropout=0.2),
            DCLCallback(resume_from=tmp_path, **OPTIONS),
            resume_from_checkpoint=str(folder / "checkpoint-8"),
        )


def test_no_state_is_saved_with_save_only_model(tmp_path):
    train(tmp_path, max_steps=2, save_strategy="steps", save_steps=2, save_only_model=True)
    assert (tmp_path / "checkpoint-2").is_dir()
    assert not (tmp_path / "checkpoint-2" / "dcl.pt").exists()


def test_tensorboard_receives_the_metrics(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    train(tmp_path, report_to="tensorboard", logging_steps=3)
    events = EventAccumulator(str(tmp_path / "logs")).Reload()
    found = {event.step: event.value for event in events.Scalars("train/dcl/congruency")}
    each = [row.get("dcl/congruency", math.nan) for row in plain()[2]]
    expected = {step: float(torch.tensor(each[step - 3 : step]).nanmean()) for step in range(3, STEPS + 1, 3)}
    assert list(expected) == [3, 6, 9, 12]
    assert found == pytest.approx(expected, rel=1e-5)


def test_weights_and_biases_receives_the_metrics(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb.init(dir=tmp_path, mode="offline")  # the Trainer's callback takes the run that is there
    train(tmp_path, report_to="wandb", logging_steps=STEPS)
    summary = dict(wandb.run.summary)
    wandb.finish()
    assert list(tmp_path.rglob("*.wandb"))
    rows = plain()[2]
    names = [name for name in rows[-1] if name.startswith("dcl/")]
    each = {name: torch.tensor([row.get(name, math.nan) for row in rows], dtype=torch.float64) for name in names}
    expected = {f"train/{name}": float(values.nanmean()) for name, values in each.items()}
    assert len(expected) == 4
    assert {name: summary[name] for name in expected} == pytest.approx(expected)


def test_in_the_list_of_callbacks_it_warns_of_missing_reports(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    callback = DCLCallback(**OPTIONS)
    run = trainer(tmp_path, classifier(), callbacks=[callback], report_to="tensorboard", max_steps=4)
    with pytest.warns(UserWarning, match="tensorboard will not show DCL's metrics"):
        run.train()
    assert "dcl/congruency" in run.state.log_history[3]


def test_invalid_options_are_refused_on_construction():
    with pytest.raises(ValueError, match="window must be a positive whole number of steps or None, got 0"):
        DCLCallback(window=0)
    with pytest.raises(RuntimeError, match="no stats before"):
        _ = DCLCallback().stats


@pytest.mark.parametrize("options", [{}, {"decay": True, "max_rescale": 1.5}], ids=str)
def test_cautious_equals_the_plain_loop_is_logged_and_resumed(options, tmp_path):
    expected, _, log = plain(kind=congruency.Cautious, options=options)
    found, _, run = train(tmp_path, callback=CautiousCallback(**options), save_strategy="steps", save_steps=4)
    assert torch.equal(found, expected)
    assert not torch.equal(expected, plain(options={"offset": STEPS + 1, "window": None})[0])
    logged = [{name: row[name] for name in row if name.startswith("cautious/")} for row in run.state.log_history[:-1]]
    expected_log = [{name: row[name] for name in row if name.startswith("cautious/")} for row in log]
    assert logged == [pytest.approx(row, rel=1e-12) for row in expected_log]  # means are rounded
    assert all(0 < row["cautious/kept"] <= 1 for row in logged)
    callback = CautiousCallback(**options)
    resumed, _, _ = train(tmp_path, classifier(seed=9), callback, resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert torch.equal(resumed, expected)
    assert callback.stats.steps == STEPS


def test_the_options_of_dcl_reach_it_beside_cautious(tmp_path):
    options = {"window": 6, "floor": 0.5, "returning": False, "correct": "update", "blocks": "tensor"}
    run = trainer(tmp_path, classifier())
    dcl, cautious = DCLCallback(**options).add_to(run), CautiousCallback().add_to(run)
    run.train()
    references = dcl.dcl.references
    assert (references.floor, references.returning, dcl.dcl.target, dcl.dcl.blocks) == (0.5, False, "update", "tensor")
    assert int(dcl.stats.corrected_steps) > 0
    assert {"dcl/congruency", "cautious/kept"} <= run.state.log_history[-2].keys()
    assert cautious.stats.steps == STEPS
