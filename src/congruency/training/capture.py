"""A batch's passes through the network as one CUDA graph: recorded once, then replayed by a single launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["Captured"]

_WARM = 3  # batches that choose algorithms, compile kernels and fill caches before the recording


class Captured:
    """Work on batches that leaves gradients behind, without its Python and without its many launches.

    The first batches run as they always would, and the fourth in a row of the same shapes is recorded. From then on a
    batch of these shapes is copied to where the recorded one lay, and the recording is replayed; others (the smaller
    last batch of an epoch) run as they would. Each batch is worked on once either way, with the GPU's random numbers of
    its turn; what the work draws from Python's, numpy's or the CPU's generators would be the recorded one's forever.

    Args:
        work: ``work(inputs, targets)`` makes gradients where there are none, and returns a tensor of figures.
        parameters: Whose gradients it makes; ``.grad`` must be None whenever this is called.
    """

    def __init__(self, work: Callable[[Any, Any], Tensor], parameters: Iterable[Tensor]) -> None:
        self._work, self._parameters = work, list(parameters)
        self._side = torch.cuda.Stream()
        self._layout: Any = None
        self._seen = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """The work on one batch: its figures; the gradients are in ``.grad``."""
        leaves, layout = _laid_out((inputs, targets))
        if layout != self._layout:
            if self._graph is not None:
                return self._work(inputs, targets)
            self._layout, self._seen = layout, 0
        self._seen += 1
        if self._seen <= _WARM:
            return self._aside(inputs, targets)
        if self._graph is None:
            self._record(inputs, targets)
        else:
            for held, new in zip(self._held, leaves, strict=True):
                held.copy_(new)
        return self._replay()

    def _aside(self, inputs: Any, targets: Any) -> Tensor:
        """On a stream of its own, as work must run before it is recorded."""
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            figures = self._work(inputs, targets)
        main.wait_stream(self._side)
        return figures

    def _record(self, inputs: Any, targets: Any) -> None:
        """Nothing is computed here: the batch is replayed like those after it."""
        inputs, targets = pytree.tree_map(
            lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (inputs, targets)
        )
        self._held, _ = _laid_out((inputs, targets))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others may pin memory meanwhile
                self._figures = self._work(inputs, targets)
        except RuntimeError as reason:
            raise RuntimeError(
                f"this network's passes cannot be recorded as a CUDA graph ({reason}); leave capture off"
            ) from reason
        self._graph = graph
        self._gradients = [parameter.grad for parameter in self._parameters]

    def _replay(self) -> Tensor:
        assert self._graph is not None
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._figures.clone()


def _laid_out(batch: Any) -> tuple[list[Tensor], Any]:
    """The batch's tensors, and everything about it but their values."""
    leaves, structure = pytree.tree_flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    kinds = [(leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tensors, (structure, kinds)
