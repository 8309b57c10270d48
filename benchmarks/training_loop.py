"""Time the training loop beside a plain one written by hand: same network, same batches, same process.

    python benchmarks/training_loop.py --device cuda --precision bf16 --channels-last --compile
    python benchmarks/training_loop.py --device cpu --model convnet --images 4000 --side 8 --channels 1

Both train from the same weights on the same batches, in turn, several times. The first epoch warms up; the wall time of
the others counts, with everything the loop does between and after steps: figures, records, the ends of epochs. The
images are synthetic, since speed does not depend on their content; `--data cifar10 --folder ...` uses real ones.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.nn import functional

from congruency.classification import AUGMENTATIONS, Augmentation, Batches, create
from congruency.classification.task import Setup, build
from congruency.datasets import LabelledImages, load
from congruency.report.tables import Table, to_rich
from congruency.training import Correction, Place, Task, TrainingConfig, train

PLAIN = "plain loop, by hand"
TARGET = 0.97


def main() -> None:
    """Measure, print a table, write JSON."""
    options = parsed()
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    images = placed(options)
    contenders = contenders_of(options)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.repeats):
        for name, run in contenders.items():
            rates[name].append(run(images))
    report = summary(options, rates, len(images))
    Console().print(to_rich(shown(report)))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def contenders_of(options: argparse.Namespace) -> dict[str, Callable[[LabelledImages], float]]:
    """The timed programs by name."""
    dcl = {"name": "dcl", "window": 50}
    return {
        PLAIN: lambda images: by_hand(options, images),
        "our loop": lambda images: ours(options, images, Correction(), "none"),
        **(
            {"our loop, captured": lambda images: ours(options, images, Correction(), "none", capture=True)}
            if options.device == "cuda"
            else {}
        ),
        "our loop, congruency of the last layer recorded": lambda images: ours(options, images, Correction(), "head"),
        "our loop, DCL on the last layer": lambda images: ours(options, images, Correction(**dcl), "none"),
        "our loop, DCL on the whole network": lambda images: ours(
            options, images, Correction(**dcl, scope="all"), "none"
        ),
    }


def ours(
    options: argparse.Namespace, images: LabelledImages, method: Correction, measure: Any, capture: bool = False
) -> float:
    """Images per second of `congruency.training.train`."""
    stopwatch = Stopwatch(options.device)
    config = TrainingConfig(
        epochs=options.epochs, method=method, accelerator=options.device, precision=options.precision,
        compile=options.compile, capture=capture, channels_last=options.channels_last, tf32=True, measure=measure,
        evaluate_every=options.epochs, checkpoint_epochs=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        train(stopwatch.around(build(setup_of(options, images), images)), config, folder)
    return stopwatch.samples / stopwatch.seconds


def by_hand(options: argparse.Namespace, images: LabelledImages) -> float:
    """Images per second of a plain loop, with its loss and error."""
    setup = setup_of(options, images)
    device = torch.device(options.device)
    torch.manual_seed(0)
    batches = Batches(images, setup.batch_size, setup.augmentation, device=device, drop_last=True)
    model = create(setup.model, len(images.classes), shape=tuple(images.images.shape[1:])).to(device)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    forward = torch.compile(model, dynamic=False) if options.compile else model
    optimizer = torch.optim.SGD(
        model.parameters(), lr=setup.learning_rate, momentum=setup.momentum, weight_decay=setup.weight_decay,
        nesterov=setup.nesterov,
    )  # fmt: skip
    steps = len(batches) * setup.epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    precision = {"32": None, "bf16": torch.bfloat16}[options.precision]
    stopwatch = Stopwatch(options.device)
    with switches(options):
        for epoch in range(setup.epochs):
            model.train()
            total = torch.zeros(2, device=device)
            for inputs, labels in stopwatch.watched(batches, epoch):
                inputs = inputs.contiguous(memory_format=layout)
                with torch.autocast(device.type, precision) if precision else nullcontext():
                    outputs = forward(inputs).float()
                    loss = functional.cross_entropy(outputs, labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                schedule.step()
                total += torch.stack([loss.detach(), (outputs.argmax(1) != labels).float().mean()])
            total.tolist()
        stopwatch.stop()
    return stopwatch.samples / stopwatch.seconds


class Stopwatch:
    """Wall time from the second epoch on, synchronised with the device at both ends."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self.samples = 0
        self.seconds = self._began = 0.0

    def watched(self, batches: Any, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """The batches of an epoch; the clock starts with the second."""
        if epoch == 1:
            self._began = self._now()
        for inputs, labels in batches.train_batches(epoch, start):
            self.samples += len(labels) if epoch else 0
            yield inputs, labels

    def stop(self) -> None:
        """Stop after the last epoch."""
        self.seconds = self._now() - self._began

    def around(self, made: Any) -> Callable[[Place], Task]:
        """A timed task: its batches start the clock, its evaluation stops it."""

        def make(place: Place) -> Task:
            task = made(place)
            return replace(task, data=_Watched(self, task.data), evaluate=lambda model: self.stop() or {})

        return make

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class _Watched:
    def __init__(self, stopwatch: Stopwatch, data: Any) -> None:
        self._stopwatch, self._data = stopwatch, data

    def __len__(self) -> int:
        return len(self._data)

    def train_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        return self._stopwatch.watched(self._data, epoch, start)


@contextmanager
def switches(options: argparse.Namespace) -> Iterator[None]:
    """Torch's global settings as the loop sets them."""
    if options.device == "cuda":
        torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def setup_of(options: argparse.Namespace, images: LabelledImages) -> Setup:
    """The setup of the run."""
    channels = images.images.shape[1]
    plain = Augmentation((0.5,) * channels, (0.25,) * channels, crop="padded", flip=True)
    return Setup(
        model=options.model, augmentation=AUGMENTATIONS.get(options.data, plain), epochs=options.epochs,
        batch_size=options.batch_size, learning_rate=0.1, nesterov=True, schedule="cosine", drop_last=True,
    )  # fmt: skip


def placed(options: argparse.Namespace) -> LabelledImages:
    """The images, on the device."""
    if options.data is not None:
        found = load(options.data, data=options.folder)
    else:
        random = torch.Generator().manual_seed(0)
        shape = (options.images, options.channels, options.side, options.side)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)
        labels = torch.randint(0, 10, (options.images,), generator=random)
        found = LabelledImages(images, labels, tuple("0123456789"))
    return LabelledImages(found.images.to(options.device), found.labels.to(options.device), found.classes)


