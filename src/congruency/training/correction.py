"""Attach a run's correction to its optimizer: DCL, the paper's GEM for batch learning, or Cautious."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from congruency.cautious import Cautious
from congruency.constraints.directions import Directions
from congruency.corrector import Corrector
from congruency.dcl import DCL
from congruency.distributed import full, like
from congruency.modules import head
from congruency.training.config import Correction, TrainingConfig

Loss = Callable[[Any, Any], Tensor]
Autocast = Callable[[], AbstractContextManager[Any]]


def check_length(config: TrainingConfig, steps: int) -> None:
    """Warn before training if the run is too short for its window or references."""
    method = config.method
    if method.name != "dcl":
        return
    if method.window is not None and method.window > steps:
        warnings.warn(
            f"the window of {method.window} steps is longer than the run of {steps}: references are never renewed, as "
            "with window=None; choose a shorter window or more epochs",
            stacklevel=3,
        )
    if method.offset + method.references >= steps:
        warnings.warn(
            f"the run has {steps} steps, and the first {method.offset + method.references} only record references: "
            "nothing is ever corrected; choose fewer references, a smaller offset or more epochs",
            stacklevel=3,
        )


def parameters_of(model: nn.Module, scope: str) -> list[Tensor]:
    """Return the trainable parameters of the last layer (``"head"``) or of all layers (``"all"``)."""
    module = head(model) if scope == "head" else model
    chosen: list[Tensor] = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not chosen:
        raise ValueError(f"no parameter of scope {scope!r} trains; unfreeze some, or choose the other scope")
    return chosen


def head_copy(correction: Correction, model: nn.Module) -> nn.Module | None:
    """Copy the last layer for GEM's gradients, before the network is sharded; None if not needed."""
    if correction.name != "gem" or correction.scope == "all":
        return None
    layer = head(model)
    if isinstance(layer, nn.ModuleList):
        raise ValueError("gem with scope 'head' needs one last layer, this network has several; use scope 'all'")
    return copy.deepcopy(layer)


def attach(
    correction: Correction,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    *,
    layer_copy: nn.Module | None,
    autocast: Autocast,
) -> tuple[Corrector | None, EpochMemory | None, Cautious | None]:
    """Make ``optimizer.step()`` correct gradients or updates; return the corrector, GEM's memory, and Cautious."""
    corrector: Corrector | None = None
    memory: EpochMemory | None = None
    cautious: Cautious | None = None
    makes_cautious = correction.cautious or correction.name == "cautious"
    if correction.name in ("baseline", "l2sp") and not makes_cautious:
        return corrector, memory, cautious
    params = parameters_of(model, correction.scope)
    margin, trigger = correction.effective_margin, correction.effective_trigger
    if correction.name == "dcl":
        with paper_form():
            corrector = DCL(
                optimizer, params, references=correction.references, window=correction.window,
                offset=correction.offset, mode=correction.mode, margin=margin, trigger=trigger,
                accumulate=correction.accumulate, floor=correction.floor, returning=correction.returning,
                correct=correction.correct, blocks=correction.blocks,
            )  # fmt: skip
    elif correction.name == "gem":
        layer = head(model) if correction.scope == "head" else None
        memory = EpochMemory(
            model, layer, loss, layer_copy=layer_copy, size=correction.memory, margin=margin, autocast=autocast
        )
        corrector = Corrector(optimizer, params, constraints=[memory], trigger=trigger)
    if makes_cautious:
        cautious = Cautious(
            optimizer, params, rescale=correction.rescale, decay=correction.mask_decay,
            max_rescale=correction.max_rescale,
        )  # fmt: skip
    return corrector, memory, cautious


