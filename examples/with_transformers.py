"""Cautious AdamW in Hugging Face's Trainer: a small text classifier, trained from scratch on synthetic sentences."""

import argparse
import random
import tempfile

import congruency
import congruency._torchvision_compat  # makes torchvision importable where it is half installed

from transformers import DistilBertConfig, DistilBertForSequenceClassification  # isort: skip
from transformers import Trainer, TrainingArguments, set_seed  # isort: skip

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

set_seed(options.seed)
things, good, bad = ["film", "book", "song", "play"], ["fine", "great", "lovely"], ["dull", "awful", "weak"]
words = ["[PAD]", "the", "was", "not", *things, *good, *bad]


def sentence():
    """The film was not dull -> 1."""
    positive, turned = random.random() < 0.5, random.random() < 0.5
    text = ["the", random.choice(things), "was", *(["not"] if turned else []), random.choice(good if positive else bad)]
    tokens = [words.index(word) for word in text]
    padding = 5 - len(tokens)
    return {
        "input_ids": tokens + [0] * padding,
        "attention_mask": [1] * len(tokens) + [0] * padding,
        "labels": int(positive != turned),
    }


sizes = {"dim": 32, "n_heads": 2, "n_layers": 2, "hidden_dim": 64, "max_position_embeddings": 8}
model = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=len(words), num_labels=2, **sizes))

with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder, max_steps=options.steps, per_device_train_batch_size=16, learning_rate=3e-3, logging_steps=5,
        save_strategy="no", report_to="none", seed=options.seed, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=[sentence() for _ in range(1000)])
    cautious = congruency.Cautious(trainer.create_optimizer())  # the Trainer keeps the optimizer that it made here
    trainer.train()

stats = cautious.stats
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")
print(f"{int(stats.corrected_steps)} of {stats.steps} updates corrected, {stats.kept:.0%} of the last one kept")
print(f"congruency {stats.congruency.item():.3f} of the last update and gradient")
