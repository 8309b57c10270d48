"""Any corrector's step written out slowly in float64, from weights and gradients; nothing shared with src."""

from __future__ import annotations

import copy

import numpy as np
from slow_dcl import project


def flat(tensor):
    return tensor.detach().double().flatten().resolve_neg().numpy().copy()


class SlowStep:
    """What one corrector remembers from step to step. Parameters are known by their places in a list."""

    def __init__(self, sources):
        self.time = [0] * len(sources)
        self.slots = [{} for _ in sources]  # by parameter, one array per reference
        self.lengths = {}  # of each source: how many constraints, and |a_i| and what had a gradient, by block
        self.last_active, self.selected, self.changed = None, None, 0

    def begin(self, corrector, selected, weights, held):
        """Record references; ``held``: which parameters train."""
        self.tied = False  # whether rounding decides what counts in this step
        if self.selected != selected:
            self.lengths = {}
        self.selected, self.active = copy.deepcopy(selected), []
        for k, source in enumerate(corrector.sources):
            if not hasattr(source, "window"):
                self.active.append(source.active)
                continue
            phase, slots = self.phase(k, source), self.slots[k]
            if phase == 0:
                for gone in set(slots) - {i for group in selected for i in group}:
                    del slots[gone]
            zero = source.accumulate == "gradients"
            for i in held:
                slots.setdefault(i, [weights[i] * (not zero) for _ in range(source.count)])
            if 0 <= phase < source.count:
                for i, own in slots.items():
                    own[phase] = weights[i] * (not zero)
            self.active.append(source.count if phase >= source.count else 0)

    def phase(self, k, source):
        since = self.time[k] - source.offset
        return since if source.window is None or since < 0 else since % source.window

    def accumulated(self, k, source, i, weights, gradients, parameter, optimizer, correct):
        """(constraints, elements) a of one parameter."""
        ascent = -1.0 if optimizer.param_groups[0]["maximize"] else 1.0
        if hasattr(source, "window"):
            own = np.stack(self.slots[k][i])
            mixed = (correct == "gradient") == (source.accumulate == "weights")
            a = own - weights[i] if source.accumulate == "weights" else np.cumsum(own[::-1], 0)[::-1]
            return a * (ascent if mixed else 1.0)
        if source.needs_update:
            return ascent * gradients[i][None]
        vectors = source.given(parameter)
        turned = ascent if correct == "update" and not hasattr(source, "held") else 1.0
        return turned * np.stack([flat(v) for v in vectors])

    def correct(self, corrector, y, weights, gradients, parameters, group_of, *, scale=1.0, rates=None, momentum=None):
        """x for every parameter in y, and the projected momentum; ``rates``: of the parameter groups, for updates."""
        sources, correct = corrector.sources, corrector.target
        counts = [(k, s) for k, s in enumerate(sources) if self.active[k]]
        if not y or not counts:
            if not y:
                if self.last_active is not None and self.last_active != self.active:
                    self.lengths = {}
            else:
                self.lengths, self.last_active = {}, None
            return dict(y), momentum
        finite = all(np.isfinite(g).all() for g in y.values())
        rows, limits, margins, compared, gates, owner = {}, [], [], [], [], []
        for k, source in counts:
            for j in range(self.active[k]):
                limits.append(np.inf if source.floor in (None, 1.0) else source.floor)
                margins.append(source.margin)
                compared.append(source.returning and source.floor is not None)
                gates.append(True if source.gate is None else bool(source.gate))
                owner.append((k, j))
        for i in y:
            parts = [
                self.accumulated(k, s, i, weights, gradients, parameters[i], corrector.optimizer, correct)
                * (1.0 if getattr(s, "mode", "concentrate") == "concentrate" else -1.0)
                for k, s in counts
            ]
            rows[i] = np.concatenate(parts) * np.array(gates, dtype=float)[:, None]
        margins, limits = np.array(margins), np.array(limits)
        floored = any(s.floor for _, s in counts)
        x, new, moved = {i: g.copy() for i, g in y.items()}, {}, {i: m.copy() for i, m in (momentum or {}).items()}
        for name, members in self.blocks(corrector.blocks, y, parameters, group_of).items():
            part = [(i, s) for i, s in members]
            joined = lambda of: np.concatenate([of[i][..., s] for i, s in part], -1)  # noqa: B023, E731
            g, c = joined(y) / scale, joined(rows)
            if corrector.blocks == "element":
                rate = 1.0 if rates is None else rates[group_of[part[0][0]]]
                corrected = self.masked(g, c, margins * rate, corrector.trigger) if finite else g
            else:
                there = frozenset(i for i, s in part if parameters[i].numel())
                lengths = np.linalg.norm(c, axis=1) * finite
                sums = [getattr(sources[k], "accumulate", "") == "gradients" for k, _ in owner]
                self.tied |= bool(np.any(lengths[sums] < 1e-9))  # 0 but for rounding, maybe
                before = self.known(name, there, owner, compared)
                new[name] = (lengths, there)
                if not finite:
                    continue
                rate = 1.0 if rates is None else max(rates[group_of[i]] for i, _ in part)
                options = (limits, lengths, before, compared, corrector.trigger, floored)
                corrected = self.projected(g, c, margins * rate, *options)
                with_momentum = [(i, s) for i, s in part if i in moved]
                if with_momentum:
                    m = np.concatenate([moved[i][s] for i, s in with_momentum])
                    cm = np.concatenate([rows[i][..., s] for i, s in with_momentum], -1)
                    options = (limits, np.linalg.norm(cm, axis=1), *options[2:])
                    self.spread(self.projected(m, cm, margins * 0, *options), with_momentum, moved)
            self.spread(corrected * scale, part, x)
        self.lengths = {}
        if floored:
            for place, (k, j) in enumerate(owner):
                if compared[place]:
                    self.lengths[k, j] = (self.active[k], {n: (v[place], t) for n, (v, t) in new.items()})
        self.last_active = list(self.active) if floored else None
        self.changed += any(not np.allclose(x[i], y[i], rtol=1e-12, atol=0) for i in y)
        return x, moved if momentum is not None else None

    @staticmethod
    def spread(vector, part, to):
        start = 0
        for i, s in part:
            size = to[i][s].size
            to[i][s] = vector[start : start + size]
            start += size

    def blocks(self, kind, y, parameters, group_of):
        found = {}
        for i in y:
            p = parameters[i]
            if kind == "row":
                rows = p.shape[0] if p.ndim else 1
                width = p.numel() // max(rows, 1)
                for r in range(rows):
                    found[i, r] = [(i, slice(r * width, (r + 1) * width))]
            else:
                name = {"joint": 0, "group": group_of[i]}.get(kind, i)
                found.setdefault(name, []).append((i, slice(0, p.numel())))
        return found

    def known(self, name, there, owner, compared):
        before = []
        for (k, j), asked in zip(owner, compared, strict=True):
            held = self.lengths.get((k, j))
            found = held and held[0] == self.active[k] and held[1].get(name)
            before.append(np.inf if not asked else found[0] if found and found[1] == there else 0.0)
        return np.array(before)

    def projected(self, g, c, margins, limits, lengths, before, compared, trigger, floored):
        self.tied |= bool(g.size and c.any() and np.linalg.norm(g) < 1e-9)
        if floored:
            size, least = lengths * np.linalg.norm(g), np.where(np.isinf(limits), 1e9, limits)
            self.tied |= bool(
                np.any((abs(c @ g + least * size) < 1e-9 * size) | (abs(lengths - before) < 1e-9 * lengths))
            )
            c = c * (((c @ g >= -least * size) | np.isinf(limits)) & (lengths <= before))[:, None]
        if trigger == "violated":
            sizes = np.linalg.norm(c, axis=1) * np.linalg.norm(g)
            self.tied |= bool(np.any((abs(c @ g) < 1e-9 * sizes) & (sizes > 0)))
            if not np.any(c @ g < 0):
                return g
        used = np.linalg.norm(c, axis=1) > 0
        shifted = g + margins[used] @ c[used] if used.any() else g
        return project(shifted, c, 0.0) if used.any() else shifted

    def masked(self, g, c, margins, trigger):
        shifted = g + margins @ c
        self.tied |= near_zero(g, c) or near_zero(shifted, c)
        if trigger == "violated":
            shifted = np.where((g * c < 0).any(0), shifted, g)
        return np.where((shifted * c < 0).any(0), 0.0, shifted)

    def finish(self, corrector, used, finite):
        """``used``: the gradients that the optimizer used."""
        for k, source in enumerate(corrector.sources):
            if not hasattr(source, "window"):
                continue
            phase = self.phase(k, source)
            if source.accumulate == "gradients" and phase >= 0 and finite:
                for i, g in used.items():
                    self.slots[k][i][min(phase, source.count - 1)] = self.slots[k][i][min(phase, source.count - 1)] + g
            self.time[k] += 1


def near_zero(y, c):
    """Whether rounding decides on which side of 0 an element is."""
    return bool(np.any((c != 0) & ((abs(y) < 1e-9) | (abs(c) < 1e-9))))


def cautious(slow, corrector, before, after, decay, gradients, ascent):
    """The weights after a cautious step, by parameter; ``decay``: what it multiplied them by."""
    found = {}
    for i, g in gradients.items():
        y = decay[i] * before[i] - after[i]
        slow.tied |= near_zero(y, g[None])
        kept = y * g * ascent > 0
        base = decay[i] * before[i]
        if corrector.decay:
            base = np.where(y * before[i] < 0, before[i], base)
        most = min(1000.0, corrector.max_rescale or 1000.0)
        scale = y.size / max(kept.sum(), y.size / most) if corrector.rescale and y.size else 1.0
        found[i] = base - np.where(kept, scale * y, 0.0)
    return found
