"""Which samples of a stream a replay memory keeps and draws: by index, apart from the samples themselves."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from congruency._validate import check_choice, check_whole

__all__ = ["Places", "Replay", "ReplayOrder", "ReplaySlots"]

Replay = Literal["reservoir", "ring"]
ReplayOrder = Literal["random", "passes"]
Places = tuple[list[int], list[int]]
"""Slots, and the sample that goes to each."""


class ReplaySlots:
    """The slots of a memory that holds ``size`` samples per task, ``size * tasks`` in all.

    ``"reservoir"`` (Vitter, 1985): sample t of the stream, counted from 0, takes slot t while there are free ones, then
    slot j drawn from 0..t if there is such a slot. At any time the memory is a uniform sample of the stream so far, the
    present task included. ``"ring"``: the last ``size`` samples of each past task.

    Samples are drawn with replacement (order ``"random"``) or in shuffled ``"passes"`` over the memory, a new one when
    the last has ended or a task begins; the last draw of a pass has what is left of it, as a DataLoader's last batch.

    What is drawn in a task depends on ``seed`` and the task alone, so that an interrupted run can resume at a task.
    """

    def __init__(self, size: int, tasks: int, policy: Replay, seed: int, order: ReplayOrder = "random") -> None:
        check_choice("replay", policy, get_args(Replay))
        check_choice("replay_order", order, get_args(ReplayOrder))
        check_whole("memory", size, "a whole number of samples per task, at least 1", least=1)
        self.size, self.policy, self.seed, self.order = size, policy, seed, order
        self.filled = self.seen = 0
        self.owners = np.full(size * tasks, -1)  # task of the sample in each slot, -1 for none
        self.offsets = np.zeros(size * tasks, dtype=np.int64)  # its place in its task
        self.begin(0)

    def begin(self, task: int) -> None:
        """Start a task."""
        self._task, self._of_task = task, 0
        self._left: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # of the present pass
        self._draws, self._insertions = (np.random.RandomState([self.seed, task, use]) for use in (1, 2))

    def draw(self, count: int) -> NDArray[np.int64] | None:
        """``count`` slots, or what is left of a pass; None while the memory is empty."""
        if not self.filled:
            return None
        if self.order == "random":
            return self._draws.randint(self.filled, size=count)
        if not len(self._left):
            self._left = self._draws.permutation(self.filled)
        drawn, self._left = self._left[:count], self._left[count:]
        return drawn

    def observe(self, count: int) -> Places:
        """The slots that samples of a batch of ``count`` go to, and which samples these are."""
        kept: dict[int, int] = {}  # of two samples for one slot the later stays
        if self.policy == "reservoir":
            for sample in range(count):
                slot = self.seen + sample
                if slot >= len(self.owners):
                    slot = int(self._insertions.randint(slot + 1))
                if slot < len(self.owners):
                    kept[slot] = sample
        self.seen += count
        places = list(kept), list(kept.values())
        self._insert(places, self._of_task)
        self._of_task += count
        return places

    def finish(self) -> Places:
        """As :meth:`observe`, at the end of a task and of all its samples."""
        if self.policy == "reservoir":
            return [], []
        kept = min(self.size, self._of_task)
        places = list(range(self.filled, self.filled + kept)), list(range(self._of_task - kept, self._of_task))
        self._insert(places, 0)
        return places

    def _insert(self, places: Places, start: int) -> None:
        slots, samples = places
        if not slots:
            return
        self.owners[slots], self.offsets[slots] = self._task, np.array(samples, dtype=np.int64) + start
        self.filled = int((self.owners >= 0).sum())

    def load(self, owners: NDArray[np.int64], offsets: NDArray[np.int64], seen: int) -> None:
        """Continue with the slots of another of the same size."""
        self.owners[:], self.offsets[:], self.seen = owners, offsets, seen
        self.filled = int((self.owners >= 0).sum())
