"""Runs that are killed at random times: ``python training_interrupted.py FOLDER SEED``.

Each life of the run is a forked process, so that the imports are paid for once; the kill is a real SIGKILL.
"""

import os
import random
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import torch
from training_toy import build

from congruency.training import Correction, TrainingConfig, train
from congruency.training.devices import make_fabric

METHODS = {
    "dcl": Correction(name="dcl", window=17, scope="all"),
    "gem": Correction(name="gem", scope="all"),
    "floor": Correction(name="dcl", window=17, scope="all", floor=0.3, blocks="tensor"),
    "update-cautious": Correction(
        name="dcl", window=17, scope="all", correct="update", blocks="element", cautious=True
    ),
    "cautious": Correction(name="cautious", scope="all"),
}
KILLS, LONGEST_LIFE = 5, 0.2
PAUSE = 0.007  # at every batch: 180 of them outlast all lives that end with a kill


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def settings(method, **changes):
    return TrainingConfig(
        epochs=30,
        seed=3,
        accelerator="cpu",
        method=method,
        flush_every=7,
        checkpoint_steps=5,
        **changes,
    )


def live(folder, method):
    """Run once: resume from the last checkpoint, to the end unless killed."""
    code = 1
    try:
        task = partial(build, dropout=0.2, noise=True, optimizer=adam, pause=PAUSE)
        code = train(task, settings(METHODS[method]), folder, resume=True).exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def killed_again_and_again(folder, method, chance):
    """Exit code of the process that ran to the end."""
    kills = 0
    while True:
        child = os.fork()
        if child == 0:
            live(folder, method)
        if kills < KILLS:
            time.sleep(chance.uniform(0.0, LONGEST_LIFE))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert kills == KILLS
            return os.WEXITSTATUS(status)
        kills += 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    make_fabric(settings(Correction()))  # imports lightning, before the forks
    times = random.Random(int(sys.argv[2]))
    for method in METHODS:
        code = killed_again_and_again(Path(sys.argv[1]) / method, method, times)
        if code:
            sys.exit(code)
