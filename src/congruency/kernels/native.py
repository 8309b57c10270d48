"""The two passes over parameters in the CPU's memory by compiled code, for the pieces that it can take.

The compiled part (``native.c``) is built when the package is installed, if there is a C compiler; without it, importing
this module fails. It takes pieces whose gradient and vectors are all float32, or all float64, and lie in memory in one
order without gaps. The others go to :mod:`congruency.kernels.rows`.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from congruency.kernels import rows
from congruency.kernels.rows import Piece

__all__ = ["Sweep"]

_DTYPES = frozenset((torch.float32, torch.float64))
# A subclass may hold its elements elsewhere (a pending collective, a fake tensor): only torch knows where.
_CLASSES = frozenset((Tensor, torch.nn.Parameter))

_dtype = attrgetter("dtype")
_is_cpu = attrgetter("is_cpu")

_Call = Callable[[int, int], int]
_Structure = tuple[tuple[bool, int], ...]  # of each strand: whether it is chained, and how many tensors it has
_Kind = tuple[torch.dtype, _Structure]


class _Library(NamedTuple):
    moments: _Call
    add_combination: _Call
    parallel: int  # addresses in torch's OpenMP, 0 where there is none
    thread_number: int


class Sweep:
    """The two passes over the pieces of one step in the CPU's memory, with plain numbers in and out.

    The addresses are gathered once for both passes, so a sweep must not outlive its step.

    Args:
        pieces: The gradients and their basis vectors.
        size: How many basis vectors every piece has.
        blocks: How many blocks the pieces belong to.
    """

    def __init__(self, pieces: Sequence[Piece], size: int, blocks: int) -> None:
        self._pieces, self._size, self._blocks = pieces, size, blocks
        groups, rest = _split(pieces)
        self._jobs = [_job(*group, size, blocks) for group in groups]
        self._rest = rows.HostSweep(rest, size, blocks) if rest or not groups else None

    def moments(self) -> list[list[float]]:
        """Inner products of ``[g, b_1, ..., b_size]`` in every block: the (1 + size)^2 of them, row by row."""
        parts = [self._native_moments(job) for job in self._jobs]
        if self._rest is not None:
            parts.append(self._rest.moments())
        if len(parts) == 1:
            return parts[0]
        return [[sum(entry) for entry in zip(*block, strict=True)] for block in zip(*parts, strict=True)]

    def _native_moments(self, job: array[int]) -> list[list[float]]:
        area = (1 + self._size) ** 2
        sums = array("d", bytes(8 * area * self._blocks))
        _check(_library.moments(job.buffer_info()[0], sums.buffer_info()[0]))
        return [sums[i : i + area].tolist() for i in range(0, len(sums), area)]

    def add_combination(self, coefficients: Sequence[Sequence[float] | None]) -> None:
        """Write ``g + sum_k a_k b_k`` into the gradients; one sequence for each block, None for those left alone."""
        if self._rest is not None:
            self._rest.add_combination(coefficients)
        if not self._jobs:
            return
        factors = array("d")
        for own in coefficients:
            factors.extend([0.0] * (1 + self._size) if own is None else [1.0, *own])
        for job in self._jobs:
            _check(_library.add_combination(job.buffer_info()[0], factors.buffer_info()[0]))
        # torch did not see the gradients change: a graph that has saved one of them must not be used any more
        torch.autograd.graph.increment_version(
            [gradient for gradient, _, block in self._pieces if coefficients[block] is not None]
        )


def _split(pieces: Sequence[Piece]) -> tuple[list[tuple[_Kind, Sequence[Piece], list[Tensor]]], list[Piece]]:
    """The pieces that the compiled part can take, by kind and with their tensors, and the others."""
    tensors, kind = _gather(pieces)
    if kind is not None and _all_plain(tensors, pieces):
        return [(kind, pieces, tensors)], []
    groups: dict[_Kind, list[Piece]] = {}
    rest = []
    for piece in pieces:
        tensors, kind = _gather([piece])
        if kind is not None and _takes(piece, tensors):
            groups.setdefault(kind, []).append(piece)
        else:
            rest.append(piece)
    return [(kind, group, _gather(group)[0]) for kind, group in groups.items()], rest


def _gather(pieces: Sequence[Piece]) -> tuple[list[Tensor], _Kind | None]:
    """The gradient and the other tensors of every piece in turn, and what kind all of them are, if it is one."""
    tensors: list[Tensor] = []
    structure: list[tuple[bool, int]] = []
    for gradient, strands, _ in pieces:
        tensors.append(gradient)
        for own, chained in strands:
            tensors += own
            structure.append((chained, len(own)))
    first = structure[: len(structure) // max(1, len(pieces))]
    if not tensors or structure != first * len(pieces):
        return tensors, None
    return tensors, (tensors[0].dtype, tuple(first))


def _all_plain(tensors: Sequence[Tensor], pieces: Sequence[Piece]) -> bool:
    """Whether all are contiguous, of one precision, in the CPU's memory; in loops of C, since it runs at every step."""
    return (
        _CLASSES.issuperset(map(type, tensors))
        and len(dtypes := set(map(_dtype, tensors))) == 1
        and dtypes <= _DTYPES
        and all(map(_is_cpu, tensors))
        and all(map(Tensor.is_contiguous, tensors))
        and not any(gradient.is_neg() for gradient, _, _ in pieces)
    )


