"""The Triton kernels of the CUDA backend.

Tables on the device say what a program works on: the addresses of every slice's tensors, how the slices are cut into
chunks, and which chunks form a unit, the work of one program (see :mod:`congruency.backends.triton`).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "accumulate", "apply", "check", "correct", "element", "gram", "settle",
    "solve_dual", "solve_many", "solve_single", "sum_agreement", "sum_and_solve", "sum_units", "tick",
]  # fmt: skip


@triton.jit
def _pointer(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address.to(tl.pointer_type(DTYPE))


@triton.jit
def _gram_unit(
    unit, addresses, lengths, chunk_tensor, chunk_start, unit_first, partials,
    G: tl.constexpr, B: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr, SIZE: tl.constexpr,
    PAIRS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, STRIDE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr, ALIGNED: tl.constexpr, F: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute inner products FIRST to LAST - 1 over the chunks of one unit, reading each tensor once, with sums in F.

    PAIRS lists the vectors of each product. Vector 0 is the target; vector k is tensor VECTORS[2k - 2] minus tensor
    VECTORS[2k - 1], if the latter is not -1.
    """
    sums = ()
    for _ in tl.static_range(FIRST, LAST):
        sums = sums + (tl.zeros([BLOCK], dtype=F),)
    for chunk in range(tl.load(unit_first + unit), tl.load(unit_first + unit + 1)):
        tensor = tl.load(chunk_tensor + chunk)
        start = tl.load(chunk_start + chunk)
        length = tl.load(lengths + tensor)
        table = addresses + tensor * WIDTH
        pointers = (_pointer(tl.load(table), G, ALIGNED),)
        for t in tl.static_range(1, WIDTH):
            pointers = pointers + (_pointer(tl.load(table + t), B, ALIGNED),)
        for i in tl.range(0, CHUNK // (BLOCK * UNROLL), num_stages=STAGES):
            for j in tl.static_range(UNROLL):
                places = start + (i * UNROLL + j) * BLOCK + tl.arange(0, BLOCK)
                there = places < length
                tensors = ()
                for t in tl.static_range(WIDTH):
                    tensors = tensors + (tl.load(pointers[t] + places, mask=there, other=0.0).to(F),)
                vectors = (tensors[0],)
                for k in tl.static_range(SIZE):
                    if VECTORS[2 * k + 1] < 0:
                        vectors = vectors + (tensors[VECTORS[2 * k]],)
                    else:
                        vectors = vectors + (tensors[VECTORS[2 * k]] - tensors[VECTORS[2 * k + 1]],)
                more = ()
                for p in tl.static_range(FIRST, LAST):
                    more = more + (sums[p - FIRST] + vectors[PAIRS[2 * p]] * vectors[PAIRS[2 * p + 1]],)
                sums = more
    for p in tl.static_range(FIRST, LAST):
        tl.store(partials + unit * STRIDE + p, tl.sum(sums[p - FIRST]))


@triton.jit
def gram(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, partials,
    G: tl.constexpr, B: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr, SIZE: tl.constexpr,
    PAIRS: tl.constexpr, COUNT: tl.constexpr, PARTS: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr, ALIGNED: tl.constexpr, F: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute COUNT inner products of each unit, split over PARTS adjacent programs that share cached reads.

    With several STAGES, loads of the next blocks of elements overlap with the products of the current one.
    """
    unit = tl.program_id(0) // PARTS
    for part in tl.static_range(PARTS):  # parts of nearly equal size
        if tl.program_id(0) % PARTS == part:
            _gram_unit(
                unit, addresses, lengths, chunk_tensor, chunk_start, unit_first, partials,
                G, B, WIDTH, VECTORS, SIZE, PAIRS, part * COUNT // PARTS, (part + 1) * COUNT // PARTS, COUNT,
                CHUNK, BLOCK, UNROLL, ALIGNED, F, STAGES,
            )  # fmt: skip


@triton.jit
def _sum_block(
    block, start, partials, first, last, pairs, known, sums, count, every, side,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the partial sums of a block's units ``first`` to ``last - 1`` in a fixed order, for a symmetric matrix.

    It handles WIDTH inner products from ``start`` on; ``pairs`` has their rows and columns. The first ``count`` are
    computed; the others, up to ``every``, are taken from ``known``.
    """
    place = start + tl.arange(0, WIDTH)
    i = tl.load(pairs + 2 * place, mask=place < every, other=0)
    j = tl.load(pairs + 2 * place + 1, mask=place < every, other=0)
    total = tl.zeros([BLOCK, WIDTH], dtype=tl.float64)
    for unit in range(first, last, BLOCK):
        units = unit + tl.arange(0, BLOCK)
        here = (units < last)[:, None] & (place < count)[None, :]
        at = partials + units[:, None] * count + place[None, :]
        total += tl.load(at, mask=here, other=0.0, cache_modifier=".cg").to(tl.float64)
    found = tl.sum(total, axis=0)
    out = sums + block * side * side
    if every > count:
        held = (place >= count) & (place < every)
        found += tl.load(known + block * side * side + i * side + j, mask=held, other=0.0)
    tl.store(out + i * side + j, found, mask=place < every)
    tl.store(out + j * side + i, found, mask=place < every)


@triton.jit(do_not_specialize=("count", "every", "side"))
def sum_units(
    partials, block_first, pairs, known, sums, count, every, side, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the partial sums, with one program per block and per WIDTH inner products.

    Numbers of inner products are no constants, so that all numbers of constraints share one compiled kernel.
    """
    block = tl.program_id(0)
    first = tl.load(block_first + block)
    last = tl.load(block_first + block + 1)
    _sum_block(
        block, tl.program_id(1) * WIDTH, partials, first, last, pairs, known, sums, count, every, side, WIDTH, BLOCK
    )


@triton.jit
def _apply_unit(
    unit, block, addresses, lengths, chunk_tensor, chunk_start, unit_first, coefficients, applied,
    G: tl.constexpr, B: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr, SIZE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write g + sum_k a_k b_k over the chunks of one unit, in reverse order, if its block is applied."""
    if tl.load(applied + block, cache_modifier=".cg") != 0:
        factors = ()
        for k in tl.static_range(SIZE):
            factor = tl.load(coefficients + block * SIZE + k, cache_modifier=".cg")
            factors = factors + (factor.to(tl.float32),)
        first = tl.load(unit_first + unit)
        last = tl.load(unit_first + unit + 1)
        for back in range(0, last - first):
            chunk = last - 1 - back
            tensor = tl.load(chunk_tensor + chunk)
            start = tl.load(chunk_start + chunk)
            length = tl.load(lengths + tensor)
            table = addresses + tensor * WIDTH
            pointers = (_pointer(tl.load(table), G, ALIGNED),)
            for t in tl.static_range(1, WIDTH):
                pointers = pointers + (_pointer(tl.load(table + t), B, ALIGNED),)
            for i in range(CHUNK // BLOCK):
                places = start + i * BLOCK + tl.arange(0, BLOCK)
                there = places < length
                tensors = ()
                for t in tl.static_range(WIDTH):
                    tensors = tensors + (tl.load(pointers[t] + places, mask=there, other=0.0).to(tl.float32),)
                x = tensors[0]
                for k in tl.static_range(SIZE):
                    if VECTORS[2 * k + 1] < 0:
                        x += factors[k] * tensors[VECTORS[2 * k]]
                    else:
                        x += factors[k] * (tensors[VECTORS[2 * k]] - tensors[VECTORS[2 * k + 1]])
                tl.store(pointers[0] + places, x.to(G), mask=there)


@triton.jit
def apply(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, unit_block, coefficients, applied,
    G: tl.constexpr, B: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr, SIZE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Apply to one unit per program, in reverse order: what the first pass read last may still be in the cache."""
    unit = tl.num_programs(0) - 1 - tl.program_id(0)
    _apply_unit(
        unit, tl.load(unit_block + unit), addresses, lengths, chunk_tensor, chunk_start, unit_first, coefficients,
        applied, G, B, WIDTH, VECTORS, SIZE, CHUNK, BLOCK, ALIGNED,
    )  # fmt: skip


@triton.jit
def element(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, unit_block, decays, scales, signs, partials,
    T: tl.constexpr, B: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr, SIZE: tl.constexpr,
    UPDATE: tl.constexpr, STRICT: tl.constexpr,
    MASK_DECAY: tl.constexpr, HAS_SCALE: tl.constexpr, WRITE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Blocks of one element over the chunks of one unit: measure agreement and, with WRITE, write the result."""
    FIRST: tl.constexpr = 1 if UPDATE else 0
    unit = tl.program_id(0)
    if HAS_SCALE:  # second pass, in reverse order: what the first read last may still be in the cache
        unit = tl.num_programs(0) - 1 - unit
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
        table = addresses + tensor * WIDTH
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
                end = _pointer(tl.load(table + VECTORS[2 * k]), B, ALIGNED)
                c = tl.load(end + places, mask=there, other=0.0).to(tl.float32)
                if VECTORS[2 * k + 1] >= 0:
                    begin = _pointer(tl.load(table + VECTORS[2 * k + 1]), B, ALIGNED)
                    c -= tl.load(begin + places, mask=there, other=0.0).to(tl.float32)
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
def sum_agreement(partials, block_first, sums, BLOCK: tl.constexpr):
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
def _cosine(product, norm2, length2):
    """Return the cosine, and where it is defined."""
    norms = tl.sqrt(tl.maximum(norm2, 0.0)) * tl.sqrt(tl.maximum(length2, 0.0))
    return tl.minimum(tl.maximum(product / tl.where(norms > 0, norms, 1.0), -1.0), 1.0), norms > 0


@triton.jit
def _add_to_means(means, place, total, count):
    """Add a step's mean, ``total / count``, to :attr:`Problem.means`, unless the count is 0."""
    known = count > 0
    tl.store(means + place, tl.load(means + place) + tl.where(known, total / tl.maximum(count, 1.0), 0.0))
    tl.store(means + 4 + place, tl.load(means + 4 + place) + tl.where(known, 1.0, 0.0))


@triton.jit
def settle(
    agreement, sizes, scales, finite, counts, means, slices,
    MOST: tl.constexpr, HAS_COUNTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the scales of all slices and whether all was finite, and add to counts and means, in one program."""
    left = tl.zeros([BLOCK], dtype=tl.float64)
    elements = tl.zeros([BLOCK], dtype=tl.float64)
    product = tl.zeros([BLOCK], dtype=tl.float64)
    norm2 = tl.zeros([BLOCK], dtype=tl.float64)
    length2 = tl.zeros([BLOCK], dtype=tl.float64)
    wrong = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, slices, BLOCK):
        slice = start + tl.arange(0, BLOCK)
        there = slice < slices
        kept = tl.load(agreement + 4 * slice, mask=there, other=0.0)
        yc = tl.load(agreement + 4 * slice + 1, mask=there, other=0.0)
        yy = tl.load(agreement + 4 * slice + 2, mask=there, other=0.0)
        cc = tl.load(agreement + 4 * slice + 3, mask=there, other=0.0)
        total = kept + yc + yy + cc
        product += yc
        norm2 += yy
        length2 += cc
        size = tl.load(sizes + slice, mask=there, other=0.0)
        tl.store(scales + slice, size / tl.maximum(kept, size / MOST), mask=there)
        left += size - kept
        elements += size
        wrong += (total - total != 0.0).to(tl.int32)
    all_finite = tl.sum(wrong) == 0
    tl.store(finite, all_finite)
    length = tl.sum(length2)
    norms = tl.sqrt(tl.sum(norm2) * length)
    congruency = tl.sum(product) / tl.where(norms > 0, norms, 1.0)
    every = tl.sum(elements)
    defined = all_finite & (norms > 0)
    _add_to_means(means, 0, tl.where(defined, congruency, 0.0), defined.to(tl.float64))
    _add_to_means(means, 2, tl.where(all_finite, tl.sqrt(length), 0.0), all_finite.to(tl.float64))
    some = all_finite & (every > 0)
    _add_to_means(means, 3, tl.where(some, (every - tl.sum(left)) / every, 0.0), some.to(tl.float64))
    if HAS_COUNTS:
        tl.store(counts, tl.load(counts) + (tl.sum(left) > 0).to(tl.int64))
        tl.store(counts + 1, tl.load(counts + 1) + (all_finite == 0).to(tl.int64))


@triton.jit
def tick(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, clock, phase, gate, offset, window,
    W: tl.constexpr, COUNT: tl.constexpr, HAS_WINDOW: tl.constexpr, RECORD: tl.constexpr, LAST: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the phase, the steps since recording last started, and the gate, whether all COUNT references are recorded.

    With RECORD, the weights are copied to the slot of this phase, if there is one. With LAST, the clock advances by one
    after all programs have read it.
    """
    unit = tl.program_id(0)
    step = tl.load(clock)
    now = step - offset
    if HAS_WINDOW:
        now = tl.where(now < 0, now, now % window)
    if unit == 0:
        tl.store(phase, now)
        tl.store(gate, now >= COUNT)
    if LAST:
        tl.debug_barrier()
        if tl.atomic_add(clock + 1, 1) == tl.num_programs(0) - 1:
            tl.store(clock + 1, 0)
            tl.store(clock, step + 1)
    if RECORD & (now >= 0) & (now < COUNT):
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
def accumulate(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, phase, finite, scale,
    G: tl.constexpr, S: tl.constexpr, COUNT: tl.constexpr, HAS_SCALE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the gradient to the sum of this phase, if finite; sums start at 0 in the phases that record references."""
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
def solve_single(
    sums, scale, gate, gradient_norm2, products, gram, multipliers, applied, coefficients, finite, blocks,
    direction, sign, margin, margin_stride, floor, previous, counts, means,
    HAS_SCALE: tl.constexpr, HAS_GATE: tl.constexpr, HAS_FLOOR: tl.constexpr, ONLY_VIOLATED: tl.constexpr,
    HAS_COUNTS: tl.constexpr, HAS_MEANS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Solve for one constraint in closed form, all blocks in one program: see :class:`congruency.backends.Solution`."""
    wrong = 0
    for start in range(0, blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        there = block < blocks
        gg = tl.load(sums + 4 * block, mask=there, other=0.0)
        gb = tl.load(sums + 4 * block + 1, mask=there, other=0.0)
        bb = tl.load(sums + 4 * block + 3, mask=there, other=0.0)
        total = gg + gb + bb
        wrong += tl.sum(tl.where(total - total == 0.0, 0, 1))
    all_finite = wrong == 0
    direction = tl.load(direction)
    sign = tl.load(sign)
    factor = tl.full([], 1.0, dtype=tl.float64)
    if HAS_SCALE:
        factor = tl.load(scale).to(tl.float64)
    changed = 0
    totals = (factor * 0.0, factor * 0.0, factor * 0.0)  # congruency before and after, magnitude
    numbers = totals  # number of blocks in each total
    for start in range(0, blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        there = block < blocks
        gg = tl.load(sums + 4 * block, mask=there, other=0.0)
        gb = tl.load(sums + 4 * block + 1, mask=there, other=0.0)
        bb = tl.load(sums + 4 * block + 3, mask=there, other=0.0)
        least_v = tl.load(margin + margin_stride * block, mask=there, other=0.0)
        product = tl.where(all_finite, direction * gb / factor, 0.0)
        norm2 = tl.where(all_finite, bb, 0.0)
        size2 = tl.where(all_finite, gg, 0.0) / (factor * factor)
        known = there & all_finite
        if HAS_GATE:
            norm2 = tl.where(tl.load(gate) != 0, norm2, 0.0)
            known = known & (tl.load(gate) != 0)
        along = sign * product
        taken = norm2 > 0
        if HAS_FLOOR:
            least = tl.minimum(tl.load(floor), 2.0)  # 2 excludes nothing, as inf does
            weak = along >= -least * tl.sqrt(size2 * norm2)
            last = tl.load(previous + block, mask=there, other=0.0)
            taken = taken & weak & (norm2 <= last)
            tl.store(previous + block, tl.where(last == float("inf"), last, norm2), mask=there)
        if ONLY_VIOLATED:
            taken = taken & (along < 0)
        v = tl.where(taken, tl.maximum(least_v, -along / tl.where(taken, norm2, 1.0)), 0.0)
        tl.store(gradient_norm2 + block, size2, mask=there)
        tl.store(products + block, product, mask=there)
        tl.store(gram + block, norm2, mask=there)
        tl.store(multipliers + block, v, mask=there)
        tl.store(applied + block, v != 0, mask=there)
        tl.store(coefficients + block, v * sign * direction * factor, mask=there)
        changed += tl.sum((v != 0).to(tl.int32))
        if HAS_MEANS:
            signed = v * sign
            shift = norm2 * signed  # <a, x - g>
            before, has_before = _cosine(product, size2, norm2)
            after, has_after = _cosine(product + shift, size2 + signed * (2.0 * product + shift), norm2)
            has_after = tl.where(v != 0, has_after, has_before) & known
            has_before = has_before & known
            after = tl.where(v != 0, after, before)
            totals = (
                totals[0] + tl.sum(tl.where(has_before, before, 0.0)),
                totals[1] + tl.sum(tl.where(has_after, after, 0.0)),
                totals[2] + tl.sum(tl.where(known, tl.sqrt(tl.maximum(norm2, 0.0)), 0.0)),
            )
            numbers = (
                numbers[0] + tl.sum(has_before.to(tl.float64)),
                numbers[1] + tl.sum(has_after.to(tl.float64)),
                numbers[2] + tl.sum(known.to(tl.float64)),
            )
    tl.store(finite, all_finite)
    if HAS_COUNTS:
        tl.store(counts, tl.load(counts) + (changed > 0).to(tl.int64))
        tl.store(counts + 1, tl.load(counts + 1) + (all_finite == 0).to(tl.int64))
        tl.store(counts + 3, tl.load(counts + 3) + 1)
    if HAS_MEANS:
        for which in tl.static_range(3):
            _add_to_means(means, which, totals[which], numbers[which])


@triton.jit
def sum_and_solve(
    partials, pairs, units,
    sums, scale, gate, gradient_norm2, products, gram, multipliers, applied, coefficients, finite, blocks,
    direction, sign, margin, margin_stride, floor, previous, counts, means,
    HAS_SCALE: tl.constexpr, HAS_GATE: tl.constexpr, HAS_FLOOR: tl.constexpr, ONLY_VIOLATED: tl.constexpr,
    HAS_COUNTS: tl.constexpr, HAS_MEANS: tl.constexpr, SUM_BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the partial sums of one block's three inner products, and solve for its one constraint."""
    _sum_block(0, 0, partials, 0, units, pairs, sums, sums, 3, 3, 2, 4, SUM_BLOCK)
    tl.debug_barrier()
    solve_single(
        sums, scale, gate, gradient_norm2, products, gram, multipliers, applied, coefficients, finite, blocks,
        direction, sign, margin, margin_stride, floor, previous, counts, means,
        HAS_SCALE, HAS_GATE, HAS_FLOOR, ONLY_VIOLATED, HAS_COUNTS, HAS_MEANS, 1,
    )  # fmt: skip


@triton.jit
def _swept(matrix, vector, pivot, towards, ROWS: tl.constexpr):
    """Sweep row ``pivot`` (Beaton's symmetric pivot) into the active set (towards = 1) or out of it (-1)."""
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
def _active_set(
    k, p, margin, n, ROWS: tl.constexpr, TOLERANCE: tl.constexpr, ROUNDING: tl.constexpr
):  # fmt: skip
    """Solve a problem of n constraints, min 1/2 v'Kv + p'v, v >= margin, by Lawson and Hanson's active-set method.

    Constraints are scaled to length 1. The swept matrix ``a`` holds minus the inverse of the active block, ``z`` minus
    its multipliers. Both lose precision when nearly dependent constraints enter and leave, so slopes are computed from
    K itself and every fit is refined once. TOLERANCE is the smallest pivot; slopes within ROUNDING count as 0, as in
    cone.py. A constraint whose multiplier rounds below 0 as it enters is barred until another one has entered.
    """
    row = tl.arange(0, ROWS)
    there = row < n
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
        searching = ((tl.min(slope, axis=0) < -zero) & (turns < 8 * n)).to(tl.int32)
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
    return margin + tl.maximum(u, 0.0) * size * inverse


@triton.jit(do_not_specialize=("margin_stride", "n"))
def solve_dual(
    gram, products, margins, multipliers, margin_stride, n,
    ROWS: tl.constexpr, TOLERANCE: tl.constexpr, ROUNDING: tl.constexpr,
):  # fmt: skip
    """Solve one problem of n constraints per program."""
    problem = tl.program_id(0)
    row = tl.arange(0, ROWS)
    there = row < n
    inside = there[:, None] & there[None, :]
    places = problem * n * n + row[:, None] * n + row[None, :]
    k = tl.load(gram + places, mask=inside, other=0.0)
    p = tl.load(products + problem * n + row, mask=there, other=0.0)
    margin = tl.load(margins + problem * margin_stride + row, mask=there, other=0.0)
    v = _active_set(k, p, margin, n, ROWS, TOLERANCE, ROUNDING)
    tl.store(multipliers + problem * n + row, v, mask=there)


@triton.jit
def _not_finite(sums, first, last):
    """Return how many of the sums ``first`` to ``last - 1`` are not finite."""
    wrong = 0
    for start in range(first, last, 1024):
        place = start + tl.arange(0, 1024)
        value = tl.load(sums + place, mask=place < last, other=0.0)
        wrong += tl.sum((value - value != 0.0).to(tl.int32))
    return wrong


@triton.jit(do_not_specialize=("total",))
def check(sums, wrongs, total, LENGTH: tl.constexpr):
    """Count the sums that are not finite, LENGTH per program."""
    first = tl.program_id(0) * LENGTH
    tl.store(wrongs + tl.program_id(0), _not_finite(sums, first, tl.minimum(first + LENGTH, total)))


@triton.jit
def _solve_block(
    block, sums, scale, gate, gradient_norm2, products, gram, multipliers, applied, coefficients, finite, blocks,
    combination, signs, margins, margin_stride, floors, previous, counts, means, parts, n, wrongs, checks,
    HAS_SCALE: tl.constexpr, HAS_GATE: tl.constexpr, HAS_FLOOR: tl.constexpr, ONLY_VIOLATED: tl.constexpr,
    HAS_COUNTS: tl.constexpr, HAS_MEANS: tl.constexpr, GATE_STRIDE: tl.constexpr, ROWS: tl.constexpr,
    TOLERANCE: tl.constexpr, ROUNDING: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Solve for n constraints of one block: see :class:`congruency.backends.Solution`.

    With CHECKED, :func:`check` has looked for sums that are not finite; otherwise each program looks at all of them.
    """
    side = 1 + n
    row = tl.arange(0, ROWS)
    there = row < n
    inside = there[:, None] & there[None, :]
    wrong = 0
    if CHECKED:
        for start in range(0, checks, 1024):
            place = start + tl.arange(0, 1024)
            wrong += tl.sum(tl.load(wrongs + place, mask=place < checks, other=0))
    else:
        wrong = _not_finite(sums, 0, blocks * side * side)
    all_finite = wrong == 0
    own = sums + block * side * side
    factor = tl.full([], 1.0, dtype=tl.float64)
    if HAS_SCALE:
        factor = tl.load(scale).to(tl.float64)
    norm2 = tl.where(all_finite, tl.load(own), 0.0) / (factor * factor)
    c = tl.load(combination + row[:, None] * n + row[None, :], mask=inside, other=0.0)
    counted = tl.where(there, 1.0, 0.0).to(tl.float64)
    if HAS_GATE:
        counted = tl.where(tl.load(gate + GATE_STRIDE * row, mask=there, other=0) != 0, counted, 0.0)
    c = c * counted[:, None]
    along = tl.where(all_finite, tl.load(own + 1 + row, mask=there, other=0.0), 0.0)
    product = tl.sum(c * along[None, :], axis=1) / factor
    half = tl.zeros([ROWS, ROWS], dtype=tl.float64)  # combination @ gram
    for k in range(n):
        line = tl.where(all_finite, tl.load(own + (1 + k) * side + 1 + row, mask=there, other=0.0), 0.0)
        half += tl.sum(tl.where(row[None, :] == k, c, 0.0), axis=1)[:, None] * line[None, :]
    between = tl.zeros([ROWS, ROWS], dtype=tl.float64)  # ... @ combination.mT
    for k in range(n):
        here = row[None, :] == k
        left = tl.sum(tl.where(here, half, 0.0), axis=1)
        between += left[:, None] * tl.sum(tl.where(here, c, 0.0), axis=1)[None, :]
    length2 = tl.sum(tl.where(row[:, None] == row[None, :], between, 0.0), axis=1)
    sign = tl.load(signs + row, mask=there, other=0.0)
    signed = product * sign
    taken = length2 > 0
    if HAS_FLOOR:
        least = tl.minimum(tl.load(floors + row, mask=there, other=2.0), 2.0)  # 2 excludes nothing, as inf does
        last = tl.load(previous + block * n + row, mask=there, other=0.0)
        taken = taken & (signed >= -least * tl.sqrt(norm2 * length2)) & (length2 <= last)
        tl.debug_barrier()  # all warps must read ``previous`` before one replaces it, or they would diverge
        tl.store(previous + block * n + row, tl.where(last == float("inf"), last, length2), mask=there)
    kept = sign * tl.where(taken, 1.0, 0.0)
    margin = tl.load(margins + block * margin_stride + row, mask=there, other=0.0)
    v = _active_set(
        between * kept[:, None] * kept[None, :], tl.where(taken, signed, 0.0), margin, n, ROWS, TOLERANCE, ROUNDING
    )
    if ONLY_VIOLATED:
        taken = taken & (tl.sum((taken & (signed < 0)).to(tl.int32)) > 0)
    v = tl.where(taken & all_finite, v, 0.0)
    changed = tl.sum((v != 0).to(tl.int32)) > 0
    tl.store(gradient_norm2 + block, norm2)
    tl.store(products + block * n + row, product, mask=there)
    tl.store(gram + block * n * n + row[:, None] * n + row[None, :], between, mask=inside)
    tl.store(multipliers + block * n + row, v, mask=there)
    tl.store(applied + block, changed)
    tl.store(coefficients + block * n + row, tl.sum(c * (v * sign)[:, None], axis=0) * factor, mask=there)
    tl.store(finite, all_finite)
    if HAS_MEANS:  # this block's share: three totals, and the number of values in each
        known = there & all_finite & (counted != 0)
        shift = tl.sum(between * (v * sign)[None, :], axis=1)  # <a_i, x - g>
        after2 = norm2 + tl.sum(v * sign * (2.0 * product + shift))
        before, has_before = _cosine(product, norm2, length2)
        after, has_after = _cosine(product + shift, after2, length2)
        has_after = tl.where(changed, has_after, has_before) & known
        has_before = has_before & known
        after = tl.where(changed, after, before)
        tl.store(parts + block, tl.sum(tl.where(has_before, before, 0.0)))
        tl.store(parts + blocks + block, tl.sum(tl.where(has_after, after, 0.0)))
        tl.store(parts + 2 * blocks + block, tl.sum(tl.where(known, tl.sqrt(tl.maximum(length2, 0.0)), 0.0)))
        tl.store(parts + 3 * blocks + block, tl.sum(has_before.to(tl.float64)))
        tl.store(parts + 4 * blocks + block, tl.sum(has_after.to(tl.float64)))
        tl.store(parts + 5 * blocks + block, tl.sum(known.to(tl.float64)))
    if HAS_COUNTS:
        tl.debug_barrier()
        if tl.atomic_add(counts + 2, 1) == blocks - 1:  # the last program to finish; all blocks are solved
            total = 0
            for start in range(0, blocks, 1024):
                place = start + tl.arange(0, 1024)
                flags = tl.load(applied + place, mask=place < blocks, other=0, cache_modifier=".cg")
                total += tl.sum((flags != 0).to(tl.int32))
            tl.store(counts, tl.load(counts) + (total > 0).to(tl.int64))
            tl.store(counts + 1, tl.load(counts + 1) + (all_finite == 0).to(tl.int64))
            tl.store(counts + 2, 0)
            tl.store(counts + 3, tl.load(counts + 3) + 1)
            if HAS_MEANS:
                for which in tl.static_range(3):
                    measured = tl.zeros([128], dtype=tl.float64)
                    number = tl.zeros([128], dtype=tl.float64)
                    for start in range(0, blocks, 128):
                        of = start + tl.arange(0, 128)
                        part = parts + which * blocks + of
                        measured += tl.load(part, mask=of < blocks, other=0.0, cache_modifier=".cg")
                        number += tl.load(part + 3 * blocks, mask=of < blocks, other=0.0, cache_modifier=".cg")
                    _add_to_means(means, which, tl.sum(measured), tl.sum(number))


# their alignment depends on n
_SOLUTION = ("gradient_norm2", "products", "gram", "multipliers", "applied", "coefficients", "finite")


@triton.jit(do_not_specialize=("margin_stride", "n", "checks"), do_not_specialize_on_alignment=_SOLUTION)
def solve_many(
    sums, scale, gate, gradient_norm2, products, gram, multipliers, applied, coefficients, finite, blocks,
    combination, signs, margins, margin_stride, floors, previous, counts, means, parts, n, wrongs, checks,
    HAS_SCALE: tl.constexpr, HAS_GATE: tl.constexpr, HAS_FLOOR: tl.constexpr, ONLY_VIOLATED: tl.constexpr,
    HAS_COUNTS: tl.constexpr, HAS_MEANS: tl.constexpr, GATE_STRIDE: tl.constexpr, ROWS: tl.constexpr,
    TOLERANCE: tl.constexpr, ROUNDING: tl.constexpr, CHECKED: tl.constexpr,
):  # fmt: skip
    """Solve one block of n constraints per program; n is no constant, so that all n up to ROWS share a kernel."""
    _solve_block(
        tl.program_id(0), sums, scale, gate, gradient_norm2, products, gram, multipliers, applied, coefficients, finite,
        blocks, combination, signs, margins, margin_stride, floors, previous, counts, means, parts, n, wrongs, checks,
        HAS_SCALE, HAS_GATE, HAS_FLOOR, ONLY_VIOLATED, HAS_COUNTS, HAS_MEANS, GATE_STRIDE, ROWS, TOLERANCE, ROUNDING,
        CHECKED,
    )  # fmt: skip


@triton.jit
def correct(
    addresses, lengths, chunk_tensor, chunk_start, unit_first, partials, meeting, pairs, known,
    sums, scale, gate, gradient_norm2, products, gram_, multipliers, applied, coefficients, finite, blocks,
    combination, signs, margins, margin_stride, floors, previous, counts, means, parts,
    G: tl.constexpr, B: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr, ALIGNED: tl.constexpr,
    PAIRS: tl.constexpr, COUNT: tl.constexpr, ALL: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, UNROLL: tl.constexpr, APPLY_BLOCK: tl.constexpr, SUM_BLOCK: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_GATE: tl.constexpr, HAS_FLOOR: tl.constexpr, ONLY_VIOLATED: tl.constexpr,
    HAS_COUNTS: tl.constexpr, HAS_MEANS: tl.constexpr, GATE_STRIDE: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
    TOLERANCE: tl.constexpr, ROUNDING: tl.constexpr,
):  # fmt: skip
    """Correct one block in one launch: partial products, their sum, the solution, the second pass.

    The last program to finish its products solves; the others wait for it. So all programs must be resident at once:
    the launch is cooperative, with at most one program per multiprocessor. ``meeting`` is the barrier: the number of
    programs that have arrived, and the number of barriers passed.
    """
    unit = tl.program_id(0)
    turn = tl.atomic_add(meeting + 1, 0)  # cannot change before this program has arrived
    _gram_unit(
        unit, addresses, lengths, chunk_tensor, chunk_start, unit_first, partials, G, B, WIDTH, VECTORS, N, PAIRS,
        0, COUNT, COUNT, CHUNK, BLOCK, UNROLL, ALIGNED, tl.float32, 1,
    )  # fmt: skip
    tl.debug_barrier()
    if tl.atomic_add(meeting, 1) == tl.num_programs(0) - 1:
        for start in tl.static_range(0, ALL, 4):
            _sum_block(0, start, partials, 0, tl.num_programs(0), pairs, known, sums, COUNT, ALL, 1 + N, 4, SUM_BLOCK)
        tl.debug_barrier()
        if N == 1:
            solve_single(
                sums, scale, gate, gradient_norm2, products, gram_, multipliers, applied, coefficients, finite, blocks,
                combination, signs, margins, margin_stride, floors, previous, counts, means,
                HAS_SCALE, HAS_GATE, HAS_FLOOR, ONLY_VIOLATED, HAS_COUNTS, HAS_MEANS, 1,
            )  # fmt: skip
        else:
            _solve_block(
                0, sums, scale, gate, gradient_norm2, products, gram_, multipliers, applied, coefficients, finite,
                blocks, combination, signs, margins, margin_stride, floors, previous, counts, means, parts, N,
                sums, 0, HAS_SCALE, HAS_GATE, HAS_FLOOR, ONLY_VIOLATED, HAS_COUNTS, HAS_MEANS, GATE_STRIDE, ROWS,
                TOLERANCE, ROUNDING, False,
            )  # fmt: skip
        tl.debug_barrier()
        tl.atomic_xchg(meeting, 0)
        tl.atomic_add(meeting + 1, 1)
    while tl.atomic_add(meeting + 1, 0) == turn:
        pass
    tl.debug_barrier()
    _apply_unit(
        unit, 0, addresses, lengths, chunk_tensor, chunk_start, unit_first, coefficients, applied,
        G, B, WIDTH, VECTORS, N, CHUNK, APPLY_BLOCK, ALIGNED,
    )  # fmt: skip
