"""Seeds hashed from values, so that similar values give unrelated random streams."""

import hashlib


def hashed_seed(value: object, size: int = 8) -> int:
    """Return a non-negative seed: the BLAKE2b hash of ``repr(value)``, ``size`` bytes long, without its lowest bit.

    The same for every process and platform. Stored results depend on these seeds, so they must not change.
    """
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=size).digest(), "little") >> 1