def summary(options: argparse.Namespace, rates: dict[str, list[float]], count: int) -> dict[str, Any]:
    """All measurements, and the machine."""
    ratios = {
        name: statistics.median(rate / plain for rate, plain in zip(each, rates[PLAIN], strict=True))
        for name, each in rates.items()
    }
    device = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu"
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    return {
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "images": count,
        "settings": {name: value for name, value in settings.items() if name not in ("out", "folder")},
        "images_per_second": rates,
        "ratio_to_plain": ratios,
        "target": TARGET,
    }


def shown(report: dict[str, Any]) -> Table:
    """Medians, and each as a multiple of the plain loop's."""
    rows = [
        [name, f"{statistics.median(rates):,.0f}", f"{report['ratio_to_plain'][name]:.3f}"]
        for name, rates in report["images_per_second"].items()
    ]
    caption = (
        f"{report['settings']['model']} on {report['device']}, medians of {report['settings']['repeats']} turns; "
        f"the target is {TARGET} of the plain loop for our loop."
    )
    return Table(caption, ["Loop", "images/s", "of the plain loop"], rows)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--model", default="resnet9")
    parser.add_argument("--data", default=None, help="a set's name or path, instead of synthetic images")
    parser.add_argument("--folder", type=Path, default=None, help="folder of the named sets")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--precision", default="32", choices=["32", "bf16"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="a JSON file")
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error("--epochs must be at least 2: the first warms up")
    return options


if __name__ == "__main__":
    main()