@contextmanager
def paper_form() -> Iterator[None]:
    """Suppress the warning that the paper's form can diverge with momentum, where that form is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "floor=None is the paper's form")
        yield


class EpochMemory(Directions):
    """Constraints from the loss gradients of remembered samples at the current weights (``eqn:constraints_conn``'s M).

    Each sample is one constraint. The memory is renewed at an epoch's first step and constrains the steps after it.
    With ``layer``, it holds the layer's input features, and the constraints are gradients of the layer's parameters;
    otherwise it holds the samples, and the constraints are gradients of all parameters, which costs a pass through the
    whole network per sample and step.

    The network runs in evaluation mode for these samples: a single sample has no batch statistics, and running averages
    must not change.

    Args:
        model: The network; its parameters may be sharded if ``layer`` is given.
        layer: The last layer, or None for the whole network.
        loss: Loss of the output of ``layer``, or of the network.
        layer_copy: Unsharded copy of the last layer, to compute gradients with.
        size: Number of remembered samples.
        margin: Lower bound of the multipliers, GEM's memory strength.
        autocast: Context manager of the run's precision.
    """

    def __init__(
        self, model: nn.Module, layer: nn.Module | None, loss: Loss, *, layer_copy: nn.Module | None = None,
        size: int = 1, margin: float = 0.5, autocast: Autocast,
    ) -> None:  # fmt: skip
        super().__init__(margin)
        self._model, self._layer = model, layer
        self._layer_copy = layer if layer_copy is None else layer_copy
        self._loss, self._size, self._autocast = loss, size, autocast
        self._inputs: Any = None
        self._targets: Any = None
        self._fresh = False

    def remember(self, inputs: Any, targets: Any) -> None:
        """Renew the memory from a batch; every process uses the samples of the first process."""
        inputs, targets = (_broadcast(_first(part, self._size)) for part in (inputs, targets))
        self._targets = targets
        self._inputs = inputs if self._layer is None else _broadcast(self._features(inputs, self._layer))
        self._fresh = True
        self.reset()

    def _features(self, inputs: Any, layer: nn.Module) -> Tensor:
        """Return the last layer's input features for ``inputs``."""
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
            _broadcast(list(self._model.buffers()))  # running averages differ between processes; constraints must not
        live = self._model if self._layer is None else self._layer
        own = {id(parameter) for parameter in parameters}
        chosen = {name: parameter for name, parameter in live.named_parameters() if id(parameter) in own}
        weights = {name: full(parameter.detach()) for name, parameter in live.named_parameters()}
        wanted = [weights[name].requires_grad_() for name in chosen]
        gradients = [self._gradient(weights, wanted, i) for i in range(self._size)]
        laid_out = [[like(part, p) for part, p in zip(each, chosen.values(), strict=True)] for each in gradients]
        self.set(laid_out, list(chosen.values()))

    def _gradient(self, weights: dict[str, Tensor], wanted: list[Tensor], i: int) -> tuple[Tensor, ...]:
        """Return the loss gradient of one remembered sample at ``weights``."""
        module = self._model if self._layer_copy is None else self._layer_copy
        inputs, targets = (pytree.tree_map(lambda t: t[i : i + 1], part) for part in (self._inputs, self._targets))
        with torch.enable_grad():
            with self._autocast(), _evaluating(module):
                outputs = functional_call(module, weights, (inputs,))
            loss = self._loss(pytree.tree_map(float32, outputs), targets)
        return torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)

    def settings(self) -> dict[str, Any]:
        scope = "all" if self._layer is None else "head"
        return {"source": "epoch memory", "margin": self.margin, "size": self._size, "scope": scope}

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, Any]:
        return {"inputs": self._inputs, "targets": self._targets, "fresh": self._fresh}

    def load_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        device = parameters[0].device
        self._inputs, self._targets = (
            pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, state[name])
            for name in ("inputs", "targets")
        )
        self._fresh = bool(state["fresh"])
        self.reset()


def float32(value: Any) -> Any:
    """Convert a 16-bit float tensor to float32; return anything else unchanged."""
    low = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if low else value


def _first(part: Any, count: int) -> Any:
    """Return the first ``count`` samples of a batch, cutting each of its tensors."""

    def cut(tensor: Tensor) -> Tensor:
        if len(tensor) < count:
            raise ValueError(f"gem's memory holds {count} samples, this process's first batch only {len(tensor)}")
        return tensor[:count].detach().clone()

    return pytree.tree_map(cut, part)


def _broadcast(part: Any) -> Any:
    """Overwrite every process's tensors with those of the first process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for tensor in pytree.tree_leaves(part):
            torch.distributed.broadcast(tensor, src=0)
    return part


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module into evaluation mode; restore the mode of each submodule on exit."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
