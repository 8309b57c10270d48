"""The two passes over parameters in plain torch operations, for any device.

Both work on cache-sized chunks, so that no difference ``w - r`` is ever held for more than a chunk:

1. ``moments`` reads gradients and basis vectors and returns the matrix of their inner products;
2. ``add_combination`` reads them again and writes ``g + sum_k a_k b_k`` into the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["DeviceSweep", "HostSweep", "Piece", "Strand", "host_add_combination", "host_moments", "same_layout"]

# Elements per chunk. On the CPU a chunk and its operands stay in a core's second-level cache; on an accelerator the
# chunk only bounds the extra memory.
_HOST_CHUNK = 1 << 18
_DEVICE_CHUNK = 1 << 22


class Strand(NamedTuple):
    """Vectors ``b_1..b_m`` of one parameter that come from one source of rows.

    With ``chained`` they are the consecutive differences of m + 1 tensors, ``b_k = tensors[k + 1] - tensors[k]``:
    close reference points then cost no precision, since each small difference is formed before it is multiplied.
    Otherwise ``b_k = tensors[k]``.
    """

    tensors: Sequence[Tensor]
    chained: bool


class Piece(NamedTuple):
    """One parameter's share of a step: its gradient, its basis vectors and the block it is solved in."""

    gradient: Tensor
    strands: Sequence[Strand]
    block: int


class DeviceSweep:
    """The two passes over the pieces of one step on an accelerator, without waiting for it.

    Args:
        pieces: The gradients and their basis vectors, all on ``device``.
        size: How many basis vectors every piece has.
        blocks: How many blocks the pieces belong to.
        device: Where the sums are wanted.
    """

    def __init__(self, pieces: Sequence[Piece], size: int, blocks: int, device: torch.device) -> None:
        self._pieces = [piece for piece in pieces if piece.gradient.numel()]
        self._size, self._blocks, self._device = size, blocks, device

    def moments(self) -> Tensor:
        """(blocks, 1 + size, 1 + size) inner products of ``[g, b_1, ..., b_size]``, in float64 on the device."""
        return _moments(self._pieces, self._size, self._blocks, self._device, _DEVICE_CHUNK)

    def add_combination(self, coefficients: Tensor, applied: Tensor) -> None:
        """Write ``g + sum_k a_k b_k`` into the gradients of the blocks that are applied; the others keep their bits.

        Args:
            coefficients: (blocks, size) the a_k, in float64.
            applied: (blocks,) bool.
        """
        for piece in self._pieces:
            dtype = _working_dtype(piece.gradient)
            factors = coefficients[piece.block].to(dtype)
            with _Writable(piece) as piece:
                for gradient, tensors in _chunks(piece, _DEVICE_CHUNK):
                    x = gradient.to(dtype, copy=True)
                    b = torch.empty_like(x)
                    for k, (end, start) in enumerate(_basis(piece.strands, tensors)):
                        _difference(end, start, out=b)
                        x.addcmul_(b, factors[k])
                    gradient.copy_(torch.where(applied[piece.block], x.to(gradient.dtype), gradient))


