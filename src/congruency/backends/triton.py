"""The CUDA backend: both passes as a few Triton kernel launches over all tensors together.

Every tensor is cut into chunks. A table on the device maps chunks to tensors, and a pointer table holds the tensors'
addresses. The chunks of one program form a unit. Chunks are assigned and partial sums are added in a fixed order, so
the same input gives the same bits.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from congruency import cone
from congruency.backends import kernels
from congruency.backends.base import ElementRule, ParameterSlice, Problem, Solution
from congruency.backends.torch import TorchBackend, same_layout, solve_with

__all__ = ["MOST_CONSTRAINTS", "Clock", "TritonBackend", "accumulate"]

_CHUNK = 8192  # elements per chunk: enough to hide the latency of a pointer load
_UNITS_PER_PROCESSOR = 8  # units per multiprocessor, all resident
_MANY_UNITS = 24  # the same for large programs, of which few are resident: small units leave none idle at the end
MOST_CONSTRAINTS = 31  # most basis vectors; the matrix of inner products has one more row, for the gradient
_SPARES = 4  # pointer tables kept in reserve for CUDA graph capture
_MOST_BLOCKS = 1024  # blocks that a program solves at a time: all are in registers, and more take long to compile
_FEW_BLOCKS = 256  # with more, one program does not look at the sums of all blocks
_CHECKED = 8192  # sums that one program checks in their place
_PARTIALS = 1 << 17  # most partial sums of a pass: half a MiB in float32
_MOST_SUMS = 120  # most inner products per program: each takes a register per thread, two in float64
_FEW_SUMS = 60  # with more inner products, few programs are resident, so each prefetches several blocks of elements
_STAGES = 4  # pipeline stages for that prefetching
_MOST_REUSED = 8  # cached solvers and launches
_MOST_TABLES = 64  # cached pointer tables
_SMALL = 1 << 20  # most elements for a correction in one launch; 0 disables it
_SMALL_SIZE = 4  # most basis vectors for it: one program sums all inner products
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@dataclass(frozen=True)
class _Plan:
    """How tensors are cut into chunks and units; it depends on their shapes alone."""

    lengths: Tensor
    chunk_tensor: Tensor
    chunk_start: Tensor
    unit_first: Tensor
    unit_block: Tensor
    block_first: Tensor
    units: int

    def tables(self) -> tuple[Tensor, ...]:
        return self.lengths, self.chunk_tensor, self.chunk_start, self.unit_first


@functools.lru_cache(maxsize=32)
def _plan(
    lengths: tuple[int, ...], block_of: tuple[int, ...], blocks: int, device: torch.device, tile: int = 1,
    many: bool = False, small_chunk: int = 0,
) -> _Plan:  # fmt: skip
    """Cut slices, sorted by block, into chunks and units. A unit has ``tile`` partial sums.

    ``small_chunk`` sets the length of a chunk and allows at most one unit per multiprocessor.
    """
    chunks = [(i, start) for i, length in enumerate(lengths) for start in range(0, length, small_chunk or _CHUNK)]
    per_processor = 1 if small_chunk else _MANY_UNITS if many else _UNITS_PER_PROCESSOR
    wanted = min(_processors(device) * per_processor, _PARTIALS // tile)
    most = max(1, -(-len(chunks) // wanted))  # chunks per unit
    unit_first: list[int] = []
    unit_block: list[int] = []
    block_first = [0] * (blocks + 1)
    for c, (i, _) in enumerate(chunks):
        block = block_of[i]
        if not unit_first or block != unit_block[-1] or c - unit_first[-1] >= most:
            unit_first.append(c)
            unit_block.append(block)
            block_first[block + 1] += 1
    for block in range(blocks):
        block_first[block + 1] += block_first[block]

    def on_device(values: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device)

    return _Plan(
        lengths=on_device(lengths, torch.int64),
        chunk_tensor=on_device([i for i, _ in chunks]),
        chunk_start=on_device([start for _, start in chunks], torch.int64),
        unit_first=on_device([*unit_first, len(chunks)]),
        unit_block=on_device(unit_block),
        block_first=on_device(block_first),
        units=len(unit_first),
    )


_here = nullcontext()


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make ``device`` current if it is not: Triton launches on the current device."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return _here
    return torch.cuda.device(device)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


class _Addresses:
    """Pointer tables on the device, cached by the addresses in them."""

    def __init__(self) -> None:
        self.tables: OrderedDict[tuple[object, ...], Tensor] = OrderedDict()
        self.spares: dict[tuple[int, torch.device], list[tuple[Tensor, Tensor]]] = {}
        self.wanted: set[tuple[int, torch.device]] = set()  # spares to restock

    def table(self, addresses: tuple[int, ...], device: torch.device) -> tuple[Tensor, bool]:
        """Return ``addresses`` on the device, without synchronization, and whether the table is filled by now.

        During CUDA graph capture no memory can be pinned, and the graph's copy reads its source at every replay. So a
        spare pair of buffers is taken and kept for good, and the table is filled when the graph runs.
        """
        if device.type == "cpu":  # Triton's interpreter
            return torch.tensor(addresses, dtype=torch.int64), True
        key, kind = (addresses, device), (len(addresses), device)
        table = self.tables.get(key)
        if table is not None:
            return table, True
        if _capturing(device):
            if not self.spares.get(kind):
                raise RuntimeError("no room laid aside for a CUDA graph: run a few ordinary steps before each capture")
            pinned, table = self.spares[kind].pop()
            self.wanted.add(kind)
            pinned.copy_(torch.tensor(addresses, dtype=torch.int64))
            table.copy_(pinned, non_blocking=True)
            _captured.append((pinned, table))
            return table, False
        self.wanted.add(kind)
        table = torch.tensor(addresses, dtype=torch.int64, pin_memory=True).to(device, non_blocking=True)
        self.tables[key] = table
        while len(self.tables) > _MOST_TABLES:
            self.tables.popitem(last=False)
        return table, True

    def restock(self) -> None:
        """Allocate spare pairs of buffers for the next captures."""
        for kind in self.wanted:
            (size, device), spares = kind, self.spares.setdefault(kind, [])
            while len(spares) < _SPARES:
                pinned = torch.empty(size, dtype=torch.int64, pin_memory=True)
                spares.append((pinned, torch.empty(size, dtype=torch.int64, device=device)))
        self.wanted.clear()


@dataclass
class _Launch:
    """Slices of the same dtypes and basis structure, prepared for the kernels."""

    shapes: tuple[tuple[int, ...], tuple[int, ...], int, torch.device]  # the first arguments of _plan
    members: tuple[int, ...]  # indices of the backend's slices
    addresses: list[int]  # of the slices' tensors
    table: Tensor  # the addresses on the device
    tables: dict[tuple[int, ...], Tensor]  # addresses of the gradients -> table
    gradient: int  # index of the gradient among a slice's tensors, or -1
    target_dtype: tl.dtype
    basis_dtype: tl.dtype
    width: int
    vectors: tuple[int, ...]
    fixed: tuple[bool, ...]
    aligned: bool

    def plan(self, tile: int = 1) -> _Plan:
        return _plan(*self.shapes, tile, self.width > 3)

    @property
    def small_chunk(self) -> int:
        """The smallest chunk length with at most one chunk per multiprocessor, at most ``_CHUNK``."""
        lengths, _, _, device = self.shapes
        chunk = min(1024, _CHUNK)
        while chunk < _CHUNK and sum(-(-length // chunk) for length in lengths) > _processors(device):
            chunk *= 2
        return chunk

    def constants(self) -> dict[str, Any]:
        return {
            "G": self.target_dtype, "B": self.basis_dtype, "WIDTH": self.width, "VECTORS": self.vectors,
            "ALIGNED": self.aligned,
        }  # fmt: skip

    def point(self, gradients: tuple[int, ...]) -> bool:
        """Like :meth:`Backend.point`; only the pointer table changes."""
        moving = gradients if self.gradient >= 0 else ()
        table = self.tables.get(moving)
        if table is None:
            if moving:
                now = [gradients[i] for i in self.members]
                if self.aligned and any(address % 16 for address in now):
                    return False
                self.addresses[self.gradient :: self.width] = now
            table, filled = _addresses.table(tuple(self.addresses), self.table.device)
            if filled:
                if len(self.tables) >= _MOST_TABLES:
                    self.tables.clear()
                self.tables[moving] = table
        self.table = table
        return True


_addresses = _Addresses()


class _Launcher:
    """A kernel with its grid and arguments, prepared for repeated launches.

    Triton's own launch inspects its arguments at every call. Here only the first call does; later calls run the
    compiled kernel directly, with the addresses. A kernel over slices (``walked``) takes their pointer table first.
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], arguments: Sequence[Tensor | int], walked: _Launch | None = None,
        **constants: Any,
    ) -> None:  # fmt: skip
        self._kernel, self._grid, self._arguments = kernel, grid, tuple(arguments)
        self._constants = {"enable_fp_fusion": True, **constants}
        self._walked = walked
        self._device = next(a.device for a in self._arguments if isinstance(a, Tensor))
        self._again: Callable[[], object] | None = None

    def __call__(self) -> None:
        if self._again is not None and self._device.index == torch.cuda.current_device():
            self._again()
            return
        with _on(self._device):
            if self._again is not None:
                self._again()
            else:
                self._again = self._first()

    def _first(self) -> Callable[[], object] | None:
        """Launch through Triton; return how to launch again, or None for Triton's interpreter."""
        table = () if self._walked is None else (self._walked.table,)
        compiled = self._kernel[self._grid](*table, *self._arguments, **self._constants)
        return None if compiled is None else self._prepare(compiled)

    def _prepare(self, compiled: Any) -> Callable[[], object] | None:
        walked = self._walked
        names = list(self._kernel.arg_names)[len(self._arguments) + (walked is not None) :]
        values = [a.data_ptr() if isinstance(a, Tensor) else a for a in self._arguments]
        values += [self._constants[name] for name in names]
        grid = (*self._grid, 1, 1)[:3]
        active = triton.runtime.driver.active
        try:
            device, run = active.get_current_device(), compiled.run
            function, packed, stream = compiled.function, compiled.packed_metadata, active.get_current_stream
        except AttributeError:  # another release of Triton: keep launching through it
            return None
        head = (function, packed, None, None, None)
        if walked is None:
            return lambda: run(*grid, stream(device), *head, *values)
        return lambda: run(*grid, stream(device), *head, walked.table.data_ptr(), *values)


