"""The two passes fused for CUDA: a few launches over all tensors together, whatever their number.

Every tensor is cut into chunks of a fixed length; a table on the device says which chunk belongs to which tensor, and
another holds the tensors' addresses. Chunks are dealt out to programs ("units") in a fixed order and partial sums are
added in a fixed order, so the same input gives the same bits.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from congruency import cone
from congruency.backends.base import ElementRule, ParameterSlice, Problem, Solution
from congruency.backends.torch import TorchBackend, same_layout, solve_with

__all__ = ["MOST_CONSTRAINTS", "TritonBackend", "accumulate", "record"]

_CHUNK = 8192  # elements a program works through at a time: long enough to hide the look-up of an address
_UNITS_PER_PROCESSOR = 8  # resident programs per multiprocessor
MOST_CONSTRAINTS = 31  # most basis vectors; the tile of inner products has one more row, for the gradient
_SPARES = 4  # address tables laid aside for CUDA graphs
_PARTIALS = 1 << 17  # partial sums of a pass, together: half a MiB in float32
_MOST_TABLES = 64
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _pointer(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address.to(tl.pointer_type(DTYPE))


@triton.jit
def _gram_of_one(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, partials,
    G: tl.constexpr, B: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr, CHAINED: tl.constexpr, HAS_BASIS: tl.constexpr, ALIGNED: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """<g, g>, <g, b>, <b, b> of one basis vector over the chunks of one unit; without one, <g, g>. Sums in F."""
    WIDTH: tl.constexpr = 4 if HAS_BASIS else 1
    unit = tl.program_id(0)
    first = tl.load(unit_first + unit)
    last = tl.load(unit_first + unit + 1)
    gg = tl.zeros([BLOCK], dtype=F)
    gb = tl.zeros([BLOCK], dtype=F)
    bb = tl.zeros([BLOCK], dtype=F)
    for chunk in range(first, last):
        tensor = tl.load(chunk_tensor + chunk)
        start = tl.load(chunk_start + chunk)
        length = tl.load(lengths + tensor)
        table = addresses + tensor * COLUMNS
        gradient = _pointer(tl.load(table), G, ALIGNED)
        if HAS_BASIS:
            end = _pointer(tl.load(table + 1), B, ALIGNED)
        if CHAINED:
            begin = _pointer(tl.load(table + 3), B, ALIGNED)
        for i in tl.static_range(CHUNK // BLOCK):
            places = start + i * BLOCK + tl.arange(0, BLOCK)
            there = places < length
            g = tl.load(gradient + places, mask=there, other=0.0).to(F)
            gg += g * g
            if HAS_BASIS:
                b = tl.load(end + places, mask=there, other=0.0).to(F)
                if CHAINED:
                    b -= tl.load(begin + places, mask=there, other=0.0).to(F)
                gb += g * b
                bb += b * b
    tl.store(partials + WIDTH * unit, tl.sum(gg))
    if HAS_BASIS:
        tl.store(partials + WIDTH * unit + 1, tl.sum(gb))
        tl.store(partials + WIDTH * unit + 3, tl.sum(bb))


@triton.jit
def _vector(
    table, column, places, there,
    G: tl.constexpr, B: tl.constexpr, SIZE: tl.constexpr, ALIGNED: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Vector ``column`` at these places: the gradient for 0, then the basis; zeros past the last."""
    if column == 0:
        result = tl.load(_pointer(tl.load(table), G, ALIGNED) + places, mask=there, other=0.0).to(F)
    else:
        result = tl.zeros(places.shape, dtype=F)
        if column <= SIZE:
            end = _pointer(tl.load(table + column), B, ALIGNED)
            result += tl.load(end + places, mask=there, other=0.0).to(F)
            begin = tl.load(table + 1 + SIZE + column)
            if begin != 0:
                result -= tl.load(_pointer(begin, B, ALIGNED) + places, mask=there, other=0.0).to(F)
    return result


