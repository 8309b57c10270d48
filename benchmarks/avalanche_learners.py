"""An Avalanche strategy on streams that ``benchmarks/continual.py`` saved: ``avalanche_learners.py FOLDER...``.

A FOLDER has ``stream.pt`` and ``settings.json``; the seconds and the accuracy matrix go to its ``result.json``.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

_library = torch.library.Library("torchvision", "DEF")  # a torchvision without compiled operators still imports
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from avalanche.benchmarks import benchmark_from_datasets, tensors_benchmark  # noqa: E402
from avalanche.benchmarks.utils import as_classification_dataset  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin  # noqa: E402
from avalanche.training.storage_policy import ExperienceBalancedBuffer  # noqa: E402
from avalanche.training.supervised import AGEM, GEM, LwF, Naive  # noqa: E402


class Labelled(torch.utils.data.TensorDataset):
    """Tensors with the attribute that Avalanche needs."""

    @property
    def targets(self) -> list[int]:
        """The labels."""
        return self.tensors[1].tolist()


def strategy_of(name: str, model: nn.Module, settings: dict, tasks: int) -> Naive:
    """A strategy with the settings of ours; replay takes as many samples of the memory as of the task."""
    memory, batch = settings["memory"], settings["batch"]
    shared = {
        "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=settings["rate"]), "train_epochs": 1,
        "criterion": nn.CrossEntropyLoss(), "train_mb_size": batch, "evaluator": EvaluationPlugin(),
    }  # fmt: skip
    if name == "GEM":
        return GEM(**shared, patterns_per_exp=memory, memory_strength=settings["margin"])
    if name == "A-GEM":
        return AGEM(**shared, patterns_per_exp=memory, sample_size=memory)
    if name == "LwF":
        return LwF(**shared, alpha=settings["strength"], temperature=settings["temperature"])
    if name == "ER":
        kept = ExperienceBalancedBuffer(max_size=memory * tasks, adaptive_size=False, num_experiences=tasks)
        replay = ReplayPlugin(mem_size=memory * tasks, batch_size=batch, batch_size_mem=batch, storage_policy=kept)
        return Naive(**shared, plugins=[replay])
    return Naive(**shared)


def accuracies(model: nn.Module, tests: list[tuple[Tensor, Tensor]]) -> list[float]:
    """The accuracy on every task; the losses, which ours records too, are computed and left."""
    model.eval()
    found = []
    with torch.no_grad():
        for x, y in tests:
            outputs = model(x)
            nn.functional.cross_entropy(outputs, y).item()
            found.append(float((outputs.argmax(1) == y).float().mean()))
    return found


def run(folder: Path) -> None:
    """Train, evaluate after every task, write the seconds and the accuracy matrix."""
    settings = json.loads((folder / "settings.json").read_text())
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    random.seed(settings["seed"])
    saved = torch.load(folder / "stream.pt", weights_only=True)
    layers: list[nn.Module] = [nn.Flatten()]
    for into, out in zip(saved["sizes"], saved["sizes"][1:], strict=False):
        layers += [nn.Linear(into, out), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    nn.utils.vector_to_parameters(saved["weights"], model.parameters())
    if settings["learner"] == "LwF":  # needs task labels
        labels = [0] * len(saved["train"])
        benchmark = tensors_benchmark(train_tensors=saved["train"], test_tensors=saved["test"], task_labels=labels)
    else:
        benchmark = benchmark_from_datasets(
            train=[as_classification_dataset(Labelled(x, y)) for x, y in saved["train"]],
            test=[as_classification_dataset(Labelled(x, y)) for x, y in saved["test"]],
        )
    strategy = strategy_of(settings["learner"], model, settings, len(saved["train"]))
    shuffle = settings["learner"] == "ER"  # in order, it would replay the first samples of the memory alone
    began = time.perf_counter()
    accuracies(model, saved["test"])  # before training too, as ours
    matrix = []
    for experience in benchmark.train_stream:
        strategy.train(experience, shuffle=shuffle, num_workers=0)
        matrix.append(accuracies(model, saved["test"]))
    (folder / "result.json").write_text(json.dumps({"seconds": time.perf_counter() - began, "matrix": matrix}))


if __name__ == "__main__":
    for word in sys.argv[1:]:
        run(Path(word))
