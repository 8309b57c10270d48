"""The training loop of all task families: devices, precision, checkpoints and run records."""

from congruency.training.checkpoints import CheckpointError, load_checkpoint
from congruency.training.config import Correction, SampleOrder, TrainingConfig, order_seed
from congruency.training.loop import Notice, Result, train
from congruency.training.methods import FAMILIES, METHODS, choose_families, choose_methods, method_named
from congruency.training.processes import STOPPED_EXIT_CODE
from congruency.training.record import Origin, RecordError, RunRecord, read_record, without_times
from congruency.training.task import Build, Place, Task, TrainingData

__all__ = [
    "FAMILIES", "METHODS", "STOPPED_EXIT_CODE", "Build", "CheckpointError", "Correction", "Notice", "Origin", "Place",
    "RecordError", "Result", "RunRecord", "SampleOrder", "Task", "TrainingConfig", "TrainingData", "choose_families",
    "choose_methods", "load_checkpoint", "method_named", "order_seed", "read_record", "train", "without_times",
]  # fmt: skip
