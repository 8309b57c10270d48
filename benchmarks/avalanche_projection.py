"""A server of Avalanche's GEM projection: ``avalanche_projection.py FOLDER``, one JSON request and answer per line.

``benchmarks/comparison.py`` starts it with a Python that has avalanche-lib, and writes problems into FOLDER. Requests:
``{"do": "about"}``, ``{"do": "solve", "problems": FILE, "answers": FILE}`` and ``{"do": "time", "problem": FILE,
"repeats": N}``.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

_library = torch.library.Library("torchvision", "DEF")  # a torchvision without compiled operators still imports
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from avalanche.training.plugins import GEMPlugin  # noqa: E402


def solve(problems: list[dict], folder: Path, answers: str) -> dict:
    """The result of ``solve_quadprog`` for each problem, None with the error's name if it raised."""
    found, errors = [], []
    for problem in problems:
        plugin = GEMPlugin(1, problem["margin"])
        plugin.G = problem["rows"]
        try:
            found.append(plugin.solve_quadprog(problem["gradient"]).double())
            errors.append(None)
        except Exception as reason:
            found.append(None)
            errors.append(f"{type(reason).__name__}: {reason}")
    torch.save({"answers": found, "errors": errors}, folder / answers)
    return {"solved": len(found)}


class OneTensor(nn.Module):
    """A model whose parameters are one vector."""

    def __init__(self, gradient: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros_like(gradient))
        self.weight.grad = gradient.clone()


def time_steps(problem: dict, repeats: int) -> dict:
    """Seconds per call of the plugin's hook after the backward pass, its constraints already computed."""
    model = OneTensor(problem["gradient"])
    plugin = GEMPlugin(1, problem["margin"])
    plugin.G = problem["rows"]
    strategy = SimpleNamespace(
        clock=SimpleNamespace(train_exp_counter=len(plugin.G)), model=model, device=torch.device("cpu")
    )
    seconds = []
    for _ in range(repeats):
        model.weight.grad.copy_(problem["gradient"])
        began = time.perf_counter()
        plugin.after_backward(strategy)
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds}


def main() -> None:
    """Answer requests until the end of the input."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    held: dict[str, dict] = {}  # the last timed problem: reading it again takes longer than solving it
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "about":
            answer = {name: version(name) for name in ("avalanche-lib", "qpsolvers", "quadprog", "torch")}
        elif request["do"] == "solve":
            answer = solve(torch.load(folder / request["problems"], weights_only=True), folder, request["answers"])
        else:
            if request["problem"] not in held:
                held = {request["problem"]: torch.load(folder / request["problem"], weights_only=True)}
            answer = time_steps(held[request["problem"]], request["repeats"])
        print("answer " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
