"""The method written out slowly in numpy: whole vectors, equation by equation, nothing shared with src."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import nnls


def project(g: np.ndarray, rows: np.ndarray, margin: float) -> np.ndarray:
    """argmin 1/2 |x - g|^2 s.t. <c_i, x> >= 0 with multipliers v >= margin: nonnegative least squares of the dual."""
    rows = rows[np.linalg.norm(rows, axis=1) > 0]
    if not len(rows):
        return g
    shifted = g + rows.T @ np.full(len(rows), margin)
    scales = np.linalg.norm(rows, axis=1)
    u, _ = nnls((rows / scales[:, None]).T, -shifted, maxiter=1000)
    return shifted + (rows / scales[:, None]).T @ u


class SlowDCL:
    """One flat weight vector; ``blocks`` are lists of index arrays."""

    def __init__(
        self, blocks, references, window, offset, mode, margin, trigger, accumulate, floor=None, returning=False
    ):
        self.blocks, self.n, self.window, self.offset = blocks, references, window, offset
        self.sign = {"concentrate": 1.0, "anchor": -1.0}[mode]
        self.margin, self.trigger, self.accumulate = margin, trigger, accumulate
        self.floor, self.returning = floor if mode == "concentrate" else None, returning
        # of each block: |a_i| in the step before, and which entries had a gradient then
        self.lengths: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.t = 0
        self.points: list[np.ndarray] = []  # r_1 .. r_N
        self.gradients: list[list[np.ndarray]] = []  # the gradients used since each r_i
        self.recording = False

    def correct(self, w, g, present, *, gradient=None, decayed=None, rates=None) -> np.ndarray:
        """``present``: which entries have a gradient in this step.

        With ``gradient``, g is an update: ``decayed`` are the weights that the optimizer subtracts it from, and the
        margin acts as each block's learning rate times it.
        """
        restart = self.t == self.offset if self.window is None else self.t % self.window == self.offset
        if restart:
            self.points, self.gradients, self.recording = [], [], True
            self.lengths = {}
        self.last = None  # what the present update was corrected by
        self.present = present
        x = np.where(present, g, 0.0)
        if self.recording:
            self.points.append(w.copy())
            self.gradients.append([])
            self.recording = len(self.points) < self.n
        elif self.points:
            here, before = w if decayed is None else decayed, dict(self.lengths)
            rows = self.sign * self._accumulated(here) * present
            x = self._corrected(rows, before, rates, x, self.margin)
            self.last = (rows, before, rates)
        for used in self.gradients:
            used.append(x if gradient is None else gradient)
        self.t += 1
        return x

    def momentum(self, m: np.ndarray) -> np.ndarray:
        """The optimizer's momentum, projected as the last update was, without a margin."""
        return m if self.last is None else self._corrected(*self.last, m, margin=0.0)

    def _accumulated(self, w: np.ndarray) -> np.ndarray:
        if self.accumulate == "weights":
            return np.stack([-(w - r) for r in self.points])
        return np.stack([np.sum(used, axis=0) for used in self.gradients])

    def _corrected(self, rows, lengths_before, rates, g, margin):
        x = g.copy()
        for b, block in enumerate(self.blocks):
            c, part = rows[:, block], g[block]
            if self.floor is not None:
                lengths = np.linalg.norm(c, axis=1)
                counts = (c @ part >= -self.floor * lengths * np.linalg.norm(part)) | (self.floor == 1.0)
                if self.returning:
                    present = self.present[block]
                    before, had_gradient = lengths_before.get(b, (np.zeros(self.n), present))
                    counts &= (lengths <= before) & np.array_equal(present, had_gradient)
                    self.lengths[b] = (lengths, present)
                c = c * counts[:, None]
            if self.trigger == "violated" and not np.any(c @ part < 0):
                continue
            x[block] = project(part, c, margin * (1.0 if rates is None else rates[b]))
        return x


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> Callable:
    buffer = None

    def update(w, g, present):
        nonlocal buffer
        g = g + weight_decay * w
        buffer = g if buffer is None else momentum * buffer + g
        return np.where(present, w - lr * buffer, w)

    def change(function):
        nonlocal buffer
        if momentum:
            buffer = function(buffer)

    update.change = change
    return update


def adam(lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Callable:
    m = v = 0.0
    t = 0

    def update(w, g, present):
        nonlocal m, v, t
        t += 1
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        step = lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        return np.where(present, w - step, w)

    def change(function):
        nonlocal m
        m = function(m)

    update.change = change
    return update


def rmsprop(lr: float, alpha: float = 0.99, eps: float = 1e-8) -> Callable:
    v = 0.0

    def update(w, g, present):
        nonlocal v
        v = alpha * v + (1 - alpha) * g * g
        return np.where(present, w - lr * g / (np.sqrt(v) + eps), w)

    return update