class TritonBackend:
    """Both passes over the slices of one step: see :class:`congruency.backends.base.Backend`."""

    def __init__(self, slices: Sequence[ParameterSlice], size: int, blocks: int, device: torch.device) -> None:
        self._size, self._blocks, self._device = size, blocks, device
        ours, others = _split(slices) if size <= MOST_CONSTRAINTS else ({}, list(slices))
        self._launches = [_launch(slices, members, kind, blocks, device) for kind, members in ours.items()]
        self._others = TorchBackend(others, size, blocks, device) if others or not ours else None
        self.reusable = self._others is None
        self._slices = slices
        self._grams: dict[tuple[bool, int], list[_Gram]] = {}
        self._prepared: dict[tuple[object, ...], list[_Launcher]] = {}
        self._small = blocks == 1 and size <= _SMALL_SIZE and sum(item.target.numel() for item in slices) <= _SMALL
        self._programs: dict[tuple[object, ...], _Whole | _InTurn] = {}
        self._elementwise: dict[tuple[object, ...], list[_Elements]] = {}

    def release(self) -> None:
        self._slices = ()

    def point(self, gradients: tuple[int, ...]) -> bool:
        for launch in self._launches:  # noqa: SIM110 - a generator takes longer, at every step
            if not launch.point(gradients):
                return False
        return True

    def program(self, problem: Problem, scale: Tensor | None, known: Tensor | None) -> Callable[[], Solution] | None:
        if not self._size or len(self._launches) != 1 or self._others is not None:
            return None
        key = (id(problem), *(0 if tensor is None else tensor.data_ptr() for tensor in (scale, known)))
        if key not in self._programs:
            if len(self._programs) >= _MOST_REUSED:
                self._programs.clear()
            (launch,) = self._launches
            one = _Whole(launch, problem, scale, known) if self._small else None
            self._programs[key] = one or _InTurn(launch, self._blocks, problem, scale, known)
        whole = self._programs[key]

        def run() -> Solution:
            self._keep(whole)
            return whole()

        return run

    def gram(self, *, wide: bool = False, known: Tensor | None = None) -> Tensor:
        key = (wide, 0 if known is None else known.data_ptr())
        grams = self._grams.get(key)
        if grams is None:
            if known is not None or len(self._grams) >= _MOST_REUSED:
                self._grams.clear()  # the launches that computed ``known`` are not needed any more
            grams = self._grams[key] = []
            for i, launch in enumerate(self._launches):  # known products are added once
                held = known if known is None or i == 0 else torch.zeros_like(known)
                grams.append(_Gram(launch, self._size, self._blocks, self._device, wide, held))
        self._keep(grams)
        parts = [gram() for gram in grams]
        if self._others is not None:
            held = known if known is None or not parts else torch.zeros_like(known)
            parts.append(self._others.gram(wide=wide, known=held))
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    @staticmethod
    def solve(
        gram: Tensor, problem: Problem, scale: Tensor | None = None, reuse: dict[object, object] | None = None
    ) -> Solution:
        n = problem.signs.shape[0]
        if n > MOST_CONSTRAINTS:
            return solve_with(cone.solve_dual, gram, problem, scale)
        key = (id(problem), gram.data_ptr(), None if scale is None else scale.data_ptr())
        solver = None if reuse is None else reuse.get(key)
        if not isinstance(solver, _Solver):
            solver = _Solver(gram, problem, scale)
            if reuse is not None:
                if len(reuse) >= _MOST_REUSED:
                    reuse.clear()
                reuse[key] = solver
        _keep_while_captured(solver, gram.device)
        return solver()

    def apply(self, solution: Solution) -> None:
        coefficients, applied = solution.coefficients, solution.applied
        key = ("apply", coefficients.data_ptr(), applied.data_ptr(), coefficients.is_contiguous())
        if key not in self._prepared:
            held = coefficients.contiguous()
            launchers = [_apply_launcher(launch, self._size, held, applied) for launch in self._launches]
            self._prepare(key, launchers)
        launchers = self._prepared[key]
        if not coefficients.is_contiguous():
            del self._prepared[key]
        _keep_while_captured(launchers, self._device)
        for launcher in launchers:
            launcher()
        if self._others is not None:
            self._others.apply(solution)

    def _keep(self, launchers: object) -> None:
        """Keep alive what a captured graph needs; outside of capture, restock the spare tables."""
        if _capturing(self._device):
            _captured.append((launchers, [launch.table for launch in self._launches]))
        elif _addresses.wanted:
            _addresses.restock()

    def _prepare(self, key: tuple[object, ...], launchers: list[_Launcher]) -> None:
        if len(self._prepared) >= _MOST_REUSED:
            self._prepared.clear()
        self._prepared[key] = launchers

    def agreement(self, rule: ElementRule, decay: Tensor) -> Tensor:
        return self._elements(rule, decay, None, write=False)

    def mask(self, rule: ElementRule, decay: Tensor, scale: Tensor | None = None) -> Tensor:
        return self._elements(rule, decay, scale, write=True)

    def _elements(self, rule: ElementRule, decay: Tensor, scale: Tensor | None, *, write: bool) -> Tensor:
        if rule.margins is not None:
            plain = TorchBackend(self._slices, self._size, self._blocks, self._device)
            return plain.mask(rule, decay, scale) if write else plain.agreement(rule, decay)
        key = (id(rule), decay.data_ptr(), None if scale is None else scale.data_ptr(), write)
        if key not in self._elementwise:
            if len(self._elementwise) >= _MOST_REUSED:
                self._elementwise.clear()
            made = [_Elements(launch, self._size, self._blocks, rule, decay, scale, write) for launch in self._launches]
            self._elementwise[key] = made
        self._keep(self._elementwise[key])
        parts = [part for elements in self._elementwise[key] if (part := elements()) is not None]
        if self._others is not None:
            parts.append(self._others.mask(rule, decay, scale) if write else self._others.agreement(rule, decay))
        if not parts:  # with a scale no agreement is measured, and the result is not used
            return decay
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    @staticmethod
    def settle(
        agreement: Tensor, sizes: Tensor, most: float, counts: Tensor | None, means: Tensor,
        reuse: dict[object, object] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        key = ("settle", agreement.data_ptr(), sizes.data_ptr(), means.data_ptr(), most)
        settle = None if reuse is None else reuse.get(key)
        if not isinstance(settle, _Settle):
            settle = _Settle(agreement.contiguous(), sizes, most, counts, means)
            if reuse is not None:
                if len(reuse) >= _MOST_REUSED:
                    reuse.clear()
                reuse[key] = settle
        _keep_while_captured(settle, agreement.device)
        return settle()

    @staticmethod
    def solve_dual(gram: Tensor, products: Tensor, margins: Tensor) -> Tensor:
        blocks, n = products.shape
        if n > MOST_CONSTRAINTS:
            return cone.solve_dual(gram, products, margins)
        multipliers = torch.empty_like(products, memory_format=torch.contiguous_format)
        numbers = (gram.contiguous(), products.contiguous(), margins.contiguous(), multipliers)
        with _on(products.device):
            kernels.solve_dual[(blocks,)](
                *numbers, n if margins.ndim == 2 else 0, n, **_solver_constants(n), num_warps=1 if n <= 16 else 4,
                enable_fp_fusion=True,
            )  # fmt: skip
        return multipliers


_captured: list[object] = []


def _capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured: the memory of its launches must then never be freed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _keep_while_captured(owner: object, device: torch.device) -> None:
    if _capturing(device):
        _captured.append(owner)


@dataclass(frozen=True)
class Clock:
    """The step counter of references on the device, with the phase and the gate ``phase >= count``."""

    steps: Tensor  # (2,) int64: number of steps, and scratch
    phase: Tensor
    gate: Tensor
    offset: int
    window: int | None
    count: int

    @classmethod
    def at(cls, step: int, offset: int, window: int | None, count: int, device: torch.device) -> Clock:
        steps, phase = (torch.zeros(size, dtype=torch.int64, device=device) for size in (2, ()))
        steps[0].fill_(step)  # a copy from the host would synchronize
        return cls(steps, phase, torch.empty((), dtype=torch.bool, device=device), offset, window, count)

    def tick(self, weights: Sequence[Tensor] = (), slots: Sequence[Sequence[Tensor]] = ()) -> None:
        """Set phase and gate, copy ``weights[j]`` to ``slots[j][phase]`` if that slot exists, and count the step."""
        launches: list[tuple[torch.dtype, _Plan | None, Tensor]] = list(_slot_launches(weights, slots))
        if not launches:
            launches.append((torch.float32, None, self.steps))
        for i, (dtype, plan, table) in enumerate(launches):
            tables = (self.steps,) * 4 if plan is None else plan.tables()
            with _on(self.steps.device):
                kernels.tick[(1 if plan is None else plan.units,)](
                    table, *tables, self.steps, self.phase, self.gate, self.offset, self.window or 0, W=_DTYPES[dtype],
                    COUNT=self.count, HAS_WINDOW=self.window is not None, RECORD=plan is not None,
                    LAST=i == len(launches) - 1, CHUNK=_CHUNK, BLOCK=1024, enable_fp_fusion=True,
                )  # fmt: skip


def accumulate(
    gradients: Sequence[Tensor], slots: Sequence[Sequence[Tensor]], phase: Tensor, finite: Tensor, scale: Tensor | None
) -> None:
    """Add ``gradients[j] / scale`` to the sum ``slots[j][min(phase, last)]`` if the step is finite.

    Sums start at 0 in the phases that record references.
    """
    for dtype, plan, table in _slot_launches(gradients, slots):
        with _on(phase.device):
            kernels.accumulate[(plan.units,)](
                table, *plan.tables(), phase, finite, finite if scale is None else scale,
                G=_DTYPES[dtype], S=tl.float32, COUNT=len(slots[0]), HAS_SCALE=scale is not None, CHUNK=_CHUNK,
                BLOCK=1024, enable_fp_fusion=True,
            )  # fmt: skip


def _slot_launches(
    tensors: Sequence[Tensor], slots: Sequence[Sequence[Tensor]]
) -> Iterator[tuple[torch.dtype, _Plan, Tensor]]:
    """Yield the dtype, plan and pointer table (tensor, its slots) of one launch per dtype of ``tensors``."""
    groups: dict[torch.dtype, list[tuple[Tensor, Sequence[Tensor]]]] = {}
    for tensor, held in zip(tensors, slots, strict=True):
        if tensor.dtype not in _DTYPES or not same_layout([tensor, *held]):
            raise TypeError(
                "capturable correction needs float32, bfloat16 or float16 tensors whose gradients lie in memory as "
                f"the parameters do; one of shape {tuple(tensor.shape)} and dtype {tensor.dtype} does not"
            )
        if tensor.numel():
            groups.setdefault(tensor.dtype, []).append((tensor, held))
    for dtype, entries in groups.items():
        device = entries[0][0].device
        lengths = tuple(tensor.numel() for tensor, _ in entries)
        addresses = tuple(t.data_ptr() for tensor, held in entries for t in (tensor, *held))
        plan = _plan(lengths, (0,) * len(lengths), 1, device)
        table, _ = _addresses.table(addresses, device)
        _keep_while_captured((plan, table), device)
        yield dtype, plan, table


class _Solver:
    """Solves one problem for inner products at a fixed address; reuses its output buffers."""

    def __init__(self, gram: Tensor, problem: Problem, scale: Tensor | None) -> None:
        blocks, n = gram.shape[0], problem.signs.shape[0]
        self.solution, arguments, constants = _solving(gram, problem, scale)
        self.launchers: list[_Launcher] = []
        if n == 1:
            block = min(_MOST_BLOCKS, triton.next_power_of_2(blocks))
            self.launchers.append(_Launcher(
                kernels.solve_single, (1,), arguments[:-1], **_single_constants(constants), BLOCK=block
            ))  # fmt: skip
        else:
            sums, total = arguments[0], gram.numel()
            checks, wrongs = 0, sums
            if blocks > _FEW_BLOCKS:
                checks = triton.cdiv(total, _CHECKED)
                wrongs = torch.empty(checks, dtype=torch.int32, device=gram.device)
                self.launchers.append(_Launcher(kernels.check, (checks,), (sums, wrongs, total), LENGTH=_CHECKED))
            self.launchers.append(_Launcher(
                kernels.solve_many, (blocks,), (*arguments, n, wrongs, checks), **constants, CHECKED=checks > 0,
                num_warps=1 if n <= 16 else 4,
            ))  # fmt: skip
        self._problem = problem  # held to keep its id unique

    def __call__(self) -> Solution:
        for launcher in self.launchers:
            launcher()
        return self.solution


def _solving(
    gram: Tensor, problem: Problem, scale: Tensor | None
) -> tuple[Solution, Sequence[Tensor | int], dict[str, Any]]:
    """Return an allocated solution, and the arguments and constants of the solver kernels."""
    blocks, n, device = gram.shape[0], problem.signs.shape[0], gram.device
    one = Solution.empty(blocks, problem, device)
    gram, margins = gram.contiguous(), problem.margins.contiguous()
    gate = problem.gate
    floored = problem.floors is not None and problem.previous is not None
    arguments = (
        gram, gram if scale is None else scale, gram if gate is None else gate,
        one.gradient_norm2, one.products, one.gram, one.multipliers, one.applied, one.coefficients, one.finite,
        blocks,
        problem.combination.contiguous(), problem.signs, margins, n if margins.ndim == 2 else 0,
        gram if problem.floors is None else problem.floors, gram if problem.previous is None else problem.previous,
        gram if problem.counts is None else problem.counts, gram if problem.means is None else problem.means,
        torch.empty(6 * blocks, dtype=torch.float64, device=device),
    )  # fmt: skip
    constants = {
        "HAS_SCALE": scale is not None, "HAS_GATE": gate is not None, "HAS_FLOOR": floored,
        "ONLY_VIOLATED": problem.only_violated, "HAS_COUNTS": problem.counts is not None,
        "HAS_MEANS": problem.means is not None, "GATE_STRIDE": 0 if gate is None else gate.stride(0),
        **_solver_constants(n),
    }  # fmt: skip
    return one, arguments, constants


def _single_constants(constants: dict[str, Any]) -> dict[str, Any]:
    """Return the constants of :func:`_solving` that the closed form of one constraint takes."""
    return {name: value for name, value in constants.items() if name.startswith(("HAS", "ONLY"))}


def _solver_constants(n: int) -> dict[str, float]:
    return {"ROWS": max(16, triton.next_power_of_2(n)), "TOLERANCE": 1e-13, "ROUNDING": 2.0**-50}


class _Whole:
    """A whole correction in one launch, for so few elements that launch overhead dominates."""

    def __init__(self, launch: _Launch, problem: Problem, scale: Tensor | None, known: Tensor | None) -> None:
        size, chunk, device = problem.signs.shape[0], launch.small_chunk, problem.signs.device
        pairs, rest = _pairs(launch.fixed if known is not None else (False,) * (1 + size))
        plan = _plan(*launch.shapes, small_chunk=chunk)
        sums = torch.empty(1, 1 + size, 1 + size, dtype=torch.float64, device=device)
        self._solution, arguments, constants = _solving(sums, problem, scale)
        partials = torch.empty(plan.units, len(pairs), dtype=torch.float32, device=device)
        meeting = torch.zeros(2, dtype=torch.int32, device=device)
        places = _pair_table((*pairs, *rest), device)
        block, unroll = _gram_shape(len(pairs), chunk)
        if device.type == "cuda":  # Triton's interpreter does not support it
            constants["launch_cooperative_grid"] = True
        self._launch = _Launcher(
            kernels.correct, (plan.units,),
            (*plan.tables(), partials, meeting, places, sums if known is None else known, *arguments), launch,
            **launch.constants(), **constants, N=size, PAIRS=tuple(i for pair in pairs for i in pair), COUNT=len(pairs),
            ALL=len(pairs) + len(rest), CHUNK=chunk, BLOCK=block, UNROLL=unroll,
            APPLY_BLOCK=min(chunk, _apply_block(launch.width)), SUM_BLOCK=128,
        )  # fmt: skip
        self._problem = problem  # held to keep its id unique

    def __call__(self) -> Solution:
        self._launch()
        return self._solution


class _Settle:
    """:meth:`TritonBackend.settle` in one launch; reuses its output buffers."""

    def __init__(self, agreement: Tensor, sizes: Tensor, most: float, counts: Tensor | None, means: Tensor) -> None:
        self._result = torch.empty_like(sizes), torch.empty((), dtype=torch.bool, device=sizes.device)
        self._launch = _Launcher(
            kernels.settle, (1,),
            (agreement, sizes, *self._result, agreement if counts is None else counts, means, len(sizes)),
            MOST=most, HAS_COUNTS=counts is not None, BLOCK=256,
        )  # fmt: skip

    def __call__(self) -> tuple[Tensor, Tensor]:
        self._launch()
        return self._result


class _Elements:
    """The pass for blocks of one element over the slices of a :class:`_Launch`; reuses its output buffers."""

    def __init__(
        self, launch: _Launch, size: int, blocks: int, rule: ElementRule, decay: Tensor, scale: Tensor | None,
        write: bool,
    ) -> None:  # fmt: skip
        plan, constants = launch.plan(), launch.constants()
        partials = torch.empty(plan.units, 4, dtype=torch.float32, device=decay.device)
        held = (decay, decay if scale is None else scale, rule.signs, partials)
        self._rule = rule  # held to keep its id unique
        self._launchers = [_Launcher(
            kernels.element, (plan.units,), (*plan.tables(), plan.unit_block, *held), launch,
            T=constants.pop("G"), **constants, SIZE=size, UPDATE=rule.update, STRICT=rule.strict,
            MASK_DECAY=rule.mask_decay, HAS_SCALE=scale is not None, WRITE=write, CHUNK=_CHUNK, BLOCK=1024,
            enable_fp_fusion=False,  # so that the update of a weight that has only decayed is exactly 0
        )]  # fmt: skip
        self._sums = None if scale is not None else torch.empty(blocks, 4, dtype=torch.float64, device=decay.device)
        if self._sums is not None:
            arguments = (partials, plan.block_first, self._sums)
            self._launchers.append(_Launcher(kernels.sum_agreement, (blocks,), arguments, BLOCK=32))

    def __call__(self) -> Tensor | None:
        for launcher in self._launchers:
            launcher()
        return self._sums


class _Gram:
    """The inner products over the slices of a :class:`_Launch`; reuses its output buffers."""

    def __init__(
        self, launch: _Launch, size: int, blocks: int, device: torch.device, wide: bool, known: Tensor | None
    ) -> None:
        pairs, rest = _pairs(launch.fixed if known is not None else (False,) * (1 + size))
        launcher, plan, partials = _gram_launcher(launch, size, pairs, device, wide)
        self.sums = torch.empty(blocks, 1 + size, 1 + size, dtype=torch.float64, device=device)
        self.launchers = [launcher]
        places = _pair_table((*pairs, *rest), device)
        count, width = len(pairs) + len(rest), 4
        self.launchers.append(_Launcher(
            kernels.sum_units, (blocks, triton.cdiv(count, width)),
            (partials, plan.block_first, places, self.sums if known is None else known, self.sums, len(pairs), count,
             1 + size), WIDTH=width, BLOCK=512,
        ))  # fmt: skip

    def __call__(self) -> Tensor:
        for launcher in self.launchers:
            launcher()
        return self.sums


class _InTurn:
    """A whole correction in three launches, or four with several constraints or blocks."""

    def __init__(
        self, launch: _Launch, blocks: int, problem: Problem, scale: Tensor | None, known: Tensor | None
    ) -> None:
        size, device = problem.signs.shape[0], problem.signs.device
        if size == blocks == 1:  # launches: the partial products; their sum and the solution; the second pass
            pairs, _ = _pairs((False, False))
            products, plan, partials = _gram_launcher(launch, 1, pairs, device, wide=False)
            sums = torch.empty(1, 2, 2, dtype=torch.float64, device=device)
            self._solution, arguments, constants = _solving(sums, problem, scale)
            solve = _Launcher(
                kernels.sum_and_solve, (1,), (partials, _pair_table(tuple(pairs), device), plan.units, *arguments[:-1]),
                **_single_constants(constants), SUM_BLOCK=512,
            )  # fmt: skip
            first: tuple[_Launcher, ...] = (products, solve)
        else:
            gram = _Gram(launch, size, blocks, device, wide=False, known=known)
            solver = _Solver(gram.sums, problem, scale)
            self._solution, first = solver.solution, (*gram.launchers, *solver.launchers)
        apply = _apply_launcher(launch, size, self._solution.coefficients, self._solution.applied)
        self._launchers = (*first, apply)
        self._held = (problem, known)  # held to keep the problem's id unique

    def __call__(self) -> Solution:
        for launcher in self._launchers:
            launcher()
        return self._solution


def _gram_launcher(
    launch: _Launch, size: int, pairs: Sequence[tuple[int, int]], device: torch.device, wide: bool
) -> tuple[_Launcher, _Plan, Tensor]:
    """Return the launcher of the first pass, its plan, and the buffer of each unit's partial inner products."""
    registers = len(pairs) * (2 if wide else 1)
    plan, parts = launch.plan(registers), -(-registers // _MOST_SUMS)
    partials = torch.empty(plan.units, len(pairs), dtype=torch.float64 if wide else torch.float32, device=device)
    block, unroll = _gram_shape(-(-registers // parts), _CHUNK)
    launcher = _Launcher(
        kernels.gram, (plan.units * parts,), (*plan.tables(), partials), launch, **launch.constants(), SIZE=size,
        PAIRS=tuple(i for pair in pairs for i in pair), COUNT=len(pairs), PARTS=parts, CHUNK=_CHUNK, BLOCK=block,
        UNROLL=unroll, F=tl.float64 if wide else tl.float32, STAGES=_STAGES if registers > _FEW_SUMS else 1,
    )  # fmt: skip
    return launcher, plan, partials


def _apply_launcher(launch: _Launch, size: int, coefficients: Tensor, applied: Tensor) -> _Launcher:
    """Return the launcher of the second pass."""
    plan = launch.plan()
    return _Launcher(
        kernels.apply, (plan.units,), (*plan.tables(), plan.unit_block, coefficients, applied), launch,
        **launch.constants(), SIZE=size, CHUNK=_CHUNK, BLOCK=_apply_block(launch.width),
    )  # fmt: skip


def _pairs(fixed: tuple[bool, ...]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the index pairs of the inner products to compute, and of the known ones, among fixed vectors."""
    every = [(i, j) for i in range(len(fixed)) for j in range(i, len(fixed))]
    known = [(i, j) for i, j in every if fixed[i] and fixed[j]]
    return [pair for pair in every if pair not in set(known)], known


@functools.lru_cache(maxsize=32)
def _pair_table(pairs: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int32).to(device)


def _gram_shape(registers: int, chunk: int) -> tuple[int, int]:
    """Return the block size and the unrolling of the first pass at which so many sums fit the registers."""
    if registers <= 3:
        shape = (1024, 8)
    elif registers <= 9:
        shape = (512, 2)
    elif registers <= 24:
        shape = (256, 1)
    else:
        shape = (128, 1)
    block = min(shape[0], chunk)
    return block, min(shape[1], chunk // block)


def _apply_block(width: int) -> int:
    """Return the block size of the second pass, which has a block of every tensor in registers."""
    return min(_CHUNK, 1024 if width <= 6 else 512 if width <= 13 else 256)


# the dtypes of target and basis, the index of the gradient, and for each basis: whether it is chained, its number of
# tensors, and its number of fixed vectors
_Kind = tuple[torch.dtype, torch.dtype, int, tuple[tuple[bool, int, int], ...]]


def _split(slices: Sequence[ParameterSlice]) -> tuple[dict[_Kind, list[int]], list[ParameterSlice]]:
    """Return the indices of the slices of each kind, and the slices left to plain torch."""
    ours: dict[_Kind, list[int]] = {}
    others: list[ParameterSlice] = []
    for i, item in enumerate(slices):
        if not item.target.numel():
            continue
        tensors = item.tensors
        dtypes = {tensor.dtype for tensor in tensors[1:]} or {item.target.dtype}
        dtype = dtypes.pop()
        known = not dtypes and {dtype, item.target.dtype} <= _DTYPES.keys()
        alike = len({tensor.numel() for tensor in tensors}) == 1 and same_layout(tensors)  # or torch copies or raises
        if not known or any(map(Tensor.is_neg, tensors)) or not alike:
            others.append(item)
            continue
        structure = tuple((basis.chained, len(basis.tensors), basis.fixed) for basis in item.bases)
        ours.setdefault((item.target.dtype, dtype, item.gradient, structure), []).append(i)
    return ours, others


def _launch(
    every: Sequence[ParameterSlice], members: list[int], kind: _Kind, blocks: int, device: torch.device
) -> _Launch:
    members = sorted(members, key=lambda i: every[i].block)
    slices = [every[i] for i in members]
    addresses = [tensor.data_ptr() for item in slices for tensor in item.tensors]
    target, basis, gradient, structure = kind
    vectors: list[int] = []
    width = 1
    for chained, count, _ in structure:
        for end in range(width + chained, width + count):
            vectors += [end, end - 1 if chained else -1]
        width += count
    return _Launch(
        shapes=(tuple(item.target.numel() for item in slices), tuple(item.block for item in slices), blocks, device),
        members=tuple(members),
        addresses=addresses,
        table=_addresses.table(tuple(addresses), device)[0],
        tables={},
        gradient=gradient,
        target_dtype=_DTYPES[target],
        basis_dtype=_DTYPES[basis],
        width=width,
        vectors=tuple(vectors) or (0, 0),
        fixed=tuple(slices[0].fixed),
        aligned=all(address % 16 == 0 for address in addresses),
    )