@triton.jit
def _gram_of_many(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, partials,
    G: tl.constexpr, B: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Inner products of the gradient (row 0) and SIZE basis vectors with four of them, from the diagonal up.

    The programs of one unit, four columns each, run side by side, so that the cache serves all but one of them.
    """
    column = 4 * tl.program_id(0)
    unit = tl.program_id(1)
    row = tl.arange(0, ROWS)
    is_basis = (row >= 1) & (row <= SIZE) & (row <= column + 3)
    sum0 = tl.zeros([ROWS, BLOCK], dtype=F)
    sum1 = tl.zeros([ROWS, BLOCK], dtype=F)
    sum2 = tl.zeros([ROWS, BLOCK], dtype=F)
    sum3 = tl.zeros([ROWS, BLOCK], dtype=F)
    for chunk in range(tl.load(unit_first + unit), tl.load(unit_first + unit + 1)):
        tensor = tl.load(chunk_tensor + chunk)
        start = tl.load(chunk_start + chunk)
        length = tl.load(lengths + tensor)
        table = addresses + tensor * 2 * (1 + SIZE)
        gradient = _pointer(tl.load(table), G, ALIGNED)
        ends = _pointer(tl.load(table + row, mask=is_basis, other=0), B, ALIGNED)
        begin = tl.load(table + 1 + SIZE + row, mask=is_basis, other=0)
        begins = _pointer(begin, B, ALIGNED)
        for i in range(CHUNK // BLOCK):
            places = start + i * BLOCK + tl.arange(0, BLOCK)
            there = places < length
            here = is_basis[:, None] & there[None, :]
            tile = tl.load(ends[:, None] + places[None, :], mask=here, other=0.0).to(F)
            here = here & (begin != 0)[:, None]
            tile -= tl.load(begins[:, None] + places[None, :], mask=here, other=0.0).to(F)
            g = tl.load(gradient + places, mask=there, other=0.0).to(F)
            tile += tl.where((row == 0)[:, None], g[None, :], 0.0)
            sum0 += tile * _vector(table, column, places, there, G, B, SIZE, ALIGNED, F)[None, :]
            sum1 += tile * _vector(table, column + 1, places, there, G, B, SIZE, ALIGNED, F)[None, :]
            sum2 += tile * _vector(table, column + 2, places, there, G, B, SIZE, ALIGNED, F)[None, :]
            sum3 += tile * _vector(table, column + 3, places, there, G, B, SIZE, ALIGNED, F)[None, :]
    out = partials + unit * ROWS * ROWS + row * ROWS + column
    tl.store(out, tl.sum(sum0, axis=1))
    tl.store(out + 1, tl.sum(sum1, axis=1))
    tl.store(out + 2, tl.sum(sum2, axis=1))
    tl.store(out + 3, tl.sum(sum3, axis=1))


@triton.jit
def _sum_units(partials, block_first, sums, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Add the partial sums of one block's units in a fixed order; what lies below the diagonal mirrors what is above.

    A program adds WIDTH of the ROWS x ROWS numbers.
    """
    block = tl.program_id(0)
    first = tl.load(block_first + block)
    last = tl.load(block_first + block + 1)
    place = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    i = place // ROWS
    j = place % ROWS
    above = tl.minimum(i, j) * ROWS + tl.maximum(i, j)
    total = tl.zeros([BLOCK, WIDTH], dtype=tl.float64)
    for unit in range(first, last, BLOCK):
        units = unit + tl.arange(0, BLOCK)
        here = (units < last)[:, None] & (place >= 0)[None, :]
        part = tl.load(partials + units[:, None] * ROWS * ROWS + above[None, :], mask=here, other=0.0)
        total += part.to(tl.float64)
    tl.store(sums + block * ROWS * ROWS + place, tl.sum(total, axis=0))


@triton.jit
def _apply(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, unit_block, coefficients, applied,
    G: tl.constexpr, B: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    CHAIN: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """g + sum_k a_k b_k over the chunks of one unit, backwards; nothing is read or written if not applied."""
    unit = tl.num_programs(0) - 1 - tl.program_id(0)
    block = tl.load(unit_block + unit)
    if tl.load(applied + block) != 0:
        first = tl.load(unit_first + unit)
        last = tl.load(unit_first + unit + 1)
        for back in range(0, last - first):
            chunk = last - 1 - back
            tensor = tl.load(chunk_tensor + chunk)
            start = tl.load(chunk_start + chunk)
            length = tl.load(lengths + tensor)
            table = addresses + tensor * 2 * (1 + SIZE)
            gradient = _pointer(tl.load(table), G, ALIGNED)
            for i in range(CHUNK // BLOCK):
                places = start + i * BLOCK + tl.arange(0, BLOCK)
                there = places < length
                x = tl.load(gradient + places, mask=there, other=0.0).to(tl.float32)
                if CHAIN:  # one chain of points: each is read once
                    begin = _pointer(tl.load(table + 2 + SIZE), B, ALIGNED)
                    before = tl.load(begin + places, mask=there, other=0.0).to(tl.float32)
                for k in tl.static_range(SIZE):
                    end = _pointer(tl.load(table + 1 + k), B, ALIGNED)
                    b = tl.load(end + places, mask=there, other=0.0).to(tl.float32)
                    factor = tl.load(coefficients + block * SIZE + k).to(tl.float32)
                    if CHAIN:
                        x += factor * (b - before)
                        before = b
                    else:
                        address = tl.load(table + 2 + SIZE + k)
                        if address != 0:
                            begin = _pointer(address, B, ALIGNED)
                            b -= tl.load(begin + places, mask=there, other=0.0).to(tl.float32)
                        x += factor * b
                tl.store(gradient + places, x.to(G), mask=there)


@triton.jit
def _element(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, unit_block, decays, scales, signs, partials,
    T: tl.constexpr, B: tl.constexpr, SIZE: tl.constexpr, UPDATE: tl.constexpr, STRICT: tl.constexpr,
    MASK_DECAY: tl.constexpr, HAS_SCALE: tl.constexpr, WRITE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Blocks of one element over the chunks of one unit: how they agree, and, with WRITE, what becomes of them."""
    FIRST: tl.constexpr = 1 if UPDATE else 0
    unit = tl.program_id(0)
    block = tl.load(unit_block + unit)
    decay = tl.load(decays + block).to(tl.float32)
    scale = 1.0
    if HAS_SCALE:
        scale = tl.load(scales + block).to(tl.float32)
    count = tl.zeros([BLOCK], dtype=tl.float32)
    yc = tl.zeros([BLOCK], dtype=tl.float32)
    yy = tl.zeros([BLOCK], dtype=tl.float32)
    cc = tl.zeros([BLOCK], dtype=tl.float32)
    for chunk in range(tl.load(unit_first + unit), tl.load(unit_first + unit + 1)):
        tensor = tl.load(chunk_tensor + chunk)
        start = tl.load(chunk_start + chunk)
        length = tl.load(lengths + tensor)
        table = addresses + tensor * 2 * (1 + SIZE)
        target = _pointer(tl.load(table), T, ALIGNED)
        for i in range(CHUNK // BLOCK):
            places = start + i * BLOCK + tl.arange(0, BLOCK)
            there = places < length
            value = tl.load(target + places, mask=there, other=0.0).to(tl.float32)
            y = value
            base = tl.zeros([BLOCK], dtype=tl.float32)
            if UPDATE:
                before = tl.load(_pointer(tl.load(table + 1), B, ALIGNED) + places, mask=there, other=0.0)
                before = before.to(tl.float32)
                base = before * decay
                y = base - value
                if MASK_DECAY:
                    opposed = ((y > 0) & (before < 0)) | ((y < 0) & (before > 0))
                    base = tl.where(opposed, before, base)
            kept = there
            for k in tl.static_range(FIRST, SIZE):
                end = _pointer(tl.load(table + 1 + k), B, ALIGNED)
                c = tl.load(end + places, mask=there, other=0.0).to(tl.float32)
                address = tl.load(table + 2 + SIZE + k)
                if address != 0:
                    c -= tl.load(_pointer(address, B, ALIGNED) + places, mask=there, other=0.0).to(tl.float32)
                c *= tl.load(signs + k - FIRST).to(tl.float32)
                if STRICT:
                    kept = kept & (((y > 0) & (c > 0)) | ((y < 0) & (c < 0)))
                else:
                    kept = kept & ((((y > 0) & (c < 0)) | ((y < 0) & (c > 0))) == 0)
                if not HAS_SCALE and k == FIRST:
                    yc += y * c
                    cc += c * c
            if WRITE:
                if HAS_SCALE or MASK_DECAY:
                    result = tl.where(kept, scale * y, 0.0)
                    if UPDATE:
                        result = base - result
                else:
                    result = tl.where(kept, value, base)
                tl.store(target + places, result.to(T), mask=there)
            if not HAS_SCALE:
                count += tl.where(kept, 1.0, 0.0)
                yy += y * y
    if not HAS_SCALE:
        tl.store(partials + 4 * unit, tl.sum(count))
        tl.store(partials + 4 * unit + 1, tl.sum(yc))
        tl.store(partials + 4 * unit + 2, tl.sum(yy))
        tl.store(partials + 4 * unit + 3, tl.sum(cc))


@triton.jit
def _sum_agreement(partials, block_first, sums, BLOCK: tl.constexpr):
    """Add the partial sums of one slice's units in a fixed order."""
    block = tl.program_id(0)
    last = tl.load(block_first + block + 1)
    column = tl.arange(0, 4)
    total = tl.zeros([BLOCK, 4], dtype=tl.float64)
    for unit in range(tl.load(block_first + block), last, BLOCK):
        units = unit + tl.arange(0, BLOCK)
        here = (units < last)[:, None] & (column >= 0)[None, :]
        total += tl.load(partials + 4 * units[:, None] + column[None, :], mask=here, other=0.0).to(tl.float64)
    tl.store(sums + 4 * block + column, tl.sum(total, axis=0))


@triton.jit
def _record(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, phase,
    W: tl.constexpr, COUNT: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the weights into the slot that is due in this phase; in any other phase touch nothing."""
    now = tl.load(phase)
    if (now >= 0) & (now < COUNT):
        unit = tl.program_id(0)
        for chunk in range(tl.load(unit_first + unit), tl.load(unit_first + unit + 1)):
            tensor = tl.load(chunk_tensor + chunk)
            length = tl.load(lengths + tensor)
            table = addresses + tensor * (1 + COUNT)
            weights = tl.load(table).to(tl.pointer_type(W))
            slot = tl.load(table + 1 + now).to(tl.pointer_type(W))
            for i in range(CHUNK // BLOCK):
                places = tl.load(chunk_start + chunk) + i * BLOCK + tl.arange(0, BLOCK)
                tl.store(slot + places, tl.load(weights + places, mask=places < length), mask=places < length)


@triton.jit
def _accumulate(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, phase, finite, scale,
    G: tl.constexpr, S: tl.constexpr, COUNT: tl.constexpr, HAS_SCALE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the gradient to the sum that is running in this phase, which starts from 0 while references are recorded."""
    now = tl.load(phase)
    if now >= 0:
        unit = tl.program_id(0)
        take = tl.load(finite) != 0
        factor = 1.0
        if HAS_SCALE:
            factor = 1.0 / tl.load(scale).to(tl.float32)
        for chunk in range(tl.load(unit_first + unit), tl.load(unit_first + unit + 1)):
            tensor = tl.load(chunk_tensor + chunk)
            length = tl.load(lengths + tensor)
            table = addresses + tensor * (1 + COUNT)
            gradient = tl.load(table).to(tl.pointer_type(G))
            slot = tl.load(table + 1 + tl.minimum(now, COUNT - 1)).to(tl.pointer_type(S))
            for i in range(CHUNK // BLOCK):
                places = tl.load(chunk_start + chunk) + i * BLOCK + tl.arange(0, BLOCK)
                there = places < length
                g = tl.load(gradient + places, mask=there, other=0.0).to(tl.float32) * factor
                before = tl.load(slot + places, mask=there, other=0.0)
                total = tl.where(now < COUNT, 0.0, before) + tl.where(take, g, 0.0)
                tl.store(slot + places, total, mask=there)


@triton.jit
def _solve_single(
    sums, scale, gate, gradient_norm2, products, gram, multipliers, applied, coefficients, finite, blocks,
    direction, sign, margin, margin_stride, floor, previous,
    HAS_SCALE: tl.constexpr, HAS_GATE: tl.constexpr, HAS_FLOOR: tl.constexpr, ONLY_VIOLATED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One constraint in closed form, all blocks in one program: see :class:`congruency.backends.base.Solution`."""
    block = tl.arange(0, BLOCK)
    there = block < blocks
    gg = tl.load(sums + 4 * block, mask=there, other=0.0)
    gb = tl.load(sums + 4 * block + 1, mask=there, other=0.0)
    bb = tl.load(sums + 4 * block + 3, mask=there, other=0.0)
    total = gg + gb + bb
    all_finite = tl.sum(tl.where(total - total == 0.0, 0, 1)) == 0
    direction = tl.load(direction)
    sign = tl.load(sign)
    margin = tl.load(margin + margin_stride * block, mask=there, other=0.0)
    factor = tl.full([], 1.0, dtype=tl.float64)
    if HAS_SCALE:
        factor = tl.load(scale).to(tl.float64)
    product = tl.where(all_finite, direction * gb / factor, 0.0)
    norm2 = tl.where(all_finite, bb, 0.0)
    if HAS_GATE:
        norm2 = tl.where(tl.load(gate) != 0, norm2, 0.0)
    along = sign * product
    counts = norm2 > 0
    if HAS_FLOOR:
        size2 = tl.where(all_finite, gg, 0.0) / (factor * factor)
        least = tl.minimum(tl.load(floor), 2.0)  # 2 excludes nothing, as inf does
        weak = along >= -least * tl.sqrt(size2 * norm2)
        last = tl.load(previous + block, mask=there, other=0.0)
        counts = counts & weak & (norm2 <= last)
        tl.store(previous + block, tl.where(last == float("inf"), last, norm2), mask=there)
    if ONLY_VIOLATED:
        counts = counts & (along < 0)
    v = tl.where(counts, tl.maximum(margin, -along / tl.where(counts, norm2, 1.0)), 0.0)
    tl.store(gradient_norm2 + block, tl.where(all_finite, gg, 0.0) / (factor * factor), mask=there)
    tl.store(products + block, product, mask=there)
    tl.store(gram + block, norm2, mask=there)
    tl.store(multipliers + block, v, mask=there)
    tl.store(applied + block, v != 0, mask=there)
    tl.store(coefficients + block, v * sign * direction * factor, mask=there)
    tl.store(finite, all_finite)


@triton.jit
def _swept(matrix, vector, pivot, towards, ROWS: tl.constexpr):
    """The symmetric pivot (Beaton's SWEEP) on row ``pivot``: into the active set (towards = 1) or out of it (-1)."""
    row = tl.arange(0, ROWS)
    here = row == pivot
    column = tl.sum(tl.where(here[None, :], matrix, 0.0), axis=1)
    corner = tl.sum(tl.where(here, column, 0.0))
    value = tl.sum(tl.where(here, vector, 0.0))
    edge = towards * column / corner
    result = matrix - column[:, None] * column[None, :] / corner
    result = tl.where(here[:, None], edge[None, :], result)
    result = tl.where(here[None, :], edge[:, None], result)
    result = tl.where(here[:, None] & here[None, :], -1.0 / corner, result)
    return result, tl.where(here, towards * value / corner, vector - column * value / corner)


@triton.jit
def _solve_dual(
    gram, products, margins, multipliers, margin_stride,
    N: tl.constexpr, ROWS: tl.constexpr, TOLERANCE: tl.constexpr, ROUNDING: tl.constexpr,
):  # fmt: skip
    """Lawson and Hanson's active set method for one problem: min 1/2 v'Kv + p'v, v >= margin, with unit constraints.

    The swept matrix ``a`` holds minus the inverse of the active block, ``z`` minus its multipliers. Both lose digits to
    nearly dependent constraints that enter and leave again, so slopes are computed from K itself and every fit is
    refined once. TOLERANCE is the least pivot; ROUNDING is a slope that counts as 0, as in cone.py. A constraint whose
    multiplier rounds below 0 as it enters is barred until another one has entered.
    """
    problem = tl.program_id(0)
    row = tl.arange(0, ROWS)
    there = row < N
    inside = there[:, None] & there[None, :]
    places = problem * N * N + row[:, None] * N + row[None, :]
    k = tl.load(gram + places, mask=inside, other=0.0)
    p = tl.load(products + problem * N + row, mask=there, other=0.0)
    margin = tl.load(margins + problem * margin_stride + row, mask=there, other=0.0)
    norm = tl.sqrt(tl.sum(tl.where(row[:, None] == row[None, :], k, 0.0), axis=1))
    is_row = there & (norm > 0)
    inverse = tl.where(is_row, 1.0 / tl.where(is_row, norm, 1.0), 0.0)
    unit = k * inverse[:, None] * inverse[None, :]
    q = p * inverse + tl.sum(unit * (margin * norm)[None, :], axis=1)
    size = tl.max(tl.abs(q))
    q = q / tl.where(size > 0, size, 1.0)
    a = unit
    z = q
    active = row < 0
    barred = row < 0
    u = tl.zeros([ROWS], dtype=tl.float64)
    turns = 0
    searching = 1
    while searching != 0:
        pivots = tl.sum(tl.where(row[:, None] == row[None, :], a, 0.0), axis=1)
        slope = q + tl.sum(unit * u[None, :], axis=1)
        slope = tl.where(is_row & (active == 0) & (barred == 0) & (pivots > TOLERANCE), slope, 0.0)
        enter = tl.argmin(slope, axis=0)
        zero = ROUNDING * (1.0 + tl.sum(u))
        searching = ((tl.min(slope, axis=0) < -zero) & (turns < 8 * N)).to(tl.int32)
        if searching != 0:
            a, z = _swept(a, z, enter, 1.0, ROWS)
            active = active | (row == enter)
            leaving = 1
            while leaving != 0:
                target = tl.where(active, -z, 0.0)
                residual = tl.where(active, q + tl.sum(unit * target[None, :], axis=1), 0.0)
                target += tl.where(active, tl.sum(a * residual[None, :], axis=1), 0.0)
                blocking = active & (target <= 0)
                ratio = tl.where(blocking, u / tl.where(u - target > 0, u - target, 1.0), 2.0)
                length = tl.min(ratio, axis=0)
                leaving = (length < 1.5).to(tl.int32)
                if leaving != 0:
                    leave = tl.argmin(ratio, axis=0)
                    u = tl.where(row == leave, 0.0, u + tl.minimum(length, 1.0) * (target - u))
                    a, z = _swept(a, z, leave, -1.0, ROWS)
                    active = active & (row != leave)
                else:
                    u = target
            entered = tl.sum(tl.where(row == enter, u, 0.0)) > 0
            barred = tl.where(entered, row < 0, barred | (row == enter))
            turns += 1
    v = margin + tl.maximum(u, 0.0) * size * inverse
    tl.store(multipliers + problem * N + row, v, mask=there)


@dataclass(frozen=True)
class _Plan:
    """How a list of tensors is cut into chunks and units; the same as long as the shapes are."""

    lengths: Tensor
    chunk_tensor: Tensor
    chunk_start: Tensor
    unit_first: Tensor
    unit_block: Tensor
    block_first: Tensor
    units: int


@functools.lru_cache(maxsize=32)
def _plan(
    lengths: tuple[int, ...], block_of: tuple[int, ...], blocks: int, device: torch.device, tile: int = 1
) -> _Plan:
    """Slices must come sorted by block. The partial sums of a unit are ``tile`` numbers."""
    chunks = [(i, start) for i, length in enumerate(lengths) for start in range(0, length, _CHUNK)]
    wanted = min(_processors(device) * _UNITS_PER_PROCESSOR, _PARTIALS // tile)
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


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


class _Addresses:
    """Address tables on the device, kept as long as the tensors stay where they are."""

    def __init__(self) -> None:
        self.tables: OrderedDict[tuple[object, ...], Tensor] = OrderedDict()
        self.spares: dict[tuple[int, torch.device], list[tuple[Tensor, Tensor]]] = {}
        self.captured: list[tuple[Tensor, Tensor]] = []

    def table(self, addresses: tuple[int, ...], device: torch.device) -> Tensor:
        """``addresses`` on the device, without waiting for it.

        While a CUDA graph is captured no memory can be pinned, and what the graph copies at every replay must stay as
        it is: then a pair of buffers laid aside in earlier steps is taken, and kept for good.
        """
        if device.type == "cpu":  # Triton's interpreter
            return torch.tensor(addresses, dtype=torch.int64)
        size = (len(addresses), device)
        spares = self.spares.setdefault(size, [])
        if torch.cuda.is_current_stream_capturing():
            if not spares:
                raise RuntimeError("no room laid aside for a CUDA graph: run a few ordinary steps before each capture")
            pinned, table = spares.pop()
            pinned.copy_(torch.tensor(addresses, dtype=torch.int64))
            table.copy_(pinned, non_blocking=True)
            self.captured.append((pinned, table))
            return table
        if len(spares) < _SPARES:
            pinned = torch.empty(len(addresses), dtype=torch.int64, pin_memory=True)
            spares.append((pinned, torch.empty(len(addresses), dtype=torch.int64, device=device)))
        key = (addresses, device)
        if key not in self.tables:
            self.tables[key] = torch.tensor(addresses, dtype=torch.int64, pin_memory=True).to(device, non_blocking=True)
            while len(self.tables) > _MOST_TABLES:
                self.tables.popitem(last=False)
        return self.tables[key]


@dataclass(frozen=True)
class _Launch:
    """Slices of one pair of dtypes, ready for the kernels."""

    plan: _Plan
    table: Tensor
    target_dtype: tl.dtype
    basis_dtype: tl.dtype
    chain: bool
    aligned: bool


_addresses = _Addresses()


class TritonBackend:
    """Both passes over the slices of one step: see :class:`congruency.backends.base.Backend`."""

    def __init__(self, slices: Sequence[ParameterSlice], size: int, blocks: int, device: torch.device) -> None:
        self._size, self._blocks, self._device = size, blocks, device
        ours, others = _split(slices) if size <= MOST_CONSTRAINTS else ({}, list(slices))
        self._launches = [_launch(entries, kind, size, blocks, device) for kind, entries in ours.items()]
        self._others = TorchBackend(others, size, blocks, device) if others or not ours else None
        self.reusable = self._others is None
        self._slices = slices

    def release(self) -> None:
        self._slices = ()

    def gram(self, *, wide: bool = False) -> Tensor:
        parts = [_launch_gram(launch, self._size, self._blocks, self._device, wide) for launch in self._launches]
        if self._others is not None:
            parts.append(self._others.gram(wide=wide))
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    @staticmethod
    def solve(gram: Tensor, problem: Problem, scale: Tensor | None = None) -> Solution:
        if problem.signs.shape[0] == 1:
            return _solve_one(gram, problem, scale)
        return solve_with(TritonBackend.solve_dual, gram, problem, scale)

    def apply(self, solution: Solution) -> None:
        for launch in self._launches:
            plan = launch.plan
            _apply[(plan.units,)](
                launch.table, plan.lengths, plan.chunk_tensor, plan.chunk_start, plan.unit_first, plan.unit_block,
                solution.coefficients.contiguous(), solution.applied,
                G=launch.target_dtype, B=launch.basis_dtype, SIZE=self._size, CHUNK=_CHUNK, BLOCK=1024,
                CHAIN=launch.chain, ALIGNED=launch.aligned,
            )  # fmt: skip
        if self._others is not None:
            self._others.apply(solution)

    def agreement(self, rule: ElementRule, decay: Tensor) -> Tensor:
        return self._elements(rule, decay, None, write=False)

    def mask(self, rule: ElementRule, decay: Tensor, scale: Tensor | None = None) -> Tensor:
        return self._elements(rule, decay, scale, write=True)

    def _elements(self, rule: ElementRule, decay: Tensor, scale: Tensor | None, *, write: bool) -> Tensor:
        launches, others = self._launches, self._others
        if not rule.plain:
            launches, others = [], TorchBackend(self._slices, self._size, self._blocks, self._device)
        parts = []
        for launch in launches:
            plan = launch.plan
            partials = torch.empty(plan.units, 4, dtype=torch.float32, device=self._device)
            _element[(plan.units,)](
                launch.table, plan.lengths, plan.chunk_tensor, plan.chunk_start, plan.unit_first, plan.unit_block,
                decay, decay if scale is None else scale, rule.signs, partials,
                T=launch.target_dtype, B=launch.basis_dtype, SIZE=self._size, UPDATE=rule.update, STRICT=rule.strict,
                MASK_DECAY=rule.mask_decay, HAS_SCALE=scale is not None, WRITE=write,
                CHUNK=_CHUNK, BLOCK=1024, ALIGNED=launch.aligned,
            )  # fmt: skip
            if scale is None:
                parts.append(torch.empty(self._blocks, 4, dtype=torch.float64, device=self._device))
                _sum_agreement[(self._blocks,)](partials, plan.block_first, parts[-1], BLOCK=32)
        if others is not None:
            parts.append(others.mask(rule, decay, scale) if write else others.agreement(rule, decay))
        if not parts:
            return torch.empty(self._blocks, 4, dtype=torch.float64, device=self._device)
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    @staticmethod
    def solve_dual(gram: Tensor, products: Tensor, margins: Tensor) -> Tensor:
        blocks, n = products.shape
        if n > MOST_CONSTRAINTS:
            return cone.solve_dual(gram, products, margins)
        multipliers = torch.empty_like(products, memory_format=torch.contiguous_format)
        _solve_dual[(blocks,)](
            gram.contiguous(), products.contiguous(), margins.contiguous(), multipliers, n if margins.ndim == 2 else 0,
            N=n, ROWS=max(16, triton.next_power_of_2(n)), TOLERANCE=1e-13, ROUNDING=2.0**-50,
            num_warps=1 if n <= 16 else 4,
        )  # fmt: skip
        return multipliers


def record(weights: Sequence[Tensor], slots: Sequence[Sequence[Tensor]], phase: Tensor) -> None:
    """Copy ``weights[j]`` into ``slots[j][phase]``, if there is such a slot, as the device sees ``phase``."""
    for dtype, plan, table in _slot_launches(weights, slots):
        _record[(plan.units,)](
            table, plan.lengths, plan.chunk_tensor, plan.chunk_start, plan.unit_first, phase,
            W=_DTYPES[dtype], COUNT=len(slots[0]), CHUNK=_CHUNK, BLOCK=1024,
        )  # fmt: skip


def accumulate(
    gradients: Sequence[Tensor], slots: Sequence[Sequence[Tensor]], phase: Tensor, finite: Tensor, scale: Tensor | None
) -> None:
    """Add ``gradients[j] / scale`` to the running sum ``slots[j][min(phase, last)]``, unless it is not finite."""
    for dtype, plan, table in _slot_launches(gradients, slots):
        _accumulate[(plan.units,)](
            table, plan.lengths, plan.chunk_tensor, plan.chunk_start, plan.unit_first, phase, finite,
            finite if scale is None else scale,
            G=_DTYPES[dtype], S=tl.float32, COUNT=len(slots[0]), HAS_SCALE=scale is not None, CHUNK=_CHUNK, BLOCK=1024,
        )  # fmt: skip


def _slot_launches(
    tensors: Sequence[Tensor], slots: Sequence[Sequence[Tensor]]
) -> Iterator[tuple[torch.dtype, _Plan, Tensor]]:
    """One launch for each dtype of ``tensors``, over a table of (tensor, its slots)."""
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
        yield dtype, _plan(lengths, (0,) * len(lengths), 1, device), _addresses.table(addresses, device)


def _solve_one(gram: Tensor, problem: Problem, scale: Tensor | None) -> Solution:
    """A single constraint, in one launch."""
    blocks = gram.shape[0]
    numbers = torch.empty(5, blocks, dtype=torch.float64, device=gram.device)
    flags = torch.empty(blocks + 1, dtype=torch.bool, device=gram.device)
    norm2, product, length2, multiplier, coefficient = numbers
    _solve_single[(1,)](
        gram.contiguous(), gram if scale is None else scale, gram if problem.gate is None else problem.gate,
        norm2, product, length2, multiplier, flags, coefficient, flags[blocks:], blocks,
        problem.combination, problem.signs, problem.margins, problem.margins.ndim - 1,
        gram if problem.floors is None else problem.floors, gram if problem.previous is None else problem.previous,
        HAS_SCALE=scale is not None, HAS_GATE=problem.gate is not None,
        HAS_FLOOR=problem.floors is not None and problem.previous is not None, ONLY_VIOLATED=problem.only_violated,
        BLOCK=triton.next_power_of_2(blocks),
    )  # fmt: skip
    return Solution(
        finite=flags[blocks],
        gradient_norm2=norm2,
        products=product.unsqueeze(-1),
        gram=length2.view(-1, 1, 1),
        signs=problem.signs,
        multipliers=multiplier.unsqueeze(-1),
        applied=flags[:blocks],
        coefficients=coefficient.unsqueeze(-1),
        gate=problem.gate,
    )


def _launch_gram(launch: _Launch, size: int, blocks: int, device: torch.device, wide: bool) -> Tensor:
    plan = launch.plan
    tables = (launch.table, plan.lengths, plan.chunk_tensor, plan.chunk_start, plan.unit_first)
    rows = _tile_rows(size)
    partials = torch.empty(plan.units, rows * rows, dtype=torch.float64 if wide else torch.float32, device=device)
    dtypes = {"G": launch.target_dtype, "B": launch.basis_dtype, "F": tl.float64 if wide else tl.float32}
    if size <= 1:
        _gram_of_one[(plan.units,)](
            *tables, partials, **dtypes, CHUNK=_CHUNK, BLOCK=1024,
            COLUMNS=2 * (1 + size), CHAINED=launch.chain, HAS_BASIS=size == 1, ALIGNED=launch.aligned,
        )  # fmt: skip
    else:
        block = (4096 // rows if rows > 4 else 512) // (2 if wide else 1)  # as many registers either way
        _gram_of_many[(triton.cdiv(1 + size, 4), plan.units)](
            *tables, partials, **dtypes, SIZE=size, ROWS=rows, CHUNK=_CHUNK, BLOCK=block, ALIGNED=launch.aligned,
        )  # fmt: skip
    sums = torch.empty(blocks, rows, rows, dtype=torch.float64, device=device)
    width = min(16, rows * rows)
    _sum_units[(blocks, rows * rows // width)](partials, plan.block_first, sums, ROWS=rows, WIDTH=width, BLOCK=64)
    return sums if rows == 1 + size else sums[:, : 1 + size, : 1 + size].contiguous()


_Kind = tuple[torch.dtype, torch.dtype, bool]


def _split(slices: Sequence[ParameterSlice]) -> tuple[dict[_Kind, list[ParameterSlice]], list[ParameterSlice]]:
    """The slices by dtype of gradient and basis and by whether the basis is one chain; and those for plain torch."""
    ours: dict[_Kind, list[ParameterSlice]] = {}
    others: list[ParameterSlice] = []
    for item in slices:
        if not item.target.numel():
            continue
        tensors = item.tensors
        dtypes = {tensor.dtype for tensor in tensors[1:]} or {item.target.dtype}
        dtype = dtypes.pop()
        if dtypes or not {dtype, item.target.dtype} <= _DTYPES.keys() or not same_layout(tensors):
            others.append(item)
            continue
        chain = len(item.bases) == 1 and item.bases[0].chained
        ours.setdefault((item.target.dtype, dtype, chain), []).append(item)
    return ours, others


def _addresses_of(item: ParameterSlice) -> list[int]:
    """The gradient and the ends of all basis vectors, then 0 and their starts (0 where there is none)."""
    ends, starts = [item.target.data_ptr()], [0]
    for basis in item.bases:
        addresses = [tensor.data_ptr() for tensor in basis.tensors]
        ends += addresses[1:] if basis.chained else addresses
        starts += addresses[:-1] if basis.chained else [0] * len(addresses)
    return ends + starts


def _tile_rows(size: int) -> int:
    """Rows of the tile of inner products: the gradient and the basis, rounded up to a power of two where tiles are."""
    return triton.next_power_of_2(max(4, 1 + size)) if size > 1 else 1 + size


def _launch(slices: list[ParameterSlice], kind: _Kind, size: int, blocks: int, device: torch.device) -> _Launch:
    slices = sorted(slices, key=lambda item: item.block)
    addresses = tuple(address for item in slices for address in _addresses_of(item))
    lengths = tuple(item.target.numel() for item in slices)
    block_of = tuple(item.block for item in slices)
    plan = _plan(lengths, block_of, blocks, device, _tile_rows(size) ** 2)
    aligned = all(address % 16 == 0 for address in addresses)
    gradient, basis, chain = kind
    return _Launch(plan, _addresses.table(addresses, device), _DTYPES[gradient], _DTYPES[basis], chain, aligned)
