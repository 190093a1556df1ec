"""Small helpers for files in the data folder, below the packages of the log and of the catalog, which both use them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path


def private(path: str, flags: int) -> int:
    """An opener for `open`: the file is for the broker's own user, as logs are."""
    return os.open(path, flags, 0o600)


def unused(name: Callable[[int], Path]) -> Path:
    """Return the first of the paths `name(0)`, `name(1)` and so on at which there is nothing yet."""
    return next(path for path in map(name, itertools.count()) if not path.exists())


def numbered(path: Path) -> Callable[[int], Path]:
    """Return names for `unused`: the path itself, then the path with .1, .2 and so on behind it."""
    return lambda number: path.with_name(f"{path.name}.{number}") if number else path


def sync_path(path: Path | str) -> None:
    """Force a file, or the names in a folder, to disk: through a handle of its own, so from any thread."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
