"""Small training problems the tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


def network(dtype: torch.dtype = torch.float64, seed: int = 0, device: torch.device | str = "cpu") -> nn.Sequential:
    """A two-layer network with a few dozen parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(device=device, dtype=dtype)


def batch(step: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """A noisy batch, the same for the same step on every device."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return inputs.to(device, dtype), targets.to(device, dtype)


def loss_of(model: nn.Module, step: int) -> Tensor:
    """The loss of one step's batch."""
    parameter = next(model.parameters())
    inputs, targets = batch(step, parameter.dtype, parameter.device)
    return (model(inputs) - targets).square().mean()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, set_to_none: bool = True) -> list[Tensor]:
    """Train; the weights after every step, flat and in float64 on the CPU."""
    path = []
    for step in steps:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(model, step).backward()
        optimizer.step()
        path.append(weights(model))
    return path


def weights(model: nn.Module) -> Tensor:
    """All weights as one vector, in float64 on the CPU."""
    return torch.cat([p.detach().flatten().to("cpu", torch.float64) for p in model.parameters()])


class LargestResult(TorchDispatchMode):
    """Notes the largest new tensor any operation makes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        known |= {a.untyped_storage().data_ptr() for a in (kwargs or {}).values() if isinstance(a, torch.Tensor)}
        for result in results if isinstance(results, (tuple, list)) else [results]:
            if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in known:
                self.largest = max(self.largest, result.untyped_storage().nbytes())
        return results


def parameter(*values: float) -> nn.Parameter:
    """A parameter in float64."""
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def step(optimizer: torch.optim.Optimizer, *gradients: object) -> None:
    """One step along these gradients, None for a parameter that has none."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = None if gradient is None else torch.tensor(gradient, dtype=p.dtype)
    optimizer.step()
