"""A small language-modelling problem: a folder of synthetic texts, and a GPT of a few thousand parameters."""

import random

from congruency.language import LanguageSetup, Shape

WORDS = ("alpha", "beta", "gamma", "delta", "return", "import", "lambda", "yield")
SHAPE = Shape(width=16, layers=2, heads=2, context=16)


def write_texts(folder, count=40, words=60):
    """Files of random words; which of them are held out follows from their content."""
    folder.mkdir(parents=True)
    for i in range(count):
        drawn = random.Random(i)
        (folder / f"{i}.txt").write_text(" ".join(drawn.choice(WORDS) for _ in range(words)))
    return folder


def small(**changes):
    settings = {
        "shape": SHAPE, "steps": 12, "evaluate_steps": 4, "batch_size": 8, "learning_rate": 0.01, "warmup": 2,
        "evaluation_batches": 2,
    }  # fmt: skip
    return LanguageSetup(**{**settings, **changes})
