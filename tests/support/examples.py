"""How many random examples tests try: a third of them in `make test-quick`, all in `make test`."""

from __future__ import annotations

import os

IS_QUICK = os.environ.get("HEADRACE_QUICK_TESTS") == "1"
DEFAULT_EXAMPLES = 100
"""Hypothesis's own default."""


def examples(count: int) -> int:
    """Return the number of examples for `max_examples`."""
    return max(5, count // 3) if IS_QUICK else count