def _takes(piece: Piece, tensors: Sequence[Tensor]) -> bool:
    """The same of one piece, whose elements may also lie in an order of their own (channels last)."""
    if rows.same_layout(tensors):
        tensors = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]
    return _all_plain(tensors, [piece])


def _job(kind: _Kind, pieces: Sequence[Piece], tensors: Sequence[Tensor], size: int, blocks: int) -> array[int]:
    """What the compiled part is told; ``native.c`` says how."""
    dtype, structure = kind
    width, basis = _basis(structure)
    gradients, _, own_blocks = zip(*pieces, strict=True)
    return array(
        "q",
        [
            dtype is torch.float64,
            len(pieces),
            width,
            size,
            blocks,
            torch.get_num_threads(),
            _library.parallel,
            _library.thread_number,
            *basis,
            *map(Tensor.numel, gradients),
            *own_blocks,
            *map(Tensor.data_ptr, tensors),
        ],
    )


@cache
def _basis(structure: _Structure) -> tuple[int, list[int]]:
    """How many tensors a piece has, and the two of them that each basis vector is the difference of."""
    basis: list[int] = []
    width = 1
    for chained, count in structure:
        for index in range(width + chained, width + count):
            basis += (index, index - 1 if chained else -1)
        width += count
    return width, basis


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the partial sums of a correction")


def _load() -> _Library:
    spec = find_spec("congruency.kernels._native")
    if spec is None or spec.origin is None:
        raise ImportError(
            "the compiled kernels are not built; install a C compiler and then the package once more", name=__name__
        )
    library = ctypes.CDLL(spec.origin)
    calls = library.congruency_moments, library.congruency_add_combination
    for call in calls:
        call.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        call.restype = ctypes.c_int
    return _Library(*calls, *_torch_threads())


def _torch_threads() -> tuple[int, int]:
    """Addresses of the functions by which torch's own OpenMP lends its threads."""
    try:
        openmp = ctypes.CDLL(torch._C.__file__)  # the search goes on in the libraries that torch was linked with
        functions = openmp.GOMP_parallel, openmp.omp_get_thread_num
    except (AttributeError, OSError):
        return 0, 0
    parallel, thread_number = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return parallel, thread_number


try:
    _library = _load()
except OSError as reason:  # built for another machine, say
    raise ImportError(f"the compiled kernels cannot be loaded: {reason}", name=__name__) from reason
