"""Execute runs of language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from congruency.language import Corpus, LanguageSetup, build, read_corpus, training_config
from congruency.studies.executor import Within
from congruency.studies.language.study import LanguageJob
from congruency.studies.network_runs import NetworkRunner, curves_of, samples_per_second, train_run
from congruency.studies.plan import Run
from congruency.studies.store import RunResult
from congruency.training import Origin, RunRecord, read_record


@dataclass(frozen=True, kw_only=True)
class LanguageRunner(NetworkRunner[LanguageJob]):
    """Executes runs of language models.

    Attributes:
        corpus: Source for :func:`congruency.language.read_corpus`.
        corpus_hash: Expected hash of the text on every machine; None for any.
    """

    corpus: str = "stdlib"
    corpus_hash: str | None = None

    @property
    def computing(self) -> dict[str, Any]:
        """Machine settings without the device, for the training configuration and ``settings.json``."""
        return {name: getattr(self.machine, name) for name in ("precision", "compile", "capture", "tf32")}

    def text(self) -> Corpus:
        """Return the corpus, read once per process.

        Raises:
            ValueError: Its hash differs from ``corpus_hash``.
        """
        corpus = _read(self.corpus)
        if self.corpus_hash not in (None, corpus.digest):
            raise ValueError(
                f"the corpus {corpus.name} has the hash {corpus.digest} here and {self.corpus_hash} where the study "
                "began (another release of Python?); use one folder of text on all machines"
            )
        return corpus

    def prepare(self, runs: Sequence[Run[LanguageJob]]) -> None:
        if self.machine.capture and self.device != "cuda":
            raise ValueError("capture needs a GPU; leave it off")
        for setup in {run.job.setup for run in runs}:
            build(setup, self.text())

    def train(self, run: Run[LanguageJob], folder: Path, within: Within) -> tuple[RunResult, bool]:
        setup = replace(run.job.setup, seed=run.seed)
        config = training_config(
            setup, run.job.method, accelerator=self.machine.device, measure="none", record_steps=0,
            checkpoint_epochs=0, **self.computing,
        )  # fmt: skip
        text = self.text()
        origin = Origin(command=self.command, data=text.name, table=self.study, row=run.row)
        result = train_run(run, build(setup, text), config, folder, origin, within)
        return _result(read_record(result.record), setup), result.asked_to_stop


@lru_cache(maxsize=2)
def _read(source: str) -> Corpus:
    return read_corpus(source)


def _result(record: RunRecord, setup: LanguageSetup) -> RunResult:
    lines, curves = record.epochs, curves_of(record, validation_loss="loss")
    figures = {
        "validation_loss": curves["validation_loss"][-1],
        "train_loss": curves["train_loss"][-1],
        "corrected_share": sum(line["corrected_share"] for line in lines) / len(lines),
        "bytes_per_second": setup.shape.context * samples_per_second(record),
        "seconds": sum(line["seconds"] for line in lines),
    }
    return RunResult(figures, curves)
