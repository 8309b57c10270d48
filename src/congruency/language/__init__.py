"""Byte-level language modelling: a small GPT, a corpus from any folder of text, and the task of the training loop.

The default corpus is the source code of Python's standard library, which every machine has.
"""

from congruency.language.corpus import Corpus, read_corpus
from congruency.language.model import GPT, PRESETS, Shape
from congruency.language.task import LanguageSetup, Windows, build, describe, training_config

__all__ = [
    "GPT",
    "PRESETS",
    "Corpus",
    "LanguageSetup",
    "Shape",
    "Windows",
    "build",
    "describe",
    "read_corpus",
    "training_config",
]
