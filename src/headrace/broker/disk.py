"""File helpers for the data folder, used by the log and the catalog."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path


def private(path: str, flags: int) -> int:
    """Open a file readable only by the broker's user; an opener for `open`."""
    return os.open(path, flags, 0o600)


def unused(name: Callable[[int], Path]) -> Path:
    """Return the first of the paths `name(0)`, `name(1)`, … that does not exist."""
    return next(path for path in map(name, itertools.count()) if not path.exists())


def numbered(path: Path) -> Callable[[int], Path]:
    """Return a function for `unused`: the path itself, then with the suffixes .1, .2, …"""
    return lambda number: path.with_name(f"{path.name}.{number}") if number else path


def sync_path(path: Path | str) -> None:
    """Sync a file, or the entries of a folder. Thread-safe: it opens the path itself."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
