"""What ``torchrun`` says about this process, before the loop has started."""

from __future__ import annotations

import os

__all__ = ["first_process", "process_count"]


def process_count() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first_process() -> bool:
    """Whether this is the one that writes and speaks."""
    return int(os.environ.get("RANK", "0")) == 0
