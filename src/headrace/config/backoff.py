"""Exponential back-off, as `*.backoff.ms` and `*.backoff.max.ms` options describe it. Used by clients and broker."""

from __future__ import annotations

import random

JITTER = 0.2
DOUBLINGS_MAX = 30


def exponential_backoff(base: float, maximum: float, failures: int, rng: random.Random | None = None) -> float:
    """Return the wait after `failures` in a row: `base`, doubled with each further one, up to `maximum`.

    With `rng`, it has jitter, so that many clients do not retry in step.
    """
    if failures <= 0 or base <= 0:
        return 0.0
    wait = min(base * 2.0 ** min(failures - 1, DOUBLINGS_MAX), max(base, maximum))
    return wait if rng is None else wait * rng.uniform(1 - JITTER, 1 + JITTER)
