"""What each of two processes does: ``torchrun language_worker.py TEXTS FOLDER``."""

import sys
from pathlib import Path

import torch
from language_toy import small
from processes import leave

from congruency.language import build, read_corpus, training_config
from congruency.training import METHODS, train

STRATEGIES = ("ddp", "fsdp")


def run(strategy, texts, folder):
    setup = small(accumulate=2)
    config = training_config(setup, METHODS["paper-10"], accelerator="cpu", strategy=strategy)
    train(build(setup, read_corpus(texts)), config, folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in STRATEGIES:
        run(each, sys.argv[1], Path(sys.argv[2]) / each)
    leave()
