"""Facts that all Python processes of a Spark application share, such as what was warned of.

Spark plans the batches of a stream in several processes, and ends those that are idle. A fact is an empty file in a
folder of the application, which Spark deletes when it ends. Without such a folder, a process has its own facts.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Set by Spark for its Python processes."""
_own: set[str] = set()


def note(fact: str) -> bool:
    """Note a fact; return False if it was noted before."""
    path = _path(fact)
    if path is None:
        is_new = fact not in _own
        _own.add(fact)
        return is_new
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # the folder is gone, or full
        return True
    return True


def is_noted(fact: str) -> bool:
    path = _path(fact)
    return fact in _own if path is None else path.exists()


def _path(fact: str) -> Path | None:
    folder = os.environ.get(LOCAL_DIRS, "").partition(",")[0]
    return Path(folder, f"headrace-{hashlib.sha256(fact.encode()).hexdigest()[:16]}") if folder else None
