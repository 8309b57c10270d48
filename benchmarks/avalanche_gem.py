"""Avalanche's GEM on a stream saved by ``benchmarks/continual.py``: ``avalanche_gem.py FOLDER THREADS BATCH ...``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

_library = torch.library.Library("torchvision", "DEF")  # a torchvision without compiled operators still imports
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from avalanche.benchmarks import benchmark_from_datasets  # noqa: E402
from avalanche.benchmarks.utils import as_classification_dataset  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin  # noqa: E402
from avalanche.training.supervised import GEM  # noqa: E402


class Labelled(torch.utils.data.TensorDataset):
    """Tensors with the attribute that Avalanche needs."""

    @property
    def targets(self) -> list[int]:
        """The labels."""
        return self.tensors[1].tolist()


def main() -> None:
    """Train, evaluate after every task, write the seconds and the accuracy matrix."""
    folder, threads, batch, memory = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    margin, rate = map(float, sys.argv[5:7])
    torch.set_num_threads(threads)
    saved = torch.load(folder / "stream.pt", weights_only=True)
    layers: list[nn.Module] = [nn.Flatten()]
    for into, out in zip(saved["sizes"], saved["sizes"][1:], strict=False):
        layers += [nn.Linear(into, out), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    nn.utils.vector_to_parameters(saved["weights"], model.parameters())
    benchmark = benchmark_from_datasets(
        train=[as_classification_dataset(Labelled(x, y)) for x, y in saved["train"]],
        test=[as_classification_dataset(Labelled(x, y)) for x, y in saved["test"]],
    )
    strategy = GEM(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=rate), criterion=nn.CrossEntropyLoss(),
        patterns_per_exp=memory, memory_strength=margin, train_mb_size=batch, train_epochs=1,
        evaluator=EvaluationPlugin(),
    )  # fmt: skip
    began = time.perf_counter()
    matrix = []
    for experience in benchmark.train_stream:
        strategy.train(experience, shuffle=False, num_workers=0)
        model.eval()
        with torch.no_grad():
            matrix.append([float((model(x).argmax(1) == y).float().mean()) for x, y in saved["test"]])
    (folder / "result.json").write_text(json.dumps({"seconds": time.perf_counter() - began, "matrix": matrix}))


if __name__ == "__main__":
    main()
