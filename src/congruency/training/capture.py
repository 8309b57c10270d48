"""Forward and backward pass of a batch as one CUDA graph: captured once, then replayed with a single launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_WARM_UP = 3  # batches that choose algorithms, compile kernels and fill caches before the capture


class Captured:
    """A function that computes a batch's gradients, captured as a CUDA graph.

    The fourth consecutive batch of the same shapes is captured; those before it run eagerly. From then on, batches of
    these shapes are copied into the captured inputs and the graph is replayed; others, such as a smaller last batch,
    run eagerly. Each batch is computed once either way, with fresh random numbers from the GPU's generator. Random
    numbers from Python's, numpy's or the CPU's generators are frozen at their captured values.

    Args:
        work: ``work(inputs, targets)`` computes gradients and returns a tensor of figures.
        parameters: The parameters whose gradients it computes; ``.grad`` must be None at every call.
    """

    def __init__(self, work: Callable[[Any, Any], Tensor], parameters: Iterable[Tensor]) -> None:
        self._work, self._parameters = work, list(parameters)
        self._side = torch.cuda.Stream()
        self._layout: Any = None
        self._seen = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """Compute one batch's gradients into ``.grad`` and return its figures."""
        leaves, layout = _layout((inputs, targets))
        if layout != self._layout:
            if self._graph is not None:
                return self._work(inputs, targets)
            self._layout, self._seen = layout, 0
        self._seen += 1
        if self._seen <= _WARM_UP:
            return self._warm_up(inputs, targets)
        if self._graph is None:
            self._capture(inputs, targets)
        else:
            for static, new in zip(self._static_inputs, leaves, strict=True):
                static.copy_(new)
        return self._replay()

    def _warm_up(self, inputs: Any, targets: Any) -> Tensor:
        """Run on a side stream, as CUDA graphs require before a capture."""
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            figures = self._work(inputs, targets)
        main.wait_stream(self._side)
        return figures

    def _capture(self, inputs: Any, targets: Any) -> None:
        """Capture the graph; this does not compute the batch, which is then replayed like later ones."""
        inputs, targets = pytree.tree_map(
            lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (inputs, targets)
        )
        self._static_inputs, _ = _layout((inputs, targets))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may pin memory meanwhile
                self._figures = self._work(inputs, targets)
        except RuntimeError as reason:
            raise RuntimeError(
                f"this network cannot be captured as a CUDA graph ({reason}); leave capture off"
            ) from reason
        self._graph = graph
        self._gradients = [parameter.grad for parameter in self._parameters]

    def _replay(self) -> Tensor:
        assert self._graph is not None
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._figures.clone()


def _layout(batch: Any) -> tuple[list[Tensor], Any]:
    """Return the batch's tensors, and its structure with their shapes, strides and dtypes."""
    leaves, structure = pytree.tree_flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    kinds = [(leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tensors, (structure, kinds)
