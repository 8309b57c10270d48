"""Cases of the benchmark: lists of parameter shapes, and networks with batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

_SIZES = (1e4, 1e5, 1e6, 1e7, 2.5e7, 1e8, 3.5e8)


@dataclass(frozen=True)
class Workload:
    """A named list of parameter shapes."""

    name: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(torch.Size(shape).numel() for shape in self.shapes)


@dataclass(frozen=True)
class TrainingCase:
    """A network to train with its data, and the correction: its scope, kind and number of references."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    scope: str
    references: int
    autocast: bool = False
    correction: Literal["DCL", "Cautious"] = "DCL"
    mode: Literal["eager", "graph", "compile"] = "eager"
    """Eager; the whole step captured in a CUDA graph; or the network compiled with ``mode="reduce-overhead"``."""


def workloads(sizes: Sequence[float] | None = None) -> list[Workload]:
    """Return one flat tensor per size; without ``sizes`` also the shapes of real networks and heads."""
    flat = [Workload("one tensor", ((int(size),),)) for size in sizes or _SIZES]
    if sizes:
        return flat
    mlp = ((100, 784), (100,), (100, 100), (100,), (10, 100), (10,))
    named = [
        Workload("MLP 784-100-100-10", mlp),
        Workload("head 2048x1000", ((1000, 2048), (1000,))),
        Workload("ResNet-50", resnet50_shapes()),
    ]
    return sorted([*flat, *named], key=lambda workload: workload.parameters)


def resnet50_shapes() -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the 161 parameter tensors of ResNet-50, 25,557,032 elements."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    wide = 64
    for narrow, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(depth):
            for out, inner, kernel in ((narrow, wide, 1), (narrow, narrow, 3), (4 * narrow, narrow, 1)):
                shapes += [(out, inner, kernel, kernel), (out,), (out,)]
            if i == 0:
                shapes += [(4 * narrow, wide, 1, 1), (4 * narrow,), (4 * narrow,)]
            wide = 4 * narrow
    return (*shapes, (1000, 2048), (1000,))


def training_cases(device: torch.device, quick: bool) -> list[TrainingCase]:
    """Return multilayer perceptrons; on a GPU also a GPT, ResNet-50 if timm is installed, and the other modes."""
    small = _mlp("MLP 784-100-100-10, batch 128", (784, 100, 100, 10), device)
    cases = [small("all", 1), small("head", 1), small("all", 3), replace(small("all", 1), correction="Cautious")]
    if not quick:
        wide = _mlp("MLP 3072-4096-2560-1000, batch 128", (3072, 4096, 2560, 1000), device)
        cases += [wide("all", 1), wide("head", 1), wide("all", 3), wide("all", 10)]
        cases += [replace(wide("all", 1), correction="Cautious")]
    if device.type == "cuda" and not quick:
        cases += [*_gpt(device), *_resnet50(device)]
        networks = ("MLP", "GPT")
        captured = [case for case in cases if case.name.startswith(networks) and case.scope == "all"]
        cases += [replace(case, mode="graph") for case in captured if case.references <= 3]
        cases += [replace(case, mode="compile") for case in captured if case.references == 1]
    return cases


def _mlp(name: str, widths: Sequence[int], device: torch.device) -> Callable[[str, int], TrainingCase]:
    """Return a factory of cases for a multilayer perceptron; data and labels are noise, so that gradients disagree."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2048, widths[0], generator=generator).to(device).split(128)
    targets = torch.randint(widths[-1], (2048,), generator=generator).to(device).split(128)

    def make() -> nn.Module:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1]).to(device)

    return lambda scope, references: TrainingCase(name, make, inputs, targets, scope, references)


def _resnet50(device: torch.device) -> list[TrainingCase]:
    try:
        import timm
    except ImportError:
        return []
    images = torch.randn(256, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (256,), device=device)

    def make() -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = timm.create_model("resnet50")
        return model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    name = "ResNet-50, bf16 autocast, channels_last, batch 256"
    settings = (("all", 1), ("head", 1), ("all", 10), ("all", 20))
    cases = [TrainingCase(name, make, [images], [labels], scope, n, autocast=True) for scope, n in settings]
    return [*cases, replace(cases[0], correction="Cautious")]


def _gpt(device: torch.device) -> list[TrainingCase]:
    """Cases of the byte-level GPT with 10.8 million parameters on random bytes, with DCL and with Cautious."""
    from congruency.language import GPT, PRESETS

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(GPT(PRESETS["10m"]), nn.Flatten(0, 1)).to(device)

    inputs = torch.randint(256, (64, 256), device=device)
    case = TrainingCase("GPT, 10.8 M, bf16 autocast, batch 64", make, [inputs], [inputs.flatten()], "all", 1, True)
    return [case, replace(case, references=3), replace(case, correction="Cautious")]
