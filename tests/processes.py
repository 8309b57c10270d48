"""How a process that took part in a distributed test ends."""

import os
import sys

import torch.distributed as dist


def leave() -> None:
    """Exit at once, with success: gloo's threads now and then abort a process while Python winds down."""
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
