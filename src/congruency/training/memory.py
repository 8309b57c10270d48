"""The paper's GEM for batch learning: a memory of the epoch's first samples, as a source of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from congruency.constraints.directions import Directions
from congruency.distributed import full, like

__all__ = ["EpochMemory"]

Loss = Callable[[Any, Any], Tensor]


class EpochMemory(Directions):
    """Gradients of the loss on remembered samples, at the weights of each step (``eqn:constraints_conn``'s M).

    Each sample is a row of its own. The memory is renewed at an epoch's first step and constrains the steps after that
    one. With ``layer``, what is remembered are its input features, and the rows are the gradients of its parameters;
    without, the samples themselves, and the rows are the gradients of all parameters, for a pass through the whole
    network a step.

    The network sees the samples in evaluation mode: one sample has no batch statistics, and remembering must not move
    the running ones.

    Args:
        model: The network; its parameters may be sharded where ``layer`` is given.
        layer: The last layer, or None for the whole network.
        twin: A copy of the last layer as it was before it was sharded: what its gradients are computed with.
        loss: Of the output of ``layer``, or of the network.
        size: How many samples are remembered.
        margin: Lower bound of the multipliers, GEM's memory strength.
        autocast: The precision the network runs in.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module | None,
        loss: Loss,
        *,
        twin: nn.Module | None = None,
        size: int = 1,
        margin: float = 0.5,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__(margin)
        self._model, self._layer, self._twin = model, layer, layer if twin is None else twin
        self._loss, self._size, self._autocast = loss, size, autocast
        self._inputs: Any = None
        self._targets: Any = None
        self._fresh = False

    def remember(self, inputs: Any, targets: Any) -> None:
        """Renew the memory from a batch; the same samples on every process, those of the first one's batch."""
        inputs, targets = (_shared(_first(part, self._size)) for part in (inputs, targets))
        self._targets = targets
        self._inputs = inputs if self._layer is None else _shared(self._features(inputs, self._layer))
        self._fresh = True
        self.reset()

    def _features(self, inputs: Any, layer: nn.Module) -> Tensor:
        """What comes to the last layer when the network sees ``inputs``."""
        caught: list[Tensor] = []
        handle = layer.register_forward_pre_hook(lambda _, arguments: caught.append(arguments[0].detach().clone()))
        try:
            with torch.no_grad(), self._autocast(), _evaluating(self._model):
                self._model(inputs)
        finally:
            handle.remove()
        if not caught:
            raise RuntimeError("the network ran without its last layer; gem needs that layer's features")
        return caught[-1]

    def begin(self, parameters: Sequence[Tensor]) -> None:
        if self._inputs is None or self._fresh:
            self._fresh = False
            return
        if self._layer is None:
            _shared(list(self._model.buffers()))  # running statistics differ between processes, rows must not
        live = self._model if self._layer is None else self._layer
        own = {id(parameter) for parameter in parameters}
        chosen = {name: parameter for name, parameter in live.named_parameters() if id(parameter) in own}
        weights = {name: full(parameter.detach()) for name, parameter in live.named_parameters()}
        wanted = [weights[name].requires_grad_() for name in chosen]
        rows = [self._gradient(weights, wanted, i) for i in range(self._size)]
        laid_out = [[like(part, p) for part, p in zip(row, chosen.values(), strict=True)] for row in rows]
        self.set(laid_out, list(chosen.values()))

    def _gradient(self, weights: dict[str, Tensor], wanted: list[Tensor], i: int) -> tuple[Tensor, ...]:
        """The gradient of the loss on one remembered sample at ``weights``."""
        module = self._model if self._twin is None else self._twin
        inputs, targets = (pytree.tree_map(lambda t: t[i : i + 1], part) for part in (self._inputs, self._targets))
        with torch.enable_grad():
            with self._autocast(), _evaluating(module):
                outputs = functional_call(module, weights, (inputs,))
            loss = self._loss(_in_full_precision(outputs), targets)
        return torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)

    def settings(self) -> dict[str, Any]:
        scope = "all" if self._layer is None else "head"
        return {"source": "epoch memory", "margin": self.margin, "size": self._size, "scope": scope}

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, Any]:
        return {"inputs": self._inputs, "targets": self._targets, "fresh": self._fresh}

    def load_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        device = parameters[0].device
        self._inputs, self._targets = (_on(device, state[name]) for name in ("inputs", "targets"))
        self._fresh = bool(state["fresh"])
        self.reset()


def _first(part: Any, count: int) -> Any:
    """The first samples of a batch, or of whatever tensors it is made of."""

    def cut(tensor: Tensor) -> Tensor:
        if len(tensor) < count:
            raise ValueError(f"gem's memory holds {count} samples, this process's first batch only {len(tensor)}")
        return tensor[:count].detach().clone()

    return pytree.tree_map(cut, part)


def _shared(part: Any) -> Any:
    """Every process takes what the first one has."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for tensor in pytree.tree_leaves(part):
            torch.distributed.broadcast(tensor, src=0)
    return part


def _on(device: torch.device, part: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, part)


def _in_full_precision(outputs: Any) -> Any:
    low = (torch.float16, torch.bfloat16)
    return pytree.tree_map(lambda t: t.float() if isinstance(t, Tensor) and t.dtype in low else t, outputs)


class _evaluating:
    """The modules in evaluation mode for a while, each put back into its own mode after."""

    def __init__(self, module: nn.Module) -> None:
        self._training = [part for part in module.modules() if part.training]

    def __enter__(self) -> None:
        for part in self._training:
            part.training = False

    def __exit__(self, *reason: object) -> None:
        for part in self._training:
            part.training = True