class HostSweep:
    """The two passes over the pieces of one step in the CPU's memory, with plain numbers in and out."""

    def __init__(self, pieces: Sequence[Piece], size: int, blocks: int) -> None:
        self._pieces = [piece for piece in pieces if piece.gradient.numel()]
        self._size, self._blocks = size, blocks

    def moments(self) -> list[list[float]]:
        """Inner products of ``[g, b_1, ..., b_size]`` in every block: the (1 + size)^2 of them, row by row."""
        if self._size <= 1:
            sums = host_moments(self._pieces, self._blocks)
            return [[gg, gb, gb, bb] if self._size else [gg] for gg, gb, bb in sums]
        chunk = max(1, _HOST_CHUNK // self._size)
        total = _moments(self._pieces, self._size, self._blocks, torch.device("cpu"), chunk)
        flat: list[list[float]] = total.flatten(1).tolist()
        return flat

    def add_combination(self, coefficients: Sequence[Sequence[float] | None]) -> None:
        """Write ``g + sum_k a_k b_k`` into the gradients; one sequence for each block, None for those left alone."""
        host_add_combination(self._pieces, coefficients)


def _moments(pieces: Sequence[Piece], size: int, blocks: int, device: torch.device, chunk: int) -> Tensor:
    total = torch.zeros(blocks, 1 + size, 1 + size, dtype=torch.float64, device=device)
    chunk = max(1, chunk // (1 + size))
    for piece in pieces:
        buffer = torch.empty(1 + size, min(chunk, piece.gradient.numel()), dtype=torch.float64, device=device)
        for gradient, tensors in _chunks(piece, chunk):
            vectors = buffer[:, : gradient.numel()]
            vectors[0].copy_(gradient)
            for k, (end, start) in enumerate(_basis(piece.strands, tensors)):
                _difference(end, start, out=vectors[1 + k])
            # float64 products: exact enough for any row, and no tf32 or bf16 setting of the user's reaches them
            total[piece.block].addmm_(vectors, vectors.mT)
    return total


def host_moments(pieces: Sequence[Piece], blocks: int) -> list[list[float]]:
    """One basis vector, or none, on the CPU: ``[<g, g>, <g, b>, <b, b>]`` of every block as Python numbers."""
    sums = [[0.0, 0.0, 0.0] for _ in range(blocks)]
    for piece in pieces:
        dtype = _working_dtype(piece.gradient)
        buffer: Tensor | None = None
        row = sums[piece.block]
        for gradient, tensors in _chunks(piece, _HOST_CHUNK):
            g = gradient if gradient.dtype == dtype else gradient.to(dtype)
            row[0] += torch.dot(g, g).item()
            for end, start in _basis(piece.strands, tensors):
                if buffer is None:
                    buffer = torch.empty_like(g)
                b = buffer[: g.numel()]
                _difference(end, start, out=b)
                row[1] += torch.dot(g, b).item()
                row[2] += torch.dot(b, b).item()
    return sums


def host_add_combination(pieces: Sequence[Piece], coefficients: Sequence[Sequence[float] | None]) -> None:
    """The second pass on the CPU; ``coefficients`` is one sequence for each block, None for those left alone."""
    for piece in reversed(pieces):  # backwards: what the first pass read last is still in the cache
        factors = coefficients[piece.block]
        if factors is None or not piece.gradient.numel():
            continue
        dtype = _working_dtype(piece.gradient)
        buffer = torch.empty(min(_HOST_CHUNK, piece.gradient.numel()), dtype=dtype)
        with _Writable(piece) as piece:
            for gradient, tensors in _chunks(piece, _HOST_CHUNK):
                x = gradient if gradient.dtype == dtype else gradient.to(dtype)
                b = buffer[: x.numel()]
                for (end, start), factor in zip(_basis(piece.strands, tensors), factors, strict=True):
                    _difference(end, start, out=b)
                    x.add_(b, alpha=factor)
                if x is not gradient:
                    gradient.copy_(x)


class _Writable:
    """A piece whose gradient can be written chunk by chunk, whatever its memory layout."""

    def __init__(self, piece: Piece) -> None:
        self.original = piece.gradient
        self.piece = piece
        if not same_layout([piece.gradient, *_tensors(piece)]):
            self.piece = piece._replace(gradient=piece.gradient.contiguous())

    def __enter__(self) -> Piece:
        return self.piece

    def __exit__(self, *_: object) -> None:
        if self.piece.gradient is not self.original:
            self.original.copy_(self.piece.gradient)


def _tensors(piece: Piece) -> list[Tensor]:
    return [tensor for strand in piece.strands for tensor in strand.tensors]


def _chunks(piece: Piece, length: int) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
    """Flat chunks of the gradient and of every tensor of the strands, element for element the same places."""
    first, *rest = _flattened([piece.gradient, *_tensors(piece)])
    if first.numel() <= length:
        yield first, rest
        return
    for start in range(0, first.numel(), length):
        yield first[start : start + length], [tensor[start : start + length] for tensor in rest]


def _basis(strands: Sequence[Strand], tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The basis vectors as pairs (end, start) meaning ``end - start``, or (vector, None)."""
    position = 0
    for strand in strands:
        count = len(strand.tensors)
        own = tensors[position : position + count]
        position += count
        if strand.chained:
            yield from zip(own[1:], own[:-1], strict=True)
        else:
            yield from ((tensor, None) for tensor in own)


def _difference(end: Tensor, start: Tensor | None, out: Tensor) -> None:
    """``end - start`` formed in the precision of ``out``: two bfloat16 weights must not be subtracted in bfloat16."""
    if start is None:
        out.copy_(end)
    elif end.dtype == out.dtype:
        torch.sub(end, start, out=out)
    else:
        out.copy_(end)
        out.sub_(start)


def _working_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _flattened(tensors: Sequence[Tensor]) -> list[Tensor]:
    """One-dimensional views that share memory where the layouts allow it; copies, in one order, where they differ."""
    if all(map(Tensor.is_contiguous, tensors)):
        return [tensor.view(-1) for tensor in tensors]
    if same_layout(tensors):  # channels_last weights, gradients and references: walk them in memory order
        return [tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]
    return [tensor.contiguous().view(-1) for tensor in tensors]


def same_layout(tensors: Sequence[Tensor]) -> bool:
    """Whether walking all of them in memory order visits the same elements, without gaps."""
    if all(map(Tensor.is_contiguous, tensors)):
        return True
    strides = tensors[0].stride()
    return all(tensor.stride() == strides for tensor in tensors) and _is_dense(tensors[0])


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory without gaps or overlaps, in whatever order."""
    expected = 1
    for stride, length in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= length
    return True
